#!/usr/bin/env python3
"""Whether a matrix product's rows have the same bits however many rows there are, and what that costs. usage: row_bits.py OUT_DIR [--minutes M]

cuBLASLt through its C interface, bfloat16 with float32 sums, no split of K (reduction scheme "none"). The reference is the first algorithm that the
heuristic offers for 4 096 rows. A row of OUT_DIR/engine-row-bits.jsonl has, for a linear and a number of rows: whether the heuristic's first
algorithm gives the reference's bits, which of the offered ones is the first that does, microseconds of it and of the free choice
(split of K allowed), algorithm ids, and whether the same holds with the bias in the epilogue. "mma": an own kernel that adds K in
steps of 16 by mma.sync.m16n8k16 in one accumulator, beside the reference.
"""
import ctypes
import json
import pathlib
import statistics
import sys
import time

import torch

SHAPES = {"qwen2.5-0.5b": [(896, 1152), (896, 896), (896, 9728), (4864, 896)], "qwen2.5-1.5b": [(1536, 2048), (1536, 1536), (1536, 17920), (8960, 1536)],
          "opt-1.3b": [(2048, 6144), (2048, 8192), (8192, 2048)], "llama-3.1-8b": [(4096, 6144), (4096, 28672), (14336, 4096)]}  # inputs, outputs
ROWS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192]
REFERENCE_ROWS, MOST_ROWS = 4096, 8192
WORKSPACE = 32 << 20
OFFERED = 32
BF16, FLOAT, COMPUTE_FLOAT = 14, 0, 68
ID, TILE, SPLIT, SCHEME, STAGES = 0, 1, 2, 3, 6


class Offer(ctypes.Structure):
    _fields_ = [("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int), ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


class Lt:
    def __init__(self):
        torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")  # loads the library
        path = next(line.split()[-1] for line in open("/proc/self/maps") if "libcublasLt.so" in line)
        self.lib = ctypes.CDLL(path)
        self.version = (self.lib.cublasLtGetVersion.restype, setattr(self.lib.cublasLtGetVersion, "restype", ctypes.c_size_t), self.lib.cublasLtGetVersion())[2]
        self.handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(self.handle))
        self.workspace = torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8)

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def attribute(self, name, of, which, value, kind=ctypes.c_int32):
        holder = kind(value)
        self.call(name, of, which, ctypes.byref(holder), ctypes.sizeof(holder))

    def layout(self, rows, columns):
        out = ctypes.c_void_p()
        self.call("cublasLtMatrixLayoutCreate", ctypes.byref(out), BF16, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        return out

    def product(self, rows, inputs, outputs, bias):
        """y (rows, outputs) = x (rows, inputs) w' as cuBLAS sees it, column by column: outputs x rows."""
        p = {"desc": ctypes.c_void_p(), "w": self.layout(inputs, outputs), "x": self.layout(inputs, rows), "y": self.layout(outputs, rows)}
        self.call("cublasLtMatmulDescCreate", ctypes.byref(p["desc"]), COMPUTE_FLOAT, FLOAT)
        self.attribute("cublasLtMatmulDescSetAttribute", p["desc"], 3, 1)
        if bias is not None:
            self.attribute("cublasLtMatmulDescSetAttribute", p["desc"], 7, 4)
            self.attribute("cublasLtMatmulDescSetAttribute", p["desc"], 8, bias.data_ptr(), ctypes.c_void_p)
        return p

    def offers(self, p, schemes):
        preference = ctypes.c_void_p()
        self.call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        self.attribute("cublasLtMatmulPreferenceSetAttribute", preference, 1, WORKSPACE, ctypes.c_uint64)
        self.attribute("cublasLtMatmulPreferenceSetAttribute", preference, 3, schemes, ctypes.c_uint32)
        found, count = (Offer * OFFERED)(), ctypes.c_int()
        self.call("cublasLtMatmulAlgoGetHeuristic", self.handle, p["desc"], p["w"], p["x"], p["y"], p["y"], preference, OFFERED, found, ctypes.byref(count))
        return [o for o in found[:count.value] if o.state == 0]

    def describe(self, offer):
        out = []
        for which in (ID, TILE, STAGES, SPLIT, SCHEME):
            value, written = ctypes.c_int32(), ctypes.c_size_t()
            self.call("cublasLtMatmulAlgoConfigGetAttribute", ctypes.byref(offer.algorithm), which, ctypes.byref(value), 4, ctypes.byref(written))
            out.append(value.value)
        return out

    def run(self, p, x, w, y, offer):
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        self.call("cublasLtMatmul", self.handle, p["desc"], ctypes.byref(one), ctypes.c_void_p(w.data_ptr()), p["w"], ctypes.c_void_p(x.data_ptr()), p["x"],
                  ctypes.byref(zero), ctypes.c_void_p(y.data_ptr()), p["y"], ctypes.c_void_p(y.data_ptr()), p["y"], ctypes.byref(offer.algorithm),
                  ctypes.c_void_p(self.workspace.data_ptr()), ctypes.c_size_t(WORKSPACE), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))


