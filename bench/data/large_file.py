#!/usr/bin/env python3
"""How much memory and time a large data file takes: SFT of a small model on a generated file.

    large_file.py NEAP [--gib 4] [--packed] [--out RESULTS.jsonl]

Writes a file of texts like those of examples/reviews into a folder of its own under TMPDIR, trains a few steps twice (the second start finds
the encoded rows), and prints for each: wall and CPU seconds, and the largest resident memory of the process. A run on a file of 1000 rows
comes first: what the program takes without data. The folder is removed at the end; it needs about twice the file's size.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

REVIEWS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "reviews"
MODEL = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
         "rope_theta": 10000.0, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1,
         "torch_dtype": "float32", "hidden_act": "silu"}
JOB = """
task = "sft"
[data]
train_files = ["rows"]
train_batch_size = 16
micro_batch_size_per_gpu = 16
max_prompt_length = 64
max_response_length = 192
truncation = "right"
cache_dir = "cache"
[actor_rollout_ref.model]
path = "model"
[trainer]
total_epochs = 1
total_training_steps = 20
logger = ["jsonl"]
[device]
kind = "host"
memory = "256MiB"
"""


def write_rows(path, size, packed):
    """Rows of about 1 KiB, each different; returns their number and bytes."""
    texts = [json.loads(line) for line in (REVIEWS / "sft_train.jsonl").read_text().splitlines()]
    words = sorted({word for text in texts for word in text["response"].split()})
    draw = random.Random(1)
    pieces = [" ".join(draw.choices(words, k=40)) for _ in range(4000)]
    packer = subprocess.Popen(["zstd", "-q", "-3", "-o", path], stdin=subprocess.PIPE) if packed else None
    rows = written = 0
    with packer.stdin if packed else path.open("wb") as out:
        while written < size:
            response = " ".join(draw.choices(pieces, k=4))
            line = json.dumps({"prompt": f"Review {rows}:", "response": f" {rows} {response}"}).encode() + b"\n"
            out.write(line)
            rows, written = rows + 1, written + len(line)
    if packed and packer.wait() != 0:
        raise SystemExit("zstd failed")
    return rows, written


def run(neap, folder, output):
    start = time.monotonic()
    process = subprocess.Popen([neap, "train", "job.toml", f"trainer.default_local_dir={output}"], cwd=folder, stdout=subprocess.DEVNULL,
                               env=dict(os.environ, NEAP_PROGRESS="off"))
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"neap train ended with {process.returncode}")
    return {"wall_s": round(time.monotonic() - start, 1), "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
            "peak_resident_mib": round(usage.ru_maxrss / 1024)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap", type=pathlib.Path)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--packed", action="store_true", help="as zstd")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="neap-large-"))
    lines = []

    def report(**line):
        lines.append(line)
        print(json.dumps(line), flush=True)

    try:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(MODEL))
        shutil.copy(REVIEWS / "model" / "tokenizer.json", folder / "model")
        (folder / "job.toml").write_text(JOB)
        neap = arguments.neap.resolve()
        write_rows(folder / "rows", 1 << 20, False)
        report(case="1 MiB", **run(neap, folder, "small"))
        (folder / "rows").unlink()
        rows, size = write_rows(folder / "rows", arguments.gib * 2**30, arguments.packed)
        disk = (folder / "rows").stat().st_size
        report(case="file", rows=rows, gib=round(size / 2**30, 2), on_disk_gib=round(disk / 2**30, 2), cores=len(os.sched_getaffinity(0)))
        report(case="first start", **run(neap, folder, "first"))
        report(case="second start", **run(neap, folder, "second"))
        report(case="cache", gib=round(sum(f.stat().st_size for f in (folder / "cache").iterdir()) / 2**30, 2))
        same = [[json.loads(line)["train/loss"] for line in (folder / name / "metrics.jsonl").read_text().splitlines()] for name in ("first", "second")]
        report(case="losses", equal=same[0] == same[1], last=same[0][-1])
    finally:
        shutil.rmtree(folder)
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
