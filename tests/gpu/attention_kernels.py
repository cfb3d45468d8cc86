#!/usr/bin/env python3
"""What each of libtorch's attention kernels costs for the shapes that Neap runs, and whether its backward pass repeats
its bits. usage: attention_kernels.py OUT_DIR [--device cpu] [--long]

--long: only training, single rows of 2 048 to 32 768 tokens; milliseconds are those of calls in a row.

Training: forward and backward of whole sequences. Decoding: one query a sequence against a cache whose length grows, each
length for the first time and again, because a kernel that is planned for each length costs the first time.
Writes OUT_DIR/attention.jsonl; goes on after a kernel that does not support a shape.
"""
import json
import pathlib
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
           "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
# name: sequences, tokens, query heads, key heads, head width
TRAINING = {"qwen2.5-1.5b": (8, 1024, 12, 2, 128), "qwen2.5-7b": (4, 2048, 28, 4, 128), "opt-1.3b": (8, 1024, 32, 32, 64),
            "reviews": (16, 64, 4, 2, 32),
            **{f"one row of {tokens}, {heads} heads": (1, tokens, heads, keys, 128)
               for heads, keys in ((12, 2), (24, 8), (32, 8)) for tokens in (512, 1024, 2048, 4096)}}
LONG = {f"one row of {tokens}, {heads} heads": (1, tokens, heads, keys, 128)
        for heads, keys in ((12, 2), (28, 4), (40, 8)) for tokens in (2048, 4096, 8192, 16384, 32768)}
DECODING = {"qwen2.5-1.5b": (64, 12, 2, 128), "opt-1.3b": (64, 32, 32, 64)}


class Clock:
    def __init__(self, device):
        self.gpu = device == "cuda"

    def now(self):
        if self.gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def median_ms(self, work, repeats=10):
        work()
        if "--long" in sys.argv[2:]:
            start = self.now()
            for _ in range(repeats):
                work()
            return round((self.now() - start) * 1e3 / repeats, 4)
        times = []
        for _ in range(repeats):
            start = self.now()
            work()
            times.append((self.now() - start) * 1e3)
        return round(statistics.median(times), 4)


def attend(q, k, v, **options):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=q.size(1) != k.size(1), **options)


