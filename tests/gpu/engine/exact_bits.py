#!/usr/bin/env python3
"""Whether decoding can have the bits of training's forward pass. usage: exact_bits.py OUT_DIR

products    exact_rows.cu, few_rows.cu, and some_rows.cu with its columns in one block and divided over a cluster, against cuBLASLt's first
            algorithm that does not split the depth, for 2 048 rows: elements with other bits, and microseconds a product with a matrix
            that is not in the cache
attention   FlashAttention over whole sequences against one that gets the last two tokens and all keys, in a batch of other lengths
Writes a row per case to OUT_DIR/exact-bits.jsonl.
"""
import ctypes
import json
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve()
sys.path += [str(HERE.parent), str(HERE.parents[1] / "kernels")]
import row_bits
import row_products

MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "opt-1.3b", "llama-3.1-8b")
WHOLE, ROWS = 2048, (1, 8, 32, 64)
EXACT = ((1, 4), (1, 8), (1, 12), (4, 4), (4, 8), (8, 3), (8, 5))  # tiles and stages of exact_rows.cu
HEADS = ((14, 2, 64), (12, 2, 128), (32, 32, 80), (8, 4, 256))  # queries', keys', width


def exact_rows(module, product, tiles, stages):
    shared = stages * 2 * (16 + 8 * tiles) * (256 + 8)
    number = ctypes.c_int
    return lambda y, w: module.launch(torch, f"exact_rows_{tiles}_{stages}", ((product.total + 15) // 16, 1, 1), 256,
                                      [row_products.pointer(y), row_products.pointer(product.x), row_products.pointer(w), number(product.rows), number(product.columns),
                                       number(product.total)], early=False, shared=shared)


def products(put):
    library = next(map(str, pathlib.Path(torch.__file__).resolve().parents[1].glob("nvidia/cu13/lib/libnvrtc.so.13")))
    nvrtc = row_products.Nvrtc(library)
    modules = {name: row_products.Module(nvrtc.cubin(row_products.source_of(name))) for name in ("few_rows.cu", "some_rows.cu")}
    exact = row_products.Module(nvrtc.cubin((HERE.parent / "exact_rows.cu").read_text()))
    lt = row_bits.Lt()
    for model, name, outs, columns, kind in row_products.shapes():
        if model not in MODELS:
            continue
        total = sum(outs)
        w = torch.randn(total, columns, device="cuda", dtype=torch.bfloat16).mul_(columns**-0.5)
        copies = [w.clone() for _ in range(max(2, min(64, row_products.BYTES // (2 * total * columns))))]
        x = torch.randn(WHOLE, columns, device="cuda", dtype=torch.bfloat16)
        wanted = torch.empty(WHOLE, total, device="cuda", dtype=torch.bfloat16)
        described = lt.product(WHOLE, columns, total, None)
        lt.run(described, x, w, wanted, lt.offers(described, 0)[0])
        for rows in ROWS:
            product = row_products.Product(torch, modules, outs, columns, "plain", rows)
            product.x = x[:rows].contiguous()
            ways = {f"some_rows/{cluster}": product.some_rows(cluster, 2) for cluster in ((1,) if total > 40000 else (1, 2, 4, 8))}
            if rows <= 8:
                ways["few_rows"] = product.few_rows
            for tiles, stages in EXACT:
                if 8 * tiles >= rows and (tiles == 1 or rows > 8):
                    ways[f"exact_rows/{tiles}/{stages}"] = exact_rows(exact, product, tiles, stages)
            for way, work in ways.items():
                y = torch.full((rows, total), float("nan"), device="cuda", dtype=torch.bfloat16)
                work(y, w)
                taken, _, _ = row_products.measure(torch, lambda: [work(y, copy) for copy in copies], len(copies))
                put({"part": "products", "model": model, "matrix": name, "in": columns, "out": total, "rows": rows, "way": way,
                     "different": int((y != wanted[:rows]).sum()), "of": y.numel(), "microseconds": round(taken, 2)})


def flash(q, k, v, q_ends, k_ends, most_q, most_k):
    return torch.ops.aten._flash_attention_forward(q, k, v, q_ends, k_ends, most_q, most_k, 0.0, True, False)[0]


def ends(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device="cuda", dtype=torch.int32)


def attention(put):
    for heads, keys, width in HEADS:
        lengths = [700, 64, 1, 333, 1025, 128, 129, 2048]
        sizes = sum(lengths)
        made = lambda n: torch.randn(sizes, n, width, device="cuda", dtype=torch.bfloat16)
        q, k, v = made(heads), made(keys), made(keys)
        e = ends(lengths)
        whole = flash(q, k, v, e, e, max(lengths), max(lengths))
        starts = e[:-1].tolist()
        for few in (1, 2):
            for back in (0, 1, 63, 100):
                used = [(s, n - back) for s, n in zip(starts, lengths) if n - back >= few]
                at = torch.cat([torch.arange(s, s + n, device="cuda") for s, n in used])
                of_q = torch.cat([torch.arange(s + n - few, s + n, device="cuda") for s, n in used])
                there = flash(q[of_q], k[at], v[at], ends([few] * len(used)), ends([n for _, n in used]), few, max(n for _, n in used))
                last = torch.tensor([s + n - 1 for s, n in used], device="cuda")
                mine = there[few - 1::few]
                put({"part": "attention", "heads": heads, "keys": keys, "width": width, "queries": few, "before_the_end": back,
                     "different": int((mine != whole[last]).sum()), "of": mine.numel()})


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    with (out / "exact-bits.jsonl").open("w") as log:
        def put(row):
            log.write(json.dumps({"suite": "exact_bits", **row}) + "\n")
            print(json.dumps(row), flush=True)
        for part in (attention, products):
            try:
                part(put)
            except Exception as e:  # one part says nothing about the other
                put({"part": part.__name__, "error": str(e)[:300]})


if __name__ == "__main__":
    sys.exit(main())
