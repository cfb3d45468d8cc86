#!/usr/bin/env python3
"""A decoding step by today's ATen calls: launched one by one, and replayed as a CUDA graph. usage: graphs.py OUT_DIR [--minutes M]

Random weights of a model's real sizes. A step is the embedding, the layers (norm, q, k, v, rotation, cache writes, FlashAttention, output, MLP),
the head and a sampler in float32, as `neap` launches them. A row of OUT_DIR/engine-graphs.jsonl has milliseconds a token (medians of 10) launched
one by one and as a graph, the graph's nodes, what libtorch's private pool and the driver keep for it, and the floor: weights and keys
once at the rate that a copy of the same run reaches, and the kernels that take most. "joined" has q, k, v and gate, up in one product each.
"""
import json
import pathlib
import statistics
import sys
import time

import torch

F = torch.nn.functional
aten = torch.ops.aten
# hidden, intermediate, layers, heads, key heads, head width, vocabulary, has biases in q, k, v, gated MLP
MODELS = {"qwen2.5-0.5b": (896, 4864, 24, 14, 2, 64, 151936, True, True), "qwen2.5-1.5b": (1536, 8960, 28, 12, 2, 128, 151936, True, True),
          "opt-1.3b": (2048, 8192, 24, 32, 32, 64, 50272, True, False), "llama-3.1-8b": (4096, 14336, 32, 32, 8, 128, 128256, False, True)}
BATCHES = (1, 8, 64, 256)
KEYS = 512


