#!/usr/bin/env python3
"""Records small memory snapshots on a GPU for the fidelity tests of the replayer (torch 2.11).

    record_snapshots.py --out DIR [--only NAME,NAME] [--list]

Each case runs in a process of its own, because allocator settings are read once. It writes
DIR/NAME.pickle.gz (torch.cuda.memory._snapshot()) and appends what torch.cuda.memory_stats measured
to DIR/measured.jsonl. A case that fails is reported and the others go on; the exit code is then 1.
Work is random but seeded; it needs less than 8 GiB and about a minute in all.
"""

import argparse
import gzip
import json
import os
import pickle
import random
import subprocess
import sys
import time

MIB = 1 << 20


def sizes(rng, count, largest=48 * MIB):
    """Byte counts over all magnitudes from 16 B to `largest`, odd ones included."""
    return [max(16, int(2 ** rng.uniform(4, largest.bit_length() - 1))) for _ in range(count)]


class Work:
    """Allocates and frees with a chosen number of live tensors."""

    def __init__(self, torch, seed, most_live=120):
        self.torch = torch
        self.rng = random.Random(seed)
        self.live = []
        self.most_live = most_live

    def tensor(self, size):
        return self.torch.empty(size, dtype=self.torch.uint8, device="cuda")

    def churn(self, steps, largest=48 * MIB, after_alloc=None):
        for size in sizes(self.rng, steps, largest):
            self.live.append(self.tensor(size))
            if after_alloc is not None:
                after_alloc(self.live[-1])
            while len(self.live) > self.most_live or (self.live and self.rng.random() < 0.45):
                self.live.pop(self.rng.randrange(len(self.live)))

    def drop(self, share=1.0):
        keep = int(len(self.live) * (1 - share))
        self.rng.shuffle(self.live)
        del self.live[keep:]


def phase(torch, name):
    return torch.profiler.record_function("phase:" + name)


def default(torch, out):
    work = Work(torch, 1)
    for _ in range(4):
        work.churn(800)
        work.drop(0.7)


def empty_cache(torch, out):
    work = Work(torch, 2)
    for _ in range(6):
        work.churn(500)
        work.drop(0.8)
        torch.cuda.empty_cache()


def multi_stream(torch, out):
    """record_stream keeps freed blocks pending until the other stream has passed."""
    work = Work(torch, 3, most_live=60)
    side = [torch.cuda.Stream() for _ in range(3)]
    for round_index in range(300):
        stream = work.rng.choice(side)
        with torch.cuda.stream(work.rng.choice(side)):
            work.churn(4, 8 * MIB)
        work.churn(4, 8 * MIB)
        with torch.cuda.stream(stream):
            if work.live:
                tensor = work.live.pop(work.rng.randrange(len(work.live)))
                tensor.add_(1)
                torch.cuda._sleep(2_000_000)
                tensor.record_stream(stream)
                del tensor
        if round_index % 50 == 49:
            torch.cuda.synchronize()
            work.churn(5, MIB)


