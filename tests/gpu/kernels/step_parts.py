#!/usr/bin/env python3
"""A decoding step's kernels in a CUDA graph: which products and which attention are fastest together. usage: step_parts.py OUT_DIR [MODEL ...]

Unlike row_products.py, which measures products alone, a step has the norms, attention, head and sampler between them. Random weights and keys; a
sequence has 85 keys, or as many as the row says. Writes to OUT_DIR/step_parts.jsonl microseconds of a step with
- each choice of kernels for the products of a layer, with and without the norms before them in the same kernels, without early starts, without clusters, and with the largest part of the SMs' memory shared;
- attention by blocks with a head each ("one"), with the heads that share keys ("shared"), and by FlashAttention ("flash"), also alone;
- whole steps with keys in slots and in pages, whose results must have the same bits;
and the mean time of each kernel of a layer ("kernels"): between the ends of the waits of two consecutive kernels' first blocks.
--pages measures only slots and pages; --rehearse LIBNVRTC compiles only.
"""
import concurrent.futures
import ctypes
import json
import pathlib
import statistics
import sys
import time

import row_products
from row_products import Module, Nvrtc, TILES, shared_bytes, source_of

LONG, INT, FLOAT, POINTER = ctypes.c_longlong, ctypes.c_int, ctypes.c_float, ctypes.c_void_p
# layers, heads' width; the others are row_products.py's
SHAPES = {"qwen2.5-0.5b": (24, 64), "qwen2.5-1.5b": (28, 128), "opt-1.3b": (24, 64), "qwen3-4b": (36, 128), "llama-3.1-8b": (32, 128),
          "qwen2.5-3b": (36, 128), "llama-3.2-1b": (16, 64)}
FILES = ("few_rows.cu", "some_rows.cu", "normed_rows.cu", "norm.cu", "attend.cu", "sampler.cu", "append.cu", "attend_pages.cu")
TOKENS, POSITION = 148, 84
PAGE = 64  # tokens
MOST_SHARED, CARVEOUT = 8, 9  # attributes of functions
LAYER = ("norm1", "heads", "attend", "out", "norm2", "up", "down")
NORMS = {"heads": "norm1", "up": "norm2"}  # before products
TRACE = r"""
__device__ unsigned long long* trace_log;
__device__ inline void trace() {
  if (threadIdx.x != 0 || blockIdx.x != 0 || blockIdx.y != 0 || blockIdx.z != 0) return;
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  trace_log[1 + atomicAdd(trace_log, 1ull) % 100000] = t;
}
"""


class Attend(ctypes.Structure):
    _fields_ = [("strides", LONG * 10), ("eps", FLOAT), ("offset", FLOAT), ("heads", INT), ("key_heads", INT), ("width", INT), ("half", INT),
                ("factor", FLOAT), ("scale", FLOAT), ("window", INT), ("share", INT), ("pages", INT)]


class Append(ctypes.Structure):
    _fields_ = Attend._fields_[:8]


class Kernels(Module):
    """Of a file, with a preference for shared memory."""

    def __init__(self, cubin, carveout):
        super().__init__(cubin)
        self.carveout = carveout

    def launch(self, torch, name, grid, threads, arguments, cluster=1, early=True, shared=0):
        if name not in self.kernels:
            function = POINTER()
            for code in (self.driver.cuModuleGetFunction(ctypes.byref(function), self.module, name.encode()),
                         self.driver.cuFuncSetAttribute(function, MOST_SHARED, shared), self.driver.cuFuncSetAttribute(function, CARVEOUT, self.carveout)):
                if code:
                    raise RuntimeError(f"{name}: {code}")
            self.kernels[name] = function
        super().launch(torch, name, grid, threads, arguments, cluster, early, shared)


