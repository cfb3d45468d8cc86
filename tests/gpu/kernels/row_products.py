#!/usr/bin/env python3
"""Products of few rows with the matrices of models: Neap's kernels and cuBLAS, in CUDA graphs. usage: row_products.py OUT_DIR

For each matrix of a model's layer and each number of rows, a graph has the product with many copies of it, so that each is read from memory.
Writes a row for each kernel to OUT_DIR/row_products.jsonl: microseconds a product (medians of 10 replays), the largest difference from a
product in float32 as a share of the largest number, and whether a second run gives the same bits. cuBLAS is torch.mm, with the kernel behind it that a gated MLP or an
activation takes. "cluster" is the number of blocks that share the columns, "blocks" of those of a multiprocessor.
"""
import concurrent.futures
import ctypes
import itertools
import json
import pathlib
import re
import statistics
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[3] / "src"
# hidden, heads' width, key heads' width, intermediate, vocabulary, gated
MODELS = {"qwen2.5-0.5b": (896, 896, 128, 4864, 151936, True), "qwen2.5-1.5b": (1536, 1536, 256, 8960, 151936, True),
          "opt-1.3b": (2048, 2048, 2048, 8192, 50272, False), "qwen3-4b": (2560, 4096, 1024, 9728, 151936, True),
          "llama-3.1-8b": (4096, 4096, 1024, 14336, 128256, True),
          "qwen2.5-3b": (2048, 2048, 256, 11008, 151936, True), "llama-3.2-1b": (2048, 2048, 512, 8192, 128256, True)}
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
BYTES = 400 << 20  # of all copies of a matrix
ROWS_OF_BLOCK, THREADS, TILES = 64, 128, (1, 2, 4, 6, 8)  # of some_rows.cu
MOST_OFF = 0.02
MOST_ROWS = {"few_rows": 8, "some_rows": 64}


def shared_bytes(tiles, blocks):
    """Of a block of some_rows.cu (ring_of() of kernels/decoding_sizes.h)."""
    chunk = 128 * (ROWS_OF_BLOCK + 8 * tiles)
    return ((228 << 10) // blocks - 1024) // chunk * chunk


def source_of(name):
    """A kernel's file as src/kernels/embed.cmake makes it."""
    text, there = (SOURCE / "kernels/cuda" / name).read_text(), set()
    while found := re.search(r'#include "([a-z_/]+\.(?:cuh|h))"\n', text):
        path = SOURCE / "kernels/cuda" / found[1]
        path = path if path.exists() else SOURCE / found[1]
        body = "" if path in there else path.read_text().replace("#pragma once\n", "")
        there.add(path)
        text = text[:found.start()] + body + text[found.end():]
    return (SOURCE / "kernels/cuda/types.cuh").read_text() + text


class Nvrtc:
    def __init__(self, library):
        self.of = ctypes.CDLL(library)

    def cubin(self, text, architecture="90a"):
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.of.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
        options = (ctypes.c_char_p * 2)(f"--gpu-architecture=sm_{architecture}".encode(), b"--std=c++17")
        if self.of.nvrtcCompileProgram(program, 2, options):
            self.of.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            self.of.nvrtcGetProgramLog(program, log)
            raise RuntimeError(log.value.decode())
        self.of.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        self.of.nvrtcGetCUBIN(program, cubin)
        return cubin.raw


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


class Matrices(ctypes.Structure):
    _fields_ = [("weight", ctypes.c_void_p * 6), ("bias", ctypes.c_void_p * 6), ("out", ctypes.c_int * 6)]


class Module:
    driver = None

    def __init__(self, cubin):
        Module.driver = Module.driver or ctypes.CDLL("libcuda.so.1")
        self.module, self.kernels = ctypes.c_void_p(), {}
        code = self.driver.cuModuleLoadData(ctypes.byref(self.module), cubin)
        if code:
            raise RuntimeError(f"cuModuleLoadData: {code}")

    def launch(self, torch, name, grid, threads, arguments, cluster=1, early=True, shared=0):
        if name not in self.kernels:
            function = ctypes.c_void_p()
            if code := self.driver.cuModuleGetFunction(ctypes.byref(function), self.module, name.encode()):
                raise RuntimeError(f"{name}: {code}")
            if code := self.driver.cuFuncSetAttribute(function, 8, shared):
                raise RuntimeError(f"{shared} bytes for {name}: {code}")
            self.kernels[name] = function
        attributes = (Attribute * 2)()
        count = 0
        if early:
            attributes[count].id, attributes[count].value[0] = 6, 1
            count += 1
        if cluster > 1:
            attributes[count].id = 4
            attributes[count].value[0], attributes[count].value[1], attributes[count].value[2] = cluster, 1, 1
            count += 1
        config = Config((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(threads, 1, 1), shared, torch.cuda.current_stream().cuda_stream, attributes, count)
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.cast(ctypes.pointer(a), ctypes.c_void_p) for a in arguments])
        if code := self.driver.cuLaunchKernelEx(ctypes.byref(config), self.kernels[name], pointers, None):
            raise RuntimeError(f"starting {name}: {code}")


