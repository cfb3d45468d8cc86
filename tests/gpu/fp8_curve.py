#!/usr/bin/env python3
"""Losses of a small model in bfloat16 and in fp8, step by step, from the same random weights on the same data.

usage: fp8_curve.py OUT_DIR PACKAGE_DIR [--steps N] [--seeds N] [--rehearse]

SFT of examples/reviews. A second seed in bfloat16 shows how far two runs differ anyway. Writes OUT_DIR/fp8_curve.jsonl: a line a run
with every step's loss; prints their means over the last fifth of the steps. --rehearse: a few steps on the host.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

import plan_check


def curve(package, folder, dtype, seed, args):
    neap, job = package / "bin" / "neap", package / "examples" / "reviews" / "sft.toml"
    keys = ["device.dtype=bfloat16", f"device.linear_dtype={dtype}", f"trainer.seed={seed}", f"trainer.total_training_steps={args.steps}",
            "data.val_files=[]", "trainer.total_epochs=1000", "trainer.save_freq=-1", 'trainer.logger=["jsonl"]', f"trainer.default_local_dir={folder}"]
    if args.rehearse:
        keys.append("device.kind=cpu")
    done = subprocess.run([neap, "train", job, *keys], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-600:])
    return [json.loads(line)["train/loss"] for line in (folder / "metrics.jsonl").read_text().splitlines() if "train/loss" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    if args.rehearse:
        args.steps = 3
    args.out.mkdir(parents=True, exist_ok=True)
    known = plan_check.environment(args.package / "bin" / "neap")
    with tempfile.TemporaryDirectory() as work, open(args.out / "fp8_curve.jsonl", "w") as out:
        for seed in range(1, args.seeds + 1):
            for dtype in ("auto", "fp8"):
                losses = curve(args.package, pathlib.Path(work) / f"{dtype}-{seed}", dtype, seed, args)
                out.write(json.dumps({"suite": "fp8_curve", "linear_dtype": dtype, "seed": seed, "environment": known, "rehearsal": args.rehearse,
                                      "loss": losses}) + "\n")
                print(f"{dtype}, seed {seed}: first {losses[0]:.4f}, last fifth {statistics.mean(losses[-max(1, len(losses) // 5):]):.4f}", flush=True)


if __name__ == "__main__":
    main()