def traced(text):
    """Source whose kernels note when their first blocks have waited, and when those that do not wait begin."""
    text = text.replace("__device__ inline void wait_for_previous() {\n", TRACE + "__device__ inline void wait_for_previous() {\n", 1)
    text = text.replace('asm volatile("griddepcontrol.wait;" ::: "memory");\n', 'asm volatile("griddepcontrol.wait;" ::: "memory");\n  trace();\n', 1)
    return text.replace("    parts<T, N>(", "    trace(); parts<T, N>(").replace("    draw<T, N>(", "    trace(); draw<T, N>(")


def rows_grid(columns, out):
    """OwnKernels::rows_grid() of step/operations/own_kernels.cpp."""
    tiles = (out + 63) // 64

    def room(cluster, blocks):
        return 132 * blocks * (9 if cluster > 2 else 10) // 10

    cluster = 1
    while 2 * cluster <= 8 and 2 * cluster * 200 <= columns and 2 * cluster * tiles <= room(2 * cluster, 3 if columns > cluster * 1024 else 2):
        cluster *= 2
    taken = {n: n * -(-cluster * tiles // room(cluster, n)) for n in (2, 3)}
    return cluster, 3 if cluster * tiles > room(cluster, 2) and 5 * taken[3] <= 6 * taken[2] else 2


def in_rounds(columns):
    return columns % 512 == 0 and columns <= 2048


def normalizes(rows, columns, out):
    """OwnKernels::normalizes()."""
    return (columns <= 1024 or in_rounds(columns)) and choice(rows, columns, out) == "few"


def choice(rows, columns, out):
    """OwnKernels::row_product()."""
    if out >= 42 << 10:
        return "some" if rows <= 16 else "cublas"
    elements, width = columns * out, min(columns, out)
    if rows <= 8 and (elements < 4 << 20 or width <= 1152 or in_rounds(width) or 2048 <= width <= 2176 or (rows <= 4 and width >= 3072)):
        return "few"
    medium, wide, deep = rows <= 48, out >= 4 * columns, columns >= 4 * out
    fits = elements <= (54 << 20 if medium or wide or deep else 9 << 19)
    return "some" if rows <= 64 and (fits or (medium and wide)) else "cublas"


class Model:
    def __init__(self, torch, name):
        self.torch, self.name = torch, name
        self.layers, self.width = SHAPES[name]
        self.hidden, q, k, inner, self.vocabulary, gated = row_products.MODELS[name]
        self.heads, self.key_heads, self.inner, self.q, self.rotates = q // self.width, k // self.width, inner, q, gated
        self.matrices = {"heads": ((q, k, k), self.hidden, "plain"), "out": ((self.hidden,), q, "adds"),
                         "up": ((inner, inner) if gated else (inner,), self.hidden, "gated" if gated else "activated"), "down": ((self.hidden,), inner, "adds")}
        self.weights = [{part: self.random(sum(outs), columns) for part, (outs, columns, _) in self.matrices.items()} for _ in range(self.layers)]
        self.head, self.gain = self.random(self.vocabulary, self.hidden), torch.ones(self.hidden, device="cuda", dtype=torch.bfloat16)
        self.offset = None if self.rotates else torch.zeros_like(self.gain)  # of OPT's norms, which are centered

    def random(self, out, columns):
        return self.torch.empty(out, columns, device="cuda", dtype=self.torch.bfloat16).normal_(0, columns**-0.5)


def at(t, elements=0):
    return POINTER(t.data_ptr() + elements * t.element_size() if t is not None else 0)


class Norm(ctypes.Structure):
    _fields_ = [("weight", POINTER), ("bias", POINTER), ("eps", FLOAT), ("offset", FLOAT), ("centered", INT)]


class Step:
    """`products`: the kernel of each part, or a function as choice(); `norms`: the parts whose kernels normalize; `only_attention`: neither norms, products, head nor sampler."""

    def __init__(self, model, kernels, rows, products=choice, attention="one", early=True, clusters=True, tokens=TOKENS, position=POSITION, only_attention=False, pages=False, norms=None):
        torch = model.torch
        self.torch, self.m, self.kernels, self.rows, self.attention, self.early, self.clusters = torch, model, kernels, rows, attention, early, clusters
        self.products = products if callable(products) else None
        self.parts = products if self.products is None else {}
        chosen = [part for part in NORMS if self.products and normalizes(rows, model.hidden, sum(model.matrices[part][0]))]
        self.norms = chosen if norms is None else norms
        self.tokens, self.only_attention, self.layers = tokens, only_attention, 8 if only_attention else model.layers

        def random(*sizes):
            return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)

        self.x, self.y, self.qkv, self.a = (random(rows, n) for n in (model.hidden, model.hidden, model.q + 2 * model.key_heads * model.width, model.q))
        self.h, self.logits, self.turned = random(rows, model.inner), random(rows, model.vocabulary), random(rows, model.heads, model.width)
        self.keys, self.values = (random(self.layers, rows, model.key_heads, tokens, model.width) for _ in range(2))
        self.table = self.move_to_pages() if pages else None
        self.positions, self.frequencies = torch.full((rows,), position, device="cuda"), torch.rand(model.width // 2, device="cuda")
        self.uniforms, self.drawn = torch.rand(rows, device="cuda"), torch.zeros(rows, device="cuda", dtype=torch.int64)
        self.read = (model.vocabulary + 8191) // 8192
        self.best, self.sums = torch.zeros(rows, self.read, device="cuda", dtype=torch.int64), torch.zeros(rows, self.read, device="cuda")
        packed = torch.arange(rows * model.key_heads + 1, device="cuda", dtype=torch.int32)
        self.counts, self.starts, self.used = packed, packed * tokens, torch.full((rows * model.key_heads,), position + 1, device="cuda", dtype=torch.int32)

    def move_to_pages(self):
        """Keys and values in pages, in random order: the table of rows."""
        torch, of_row = self.torch, -(-self.tokens // PAGE)
        table = 1 + torch.randperm(self.rows * of_row, device="cuda").view(self.rows, of_row)

        def paged(slots):
            slots = torch.nn.functional.pad(slots, (0, 0, 0, of_row * PAGE - self.tokens)).unflatten(3, (of_row, PAGE))
            pool = torch.zeros(len(slots), 1 + table.numel(), slots.shape[2], PAGE, slots.shape[5], device="cuda", dtype=slots.dtype)
            pool[:, table.flatten()] = slots.transpose(2, 3).flatten(1, 2)
            return pool

        self.keys, self.values = paged(self.keys), paged(self.values)
        return table * self.m.key_heads * PAGE

    def launch(self, file, kernel, grid, threads, arguments, cluster=1, shared=0, early=True):
        self.kernels[file].launch(self.torch, kernel, grid, threads, arguments, cluster, self.early and early, shared)

    def norm(self, part="head"):
        """The part's input."""
        if part in self.norms:
            return self.x
        if not self.only_attention:
            c = self.m.hidden
            self.launch("norm.cu", "norm_bf16_vector", (self.rows, 1, 1), (c // 8 + 31) // 32 * 32,
                        [at(self.y), at(self.x), LONG(c), at(self.m.gain), at(self.m.offset), POINTER(), LONG(c), FLOAT(1e-6), FLOAT(0), INT(not self.m.rotates)])
        return self.y

    def multiply(self, part, w, x, y, outs, columns, kind):
        total, gated, rows = sum(outs), kind == "gated", self.rows
        kernel, width = self.parts.get(part) or self.products(rows, columns, total), outs[0] if gated else total
        if kernel == "cublas":
            out = self.torch.addmm(y, x, w.t(), out=y) if kind == "adds" else self.torch.mm(x, w.t(), out=None if gated else y)
            if gated:
                self.torch.mul(out[:, :width], out[:, width:], out=y)
            return
        by, first = row_products.Matrices(), 0
        for i, n in enumerate(outs):
            by.weight[i], by.out[i] = w.data_ptr() + 2 * first * columns, n
            first += n
        arguments = [at(y), at(x), by, LONG(columns), INT(rows), INT(columns), INT({"gated": 0, "activated": 3}.get(kind, -1))]
        if part in self.norms:
            rounds = max(2, -(-columns // 512))
            wide = rounds == 4 and not gated
            blocks = min(width // (16 if wide else 8), 132 * (1 if wide or (gated and rounds == 4) else 2))
            norm = Norm(self.m.gain.data_ptr(), None if self.m.rotates else self.m.offset.data_ptr(), 1e-6, 0, not self.m.rotates)
            self.launch("normed_rows.cu", f"normed_rows_{'gated_' if gated else 'wide_' if wide else ''}{rounds}", (blocks, 1, 1), 512, [*arguments, norm])
            return
        if kernel == "few":
            wide = total >= 4096
            name = "gated" if gated else "wide" if wide else "short" if columns <= 1024 else "long"
            self.launch("few_rows.cu", f"few_rows_{name}", (width // (16 if wide and not gated else 8), 1, 1), 512, arguments + ([] if gated else [INT(int(kind == "adds"))]))
            return
        (cluster, blocks), of_block = rows_grid(columns, total), 32 if gated else 64
        cluster = cluster if self.clusters else 1
        tiles = next(t for t in TILES if 8 * t >= rows)
        self.launch("some_rows.cu", f"some_rows_{tiles}_{blocks}", (cluster, (width + of_block - 1) // of_block, 1), 128,
                    arguments + [INT(int(kind == "adds")), INT(int(gated))], cluster, shared_bytes(tiles, blocks))

    def product(self, layer, part, x, y):
        if not self.only_attention:
            self.multiply(part, self.m.weights[layer][part], x, y, *self.m.matrices[part])

    def attend(self, layer):
        m, keys, values, row = self.m, self.keys[layer], self.values[layer], self.qkv.shape[1]
        strides = (LONG * 10)(row, m.width, row, m.width, row, m.width, keys.stride(0), keys.stride(1), values.stride(0), values.stride(1))
        half, cache = m.width // 2 if m.rotates else 0, [at(keys), at(values)]
        inputs = [at(self.qkv), at(self.qkv, m.q), at(self.qkv, m.q + m.key_heads * m.width)] + [POINTER()] * 5 + [at(self.positions), at(self.frequencies)]
        if self.attention == "flash":
            self.launch("append.cu", "append_bf16", (self.rows, m.heads + 2 * m.key_heads, 1), (m.width // 2 + 31) // 32 * 32,
                        [at(self.turned), *cache, *inputs, Append(strides, 0, 0, m.heads, m.key_heads, m.width, half, 1)], early=False)
            self.torch.ops.aten._flash_attention_forward(
                self.turned.view(-1, m.heads // m.key_heads, m.width), keys.view(-1, 1, m.width), values.view(-1, 1, m.width), self.counts, self.starts,
                1, self.tokens, 0.0, False, False, scale=m.width**-0.5, seqused_k=self.used)
            return
        groups, warps = m.heads, 8 if self.attention == "shared" or self.rows * m.heads < 1024 else 4
        if self.attention == "shared":
            groups = m.key_heads * -(-m.heads // m.key_heads // 4)
        name = f"attend_{8 if m.width <= 64 else 16}_{warps}" + ("_shared" if self.attention == "shared" else "")
        pages = 0 if self.table is None else self.table.stride(0)
        by = Attend(strides, 0, 0, m.heads, m.key_heads, m.width, half, 1, m.width**-0.5, 0, self.tokens, pages)
        self.launch("attend_pages.cu" if pages else "attend.cu", name, (self.rows, groups, 1), 32 * warps,
                    [at(self.a), POINTER(), *cache, at(self.table), *inputs, by])

    def __call__(self):
        for layer in range(self.layers):
            self.product(layer, "heads", self.norm("heads"), self.qkv)
            self.attend(layer)
            self.product(layer, "out", self.a, self.x)
            self.product(layer, "up", self.norm("up"), self.h)
            self.product(layer, "down", self.h, self.x)
        if self.only_attention:
            return
        self.norm()
        n, logits = self.m.vocabulary, [at(self.logits), LONG(self.m.vocabulary), at(self.best), at(self.sums)]
        self.multiply("head", self.m.head, self.y, self.logits, (n,), self.m.hidden, "plain")
        self.launch("sampler.cu", "parts_bf16_vector", (self.rows, self.read, 1), 256, [*logits, LONG(n), FLOAT(0), FLOAT(1)], early=False)
        self.launch("sampler.cu", "draw_bf16_vector", (self.rows, 1, 1), 1024,
                    [*logits, at(self.uniforms), at(self.drawn), POINTER(), LONG(n), INT(self.read), FLOAT(0), FLOAT(1)], early=False)


def graph_of(torch, step):
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def microseconds(torch, step):
    """Of a step, of many in turn: median, least and most."""
    graph = graph_of(torch, step)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
    samples, times = [], 8
    for _ in range(6):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(times):
            graph.replay()
        end.record()
        end.synchronize()
        samples.append(1e3 * start.elapsed_time(end) / times)
    return statistics.median(samples), min(samples), max(samples)


def kernel_times(torch, step):
    """Microseconds of each kernel of a layer, on average; none if cuBLAS has some of a layer's products."""
    log = torch.zeros(100001, device="cuda", dtype=torch.int64)
    for name in FILES[:6]:
        place, size = POINTER(), ctypes.c_size_t()
        module = step.kernels[name]
        if module.driver.cuModuleGetGlobal_v2(ctypes.byref(place), ctypes.byref(size), module.module, b"trace_log"):
            raise RuntimeError(f"{name} has no log")
        module.driver.cuMemcpyHtoD_v2(place, ctypes.byref(ctypes.c_ulonglong(log.data_ptr())), ctypes.c_size_t(8))
    graph, sums, layer = graph_of(torch, step), {}, [name for name in LAYER if name not in [NORMS[part] for part in step.norms]]
    for _ in range(10):
        log.zero_()
        graph.replay()
        torch.cuda.synchronize()
        times = sorted(log[1:1 + int(log[0])].tolist())
        if len(times) - len(layer) * step.m.layers not in (3, 4):  # the last norm, perhaps the head, and two of the sampler
            return None
        for i, (begin, end) in enumerate(zip(times, times[1:])):
            name = layer[i % len(layer)] if i < len(layer) * step.m.layers else "behind"
            sums.setdefault(name, []).append(1e-3 * (end - begin))
    return {name: round(statistics.mean(sums[name]), 2) for name in layer}


def of_pages(torch, model, kernels, rows, attention, keys):
    """Microseconds of a step with as many keys, in slots and in pages, in turn; and whether both attend with the same bits."""
    def step(pages):
        torch.manual_seed(3)
        return Step(model, kernels, rows, attention=attention, tokens=keys, position=keys - 6, pages=pages)

    both = {"slots": step(False), "pages": step(True)}
    both["pages"].frequencies.copy_(both["slots"].frequencies)
    outs = []
    for each in both.values():
        each.qkv.copy_(both["slots"].qkv)
        each.attend(0)
        outs.append(each.a.clone())
    taken = {what: [microseconds(torch, each)[0] for _ in range(3)] for what, each in both.items()}
    return {what: round(statistics.median(times), 1) for what, times in taken.items()}, bool(torch.equal(*outs))


def cases(model, rows):
    """what, options of the step, and whether shared memory is preferred"""
    few, some = ({part: kind for part in ("heads", "out", "up", "down")} for kind in ("few", "some"))
    mixed, behind = dict(few, up="some", down="some"), lambda of: {**of, "head": choice(rows, model.hidden, model.vocabulary)}
    many = "shared" if rows * model.key_heads * -(-model.heads // model.key_heads // 4) >= 256 and model.heads > model.key_heads else "one"
    yield "chosen", {"attention": many}, False
    if rows <= 8:
        for what, of in (("few_rows", few), ("some_rows", some), ("both", mixed)):
            yield what, {"products": behind(of)}, False
        for norms in ((), ("heads",), ("up",)):
            yield f"chosen, norms in {' and '.join(norms) or 'none'}", {"norms": norms}, False
        if rows == 8:
            yield "both, shared memory preferred", {"products": behind(mixed)}, True
            yield "both, no early starts", {"products": behind(mixed), "early": False}, False
            yield "few_rows, no early starts", {"products": behind(few), "early": False}, False
            yield "both, no clusters", {"products": behind(mixed), "clusters": False}, False
        return
    for attention in ("one", "shared", "flash") if model.heads > model.key_heads else ("one", "flash"):
        if attention != many:
            yield f"attention: {attention}", {"attention": attention}, False
        for tokens in (256, 512, 1024, 2048):
            yield f"attention of 8 layers: {attention}", {"attention": attention, "tokens": tokens, "position": tokens - 6, "only_attention": True}, False


def main():
    out = pathlib.Path(sys.argv[1])
    rehearse = "--rehearse" in sys.argv
    library = sys.argv[sys.argv.index("--rehearse") + 1] if rehearse else "libnvrtc.so.13"
    if not rehearse:
        import torch
        library = next(map(str, pathlib.Path(torch.__file__).resolve().parents[1].glob("nvidia/cu13/lib/libnvrtc.so.13")), library)
    texts = [*map(source_of, FILES)]
    texts += [traced(text) for text in texts]
    with concurrent.futures.ThreadPoolExecutor(1 if rehearse else None) as threads:
        cubins = list(threads.map(Nvrtc(library).cubin, texts))
    if rehearse:
        print([len(cubin) for cubin in cubins])
        return
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    torch.zeros(1, device="cuda")  # makes the context
    usual, shared, watched = ({name: Kernels(cubin, carveout) for name, cubin in zip(FILES, some)}
                              for some, carveout in ((cubins, -1), (cubins, 100), (cubins[len(FILES):], -1)))
    environment = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    with open(out / "step_parts.jsonl", "w") as log:
        for name in [each for each in sys.argv[2:] if each in SHAPES] or SHAPES:
            model = Model(torch, name)
            for rows in (1, 4, 8, 16, 32, 64):
                for what, options, prefers in () if "--pages" in sys.argv else cases(model, rows):
                    step = Step(model, shared if prefers else usual, rows, **options)
                    taken, least, most = microseconds(torch, step)
                    row = {"suite": "step_parts", "model": name, "rows": rows, "what": what, "keys": step.tokens if step.only_attention else POSITION + 1,
                           "microseconds": round(taken, 1), "least": round(least, 1), "most": round(most, 1)}
                    if what == "chosen":
                        row["attention"] = options["attention"]
                        row["kernels"] = kernel_times(torch, Step(model, watched, rows, **options))
                    print(" ".join(f"{key}={value}" for key, value in row.items() if key != "suite"), flush=True)
                    log.write(json.dumps({**row, "environment": environment, "date": time.strftime("%Y-%m-%d")}) + "\n")
                many = next(cases(model, rows))[1]["attention"]
                for keys in (148, 600, 1500) if rows in (8, 64) else ():
                    taken, same = of_pages(torch, model, usual, rows, many, keys)
                    row = {"suite": "step_pages", "model": name, "rows": rows, "keys": keys, **taken, "same_bits": same}
                    print(row, flush=True)
                    log.write(json.dumps({**row, "environment": environment, "date": time.strftime("%Y-%m-%d")}) + "\n")
            step = None
            del model
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
