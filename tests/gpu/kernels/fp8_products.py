#!/usr/bin/env python3
"""Compares torch._scaled_mm in fp8 with products in bfloat16, for layers of Qwen2.5-1.5B and Qwen3-8B with 16 384 tokens.

usage: fp8_products.py OUT_FILE

A line a product: microseconds, TFLOP/s. fwd: forward; dx: the input's gradient; dw: the weights', in float32 (32) or bfloat16 (16).
fast and slow: with use_fast_accum and without. `off`: the relative error of the longest sums against float64.
"""
import json
import sys

import torch

TOKENS = 16384
LAYERS = (("q", 1536, 1536), ("k", 256, 1536), ("gate", 8960, 1536), ("down", 1536, 8960), ("8b gate", 12288, 4096))  # out, in
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
ONE = torch.ones(1, device="cuda")


def made(rows, columns, dtype):
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).to(dtype)


def product(a, b, dtype, fast):
    return torch._scaled_mm(a, b.t(), ONE, ONE, out_dtype=dtype, use_fast_accum=fast)


def microseconds(run, times=10):
    for _ in range(3):
        run()
    found = []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(times):
            run()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / times * 1e3)
    return sorted(found)[1]


def cases_of(out, inner):
    x, w, dy = made(TOKENS, inner, E4), made(out, inner, E4), made(TOKENS, out, E5)
    w_across, dy_across, x_across = made(inner, out, E4), made(out, TOKENS, E5), made(inner, TOKENS, E4)
    plain = [made(*size, torch.bfloat16) for size in ((TOKENS, inner), (out, inner), (TOKENS, out))]
    sum_of = torch.zeros(out, inner, device="cuda")
    cases = {"bf16 fwd": lambda: plain[0] @ plain[1].t(), "bf16 dx": lambda: plain[2] @ plain[1],
             "bf16 dw": lambda: torch.addmm(sum_of, plain[2].t(), plain[0], out_dtype=torch.float32), "add f32": lambda: sum_of.add_(sum_of)}
    for fast, word in ((True, "fast"), (False, "slow")):
        cases[f"fwd {word}"] = lambda fast=fast: product(x, w, torch.bfloat16, fast)
        cases[f"dx {word}"] = lambda fast=fast: product(dy, w_across, torch.bfloat16, fast)
        cases[f"dw32 {word}"] = lambda fast=fast: product(dy_across, x_across, torch.float32, fast)
        cases[f"dw16 {word}"] = lambda fast=fast: product(dy_across, x_across, torch.bfloat16, fast)
    return cases, (dy_across, x_across)


def main():
    with open(sys.argv[1], "w") as lines:
        def put(**fields):
            lines.write(json.dumps(fields) + "\n")

        put(environment={"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda})
        for name, out, inner in LAYERS:
            cases, factors = cases_of(out, inner)
            for case, run in cases.items():
                us = microseconds(run)
                put(layer=name, case=case, us=round(us, 1), tflops=round(2.0 * TOKENS * out * inner / us / 1e6))
            if name != "q":
                continue
            exact = factors[0].double() @ factors[1].double().t()
            for fast in (True, False):
                sums = product(*factors, torch.float32, fast)
                again = product(*factors, torch.float32, fast)
                put(layer=name, fast=fast, off=((sums.double() - exact).norm() / exact.norm()).item(), same=torch.equal(sums, again))


if __name__ == "__main__":
    main()
