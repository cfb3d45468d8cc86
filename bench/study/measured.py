#!/usr/bin/env python3
"""The study's rows on several ranks: planned and measured peaks of each phase, of every rank.

    measured.py NEAP [--mpirun MPIRUN] > bench/results/study-cpu.jsonl
    measured.py NEAP --gpus [--ranks N ...] [--minutes M] > bench/results/study-ranks-GPU.jsonl

On CPU ranks (2 and 4): random weights, 4 blocks and LoRA of rank 16. On GPUs (4): the study's sizes, under 24 GiB or, for an A100, 80 GiB a
GPU; after M minutes (default 15) no further row starts. A row that fails is reported and the others go on. Exits 1 where a row fails, or a
peak is more than 0.2 % off its plan (on GPUs above it: prompts are shorter than planned).
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import planned

import plan_check
import rank_processes

sys.path.insert(0, str(planned.ROOT / "bench" / "data"))
from small_model import REVIEWS, environment  # noqa: E402

RANKS, STEPS, TOLERANCE, LORA = (2, 4), 2, 0.2, 16
SIZES = {"deepspeed": {"rows": 2, "prompt": 32, "response": 32}, "others": {"rows": 8, "prompt": 24, "response": 8}}
DATA = ('data.train_files=["prompts.jsonl"]', "data.truncation=left", "trainer.save_freq=-1", f"trainer.total_training_steps={STEPS}")
MEMORY = {"cpu": "2GiB", "rtx3090": "24GiB", "a100": "80GiB"}


def home_of(folder, group, gpus):
    """Models and data of a row's set, and what writes its job for a number of ranks."""
    sizes, actor, critic, _ = planned.SETS[group]
    configs = planned.MODELS
    if not gpus:
        sizes = SIZES["deepspeed" if group.startswith("deepspeed") else "others"]
        configs = {name: planned.small(planned.MODELS[name]) for name in (actor, critic)}

    def for_ranks(ranks):
        planned.job(folder, sizes, actor, critic, ranks, configs, *(() if gpus else (LORA, "cpu")))

    for_ranks(RANKS[0])
    for name in {actor, critic}:
        shutil.copy(REVIEWS / "model" / "tokenizer.json", folder / name)
        planned.random_models.write_weights(folder / name / "model.safetensors", configs[name])
    shutil.copy(REVIEWS / "prompts_train.jsonl", folder / "prompts.jsonl")
    return for_ranks


def least(neap, folder, ranks, words):
    """Memory that the plan names as the least."""
    done = subprocess.run([neap, "plan", "job.toml", "--json", "--ranks", str(ranks), *words], cwd=folder, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{words}: exit {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout)["alternatives"]["min_capacity"]


def of_rank(folder):
    plan = json.loads((folder / "plan.json").read_text())
    ran = [json.loads(line) for line in (folder / "phases.jsonl").read_text().splitlines()]
    peaks = {}
    for row in ran:
        peaks[row["phase"]] = max(peaks.get(row["phase"], 0), row["peak"])
    return {phase["name"]: {"planned": phase["peak"], "measured": peaks[phase["name"]]} for phase in plan["phases"] if phase["name"] in peaks}


def measure(neap, mpirun, folder, ranks, strategy, memory, port):
    keys = planned.STRATEGIES[strategy]
    words = [*DATA, f"device.memory={memory}", *(key for key in keys if key)]
    if None in keys:
        words.append(f"device.memory={least(neap, folder, ranks, words)}B")
    out, start = folder / "out", time.monotonic()
    command = [neap, "train", "job.toml", f"trainer.default_local_dir={out}", *words]
    try:
        metrics, _ = rank_processes.run_until_logged(rank_processes.commands(command, ranks, port, mpirun), out, folder / "messages", 300, STEPS, mpirun, folder)
        of_ranks = [of_rank(each) for each in rank_processes.of_ranks(out, ranks)]
    finally:
        shutil.rmtree(out, ignore_errors=True)
    peaks = [max(rank.values(), key=lambda phase: phase["planned"]) for rank in of_ranks]
    percents = [100 * (phase["measured"] / phase["planned"] - 1) for rank in of_ranks for phase in rank.values()]
    return {"planned": max(p["planned"] for p in peaks), "measured": max(p["measured"] for p in peaks),
            "phases": len(percents), "largest_percent": round(max(percents, key=abs), 3), "run_seconds": round(time.monotonic() - start, 1),
            **({} if mpirun else {"highest_percent": round(max(percents), 3), "seconds_a_step": round(metrics[-1]["timing_s/step"], 3)})}


def rows_of(options, neap, group):
    """The set's rows, one after the other."""
    gpus = options.gpus
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        for_ranks = home_of(folder, group, gpus)
        memory = MEMORY[planned.SETS[group][0]["gpu"] if gpus else "cpu"]
        for ranks in options.ranks or ((4,) if gpus else RANKS):
            for_ranks(ranks)
            for number, strategy in enumerate(planned.SETS[group][3]):
                row = {"ranks": ranks, "strategy": strategy}
                if gpus and time.monotonic() - options.begin > 60 * options.minutes:
                    yield row | {"failed": "did not start in time"}
                    continue
                try:
                    yield row | measure(neap, "" if gpus else options.mpirun, folder, ranks, strategy, memory, 29500 + 10 * ranks + number)
                except (RuntimeError, OSError) as error:
                    yield row | {"failed": str(error)[:1500]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap", type=pathlib.Path)
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--set", action="append", choices=planned.SETS)
    options = parser.parse_args()
    options.begin = time.monotonic()
    neap, right = str(options.neap.resolve()), True
    command = "bench/study/measured.py NEAP" + (" --gpus" if options.gpus else "")
    known = {**plan_check.environment(neap), "command": command} if options.gpus else environment(neap, command)
    print(json.dumps({"date": time.strftime("%Y-%m-%d"), "environment": known}), flush=True)
    for group in options.set or planned.SETS:
        for row in rows_of(options, neap, group):
            off = row.get("highest_percent", abs(row.get("largest_percent", 0)))
            right = right and "failed" not in row and off <= TOLERANCE
            print(json.dumps({"set": group, **row}), flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
