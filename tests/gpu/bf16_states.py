#!/usr/bin/env python3
"""Losses of narrow optimizer states beside float32 ones, after many steps of the demo's SFT.

usage: bf16_states.py OUT_DIR PACKAGE_DIR [--steps N] [--device cuda|cpu]

Trains examples/reviews with float32 states, with bfloat16 moments, and with bfloat16 moments, gradients and weights without masters
(stochastic rounding). Writes OUT_DIR/bf16-states.json and a table. Exits 1 where the loss on the held-out texts after N steps
(default 500) is over 1 % off that of float32 states. The last kind is shown and not judged: its weights have 8 bits.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import plan_check

NARROW = ["state_dtype=bfloat16"]
NARROWEST = ["state_dtype=bfloat16", "gradient_dtype=bfloat16", "master_dtype=bfloat16"]
KINDS = {"float32": ([], True), "bfloat16 moments": (NARROW, True), "bfloat16 without masters": (NARROWEST, False)}


def train(neap, work, name, settings, dtype):
    folder = work / name.replace(" ", "-")
    done = subprocess.run([neap, "train", work / "reviews" / "sft.toml", f"device.kind={ARGS.device}", f"device.dtype={dtype}",
                           f"trainer.total_training_steps={ARGS.steps}", "trainer.total_epochs=1000", "trainer.save_freq=-1",
                           f"trainer.default_local_dir={folder}",
                           *(f"actor_rollout_ref.actor.optim.{s}" for s in settings)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"exit {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    rows = [json.loads(line) for line in (folder / "validation.jsonl").read_text().splitlines()]
    losses = [json.loads(line)["train/loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"validation": rows[-1], "last_losses": losses[-5:]}


def main():
    neap = ARGS.package.resolve() / "bin" / "neap"
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        shutil.copytree(ARGS.package / "examples" / "reviews", work / "reviews")
        for name, (settings, _) in KINDS.items():
            results[name] = train(neap, work, name, settings, "bfloat16" if settings is NARROWEST else "float32")
    key = next(k for k in results["float32"]["validation"] if k.endswith("loss"))
    exact, failed = results["float32"]["validation"][key], False
    print(f"{'states':<28}{key:>12}{'off':>9}")
    for name, (_, judged) in KINDS.items():
        loss = results[name]["validation"][key]
        off = loss / exact - 1
        failed |= judged and abs(off) > 0.01
        print(f"{name:<28}{loss:>12.4f}{off:>9.2%}")
    out = {"steps": ARGS.steps, "device": ARGS.device, "environment": plan_check.environment(neap), "runs": results}
    (ARGS.out / "bf16-states.json").write_text(json.dumps(out, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--device", default="cuda")
    ARGS = parser.parse_args()
    sys.exit(main())
