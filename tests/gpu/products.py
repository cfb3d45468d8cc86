#!/usr/bin/env python3
"""How fast matrix products of trained layers are, by the number of tokens: what a plan's seconds are built from.

usage: products.py OUT_DIR

For the linears of six models and 2 to 16 384 tokens: the product of a forward pass, and those of a backward pass for its input and
its weights, in bfloat16 and added to float32, in CUDA graphs of 20 calls or more: of the device alone, and with operands that its cache does not hold.
Medians of 5 replays. Operations that are bound by memory by their bytes, too: in "operation" instead of "linear". Writes
OUT_DIR/products.jsonl: the environment, then a line a linear and number of tokens with seconds and FLOP/s of the three.
"""
import json
import pathlib
import statistics
import sys

import torch

MODELS = {"qwen2.5-0.5b": (896, 4864, 14, 2, 64), "qwen2.5-1.5b": (1536, 8960, 12, 2, 128), "llama-3.2-3b": (3072, 8192, 24, 8, 128),
          "qwen2.5-7b": (3584, 18944, 28, 4, 128), "opt-1.3b": (2048, 8192, 32, 32, 64), "qwen2.5-14b": (5120, 13824, 40, 8, 128)}  # hidden, intermediate, heads, key heads, width of a head
TOKENS = [2, 16, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
HEAD_TOKENS = [2, 64, 220, 512]  # of a chunk of logits
COLD_BYTES = 200_000_000  # more than a cache of an H200 has
SIZES_MIB = [0.25, 1, 4, 16, 64, 256, 1024]  # of an operand


def traffic():
    """Name, bytes an element of each operand, work and the bytes an element that it moves."""
    half, single = torch.bfloat16, torch.float32
    yield "add_", (half, half), lambda a, b: a.add_(b), 6
    yield "mul", (half, half, half), lambda a, b, c: torch.mul(a, b, out=c), 6
    yield "silu", (half, half), lambda a, b: torch.ops.aten.silu.out(a, out=b), 4
    yield "silu_backward", (half, half, half), lambda a, b, c: torch.ops.aten.silu_backward.grad_input(a, b, grad_input=c), 6
    yield "to_float32", (half, single), lambda a, b: b.copy_(a), 6
    yield "to_bfloat16", (half, single), lambda a, b: a.copy_(b), 6
    yield "copy", (half, half), lambda a, b: b.copy_(a), 4
    yield "exp_", (single,), lambda a: a.exp_(), 8
    yield "add_scalar_rows", (single,), lambda a: a.view(-1, 1024).sub_(a.view(-1, 1024)[:, :1]), 8
    yield "zero_", (single,), lambda a: a.zero_(), 4
    yield "sum_rows", (single,), lambda a: torch.sum(a.view(-1, 4096), 1), 4
    yield "max_rows", (single,), lambda a: torch.amax(a.view(-1, 4096), 1), 4
    yield "transpose", (half, half), lambda a, b: b.view(-1, 8, 1024, 16).copy_(a.view(-1, 1024, 8, 16).transpose(1, 2)), 4


def linears(hidden, intermediate, heads, key_heads, width):
    """Name, inputs and outputs."""
    yield "qkv", hidden, (heads + 2 * key_heads) * width
    yield "q", hidden, heads * width
    yield "k", hidden, key_heads * width
    yield "up", hidden, intermediate
    yield "down", intermediate, hidden
    yield "head", hidden, 151936


def seconds_of(make, work, bytes_each):
    """Of work(*operands) on the device: calls in a CUDA graph, in turns over operands that no cache holds together."""
    sets = [make() for _ in range(min(20, max(2, -(-COLD_BYTES // bytes_each))))]
    calls = max(20, len(sets))
    for operands in sets:
        work(*operands)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            work(*sets[i % len(sets)])
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) * 1e-3 / calls


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    with open(out / "products.jsonl", "w") as log:
        log.write(json.dumps({"environment": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}}) + "\n")
        for model, sizes in MODELS.items():
            for name, inputs, outputs in linears(*sizes):
                for tokens in HEAD_TOKENS if name == "head" else TOKENS:
                    operands = lambda: (make(tokens, inputs), make(tokens, outputs), make(outputs, inputs))  # x, y, weight
                    size = 2 * (tokens * (inputs + outputs) + inputs * outputs)
                    times = {"forward": seconds_of(operands, lambda x, y, w: torch.mm(x, w.t(), out=y), size),
                             "d_input": seconds_of(operands, lambda x, y, w: torch.mm(y, w, out=x), size),
                             "d_weight": seconds_of(operands, lambda x, y, w: torch.mm(y.t(), x, out=w), size),
                             "d_weight_float32": seconds_of(lambda: (*operands(), torch.zeros(outputs, inputs, device="cuda")),
                                                            lambda x, y, w, g: torch.addmm(g, y.t(), x, out_dtype=torch.float32, out=g),
                                                            size + 4 * inputs * outputs)}
                    flops = 2.0 * tokens * inputs * outputs
                    log.write(json.dumps({"model": model, "linear": name, "inputs": inputs, "outputs": outputs, "tokens": tokens,
                                          "seconds": times, "tflops": {key: round(flops / s / 1e12, 1) for key, s in times.items()}}) + "\n")
        for mib in SIZES_MIB:
            for name, kinds, work, moved in traffic():
                elements = int(mib * 2**20 / kinds[0].itemsize) // 131072 * 131072
                if elements == 0:
                    continue
                operands = lambda: tuple(torch.rand(elements, device="cuda").to(kind) for kind in kinds)
                seconds = seconds_of(operands, work, elements * sum(kind.itemsize for kind in kinds))
                log.write(json.dumps({"operation": name, "elements": elements, "seconds": seconds,
                                      "bytes_a_second": elements * moved / seconds}) + "\n")


if __name__ == "__main__":
    main()