def graph_pools(torch, out):
    """Two CUDA graphs with a pool of their own each, one of them dropped before the end."""
    work = Work(torch, 4)
    work.churn(300)
    weight = torch.randn(1024, 1024, device="cuda")
    static = torch.randn(256, 1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            (static @ weight).relu().sum()
    torch.cuda.synchronize()
    graphs = []
    for width in (1, 3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            value = static
            for _ in range(4 * width):
                value = (value @ weight).relu() * 0.5
            total = value.sum()
        graphs.append((graph, total))
        work.churn(200)
    for graph, _ in graphs:
        graph.replay()
    torch.cuda.synchronize()
    work.churn(300)
    del graph, total, value
    graphs.pop(0)
    torch.cuda.empty_cache()
    work.churn(300)
    return graphs, work


def mem_pool(torch, out):
    work = Work(torch, 5)
    pool = torch.cuda.MemPool()
    kept = []
    for _ in range(5):
        work.churn(150)
        with torch.cuda.use_mem_pool(pool):
            kept += [work.tensor(size) for size in sizes(work.rng, 30)]
        work.churn(150)
        del kept[::2]
    torch.cuda.empty_cache()
    work.churn(200)
    return kept, pool, work


def expandable(torch, out):
    default(torch, out)


def expandable_empty_cache(torch, out):
    empty_cache(torch, out)


def expandable_streams(torch, out):
    multi_stream(torch, out)
    torch.cuda.empty_cache()
    Work(torch, 6).churn(200)


def cut_ring(torch, out):
    """Only the last 3000 events are kept: the state at their start has to be worked out."""
    work = Work(torch, 7)
    for _ in range(5):
        work.churn(700)
        work.drop(0.5)
    return work


def cut_ring_expandable(torch, out):
    work = Work(torch, 8)
    for _ in range(5):
        work.churn(700)
        work.drop(0.5)
        torch.cuda.empty_cache()
    return work


def retry_and_oom(torch, out):
    """A fraction makes the allocator release its cache and try again, then fail."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(2 * 1024 * MIB / total)
    work = Work(torch, 9, most_live=40)
    for mib in (1000, 1200, 1400, 1600):
        work.churn(300, 32 * MIB)
        work.drop()
        big = work.tensor(mib * MIB)  # the segment of the one before has to go first
        del big
    try:
        work.tensor(3000 * MIB)
        raise RuntimeError("3000 MiB fitted under a limit of 2 GiB")
    except torch.cuda.OutOfMemoryError:
        pass
    work.churn(300, 32 * MIB)
    return work


def garbage_collection(torch, out):
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(1280 * MIB / total)
    work = Work(torch, 10, most_live=40)
    for _ in range(5):
        work.churn(400, 128 * MIB)
        work.drop(0.8)
    return work


def max_split(torch, out):
    work = Work(torch, 11, most_live=40)
    for _ in range(4):
        work.churn(400, 256 * MIB)
        work.drop(0.8)
    return work


def roundup(torch, out):
    default(torch, out)


def phases(torch, out):
    """Inference and training phases as record_function marks, for what-if with empty_cache."""
    work = Work(torch, 12, most_live=80)
    for _ in range(4):
        with phase(torch, "generate"):
            work.churn(400, 8 * MIB)
            work.drop(0.9)
        with phase(torch, "reward"):
            work.churn(100, 32 * MIB)
            work.drop(0.9)
        with phase(torch, "train_actor"):
            work.churn(300, 128 * MIB)
            work.drop(0.9)
    return work


def stacks(torch, out):
    """With Python frames, so that blame can name them."""
    work = Work(torch, 13, most_live=40)
    work.churn(300)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return work, model, optimizer


# name -> (function, PYTORCH_CUDA_ALLOC_CONF, arguments of _record_memory_history)
CASES = {
    "default": (default, "", {}),
    "empty-cache": (empty_cache, "", {}),
    "multi-stream": (multi_stream, "", {}),
    "graph-pools": (graph_pools, "", {}),
    "mem-pool": (mem_pool, "", {}),
    "expandable": (expandable, "expandable_segments:True", {}),
    "expandable-empty-cache": (expandable_empty_cache, "expandable_segments:True", {}),
    "expandable-streams": (expandable_streams, "expandable_segments:True", {}),
    "graph-pools-expandable": (graph_pools, "expandable_segments:True", {}),
    "cut-ring": (cut_ring, "", {"max_entries": 3000}),
    "cut-ring-expandable": (cut_ring_expandable, "expandable_segments:True", {"max_entries": 3000}),
    "retry-and-oom": (retry_and_oom, "", {}),
    "retry-and-oom-expandable": (retry_and_oom, "expandable_segments:True", {}),
    "garbage-collection": (garbage_collection, "garbage_collection_threshold:0.6", {}),
    "max-split": (max_split, "max_split_size_mb:64", {}),
    "roundup": (roundup, "roundup_power2_divisions:[1:4,4:8,16:2,>:1]", {}),
    "phases": (phases, "", {}),
    "stacks": (stacks, "", {"stacks": "python"}),
}


def record(name, out):
    """One case, in this process."""
    function, conf, arguments = CASES[name]
    import torch

    torch.cuda.init()
    options = {"max_entries": 1000000, "context": None, "stacks": "python"}
    options.update(arguments)
    if "stacks" in arguments:
        options["context"] = "all"
    torch.cuda.memory._record_memory_history("all", **options)
    started = time.time()
    kept = function(torch, out)  # what it returns stays alive until the snapshot
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    stats = torch.cuda.memory_stats()
    del kept
    events = sum(len(trace) for trace in snapshot["device_traces"])
    path = os.path.join(out, name + ".pickle.gz")
    with open(path, "wb") as file:
        # No time stamp inside: the same snapshot gives the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=9, mtime=0) as packed:
            pickle.dump(snapshot, packed, protocol=4)
    measured = {
        "name": name,
        "conf": conf,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "total_memory": torch.cuda.get_device_properties(0).total_memory,
        "events": events,
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "end_reserved": stats["reserved_bytes.all.current"],
        "end_allocated": stats["allocated_bytes.all.current"],
        "num_device_alloc": stats["num_device_alloc"],
        "num_device_free": stats["num_device_free"],
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "file_bytes": os.path.getsize(path),
        "seconds": round(time.time() - started, 2),
    }
    print(json.dumps(measured))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="folder for the files")
    parser.add_argument("--only", default="", help="names of cases, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(CASES))
        return 0
    if not arguments.out:
        parser.error("--out is needed")
    if arguments.case:
        record(arguments.case, arguments.out)
        return 0
    names = [name for name in arguments.only.split(",") if name] or list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"unknown cases: {', '.join(unknown)}; --list shows those there are")
    os.makedirs(arguments.out, exist_ok=True)
    failed = []
    with open(os.path.join(arguments.out, "measured.jsonl"), "a", encoding="utf-8") as log:
        for name in names:
            environment = dict(os.environ)
            environment["PYTORCH_CUDA_ALLOC_CONF"] = CASES[name][1]
            environment.pop("PYTORCH_ALLOC_CONF", None)
            command = [sys.executable, os.path.abspath(__file__), "--out", arguments.out]
            try:
                done = subprocess.run(command + ["--case", name], env=environment, timeout=120,
                                      capture_output=True, text=True, check=False)
                code, output, errors = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired as late:
                code, output, errors = 124, "", str(late)
            if code == 0:
                line = output.strip().splitlines()[-1]
                log.write(line + "\n")
                log.flush()
                print("recorded", line)
            else:
                failed.append(name)
                print(f"FAILED {name} (exit code {code}): {errors.strip()[-600:]}")
    print(f"{len(names) - len(failed)} of {len(names)} recorded in {arguments.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
