#!/usr/bin/env python3
"""Records programs under one allocator setting and measures them under others (torch 2.11).

    record_what_if.py --out DIR [--only NAME,NAME] [--jobs 12] [--device cpu] [--list]

For every program of what_if_work.py:
    DIR/NAME.pickle.gz        torch.cuda.memory._snapshot() of the recorded run
    DIR/measured.jsonl        one line for each setting: what torch.cuda.memory_stats measured
    DIR/segments.jsonl.gz     the addresses that cudaMalloc gave in each measured run
Every run has a process of its own, because allocator settings are read once; several share the GPU.
A run that fails is reported and the others go on; the exit code is then 1. --device cpu rehearses
the programs without a GPU and writes nothing but the exit code. Needs about 80 GiB and 4 minutes.
"""

import argparse
import concurrent.futures
import gc
import gzip
import json
import os
import pickle
import subprocess
import sys
import time

# What a recording is made under: (suffix, conf, empty). "recorded": where the program itself does.
RECORDINGS = {
    "ppo": [("", "", "none"), ("-emptied", "", "inference"),
            ("-expandable", "expandable_segments:True", "none")],
    "grpo-graphs": [("", "", "recorded")],
    "fragments": [("", "", "none"), ("-emptied", "", "all")],
}
# (conf, empty, limit): limit is a position between peak allocated (0) and peak reserved (1) of the
# recorded run, or None for no limit.
SETTINGS = [
    ("", "none", None),
    ("", "recorded", None),
    ("", "inference", None),
    ("", "training", None),
    ("", "all", None),
    ("", "none", 0.6),
    ("expandable_segments:True", "none", None),
    ("expandable_segments:True", "all", None),
    ("max_split_size_mb:64", "none", None),
    ("max_split_size_mb:64", "inference", None),
    ("max_split_size_mb:128", "all", None),
    ("roundup_power2_divisions:8", "none", None),
    ("roundup_power2_divisions:8", "all", None),
    ("garbage_collection_threshold:0.6", "none", 1.0),
    ("garbage_collection_threshold:0.8", "none", 0.9),
    ("large_segment_size_mb:64", "inference", None),
]
# Measured once more: does the driver repeat itself?
REPEATED = [("", "all", None)]


def run_here(arguments):
    """One run in this process; prints a JSON line."""
    import torch
    import what_if_work

    gc.disable()  # reference cycles must not free tensors at a moment of their own
    job = json.loads(arguments.run)
    on_gpu = arguments.device == "cuda"
    total = 0
    if on_gpu:
        torch.cuda.init()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.memory._record_memory_history(
            "all", max_entries=4_000_000, context=None, stacks="python")
        if job["fraction"] > 0:
            torch.cuda.set_per_process_memory_fraction(job["fraction"])
    started = time.time()
    context = what_if_work.Context(arguments.device, job["empty"], seed=len(job["work"]))
    out_of_memory = False
    kept = None
    try:
        kept = what_if_work.WORK[job["work"]](context)
    except torch.OutOfMemoryError:
        out_of_memory = True
    if not on_gpu:
        print(json.dumps({**job, "seconds": round(time.time() - started, 2)}))
        return
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory._snapshot()
    del kept
    events = max(snapshot["device_traces"], key=len)
    measured = {
        **job,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "total_memory": total,
        "events": len(events),
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "peak_requested": stats["requested_bytes.all.peak"],
        "end_reserved": stats["reserved_bytes.all.current"],
        "num_device_alloc": stats["num_device_alloc"],
        "num_device_free": stats["num_device_free"],
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "oom": out_of_memory,
        "seconds": round(time.time() - started, 2),
    }
    if job["record"]:
        with open(os.path.join(arguments.out, job["record"] + ".pickle.gz"), "wb") as file:
            # No time stamp inside: the same snapshot gives the same bytes.
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                pickle.dump(snapshot, packed, protocol=4)
    segments = [[event["action"], event["addr"], event["size"]] for event in events
                if event["action"].startswith("segment_")]
    print(json.dumps({"measured": measured, "segments": segments}))