def training(clock, device, kernel, shape, deterministic):
    batch, tokens, heads, key_heads, width = shape
    torch.manual_seed(1)
    make = lambda h: torch.randn(batch, tokens, h, width, device=device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
    q, k, v = make(heads), make(key_heads), make(key_heads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False
    with sdpa_kernel(KERNELS[kernel]):
        out = attend(q, k, v, is_causal=True)
        d = torch.randn_like(out)
        forward = clock.median_ms(lambda: attend(q, k, v, is_causal=True))
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        gradients = [torch.autograd.grad(out, (q, k, v), d, retain_graph=True) for _ in range(6)]
        peak = torch.cuda.max_memory_allocated() - held if device == "cuda" else 0
        same_forward = all(torch.equal(attend(q, k, v, is_causal=True), out) for _ in range(5))
        both = clock.median_ms(lambda: torch.autograd.grad(attend(q, k, v, is_causal=True), (q, k, v), d))
    same = [all(torch.equal(a, b) for a, b in zip(gradients[0], other)) for other in gradients[1:]]
    return {"forward_ms": forward, "forward_backward_ms": both, "backward_peak_mib": round(peak / 2**20, 1),
            "forward_repeats": same_forward, "backward_repeats": all(same)}


def decoding(clock, device, kernel, shape, lengths):
    batch, heads, key_heads, width = shape
    torch.use_deterministic_algorithms(False)
    limit = lengths[-1]
    cache = [torch.randn(batch, key_heads, limit, width, device=device, dtype=torch.bfloat16) for _ in range(2)]
    query = torch.randn(batch, key_heads, heads // key_heads, width, device=device, dtype=torch.bfloat16)
    positions = torch.randint(1, 8, (batch, 1), device=device)

    def walk():
        start = clock.now()
        for length in lengths:
            mask = None
            if kernel != "flash":  # which takes none: a bound for sequences of equal length
                mask = (torch.arange(length, device=device) <= length - positions).view(batch, 1, 1, length)
                mask = mask.expand(batch, 1, query.size(2), length)
            torch.nn.functional.scaled_dot_product_attention(query, cache[0][:, :, :length], cache[1][:, :, :length], mask)
        return round((clock.now() - start) * 1e3 / len(lengths), 4)

    with sdpa_kernel(KERNELS[kernel]):
        return {"first_ms": walk(), "again_ms": walk(), "third_ms": walk()}


def repeating(device):
    """Whether other kernels of a step give the same bits twenty times. Name: a function without arguments."""
    torch.manual_seed(1)
    vocabulary, width, rows = (151936, 1536, 8192) if device == "cuda" else (4096, 64, 512)
    masses = torch.rand(2, vocabulary, device=device)
    values = torch.randn(rows, width, device=device)
    tokens = torch.randint(0, 1000, (rows,), device=device)
    weight = torch.randn(width, device=device).requires_grad_()
    half = values.bfloat16()
    x = values.clone().requires_grad_()
    norm = torch.nn.functional
    return {
        "cumsum of one row": lambda: masses[:1].cumsum(-1),
        "cumsum of two rows": lambda: masses.cumsum(-1),
        "index_put_ with accumulate": lambda: torch.zeros(vocabulary, width, device=device).index_put_((tokens,), values, True),
        "index_add_": lambda: torch.zeros(vocabulary, width, device=device).index_add_(0, tokens, values),
        "rms_norm backward": lambda: torch.autograd.grad(norm.rms_norm(x, (width,), weight).square().sum(), weight)[0],
        "layer_norm backward": lambda: torch.autograd.grad(norm.layer_norm(x, (width,), weight).square().sum(), weight)[0],
        "bfloat16 matrix product": lambda: half.t() @ half,
        "norm of a vector": lambda: values.flatten().norm(),
        "log-probabilities": lambda: norm.log_softmax(values @ values[:1000].t(), -1),
    }


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    device = "cpu" if "cpu" in sys.argv[2:] else "cuda"
    clock = Clock(device)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    kernels = list(KERNELS) if device == "cuda" else ["flash", "math"]
    lengths = list(range(64, 1024, 8 if device == "cuda" else 240))
    long = "--long" in sys.argv[2:]
    if long:
        kernels = ["flash", "cudnn"]
    cases = [("training", n, s, k, d) for n, s in (LONG if long else TRAINING).items() for k in kernels for d in (False, True)]
    cases += [] if long else [("decoding", n, s, k, False) for n, s in DECODING.items() for k in kernels]
    with (out / "attention.jsonl").open("w") as file:
        for use, model, shape, kernel, deterministic in cases:
            if device == "cpu":
                shape = (1, 64, *shape[2:]) if use == "training" else (2, *shape[1:])
            row = {"suite": "attention", "use": use, "model": model, "shape": shape, "kernel": kernel,
                   "deterministic": deterministic, "device": name, "torch": torch.__version__}
            try:
                row |= (training(clock, device, kernel, shape, deterministic) if use == "training"
                        else decoding(clock, device, kernel, shape, lengths))
            except RuntimeError as error:
                row["error"] = str(error).splitlines()[0][:160]
            file.write(json.dumps(row) + "\n")
            file.flush()
            print({k: v for k, v in row.items() if k not in ("suite", "device", "torch", "shape")}, flush=True)
        torch.use_deterministic_algorithms(False)
        for operation, work in ({} if long else repeating(device)).items():
            first = work()
            row = {"suite": "repeats", "operation": operation, "device": name, "torch": torch.__version__,
                   "repeats": all(torch.equal(work(), first) for _ in range(20))}
            file.write(json.dumps(row) + "\n")
            print(operation, row["repeats"], flush=True)


if __name__ == "__main__":
    main()