class Step:
    def __init__(self, sizes, batch, joined):
        (self.hidden, self.inner, self.layers, self.heads, self.key_heads, self.width, self.vocabulary, biases, self.gated) = sizes
        make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02
        self.joined, self.batch = joined, batch
        q, k = self.heads * self.width, self.key_heads * self.width
        self.parts = (q, k, k)
        self.blocks = []
        for _ in range(self.layers):
            qkv = [make(q + 2 * k, self.hidden)] if joined else [make(n, self.hidden) for n in self.parts]
            wide = 2 if self.gated else 1
            up = [make(wide * self.inner, self.hidden)] if joined else [make(self.inner, self.hidden) for _ in range(wide)]
            self.blocks.append({"norm": make(self.hidden), "norm2": make(self.hidden), "qkv": qkv, "up": up, "out": make(self.hidden, q),
                                "bias": [make(w.size(0)) if biases else None for w in qkv], "down": make(self.hidden, self.inner),
                                "k": make(batch, self.key_heads, KEYS, self.width), "v": make(batch, self.key_heads, KEYS, self.width)})
        self.table = make(self.vocabulary, self.hidden)
        self.norm = make(self.hidden)
        self.tokens = torch.randint(0, self.vocabulary, (batch,), device="cuda")
        self.positions = torch.full((batch,), KEYS - 2, device="cuda")
        self.uniforms = torch.rand(batch, device="cuda")
        self.frequencies = torch.rand(self.width // 2, device="cuda")

    def bytes(self):
        weights = sum(t.numel() for b in self.blocks for n, ts in b.items() if n not in ("k", "v") for t in (ts if isinstance(ts, list) else [ts]) if t is not None)
        return 2 * (weights + self.table.numel() + sum(b["k"].numel() * 2 for b in self.blocks))

    def rotate(self, x, cos, sin):
        half = self.width // 2
        y = torch.empty_like(x)
        x1, x2, y1, y2 = x[..., :half], x[..., half:], y[..., :half], y[..., half:]
        torch.mul(x1, cos, out=y1).addcmul_(x2, sin, value=-1)
        torch.mul(x2, cos, out=y2).addcmul_(x1, sin)
        return y

    def attention(self, q, block, starts, counts, used):
        group = self.heads // self.key_heads
        if group > 1:
            q, rows = q.reshape(-1, group, self.width), lambda c: c.view(-1, 1, self.width)
        else:
            length = (self.batch - 1) * self.key_heads * KEYS + KEYS
            rows = lambda c: c.as_strided((length, self.key_heads, self.width), (self.width, KEYS * self.width, 1))
        return aten._flash_attention_forward(q, rows(block["k"]), rows(block["v"]), counts, starts, 1, KEYS, 0.0, False, False,
                                             seqused_k=used)[0].view(self.batch, -1)

    def __call__(self):
        angles = self.positions.unsqueeze(1) * self.frequencies
        cos, sin = angles.cos().to(torch.bfloat16).unsqueeze(1), angles.sin().to(torch.bfloat16).unsqueeze(1)
        shared = self.heads > self.key_heads
        of_row = self.key_heads if shared else 1
        counts = torch.arange(self.batch * of_row + 1, device="cuda", dtype=torch.int32)
        starts = counts * (KEYS if shared else KEYS * self.key_heads)
        used = (self.positions.unsqueeze(1) + 1).to(torch.int32).expand(-1, of_row).contiguous().view(-1)
        x = self.table[self.tokens]
        where = self.positions.view(-1, 1, 1, 1).expand(self.batch, self.key_heads, 1, self.width)
        norm = lambda t, w: aten._fused_rms_norm(t, [self.hidden], w, 1e-6)[0] if self.gated else F.layer_norm(t, (self.hidden,), w, w)
        for b in self.blocks:
            y = norm(x, b["norm"])
            q, k, v = [F.linear(y, w, bias) for w, bias in zip(b["qkv"], b["bias"])] if not self.joined else F.linear(y, b["qkv"][0], b["bias"][0]).split(self.parts, 1)
            q, k, v = (t.reshape(self.batch, -1, self.width) for t in (q, k, v))
            if self.gated:
                q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
            b["k"].scatter_(2, where, k.unsqueeze(2))
            b["v"].scatter_(2, where, v.unsqueeze(2))
            x = x + F.linear(self.attention(q, b, starts, counts, used), b["out"])
            y = norm(x, b["norm2"])
            up = [F.linear(y, w) for w in b["up"]] if not self.joined else F.linear(y, b["up"][0]).split(self.inner, 1)
            x = x + F.linear(F.silu(up[0]).mul_(up[1]) if self.gated else F.relu(up[0]), b["down"])
        logits = F.linear(norm(x, self.norm), self.table).float()
        mass = (logits / 0.7).softmax(-1).cumsum_(-1)
        target = self.uniforms.view(-1, 1) * mass[:, -1:]
        return torch.searchsorted(mass, target).clamp_(max=self.vocabulary - 1)


def milliseconds(work, times=10, calls=5):
    out = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        out.append((time.perf_counter() - began) * 1e3 / calls)
    return statistics.median(out)


def kernel_times(work):
    """Milliseconds of all kernels of one call, and [name, count, milliseconds] of those that take most."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        work()
        torch.cuda.synchronize()
    rows = [(e.key[:90], e.count, e.self_device_time_total / 1e3) for e in watched.key_averages() if e.self_device_time_total > 0]
    rows.sort(key=lambda row: -row[2])
    return {"kernels_ms": round(sum(ms for _, _, ms in rows), 3), "largest": [[name, count, round(ms, 3)] for name, count, ms in rows[:12]]}


def copy_rate():
    a = torch.empty(1 << 30, device="cuda", dtype=torch.int8)
    b = torch.empty_like(a)
    b.copy_(a)
    return 2 * a.numel() / (milliseconds(lambda: b.copy_(a)) * 1e-3)


def free_bytes():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def measure(sizes, batch, joined, rate):
    torch.manual_seed(1)
    step = Step(sizes, batch, joined)
    for _ in range(3):
        step()
    eager, kernels = milliseconds(step), kernel_times(step)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, reserved = free_bytes(), torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        step()
    captured, pool = free_bytes(), torch.cuda.memory_reserved() - reserved
    graph.instantiate()
    graph.replay()
    instantiated = free_bytes()
    from cuda.bindings import runtime
    _, _, nodes = runtime.cudaGraphGetNodes(graph.raw_cuda_graph())
    return {"eager_ms": round(eager, 3), "graph_ms": round(milliseconds(graph.replay), 3), "nodes": int(nodes), "pool_mib": round(pool / 2**20, 1),
            "driver_bytes_captured": free - captured - pool, "driver_bytes_instantiated": captured - instantiated,
            "floor_ms": round(step.bytes() / rate * 1e3, 3), **kernels}


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * float(sys.argv[sys.argv.index("--minutes") + 1] if "--minutes" in sys.argv else 5)
    rate = copy_rate()
    with (out / "engine-graphs.jsonl").open("w") as log:
        def put(row):
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(row, flush=True)
        put({"environment": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda, "copy_bytes_a_second": round(rate)}})
        with torch.no_grad():
            for model, sizes in MODELS.items():
                for batch in BATCHES:
                    for joined in (False, True):
                        if time.monotonic() > until:
                            return
                        try:
                            row = measure(sizes, batch, joined, rate)
                        except Exception as error:
                            row = {"error": str(error)[:300]}
                        put({"model": model, "sequences": batch, "keys": KEYS, "joined": joined, **row})
                        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
