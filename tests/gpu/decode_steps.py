#!/usr/bin/env python3
"""How long a step of decoding takes in `neap generate`, of several packages beside each other.

usage: decode_steps.py OUT_DIR NAME=PACKAGE_DIR [NAME=PACKAGE_DIR ...] [--case MODEL ...] [--sequences N ...] [--tokens N] [--rehearse]

Random weights in bfloat16, prompts of 20 words, 128 (or N) new tokens. 8 and 64 (or N) sequences are decoded together, 11 times one after another; a
sample is the time from the last text of one batch to the last of the next, over its tokens, so it has a prefill in it. Writes medians of
the 10 samples, their spread, the bytes of the weights that a step reads and whether the packages' texts are the same to OUT_DIR/decode_steps.jsonl. --rehearse: tiny models on the host.
"""
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import generate
import plan_check
import random_models

BATCHES, SIZES = 11, (8, 64)
MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "opt-1.3b", "llama-3.2-3b", "qwen3-4b", "llama-3.1-8b")


def decode(package, model, prompts, size):
    """Milliseconds of a step in each batch but the first, and the texts' tokens."""
    tokens = 16 if plan_check.ARGS.rehearse else plan_check.ARGS.tokens
    command = [package / "bin" / "neap", "generate", model, "--input", prompts, "--json", "--max-new-tokens", str(tokens), "--batch-size", str(size),
               "--temperature", "1", "--top-k", "-1", "--top-p", "1", "--device", "cpu" if plan_check.ARGS.rehearse else "cuda", "--dtype",
               "float32" if plan_check.ARGS.rehearse else "bfloat16"]
    ends, texts = [], []
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        ends.append(time.monotonic())
        texts.append(json.loads(line)["tokens"])
    if process.wait():
        raise RuntimeError(f"exit {process.returncode}")
    last = ends[size - 1::size]
    return [1e3 * (b - a) / tokens for a, b in zip(last, last[1:])], texts


def weight_bytes(name):
    """Bytes of the weights that a step reads, in bfloat16. Of a token table that is not tied it reads some rows only."""
    config = random_models.MODELS[name]
    tables = ("model.embed_tokens.weight", "model.decoder.embed_tokens.weight") if not config["tie_word_embeddings"] else ()
    return sum(2 * math.prod(shape) for part, shape in random_models.parameters(config) if part not in (*tables, "score.weight"))


def main():
    args = plan_check.ARGS
    packages = {name: pathlib.Path(folder).resolve() for name, folder in (p.split("=", 1) for p in args.packages)}
    reviews = next(iter(packages.values())) / "examples" / "reviews"
    known = {name: plan_check.environment(package / "bin" / "neap") for name, package in packages.items()}
    text = " ".join(json.loads(line)["response"] for line in open(reviews / "sft_train.jsonl")).split()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, open(args.out / "decode_steps.jsonl", "a") as out:
        work = pathlib.Path(temporary)
        for model in args.case or MODELS:
            plan_check.make_only_model(work, model, reviews, random_models.TINY)
            for size in args.sequences or SIZES:
                generate.write_prompts(work / "prompts.jsonl", size * BATCHES, 20, text)
                first = None
                for name, package in packages.items():
                    samples, texts = decode(package, work / model, work / "prompts.jsonl", size)
                    first = first or texts
                    row = {"suite": "decode_steps", "model": model, "weight_bytes": weight_bytes(model), "sequences": size, "new_tokens": args.tokens, "package": name, "ms_a_step": statistics.median(samples), "least": min(samples),
                           "most": max(samples), "samples": len(samples), "same_texts": texts == first, "environment": known[name]}
                    print(json.dumps({key: value for key, value in row.items() if key != "environment"}), flush=True)
                    out.write(json.dumps(row) + "\n")
                    out.flush()


if __name__ == "__main__":
    parser = plan_check.common_arguments(__doc__, MODELS, steps=1)
    parser.add_argument("--sequences", type=int, action="append")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("packages", nargs="+", metavar="NAME=PACKAGE_DIR")
    plan_check.ARGS = parser.parse_args()
    sys.exit(main())
