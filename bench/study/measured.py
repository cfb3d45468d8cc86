#!/usr/bin/env python3
"""The study's rows with small models on 2 and 4 CPU ranks: planned and measured peaks of each phase, of every rank.

    measured.py NEAP [--mpirun MPIRUN] > bench/results/study-cpu.jsonl

Models have random weights, 4 blocks and LoRA of rank 16. Exits 1 where a peak is more than 0.2 % off its plan.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import planned

sys.path.insert(0, str(planned.ROOT / "bench" / "data"))
from small_model import REVIEWS, environment  # noqa: E402

RANKS, STEPS, TOLERANCE, LORA = (2, 4), 2, 0.2, 16
SIZES = {"deepspeed": {"rows": 2, "prompt": 32, "response": 32}, "others": {"rows": 8, "prompt": 24, "response": 8}}
DATA = ('data.train_files=["prompts.jsonl"]', "data.truncation=left", "trainer.save_freq=-1", f"trainer.total_training_steps={STEPS}",
        "device.memory=2GiB")


def home_of(folder, group):
    """Models and data of a row's set, and what writes its job for a number of ranks."""
    _, actor, critic, _ = planned.SETS[group]
    sizes = SIZES["deepspeed" if group.startswith("deepspeed") else "others"]
    configs = {name: planned.small(planned.MODELS[name]) for name in (actor, critic)}

    def for_ranks(ranks):
        planned.job(folder, sizes, actor, critic, ranks, configs, LORA, "cpu")

    for_ranks(RANKS[0])
    for name, config in configs.items():
        shutil.copy(REVIEWS / "model" / "tokenizer.json", folder / name)
        planned.random_models.write_weights(folder / name / "model.safetensors", config)
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


def measure(neap, mpirun, folder, ranks, strategy):
    keys = planned.STRATEGIES[strategy]
    words = [*DATA, *(key for key in keys if key)]
    if None in keys:
        words.append(f"device.memory={least(neap, folder, ranks, words)}B")
    out, start = folder / "out", time.monotonic()
    done = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), neap, "train", "job.toml", f"trainer.default_local_dir={out}", *words],
                          cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "NEAP_PROGRESS": "off"})
    if done.returncode:
        raise SystemExit(f"{strategy} on {ranks} ranks: exit {done.returncode}: {done.stderr[-1500:]}")
    of_ranks = [of_rank(out if rank == 0 else out / "ranks" / str(rank)) for rank in range(ranks)]
    shutil.rmtree(out)
    peaks = [max(rank.values(), key=lambda phase: phase["planned"]) for rank in of_ranks]
    percents = [100 * (phase["measured"] / phase["planned"] - 1) for rank in of_ranks for phase in rank.values()]
    return {"ranks": ranks, "strategy": strategy, "planned": max(p["planned"] for p in peaks), "measured": max(p["measured"] for p in peaks),
            "phases": len(percents), "largest_percent": round(max(percents, key=abs), 3), "run_seconds": round(time.monotonic() - start, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap", type=pathlib.Path)
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--set", action="append", choices=planned.SETS)
    options = parser.parse_args()
    neap, right = str(options.neap.resolve()), True
    print(json.dumps({"date": time.strftime("%Y-%m-%d"), "environment": environment(neap, "bench/study/measured.py NEAP")}), flush=True)
    for group in options.set or planned.SETS:
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work)
            for_ranks = home_of(folder, group)
            for ranks in RANKS:
                for_ranks(ranks)
                for strategy in planned.SETS[group][3]:
                    row = measure(neap, options.mpirun, folder, ranks, strategy)
                    right = right and abs(row["largest_percent"]) <= TOLERANCE
                    print(json.dumps({"set": group, **row}), flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
