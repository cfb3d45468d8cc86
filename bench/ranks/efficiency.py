#!/usr/bin/env python3
"""SFT on one GPU and on two with the same tokens a GPU: seconds a step, efficiency, and both ranks beside their plans.

    efficiency.py OUT_DIR NAME=PACKAGE_DIR [NAME=PACKAGE_DIR ...] [--steps N] [--turns N] [--ctas N ...] [--minutes M]
                  [--rehearse [MPIRUN]] [-- KEY=VALUE ...]

Every package (scripts/package) trains a model of Qwen2.5-1.5B's shape with random weights on 8 rows of 2 048 tokens a GPU, alone and as
two ranks over NCCL, in turns (default 2). A run is ended after N steps (default 8; medians leave out the first two). --ctas: two ranks
with NCCL_MAX_CTAS besides. Keys behind -- go to every run. Appends to OUT_DIR/efficiency.jsonl a line a run, then one a package; a table
on stdout. About 15 seconds a run: 90 for a package; after M minutes (default 8) no further run starts. Exits 1 if a run fails or a
phase takes more than 0.2 % more memory than planned.
--rehearse: a tiny model on CPU ranks over MPI.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import plan_check  # noqa: E402
import rank_processes  # noqa: E402
import random_models  # noqa: E402
from card_memory import CardMemory  # noqa: E402

CASE = plan_check.Case("qwen2.5-1.5b", "sft", 8, 64, 1984)
TINY = plan_check.Case("qwen2.5-1.5b", "sft", 8, 32, 32)
WARM = 2
TRAINING = ("train", "backward", "update")  # the phases of SFT, where the update is one of its own or not
PEERS = ("communication_bytes", "communication_seconds", "communication_exposed_seconds")


def run(neap, job, folder, ranks, overrides, environment, port):
    """Rows, messages and command of a run that ends after ARGS.steps."""
    command = [neap, "train", job, f"trainer.default_local_dir={folder}", f"data.train_batch_size={ranks * CASE.rows}", *overrides]
    started = [(words, dict(known, **environment)) for words, known in rank_processes.commands(command, ranks, port, ARGS.rehearse)]
    metrics, words = rank_processes.run_until_logged(started, folder, f"{folder}.err", 240, ARGS.steps, ARGS.rehearse)
    return metrics, words, " ".join(started[0][0])


def rank_of(folder, steps):
    """Of each phase what was planned and measured; of packages of other days as well."""
    plan = json.loads((folder / "plan.json").read_text())
    planned = {phase["name"]: phase for phase in plan["phases"]}
    rows = [r for r in plan_check.json_lines(folder / "phases.jsonl") if r["step"] <= steps]
    of_steps = [[r for r in rows if r["step"] == step and r["phase"] in TRAINING] for step in range(WARM + 1, steps + 1)]
    training = [phase for name, phase in planned.items() if name in TRAINING]

    def train(key):
        return statistics.median(sum(r.get(key, 0) for r in step) for step in of_steps)

    nccl = [tag["bytes"] for tag in plan["tags"] if tag["tag"] == "ranks.nccl"]
    return {"planned_seconds": plan["seconds"], "train_seconds": train("seconds"),
            "planned_sent": sum(phase.get("communication_bytes", 0) for phase in training),
            "planned_peer_seconds": sum(phase.get("communication_seconds", 0) for phase in training), **{key: train(key) for key in PEERS},
            "planned_peak": plan["peak"], "measured_peak": max(r["peak"] for r in rows), "planned_nccl": nccl[0] if nccl else 0,
            "percent": max(100 * (r["peak"] / planned[r["phase"]]["peak"] - 1) for r in rows)}


def measure(neap, job, folder, ranks, overrides, environment, port):
    with CardMemory() as cards:
        metrics, words, command = run(neap, job, folder, ranks, overrides, environment, port)
    took = re.search(r"nccl takes (.*?) of the GPU", words[0])
    times = {key.removeprefix("timing_s/"): plan_check.median(metrics, key) for key in metrics[-1] if key.startswith("timing_s/")}
    return {"command": command, "seconds_a_step": times["step"], "seconds": times,
            "steps": [m["timing_s/step"] for m in metrics], "loss": [m["train/loss"] for m in metrics], "cards_mib": cards.most,
            "nccl_at_start": took.group(1) if took else None,
            "ranks": [rank_of(each, len(metrics)) for each in rank_processes.of_ranks(folder, ranks)]}


def wrong_in(result):
    return [f"rank {r} took {rank['percent']:+.2f} % of its plan" for r, rank in enumerate(result["ranks"])
            if rank["percent"] > (3 if ARGS.rehearse else 0.2)]


def show(name, result):
    rank = result["ranks"][0]
    peers = "" if not rank["communication_bytes"] else (
        f"; sums {rank['communication_bytes'] / 1e9:.2f} GB in {rank['communication_seconds']:.4f} s, {rank['communication_exposed_seconds']:.4f} of it visible, planned "
        f"{rank['planned_peer_seconds']:.4f}")
    print(f"   {result['seconds_a_step']:.4f} s a step (train {rank['train_seconds']:.4f}), planned {rank['planned_seconds']:.4f}{peers}; peaks "
          + " ".join(f"{r['percent']:+.3f} %" for r in result["ranks"]) + f"; cards {result['cards_mib']} MiB", flush=True)


def summary_of(package, results):
    one, two = ([r["seconds_a_step"] for r in results[ranks]] for ranks in ("1", "2"))
    last = results["2"][-1]
    planned = last["ranks"][0]["planned_seconds"]
    out = {"package": package, "one": one, "two": two, "efficiency": statistics.median(one) / statistics.median(two),
           "planned_one": results["1"][-1]["ranks"][0]["planned_seconds"], "planned_two": planned,
           "planned_off": planned / statistics.median(two) - 1, "planned_nccl": last["ranks"][0]["planned_nccl"],
           "nccl_at_start": last["nccl_at_start"]}
    train = {ranks: statistics.median(r["ranks"][0]["train_seconds"] for r in results[ranks]) for ranks in ("1", "2")}
    out |= {"train_one": train["1"], "train_two": train["2"], "efficiency_of_train": train["1"] / train["2"]}
    if last["cards_mib"] and results["1"][-1]["cards_mib"]:  # the rest of both is the same
        out["cards_more_mib"] = last["cards_mib"][0] - results["1"][-1]["cards_mib"][0]
    for name, runs in results.items():
        if name not in ("1", "2") and runs:  # those that started in time
            out[f"efficiency, {name}"] = statistics.median(one) / statistics.median([r["seconds_a_step"] for r in runs])
    return out


def main():
    plan_check.ARGS = ARGS
    suite = plan_check.Runs("efficiency")
    case = TINY if ARGS.rehearse else CASE
    packages = dict(word.split("=", 1) for word in ARGS.packages)
    variants = [("1", 1, {}), ("2", 2, {})] + [(f"{n} CTAs", 2, {"NCCL_MAX_CTAS": str(n)}) for n in ARGS.ctas]
    host = ["device.kind=cpu", "device.memory=1GiB"] if ARGS.rehearse else []
    results = {name: {variant: [] for variant, _, _ in variants} for name in packages}
    with tempfile.TemporaryDirectory(prefix="neap-efficiency-") as temporary:
        work = pathlib.Path(temporary)
        reviews = ROOT / "examples" / "reviews"
        config = random_models.MODELS[case.model]
        if ARGS.rehearse:
            config = {**config, **{key: value for key, value in random_models.TINY.items() if key in config}}
        random_models.make_model(work / case.model, config, reviews / "model")
        plan_check.make_data(work, reviews)
        job = work / "job.toml"
        job.write_text(case.toml(work))
        known = {name: plan_check.environment(pathlib.Path(package) / "bin" / "neap") for name, package in packages.items()}
        port = 29600
        for turn in range(ARGS.turns):
            for variant, ranks, environment in variants:
                for name, package in packages.items():
                    port += 1
                    title = f"{name}, {variant} rank{'s' if ranks > 1 else ''}, turn {turn + 1}"
                    if not suite.may_start(title):
                        continue
                    neap, folder = pathlib.Path(package) / "bin" / "neap", work / f"run-{port}"
                    about = {"case": variant, "package": name, "turn": turn, "environment": known[name]}
                    result = suite.run(title, about, folder, lambda: measure(neap, job, folder, ranks, [*host, *ARGS.keys], environment, port),
                                       wrong_in)
                    if result:
                        results[name][variant].append(result)
                        show(title, result)
    for name in packages:
        if results[name]["1"] and results[name]["2"]:
            line = {"suite": "efficiency", "case": "summary", "rehearsal": bool(ARGS.rehearse), **summary_of(name, results[name])}
            suite.log.write(json.dumps(line) + "\n")
            print(json.dumps(line))
    return suite.end()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("packages", nargs="+", metavar="NAME=PACKAGE_DIR")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--ctas", type=int, nargs="*", default=[])
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--rehearse", nargs="?", const="mpirun", default="")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    out = parser.parse_args(words[:cut])
    out.keys = words[cut + 1:]
    return out


if __name__ == "__main__":
    ARGS = arguments()
    sys.exit(main())
