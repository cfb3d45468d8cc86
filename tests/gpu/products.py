#!/usr/bin/env python3
"""How fast matrix products of trained layers are, by the number of tokens: what a plan's seconds are built from.

usage: products.py OUT_DIR

For the linears of four models and 128 to 16 384 tokens: the product of a forward pass, and those of a backward pass for its input and
its weights, in bfloat16, through PyTorch as the trainer calls it. Medians of 10 after 3, without waiting in between. Writes
OUT_DIR/products.jsonl: the environment, then a line a linear and number of tokens with seconds and FLOP/s of the three.
"""
import json
import pathlib
import statistics
import sys

import torch

MODELS = {"qwen2.5-0.5b": (896, 4864, 14, 2, 64), "qwen2.5-1.5b": (1536, 8960, 12, 2, 128), "llama-3.2-3b": (3072, 8192, 24, 8, 128),
          "qwen2.5-7b": (3584, 18944, 28, 4, 128)}  # hidden, intermediate, heads, key heads, width of a head
TOKENS = [128, 512, 1024, 2048, 4096, 8192, 16384]


def linears(hidden, intermediate, heads, key_heads, width):
    """Name, inputs and outputs."""
    yield "qkv", hidden, (heads + 2 * key_heads) * width
    yield "q", hidden, heads * width
    yield "k", hidden, key_heads * width
    yield "up", hidden, intermediate
    yield "down", intermediate, hidden


def seconds_of(work):
    for _ in range(3):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) * 1e-3


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    with open(out / "products.jsonl", "w") as log:
        log.write(json.dumps({"environment": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}}) + "\n")
        for model, sizes in MODELS.items():
            for name, inputs, outputs in linears(*sizes):
                weight = make(outputs, inputs)
                for tokens in TOKENS:
                    x, d_y = make(tokens, inputs), make(tokens, outputs)
                    y, d_x, d_w = torch.empty_like(d_y), torch.empty_like(x), torch.empty_like(weight)
                    times = {"forward": seconds_of(lambda: torch.mm(x, weight.t(), out=y)),
                             "d_input": seconds_of(lambda: torch.mm(d_y, weight, out=d_x)),
                             "d_weight": seconds_of(lambda: torch.mm(d_y.t(), x, out=d_w))}
                    flops = 2.0 * tokens * inputs * outputs
                    log.write(json.dumps({"model": model, "linear": name, "inputs": inputs, "outputs": outputs, "tokens": tokens,
                                          "seconds": times, "tflops": {key: round(flops / s / 1e12, 1) for key, s in times.items()}}) + "\n")


if __name__ == "__main__":
    main()
