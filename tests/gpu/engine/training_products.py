#!/usr/bin/env python3
"""How much faster a training step's products are with the best of cuBLASLt's algorithms than with libtorch's choice.

usage: training_products.py OUT_DIR [--minutes M]

For the linears of two models: the product of a forward pass, that of the backward pass for its input, and that for its weights (to
bfloat16 and added to float32). Every offered algorithm is timed once. Then the best four, the first and libtorch's product by cuBLAS
and by cuBLASLt are timed in turns, 5 times 0.05 s each, so that all have the card's clock under load. Writes a line per product to
OUT_DIR/training-products.jsonl: microseconds of each, and the id, tile, stages, split and scheme of the best algorithm.
"""
import ctypes
import json
import pathlib
import statistics
import sys
import time

import torch

import row_bits

SHAPES = {"qwen2.5-1.5b": (16384, [(1536, 2048), (1536, 1536), (1536, 8960), (1536, 17920), (8960, 1536)]), "qwen2.5-1.5b, head": (2048, [(1536, 151936)]), "qwen2.5-7b": (8192, [(3584, 4608), (3584, 3584), (3584, 37888), (18944, 3584)])}
TURNS, SECONDS = 5, 0.05


class Product:
    """Column by column: C (m, n) = op(A) op(B)."""

    def __init__(self, lt, a, b, c, transposes, adds):
        self.lt, self.a, self.b, self.c, self.adds = lt, a, b, c, adds
        self.p = {"desc": ctypes.c_void_p()}
        lt.call("cublasLtMatmulDescCreate", ctypes.byref(self.p["desc"]), row_bits.COMPUTE_FLOAT, row_bits.FLOAT)
        for which, transposed in zip((3, 4), transposes):
            lt.attribute("cublasLtMatmulDescSetAttribute", self.p["desc"], which, int(transposed))
        for name, t in (("w", a), ("x", b), ("y", c)):
            layout = ctypes.c_void_p()
            lt.call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), row_bits.BF16 if t.dtype == torch.bfloat16 else row_bits.FLOAT,
                    ctypes.c_uint64(t.size(1)), ctypes.c_uint64(t.size(0)), ctypes.c_int64(t.size(1)))
            self.p[name] = layout

    def offers(self):
        return self.lt.offers(self.p, 0xFFFFFFFF)

    def run(self, offer):
        one, beta = ctypes.c_float(1), ctypes.c_float(self.adds)
        pointer = lambda t: ctypes.c_void_p(t.data_ptr())
        self.lt.call("cublasLtMatmul", self.lt.handle, self.p["desc"], ctypes.byref(one), pointer(self.a), self.p["w"], pointer(self.b), self.p["x"], ctypes.byref(beta),
                     pointer(self.c), self.p["y"], pointer(self.c), self.p["y"], ctypes.byref(offer.algorithm), pointer(self.lt.workspace),
                     ctypes.c_size_t(row_bits.WORKSPACE), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))


def microseconds(work, seconds):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    work()
    torch.cuda.synchronize()
    calls, taken = 1, 0.0
    while True:
        start.record()
        for _ in range(calls):
            work()
        end.record()
        torch.cuda.synchronize()
        taken = start.elapsed_time(end)
        if taken >= 1e3 * seconds * 0.8 or calls > 4096:
            return taken * 1e3 / calls
        calls = max(calls + 1, int(calls * 1e3 * seconds / taken))


def cases(lt, tokens, inputs, outputs):
    random = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    x, w, dy = random(tokens, inputs), random(outputs, inputs) * 0.02, random(tokens, outputs)
    y, dx, dw, sums = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w), torch.zeros(outputs, inputs, device="cuda")
    yield "forward", Product(lt, w, x, y, (True, False), 0), lambda: torch.mm(x, w.t(), out=y)
    yield "d_input", Product(lt, w, dy, dx, (False, False), 0), lambda: torch.mm(dy, w, out=dx)
    yield "d_weight", Product(lt, x, dy, dw, (False, True), 0), lambda: torch.mm(dy.t(), x, out=dw)
    yield "d_weight_float32", Product(lt, x, dy, sums, (False, True), 1), lambda: torch.addmm(sums, dy.t(), x, out_dtype=torch.float32, out=sums)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * float(sys.argv[sys.argv.index("--minutes") + 1] if "--minutes" in sys.argv else 3)
    lt = row_bits.Lt()
    with (out / "training-products.jsonl").open("w") as log:
        for model, (tokens, linears) in SHAPES.items():
            for inputs, outputs in linears:
                for name, product, own in cases(lt, tokens, inputs, outputs):
                    if time.monotonic() > until:
                        return
                    offers = product.offers()
                    timed = sorted(((microseconds(lambda: product.run(offer), 0.004), i) for i, offer in enumerate(offers)))
                    ways = {i: lambda i=i: product.run(offers[i]) for i in {0, *(i for _, i in timed[:4])}}
                    for library in ("cublas", "cublaslt"):
                        ways[library] = lambda library=library: (torch.backends.cuda.preferred_blas_library(library), own())
                    times = {way: [] for way in ways}
                    for _ in range(TURNS):
                        for way, work in ways.items():
                            times[way].append(microseconds(work, SECONDS))
                    medians = {way: statistics.median(of) for way, of in times.items()}
                    best = min((way for way in ways if isinstance(way, int)), key=medians.get)
                    chosen = {"cublas": "cublas", "cublaslt": "cublaslt", "first": 0, "best": best}
                    row = {"model": model, "tokens": tokens, "inputs": inputs, "outputs": outputs, "product": name, "offered": len(offers), "best_offer": best,
                           "algorithm": lt.describe(offers[best]), "microseconds": {name: round(medians[way], 1) for name, way in chosen.items()},
                           "tflops": {name: round(2 * tokens * inputs * outputs / medians[way] / 1e6) for name, way in chosen.items()}}
                    print(json.dumps(row), flush=True)
                    log.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    sys.exit(main())
