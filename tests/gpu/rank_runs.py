"""Runs of one package's trainer on several ranks, one after the other: the loop and the options of ranks.py, rollout_ranks.py and rl_ranks.py.

ARGS is set by run_all().
"""
import argparse
import dataclasses
import pathlib
import sys
import tempfile
import typing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "ranks"))
import efficiency  # noqa: E402
import plan_check  # noqa: E402
import random_models  # noqa: E402

REVIEWS = efficiency.ROOT / "examples" / "reviews"
ARGS = None


@dataclasses.dataclass
class Run:
    """A run and what becomes of its result."""
    title: str
    about: dict  # of its line
    folder: pathlib.Path
    measure: typing.Callable  # (neap, port) -> result
    wrong: typing.Callable  # result -> what is wrong with it
    show: typing.Callable  # result


def parser_of(description, *, ranks, steps, minutes):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("package")
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--rehearse", nargs="?", const="mpirun", default="")
    parser.add_argument("--keys", nargs="*", default=[], metavar="KEY=VALUE")
    return parser


def run_all(suite, arguments, runs, port):
    """Every Run that runs(work folder) yields, until the time is over; the exit code. `port` is the first run's."""
    global ARGS
    ARGS = plan_check.ARGS = efficiency.ARGS = arguments
    done = plan_check.Runs(suite)
    neap = pathlib.Path(arguments.package).resolve() / "bin" / "neap"
    known = plan_check.environment(neap)
    with tempfile.TemporaryDirectory(prefix=f"neap-{suite}-") as temporary:
        for i, run in enumerate(runs(pathlib.Path(temporary))):
            if not done.may_start(run.title):
                continue
            about = {**run.about, "keys": arguments.keys, "environment": known}
            result = done.run(run.title, about, run.folder, lambda: run.measure(neap, port + i), run.wrong)
            if result:
                run.show(result)
    return done.end()


def make_inputs(work, case, tiny=None, **data):
    """Random weights and rows for a case. `tiny`: of a rehearsed model, in addition to random_models.TINY."""
    config = random_models.MODELS[case.model]
    if ARGS.rehearse:
        config = {**config, **{key: value for key, value in random_models.TINY.items() if key in config}, **(tiny or {})}
    random_models.make_model(work / case.model, config, REVIEWS / "model")
    plan_check.make_data(work, REVIEWS, **data)


def job_of(work, case):
    efficiency.CASE = case
    job = work / f"{case.task}.toml"
    job.write_text(case.toml(work))
    return job


def keys_of(*words):
    """Behind those of a rehearsal, and before those of the command line."""
    return [*(["device.kind=cpu", "device.memory=1GiB"] if ARGS.rehearse else []), *words, *ARGS.keys]


def over_plan(percents):
    """`percents`: (what, percent above the plan)."""
    most = 3 if ARGS.rehearse else 0.3
    return [f"{what} took {percent:+.2f} % of its plan" for what, percent in percents if percent > most]
