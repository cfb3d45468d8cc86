#!/usr/bin/env python3
"""Mean times of the kernels of training steps, beside the plan's seconds and the measured ones.

usage: kernel_times.py OUT_DIR PACKAGE_DIR LIBKERNEL_TIMES [--case CASE]... [--steps N] [--minutes M] [--rehearse]

LIBKERNEL_TIMES: kernel_times.cpp, compiled as its head says. Each case runs N steps (default 8) twice, plain and with the library, and is
ended then. Writes OUT_DIR/kernel_times.jsonl: seconds of a step as planned, of the training phases as measured without and with the library
and, of these, waiting for streamed units; how often and how long the stream of the kernels had none, by the length of such gaps; and of the
kernels that take most of the run with it, loading included, how often each ran and its mean. A table on stdout. "streamed" cases have weights,
gradients and states of blocks on the host, "resident" ones compute as much again and stream nothing. After M minutes (default 8) no further
case starts. --rehearse: tiny models on the host, without the library.
"""
import json
import os
import pathlib
import statistics
import sys
import tempfile

import plan_check
from plan_check import Case
import random_models

LORA = ["actor_rollout_ref.model.lora_rank=16"]
REPEAT = ["trainer.deterministic=true"]
KEPT = ["actor_rollout_ref.model.activation_checkpointing=none"]
SFT15 = Case("qwen2.5-1.5b", "sft", 8, 64, 1984)
SFT15_ONE = Case("qwen2.5-1.5b", "sft", 8, 64, 1984, micro=1)
SFT3 = Case("llama-3.2-3b", "sft", 8, 64, 1984, micro=1)
SFT7 = Case("qwen2.5-7b", "sft", 4, 64, 1984, checkpointing="full")
LORA7 = Case("qwen2.5-7b", "sft", 2, 64, 1984, micro=1)
OPT = Case("opt-1.3b", "sft", 8, 64, 960)
SFT3_SHORT = Case("llama-3.2-3b", "sft", 8, 64, 960, micro=1)
RESIDENT = ["data.truncation=right", "actor_rollout_ref.model.activation_checkpointing=full", "device.memory=75GiB"]
STREAMED = ["data.truncation=right", "actor_rollout_ref.model.activation_checkpointing=auto", "device.memory=3647MiB"]
WORK = {"3b-of-1-resident": (SFT3_SHORT, RESIDENT), "3b-of-1-streamed": (SFT3_SHORT, STREAMED), "1.5b": (SFT15, []), "1.5b-deterministic": (SFT15, REPEAT), "1.5b-of-1": (SFT15_ONE, KEPT),
        "1.5b-of-1-deterministic": (SFT15_ONE, KEPT + REPEAT), "3b-of-1": (SFT3, KEPT), "3b-of-1-deterministic": (SFT3, KEPT + REPEAT),
        "7b-lora-of-1": (LORA7, LORA + KEPT), "7b-lora-of-1-deterministic": (LORA7, LORA + KEPT + REPEAT), "opt-1.3b": (OPT, []),
        "7b": (SFT7, ["memory.offload=none"])}
USUAL = [name for name in WORK if name != "7b"]
TRAINING = ("train", "backward", "update")


def train_seconds(folder, steps):
    """Of a step: all, and of it waiting for streamed units."""
    rows = [r for r in plan_check.json_lines(folder / "phases.jsonl") if r["phase"] in TRAINING and 2 < r["step"] <= steps]
    measured = sorted({r["step"] for r in rows})
    waits = [sum(part["exposed_seconds"] for r in rows if r["step"] == step for part in r.get("streamed", ())) for step in measured]
    return (statistics.median(sum(r["seconds"] for r in rows if r["step"] == step) for step in measured), statistics.median(waits))


def watched(times):
    """[name, times, mean microseconds], the largest sums first."""
    names = {}
    for line in plan_check.json_lines(times):
        for name, (count, ns) in line.items():
            known = names.setdefault(name, [0, 0])
            known[0] += count
            known[1] += ns
    if not names:
        raise RuntimeError("the library wrote nothing")
    def means(which):
        largest = sorted(((name, sums) for name, sums in names.items() if name.startswith("gap of ") == which), key=lambda item: -item[1][1])
        return [[name[:150], count, ns / count / 1e3] for name, (count, ns) in largest[:90]]
    return {"kernels": means(False), "gaps": means(True)}


def measure(neap, job, folder, overrides, library):
    """One run as users run it and one with the library."""
    command, metrics = plan_check.run_job(neap, job, folder, overrides, ARGS.steps, 200)
    plan = json.loads((folder / "plan.json").read_text())
    train, waits = train_seconds(folder, len(metrics))
    out = {"command": command, "planned": plan["seconds"], "train": train, "waits": waits, "step": plan_check.median(metrics, "timing_s/step")}
    if ARGS.rehearse:
        return out
    times = pathlib.Path(f"{folder}.times")
    os.environ |= {"CUDA_INJECTION64_PATH": str(library), "NEAP_KERNEL_TIMES": str(times)}
    try:
        again = folder.with_name(folder.name + "-watched")
        _, metrics = plan_check.run_job(neap, job, again, overrides, ARGS.steps, 200)
    finally:
        del os.environ["CUDA_INJECTION64_PATH"]
    return out | {"watched_train": train_seconds(again, len(metrics))[0], **watched(times)}


def show(name, r):
    print(f"   {name}: planned {r['planned']:.4f}, train {r['train']:.4f}, "
          f"waits {r['waits']:.4f}, step {r['step']:.4f}; watched train {r['watched_train']:.4f}")
    for kernel, count, mean in r["gaps"] + r["kernels"][:12]:
        print(f"      {count:>8} x {mean:9.1f} us  {kernel[:90]}", flush=True)


def main():
    plan_check.ARGS = ARGS
    suite = plan_check.Runs("kernel_times")
    package = pathlib.Path(ARGS.packages[0]).resolve()
    neap = package / "bin" / "neap"
    about = plan_check.environment(neap)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        reviews = package / "examples" / "reviews"
        plan_check.make_data(folder, reviews)
        for name in ARGS.case or USUAL:
            case, overrides = WORK[name]
            if not suite.may_start(name):
                continue
            if ARGS.rehearse:
                case, overrides = plan_check.rehearsed(case), [*overrides, "device.kind=cpu", "device.memory=1GiB"]
            if not (folder / case.model).exists():
                plan_check.make_case_model(folder, case.model, reviews, random_models.TINY)
            job = folder / f"{name}.toml"
            job.write_text(case.toml(folder))
            result = suite.run(name, {"case": name, "environment": about}, folder / name,
                               lambda: measure(neap, job, folder / name, overrides, ARGS.packages[1]), lambda result: [])
            if result and not ARGS.rehearse:
                show(name, result)
    return suite.end()


if __name__ == "__main__":
    parser = plan_check.common_arguments(__doc__, list(WORK), steps=8)
    parser.add_argument("packages", nargs=2, metavar="PACKAGE_DIR LIBKERNEL_TIMES")
    ARGS = parser.parse_args()
    sys.exit(main())