class Runner:
    def __init__(self, arguments):
        self.arguments = arguments
        self.failed = []
        os.makedirs(arguments.out, exist_ok=True)
        self.measured = open(os.path.join(arguments.out, "measured.jsonl"), "w", encoding="utf-8")
        self.segments = gzip.open(os.path.join(arguments.out, "segments.jsonl.gz"), "wt")

    def start(self, job):
        environment = dict(os.environ)
        environment.pop("PYTORCH_ALLOC_CONF", None)
        environment["PYTORCH_CUDA_ALLOC_CONF"] = job["conf"]
        environment.setdefault("OMP_NUM_THREADS", "2")
        command = [sys.executable, os.path.abspath(__file__), "--out", self.arguments.out,
                   "--device", self.arguments.device, "--run", json.dumps(job)]
        try:
            done = subprocess.run(command, env=environment, timeout=200, capture_output=True,
                                  text=True, check=False)
        except subprocess.TimeoutExpired:
            return None, "no end within 200 s"
        if done.returncode != 0:
            return None, done.stderr.strip()[-600:]
        return json.loads(done.stdout.strip().splitlines()[-1]), ""

    def run(self, jobs):
        """All jobs, several at once; the measured lines in the order of jobs."""
        with concurrent.futures.ThreadPoolExecutor(self.arguments.jobs) as pool:
            lines = []
            for job, (result, error) in zip(jobs, pool.map(self.start, jobs)):
                if result is None:
                    self.failed.append(job)
                    print("FAILED", json.dumps(job), error, flush=True)
                    continue
                if "measured" in result:
                    lines.append(result["measured"])
                    self.measured.write(json.dumps(result["measured"]) + "\n")
                    self.measured.flush()
                    json.dump({**job, "segments": result["segments"]}, self.segments)
                    self.segments.write("\n")
                else:
                    print("rehearsed", json.dumps(result), flush=True)
            return lines


def job_of(work, conf, empty, fraction=0.0, record="", repeat=0):
    return {"work": work, "conf": conf, "empty": empty, "fraction": fraction, "record": record,
            "repeat": repeat}


def fraction_of(recorded, limit):
    """A memory fraction between what the recorded run needed and what it reserved."""
    if limit is None:
        return 0.0
    need, held = recorded["peak_allocated"], recorded["peak_reserved"]
    return round((need + limit * (held - need)) / recorded["total_memory"], 6)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="folder for the files")
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--jobs", type=int, default=12, help="runs at once (default 12)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--list", action="store_true", help="print the programs and stop")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_here(arguments)
        return 0
    names = ["ppo", "ppo-lora", "ppo-offload", "grpo-graphs", "sft", "fragments", "equal-sizes",
             "engine"]
    if arguments.list:
        print("\n".join(names))
        return 0
    if not arguments.out:
        parser.error("--out is needed")
    names = [name for name in arguments.only.split(",") if name] or names
    runner = Runner(arguments)
    jobs = [job_of(name, conf, empty, record=name + suffix) for name in names
            for suffix, conf, empty in RECORDINGS.get(name, [("", "", "none")])]
    recorded = {line["work"]: line for line in reversed(runner.run(jobs))}
    if arguments.device == "cuda":
        runner.run([job_of(name, conf, empty, fraction_of(recorded[name], limit), repeat=repeat)
                    for name in names if name in recorded
                    for conf, empty, limit in SETTINGS
                    for repeat in range(2 if (conf, empty, limit) in REPEATED else 1)
                    if empty != "recorded" or name == "grpo-graphs"])
    runner.measured.close()
    runner.segments.close()
    for job in runner.failed:
        print("failed:", json.dumps(job))
    print(f"{len(runner.failed)} runs failed; files in {arguments.out}")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
