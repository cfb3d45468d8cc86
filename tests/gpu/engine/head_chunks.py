#!/usr/bin/env python3
"""What a language-model head costs by the rows of a chunk of logits. usage: head_chunks.py OUT_DIR

The calls of a loss over 16 384 tokens as `neap` makes them: logits in bfloat16, converted to float32, maximum, exponentials and their sum, the gradient
in place, back to bfloat16, the products for the hidden states and for the table, which is added to float32. Chunks of 2^25 to 2^28 elements. A row of
OUT_DIR/engine-head-chunks.jsonl has milliseconds of all chunks, of the products alone and of one fused pass at the rate of a copy.
"""
import json
import pathlib
import statistics
import sys

import torch

MODELS = {"qwen2.5-0.5b": (896, 151936), "qwen2.5-1.5b": (1536, 151936), "llama-3.1-8b": (4096, 128256), "opt-1.3b": (2048, 50272)}
TOKENS = 16384


def milliseconds(work):
    work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return round(statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])), 3)


def chunk(x, table, targets, d_table, elementwise):
    logits = torch.mm(x, table.t())
    if elementwise:
        wide = logits.float()
        top = wide.amax(-1, keepdim=True)
        wide.sub_(top)
        sums = wide.exp().sum(-1, keepdim=True)
        wide.sub_(sums.log()).exp_()
        wide.scatter_add_(1, targets.unsqueeze(1), torch.full_like(top, -1.0))
        wide.mul_(torch.full_like(top, 1e-4))
        logits = wide.to(torch.bfloat16)
    d = torch.mm(logits, table)
    torch.addmm(d_table, logits.t(), x, out_dtype=torch.float32, out=d_table)
    return d


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    with (out / "engine-head-chunks.jsonl").open("w") as log, torch.no_grad():
        def put(row):
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(row, flush=True)
        put({"environment": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}})
        for model, (hidden, vocabulary) in MODELS.items():
            x = torch.randn(TOKENS, hidden, device="cuda", dtype=torch.bfloat16)
            table = torch.randn(vocabulary, hidden, device="cuda", dtype=torch.bfloat16) * 0.02
            targets = torch.randint(0, vocabulary, (TOKENS,), device="cuda")
            d_table = torch.zeros(vocabulary, hidden, device="cuda")
            for power in (25, 26, 27, 28):
                rows = 2**power // vocabulary
                for multiple in (1, 64):
                    if multiple > 1:
                        rows = rows // multiple * multiple
                    def all_chunks(elementwise):
                        for first in range(0, TOKENS, rows):
                            chunk(x[first:first + rows], table, targets[first:first + rows], d_table, elementwise)
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                    ms = milliseconds(lambda: all_chunks(True))
                    peak = torch.cuda.max_memory_allocated() - before
                    put({"model": model, "elements": f"2^{power}", "rows": rows, "ms": ms, "products_ms": milliseconds(lambda: all_chunks(False)), "peak_mib": round(peak / 2**20, 1)})


if __name__ == "__main__":
    main()