def shapes():
    """model, name, outs, in, kind"""
    for model, (hidden, q, k, inner, vocabulary, gated) in MODELS.items():
        yield model, "heads", (q, k, k), hidden, "plain"
        yield model, "out", (hidden,), q, "adds"
        yield (model, "gate, up", (inner, inner), hidden, "gated") if gated else (model, "up", (inner,), hidden, "activated")
        yield model, "down", (hidden,), inner, "adds"
        yield model, "head", (vocabulary,), hidden, "plain"


def measure(torch, work, times=1):
    """Microseconds of a graph of the work: median, least and most."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    samples = []
    for i in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 2:
            samples.append(1e3 * start.elapsed_time(end) / times)
    return statistics.median(samples), min(samples), max(samples)


def pointer(t):
    return ctypes.c_void_p(t.data_ptr())


class Product:
    """Of rows with matrices that are one tensor, in each way."""

    def __init__(self, torch, modules, outs, columns, kind, rows):
        self.torch, self.modules, self.outs, self.columns, self.kind, self.rows = torch, modules, outs, columns, kind, rows
        self.total, self.gated = sum(outs), kind == "gated"
        self.width = outs[0] if self.gated else self.total  # of the result
        self.x, self.before, self.wide = self.random(columns), self.random(self.width), self.random(self.total)

    def random(self, columns):
        return self.torch.randn(self.rows, columns, device="cuda", dtype=self.torch.bfloat16)

    def result(self):
        return self.before.clone() if self.kind == "adds" else self.torch.full_like(self.before, float("nan"))

    def exact(self, w):
        y = self.x.float() @ w.float().t()
        if self.gated:
            return self.torch.nn.functional.silu(y[:, :self.width]) * y[:, self.width:]
        return y.relu() if self.kind == "activated" else y + self.before.float() if self.kind == "adds" else y

    def arguments(self, y, w):
        matrices, first = Matrices(), 0
        for i, n in enumerate(self.outs):
            matrices.weight[i], matrices.out[i] = w.data_ptr() + 2 * first * self.columns, n
            first += n
        activation = {"gated": 0, "activated": 3}.get(self.kind, -1)
        return [pointer(y), pointer(self.x), matrices, ctypes.c_longlong(self.columns), *map(ctypes.c_int, (self.rows, self.columns, activation))]

    def cublas(self, y, w):
        if self.kind == "adds":
            self.torch.addmm(y, self.x, w.t(), out=y)
            return
        self.torch.mm(self.x, w.t(), out=self.wide if self.gated else y)
        if self.kind == "activated":
            y.relu_()
        if self.gated:
            long, width = ctypes.c_longlong, self.width
            self.modules["gated.cu"].launch(
                self.torch, "product_bf16_vector", ((width // 8 + 255) // 256, self.rows, 1), 256,
                [pointer(y), long(width), pointer(self.wide), long(self.total), ctypes.c_void_p(self.wide.data_ptr() + 2 * width), long(self.total),
                 long(self.rows), long(width), ctypes.c_int(0)], early=False)

    def few_rows(self, y, w):
        arguments, kernel, tile = self.arguments(y, w), "few_rows_gated", 8
        if not self.gated:
            arguments.append(ctypes.c_int(int(self.kind == "adds")))
            kernel = "few_rows_wide" if self.total >= 4096 else "few_rows_short" if self.columns <= 1024 else "few_rows_long"
            tile = 16 if self.total >= 4096 else 8
        self.modules["few_rows.cu"].launch(self.torch, kernel, (self.width // tile, 1, 1), 512, arguments)

    def some_rows(self, cluster, blocks):
        of_block = ROWS_OF_BLOCK // 2 if self.gated else ROWS_OF_BLOCK
        grid, more = (cluster, (self.width + of_block - 1) // of_block, 1), (int(self.kind == "adds"), int(self.gated))
        tiles = next(t for t in TILES if 8 * t >= self.rows)
        return lambda y, w: self.modules["some_rows.cu"].launch(
            self.torch, f"some_rows_{tiles}_{blocks}", grid, THREADS, self.arguments(y, w) + list(map(ctypes.c_int, more)), cluster,
            shared=shared_bytes(tiles, blocks))

    def ways(self, clusters):
        yield "cublas", 1, 0, self.cublas
        if self.rows <= MOST_ROWS["few_rows"]:
            yield "few_rows", 1, 2, self.few_rows
        if self.rows <= MOST_ROWS["some_rows"]:
            for cluster, blocks in itertools.product(clusters, (2, 3)):
                yield "some_rows", cluster, blocks, self.some_rows(cluster, blocks)

    def check(self, work, w):
        """The largest difference from the exact result, and whether a second run gives the same bits."""
        y, again, exact = self.result(), self.result(), self.exact(w)
        work(y, w)
        work(again, w)
        return ((y.float() - exact).abs().max() / exact.abs().max()).item(), self.torch.equal(y, again)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rehearse = "--rehearse" in sys.argv
    library = sys.argv[sys.argv.index("--rehearse") + 1] if rehearse else "libnvrtc.so.13"
    if not rehearse:
        import torch
        library = next(map(str, pathlib.Path(torch.__file__).resolve().parents[1].glob("nvidia/cu13/lib/libnvrtc.so.13")), library)
    nvrtc, files = Nvrtc(library), ("few_rows.cu", "some_rows.cu", "gated.cu")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        cubins = dict(zip(files, threads.map(lambda name: nvrtc.cubin(source_of(name)), files)))
    if rehearse:
        print({name: len(cubin) for name, cubin in cubins.items()}, len(list(shapes())))
        return 0
    torch.manual_seed(1)
    torch.zeros(1, device="cuda")  # makes the context
    modules = {name: Module(cubin) for name, cubin in cubins.items()}
    environment = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    failures = 0
    with open(out / "row_products.jsonl", "w") as log:
        for model, name, outs, columns, kind in shapes():
            size = 2 * sum(outs) * columns
            copies = max(2, min(64, BYTES // size))
            weights = [torch.randn(sum(outs), columns, device="cuda", dtype=torch.bfloat16).mul_(columns**-0.5) for _ in range(copies)]
            times = max(copies, 16)
            for rows in ROWS:
                product, best = Product(torch, modules, outs, columns, kind, rows), {}
                for kernel, cluster, blocks, work in product.ways((1,) if name == "head" else (1, 2, 4, 8)):
                    off, same = product.check(work, weights[0])
                    failures += not off < MOST_OFF or (kernel != "cublas" and not same)
                    y = torch.zeros_like(product.before)
                    taken, least, most = measure(torch, lambda: [work(y, weights[i % copies]) for i in range(times)], times)
                    best[kernel] = min(best.get(kernel, (taken, cluster, blocks)), (taken, cluster, blocks))
                    log.write(json.dumps({"suite": "row_products", "model": model, "matrix": name, "out": list(outs), "in": columns, "kind": kind, "rows": rows,
                                          "kernel": kernel, "cluster": cluster, "blocks": blocks, "microseconds": taken, "least": least, "most": most,
                                          "off": off, "same": same, "environment": environment}) + "\n")
                print(f"{model:13} {name:8} {rows:2}  " + "  ".join(f"{kernel} {taken:.1f}/{cluster}x{blocks}" for kernel, (taken, cluster, blocks) in best.items()), flush=True)
    print(f"row_products: {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