def microseconds(lt, p, x, weights, y, offer):
    """In a graph, in turns over weights that no cache holds together."""
    work = lambda: [lt.run(p, x, w, y, offer) for w in weights]
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return round(statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) * 1e3 / len(weights), 2)


MMA = r"""
// One warp: 16 rows of w and 8 rows of x. w (n, k), x (m, k), y (m, n), all bfloat16.
extern "C" __global__ void product(const unsigned short* w, const unsigned short* x, unsigned short* y, int n, int m, int k) {
  const int lane = threadIdx.x, group = lane / 4, in_group = lane % 4;
  const int row = blockIdx.x * 16, column = blockIdx.y * 8;
  float d[4] = {0, 0, 0, 0};
  for (int at = 0; at < k; at += 16) {
    const unsigned short* a = w + (size_t)(row + group) * k + at + in_group * 2;
    const unsigned short* b = x + (size_t)(column + group) * k + at + in_group * 2;
    const unsigned a0 = *(const unsigned*)a, a1 = *(const unsigned*)(a + 8 * (size_t)k), a2 = *(const unsigned*)(a + 8), a3 = *(const unsigned*)(a + 8 * (size_t)k + 8);
    const unsigned b0 = *(const unsigned*)b, b1 = *(const unsigned*)(b + 8);
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  for (int i = 0; i < 4; ++i) {
    const int r = row + group + (i / 2) * 8, c = column + in_group * 2 + i % 2;
    unsigned short h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(d[i]));
    y[(size_t)c * n + r] = h;
  }
}
"""


def mma_rows(x, w, rows):
    import cupy
    kernel = cupy.RawModule(code=MMA, options=("--gpu-architecture=sm_90",), backend="nvrtc").get_function("product")
    y = torch.zeros(rows, w.size(0), device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    kernel((w.size(0) // 16, rows // 8), (32,), (w.data_ptr(), x.data_ptr(), y.data_ptr(), cupy.int32(w.size(0)), cupy.int32(rows), cupy.int32(w.size(1))))
    cupy.cuda.runtime.deviceSynchronize()
    return y


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * float(sys.argv[sys.argv.index("--minutes") + 1] if "--minutes" in sys.argv else 4)
    lt = Lt()
    torch.manual_seed(1)
    with (out / "engine-row-bits.jsonl").open("w") as log:
        def put(row):
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(row, flush=True)
        put({"environment": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cublasLt": lt.version}})
        for model, shapes in SHAPES.items():
            for inputs, outputs in shapes:
                x = torch.randn(MOST_ROWS, inputs, device="cuda", dtype=torch.bfloat16)
                weights = [torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(max(2, -(-200_000_000 // (2 * inputs * outputs))))]
                for bias in (None, torch.randn(outputs, device="cuda", dtype=torch.bfloat16)):
                    wanted = torch.empty(REFERENCE_ROWS, outputs, device="cuda", dtype=torch.bfloat16)
                    p = lt.product(REFERENCE_ROWS, inputs, outputs, bias)
                    reference = lt.offers(p, 0)[0]
                    lt.run(p, x, weights[0], wanted, reference)
                    head = {"model": model, "inputs": inputs, "outputs": outputs, "bias": bias is not None}
                    put({**head, "rows": REFERENCE_ROWS, "reference": lt.describe(reference), "offered_none_equal": [
                        bool(torch.equal((lt.run(p, x, weights[0], y := torch.empty_like(wanted), o), y)[1], wanted)) for o in lt.offers(p, 0)].count(False)})
                    if bias is None:
                        mine = mma_rows(x, weights[0], 64)
                        put({**head, "mma_equal": bool(torch.equal(mine, wanted[:64])), "mma_different": int((mine != wanted[:64]).sum()), "of": mine.numel()})
                    for rows in ROWS:
                        if time.monotonic() > until:
                            put({"ended": "time"})
                            return
                        y = torch.empty(rows, outputs, device="cuda", dtype=torch.bfloat16)
                        p = lt.product(rows, inputs, outputs, bias)
                        n = min(rows, REFERENCE_ROWS)
                        equal = []
                        offers = lt.offers(p, 0)
                        for offer in offers:
                            lt.run(p, x, weights[0], y, offer)
                            equal.append(bool(torch.equal(y[:n], wanted[:n])))
                        row = {**head, "rows": rows, "offered": len(offers), "equal": sum(equal), "first_equal": equal.index(True) if True in equal else None,
                               "unequal_ids": sorted({tuple(lt.describe(o))[0] for o, e in zip(offers, equal) if not e})}
                        if bias is None:
                            free = lt.offers(p, 7)[0]
                            row |= {"free_us": microseconds(lt, p, x, weights, y, free), "free": lt.describe(free)}
                            if True in equal:
                                best = min((microseconds(lt, p, x, weights, y, o), lt.describe(o)) for o, e in list(zip(offers, equal))[:8] if e) if True in equal[:8] else None
                                row |= {"first_equal_us": microseconds(lt, p, x, weights, y, offers[equal.index(True)]), "best_equal_us": best}
                        put(row)


if __name__ == "__main__":
    main()
