#!/usr/bin/env python3
"""What attention of one query a sequence costs on a GPU, for caches from short to long. usage: decode_kernels.py OUT_DIR

Ways: the memory-efficient kernel with a mask, one block for each sequence and key head; FlashAttention over the cache as packed
sequences with lengths used, which divides keys between blocks where query heads share a key head. Each way's error is against
float32. A row has the seconds that the GPU works (of calls in a row) and those until the program has issued a call.
Writes OUT_DIR/decode-kernels.jsonl.
"""
import json
import pathlib
import sys
import time

import torch

# name: query heads, key heads, head width
MODELS = {"qwen2.5-1.5b": (12, 2, 128), "qwen2.5-7b": (28, 4, 128), "qwen2.5-14b": (40, 8, 128),
          "qwen2.5-7b by 4": (7, 1, 128), "llama-3.2-1b": (32, 8, 64), "opt-1.3b": (32, 32, 64)}
SEQUENCES = (1, 2, 8, 16, 64)
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 32768)
MOST_BYTES = 8 << 30
CALLS = 30


def efficient(query, keys, values, lengths, limit):
    """query (B, K, G, D), keys and values (B, K, T, D), lengths (B,)."""
    batch, _, group, _ = query.shape
    stride = (limit + 7) // 8 * 8
    mask = torch.zeros(batch, stride, device=query.device, dtype=query.dtype)
    mask.masked_fill_(torch.arange(stride, device=query.device) >= lengths.unsqueeze(1), float("-inf"))
    bias = mask[:, :limit].view(batch, 1, 1, limit).expand(batch, query.size(1), group, limit)
    k, v = keys[:, :, :limit], values[:, :, :limit]
    return lambda: torch.ops.aten._scaled_dot_product_efficient_attention(query, k, v, bias, False)[0].flatten(1)


def flash(query, keys, values, lengths, limit):
    """Each pair of a sequence and a key head is a sequence of its own, so the cache is read where it is."""
    batch, key_heads, group, width = query.shape
    pairs = batch * key_heads
    q, k, v = query.view(pairs, group, width), keys.view(-1, 1, width), values.view(-1, 1, width)
    counts = torch.arange(pairs + 1, device=query.device, dtype=torch.int32)
    starts = counts * keys.size(2)
    used = lengths.to(torch.int32).repeat_interleave(key_heads)
    return lambda: torch.ops.aten._flash_attention_forward(q, k, v, counts, starts, 1, limit, 0.0, False, False,
                                                           seqused_k=used)[0].view(batch, -1)


def exact(query, keys, values, lengths):
    scores = query.float() @ keys.float().transpose(2, 3) / query.size(3) ** 0.5
    hidden = torch.arange(keys.size(2), device=query.device) >= lengths.view(-1, 1, 1, 1)
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values.float()).flatten(1)


def measure(work):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began = time.perf_counter()
    start.record()
    for _ in range(CALLS):
        work()
    end.record()
    issued = time.perf_counter() - began
    end.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            work()
    graph.replay()
    torch.cuda.synchronize()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return {"device_us": round(start.elapsed_time(end) * 1e3 / CALLS, 2), "issue_us": round(issued * 1e6 / CALLS, 2)}


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name()
    with (out / "decode-kernels.jsonl").open("w") as file:
        for model, (heads, key_heads, width) in MODELS.items():
            for batch in SEQUENCES:
                for limit in LENGTHS:
                    if 4 * batch * key_heads * limit * width > MOST_BYTES:
                        continue
                    torch.manual_seed(1)
                    cache = lambda: torch.randn(batch, key_heads, limit, width, device="cuda", dtype=torch.bfloat16)
                    keys, values = cache(), cache()
                    query = torch.randn(batch, key_heads, heads // key_heads, width, device="cuda", dtype=torch.bfloat16)
                    lengths = torch.randint(limit // 2, limit + 1, (batch,), device="cuda")
                    wanted = exact(query, keys, values, lengths) if batch * limit <= 1 << 16 else None
                    row = {"suite": "decode-kernels", "model": model, "sequences": batch, "keys": limit, "device": name,
                           "torch": torch.__version__}
                    for way in (efficient, flash):
                        work = way(query, keys, values, lengths, limit)
                        cell = measure(work)
                        if wanted is not None:
                            cell["error"] = round((work().float() - wanted).abs().max().item(), 6)
                        row[way.__name__] = cell
                    file.write(json.dumps(row) + "\n")
                    print({k: v for k, v in row.items() if k not in ("suite", "device", "torch")}, flush=True)


if __name__ == "__main__":
    main()
