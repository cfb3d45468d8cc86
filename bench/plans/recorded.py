#!/usr/bin/env python3
"""Steps under a ceiling that were measured on a GPU, and what a plan of the same job says today.

    recorded.py NEAP [--limit PERCENT] [--write]

The rows are those of bench/results/{least-capacity,grpo14b}-*.jsonl, which tests/gpu/ceilings.py wrote, and of start-h200.jsonl, which
tests/gpu/start.py wrote with the job of docs/start.md. Each job is planned with its
settings for the GPU that it ran on, with the rates of the catalogue; nothing is fitted to a row. A machine whose link to the host is
slower than the catalogue's (the H100 of 2026-11-25: its streamed steps) shows as seconds that are short, and so does a program that
was slower (the H100's grpo14b, before decoding took FlashAttention). Prints planned beside measured
seconds and peaks; where a plan takes other ways than that of the day, both differ. --limit: exits 1 if the median error of the seconds
is larger, or that of the peaks than 0.2 %. --write: the host and disk bytes of these plans go to bench/results/planned-host.jsonl, for
the tables of docs/measurements/training.md.
"""
import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import ceilings  # noqa: E402
import plan_check  # noqa: E402
import random_models  # noqa: E402
import start  # noqa: E402

FILES = ("least-capacity-h200", "grpo14b-h200", "least-capacity-h100", "start-h200")
OF_THE_MACHINE = ("trainer.default_local_dir=", "device.kind=", "reward_model.model.path=", "actor_rollout_ref.model.path=", "data.train_files=",
                  "data.val_files=")
START_MODEL = "qwen2.5-1.5b"
KERNELS = "device.kernels=libtorch"  # as in these runs
NEAR_PEAK = 0.2  # percent


def rows():
    for name in FILES:
        for line in (ROOT / "bench" / "results" / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            if row["case"] in ceilings.WORK or row["case"] in start.OWN:
                yield row | {"card": name.rsplit("-", 1)[1]}


@functools.cache
def folder_of(work, prompt_words):
    """With data whose prompts are so long."""
    folder = work / str(prompt_words)
    folder.mkdir()
    plan_check.make_data(folder, ROOT / "examples" / "reviews", prompt_words)
    return folder


@functools.cache
def job_of(work, name):
    """The configuration of a case, whose models have no weights, and words that go with it."""
    if name in start.OWN:
        work = work / "start"
        (work / START_MODEL).mkdir(parents=True, exist_ok=True)
        (work / START_MODEL / "config.json").write_text(json.dumps(random_models.MODELS[START_MODEL]))
        start.check_docs.write_files(ROOT / "docs" / "start.md", work)
        return work / "first" / "grpo.toml", (f"actor_rollout_ref.model.path={work / START_MODEL}", "data.train_files=[]", "data.val_files=[]")
    case, reward, _ = ceilings.WORK[name]
    work = folder_of(work, case.prompt if case.prompt > 1024 else 0)
    for model in filter(None, (case.model, reward)):
        (work / model).mkdir(exist_ok=True)
        (work / model / "config.json").write_text(json.dumps(random_models.MODELS[model]))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            source = ROOT / "examples" / "reviews" / "model" / file
            if source.exists():
                (work / model / file).write_bytes(source.read_bytes())
    job = work / f"{name}.toml"
    job.write_text(case.toml(work))
    return job, (f"reward_model.model.path={work / reward}",) if reward else ()


def planned(neap, work, row):
    job, words = job_of(work, row["case"])
    measured = [word for word in row["command"].split(".toml ", 1)[1].split() if not word.startswith(OF_THE_MACHINE)]
    done = subprocess.run([neap, "plan", job, "--gpu", row["card"], "--json", "device.kind=cuda", KERNELS, *words, *measured],
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{row['case']}: exit {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap", type=pathlib.Path)
    parser.add_argument("--limit", type=float)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    ceilings.ARGS = plan_check.ARGS = types.SimpleNamespace(steps=4, rehearse=False, deterministic=False)
    errors, peaks, hosts = [], [], []
    print(f"{'job':20} {'GPU':>5} {'GiB':>7} {'peak':>8} {'seconds':>9} {'planned':>9}")
    with tempfile.TemporaryDirectory() as work:
        for row in rows():
            plan = planned(arguments.neap.resolve(), pathlib.Path(work), row)
            seconds = 100 * (plan["seconds"] / row["seconds_a_step"] - 1)
            peak = 100 * (plan["peak"] / row["measured_peak"] - 1)
            errors.append(abs(seconds))
            peaks.append(abs(peak))
            hosts.append({"case": row["case"], "date": row["date"], "peak": plan["peak"], "host_bytes": plan["host_bytes"],
                          "disk_bytes": plan["disk_bytes"]})
            print(f"{row['case']:20} {row['card']:>5} {row['capacity'] / 2**30:7.2f} {peak:+7.2f}% {row['seconds_a_step']:9.3f} "
                  f"{plan['seconds']:9.3f} {seconds:+4.0f} %", flush=True)
    if arguments.write:
        (ROOT / "bench" / "results" / "planned-host.jsonl").write_text("".join(json.dumps(host) + "\n" for host in hosts))
    median, of_peaks = statistics.median(errors), statistics.median(peaks)
    print(f"median error of the seconds {median:.1f} %, worst {max(errors):.0f} %; of the peaks {of_peaks:.2f} %, worst {max(peaks):.1f} %")
    return int(arguments.limit is not None and (median > arguments.limit or of_peaks > NEAR_PEAK))


if __name__ == "__main__":
    sys.exit(main())
