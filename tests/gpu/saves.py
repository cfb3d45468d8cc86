#!/usr/bin/env python3
"""How long training waits for checkpoints, which one rank copies to host memory and writes while training goes on.

usage: saves.py OUT_DIR PACKAGE_DIR [--save-every N] [--async-only] [--rehearse]

SFT of Qwen2.5-1.5B's shape with random weights: a checkpoint of 21.6 GB (weights, float32 masters, moments) every N steps (default 12),
2 N + 2 steps, with trainer.async_save = false and then true, or only true. A save waits for the one before: N steps should take longer. Writes OUT_DIR/saves.jsonl, a line a run: the median seconds of a step, the
seconds that training waited for each save, bytes of the checkpoint, seconds from the command to the first step's row and to the end.
Exits 1 if a run fails or the two checkpoints differ. --rehearse: a tiny model, on the host.
"""
import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import plan_check
import random_models

TINY = {**random_models.TINY, "num_hidden_layers": 4}


def contents_of(folder):
    """Bytes and a digest of the checkpoint's tensors."""
    digest, count = hashlib.sha256(), 0
    for file in sorted(folder.rglob("*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
                count += len(block)
    return count, digest.hexdigest()


def run(neap, job, folder, overrides, every):
    start = time.monotonic()
    with subprocess.Popen([neap, "train", job, f"trainer.default_local_dir={folder}", *overrides], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, env=os.environ | {"NEAP_PROGRESS": "off"}) as process:
        first = None
        while process.poll() is None:
            rows = folder / "metrics.jsonl"
            if first is None and rows.exists() and rows.stat().st_size:
                first = time.monotonic() - start
            time.sleep(0.05)
        seconds = time.monotonic() - start
        messages = process.stderr.read()
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode}: {messages[-400:]}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    saves = [row["timing_s/save_checkpoint"] for row in rows if "timing_s/save_checkpoint" in row]
    plain = [row["timing_s/step"] for row in rows[2:] if row["step"] % every and (row["step"] - 1) % every]
    behind = [row["timing_s/step"] for row in rows[1:] if (row["step"] - 1) % every == 0]
    newest = folder / "latest"
    count, digest = contents_of(newest.resolve())
    return {"seconds_a_step": statistics.median(plain), "seconds_of_steps_behind_saves": behind, "save_seconds": saves,
            "checkpoint_bytes": count, "sha256": digest, "first_step_after": first, "seconds": seconds,
            "messages": [line for line in messages.splitlines() if "copied" in line or "wrote" in line or "warning" in line]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--save-every", type=int, default=12)
    parser.add_argument("--async-only", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    options = plan_check.ARGS = parser.parse_args()
    package = options.package.resolve()
    neap = package / "bin" / "neap"
    options.out.mkdir(parents=True, exist_ok=True)
    digests = set()
    with tempfile.TemporaryDirectory() as temporary, (options.out / "saves.jsonl").open("a") as log:
        work = pathlib.Path(temporary)
        reviews = package / "examples" / "reviews"
        plan_check.make_data(work, reviews)
        config = random_models.MODELS["qwen2.5-1.5b"]
        if options.rehearse:
            config = {**config, **{key: value for key, value in TINY.items() if key in config}}
        random_models.make_model(work / "qwen2.5-1.5b", config, reviews / "model")
        overrides = ["device.kind=cpu", "device.memory=1GiB"] if options.rehearse else []
        job = work / "sft.toml"
        job.write_text(plan_check.Case("qwen2.5-1.5b", "sft", 8, 64, 960).toml(work))
        overrides += [f"trainer.total_training_steps={2 * options.save_every + 2}", f"trainer.save_freq={options.save_every}",
                      "trainer.max_ckpt_to_keep=1"]
        for behind in ("true",) if options.async_only else ("false", "true"):
            folder = work / f"async-{behind}"
            result = run(neap, job, folder, [*overrides, f"trainer.async_save={behind}"], options.save_every)
            line = {"suite": "saves", "async_save": behind == "true", "rehearsal": options.rehearse,
                    "environment": plan_check.environment(neap), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **result}
            log.write(json.dumps(line) + "\n")
            log.flush()
            digests.add(result["sha256"])
            saves = ", ".join(f"{seconds:.2f}" for seconds in result["save_seconds"])
            print(f"async_save={behind}: a step {result['seconds_a_step']:.3f} s, saves of {result['checkpoint_bytes'] / 1e9:.1f} GB wait {saves} s; "
                  f"first step after {result['first_step_after']:.1f} s, all {result['seconds']:.1f} s", flush=True)
            subprocess.run(["rm", "-rf", folder], check=True)
    if len(digests) > 1:
        print("the checkpoints differ")
    return int(len(digests) > 1)


if __name__ == "__main__":
    sys.exit(main())
