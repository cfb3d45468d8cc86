#!/usr/bin/env python3
"""Pause and resume of two tags in turns, under torch_memory_saver and under the drop-in, on one GPU.

    tests/gpu/mixed_cycles.py [--peer SITE] --lib DIR [--lib DIR ...] --out FILE [--cycles N] [--peer-cycles N] [--seconds N]

SITE   the peer of PyPI (pip install --no-deps --target SITE torch_memory_saver==0.0.10); without it only the drop-in runs
DIR    holds libneap_memory_saver.so; of several builds the first is compared with the peer

The program knows only torch_memory_saver's interface: 64 GiB of KV cache without backup and a 7B model's
15.2 GB with CPU backup move in turns without any rest between; then the weights with retain_cpu_backup. Both
packages in both hook modes, one after the other. Contents and addresses are checked. One more run of each
build has NEAP_LOG=debug: the steps of each move are in its log, which is written, too.

Writes JSON lines; prints median [lowest, highest] of the first and of the later cycles. Exits 1 if the drop-in
is slower than the peer in a row, by more than the 3 % that two equal runs differ by.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from python_suite import SOURCE, lay_out_drop_in, torch_environment  # noqa: E402
from side_by_side import runtime_folders  # noqa: E402

PROGRAM = """
import json, os, sys, time
import torch
from torch_memory_saver import torch_memory_saver as saver
mode, cycles = sys.argv[1], int(sys.argv[2])
saver.hook_mode = mode
GIB = 1 << 30

def timed(row, call, *arguments):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call(*arguments)
    torch.cuda.synchronize()
    took = (time.perf_counter() - begin) * 1e3
    rows.setdefault(row, []).append(round(took, 2))
    print("move", row, round(took, 2), file=sys.stderr, flush=True)

rows = {}
with saver.region(tag="kv"):
    kv = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(64)]
# Linear layers of 28 blocks of a 7B model in bf16, and two embeddings.
layer = [3584 * 3584] * 2 + [512 * 3584] * 2 + [18944 * 3584] * 3
with saver.region(tag="weights", enable_cpu_backup=True):
    weights = [torch.empty(n, dtype=torch.int16, device="cuda") for n in layer * 28 + [152064 * 3584] * 2]
for i, w in enumerate(weights):
    w.random_(generator=torch.Generator("cuda").manual_seed(i))
sums = [int(w.sum(dtype=torch.int64)) for w in weights]
at = [x.data_ptr() for x in kv + weights]

for _ in range(cycles):
    timed("pause 64 GiB", saver.pause, "kv")
    timed("resume 64 GiB", saver.resume, "kv")
    timed("pause 15.2 GB", saver.pause, "weights")
    timed("resume 15.2 GB, host memory given back", saver.resume, "weights")
assert sums == [int(w.sum(dtype=torch.int64)) for w in weights]
saver.retain_cpu_backup = True
for _ in range(cycles):
    timed("pause 15.2 GB, retained", saver.pause, "weights")
    timed("resume 15.2 GB, retained", saver.resume, "weights")
assert sums == [int(w.sum(dtype=torch.int64)) for w in weights]
assert at == [x.data_ptr() for x in kv + weights]
print("rows", json.dumps(rows), flush=True)
os._exit(0)
"""


def run(package, mode, cycles, site, folders, limit, **changes):
    """Milliseconds by row, or why there are none; and the log."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NEAP_", "TMS_", "PYTORCH_"))}
    env.pop("LD_PRELOAD", None)
    if mode == "preload":
        env["LD_PRELOAD"] = str(site / "torch_memory_saver_hook_mode_preload_cu13.abi3.so")
    env["PYTHONPATH"] = os.pathsep.join([str(site), str(SOURCE / "python"), env.get("PYTHONPATH", "")])
    env["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, env.get("LD_LIBRARY_PATH", "")])
    env.update(changes)
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM, mode, str(cycles)], env=env, capture_output=True,
                              text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        return {"failed": f"no end after {limit} s"}, (late.stderr or b"").decode(errors="replace")
    for line in done.stdout.splitlines():
        if line.startswith("rows "):
            return json.loads(line[5:]), done.stderr
    return {"failed": f"exit {done.returncode}: {done.stderr[-1500:]}"}, done.stderr


def show(values):
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]" if values else "-"


def verdict(row, peer, ours):
    """The drop-in's complaints in a row."""
    found = []
    for part, theirs, mine in (("first", peer[:1], ours[:1]), ("later", peer[1:], ours[1:])):
        if theirs and mine and statistics.median(mine) > 1.03 * statistics.median(theirs):
            found.append(f"{part} {statistics.median(mine):.1f} ms against {statistics.median(theirs):.1f} ms")
    half = len(ours) // 2
    if half >= 3 and statistics.median(ours[half:]) > 1.1 * statistics.median(ours[1:half + 1]):
        found.append("grows from cycle to cycle")
    return [f"{row}: {text}" for text in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--lib", type=Path, required=True, action="append")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--peer-cycles", type=int, default=10)
    parser.add_argument("--modes", default="preload,torch")
    parser.add_argument("--seconds", type=int, default=170, help="limit of one run")
    arguments = parser.parse_args()
    peer = arguments.peer.resolve() if arguments.peer else None
    found = torch_environment()
    found.update(command="tests/gpu/mixed_cycles.py", cpus=os.cpu_count())
    if peer:
        found["torch_memory_saver"] = next((p.name.split("-")[1][:-len(".dist")]
                                            for p in peer.glob("torch_memory_saver-*.dist-info")), "?")
    folders = runtime_folders()
    complaints = []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, open(arguments.out, "w") as out:
        out.write(json.dumps({"environment": found}) + "\n")
        builds = {"drop-in" + (f" of {lib.name}" if i else ""): lib for i, lib in enumerate(arguments.lib)}
        sites = {name: Path(scratch) / str(i) for i, name in enumerate(builds)}
        for name, site in sites.items():
            site.mkdir()
            lay_out_drop_in(site, builds[name].resolve())

        def measure(package, mode, cycles, **changes):
            rows, log = run(package, mode, cycles, sites.get(package, peer), folders, arguments.seconds, **changes)
            note = {"steps": re.findall(r"move .*|.*(?:pausing|resuming) .* took .*", log)} if changes else {}
            out.write(json.dumps({"package": package, "mode": mode, **rows, **note}) + "\n")
            out.flush()
            if "failed" in rows:
                print(package, mode, rows["failed"], flush=True)
                if package in builds:
                    complaints.append(f"{mode}: the run of {package} failed")
                return {}
            return rows

        for mode in arguments.modes.split(","):
            measured = {name: measure(name, mode, arguments.cycles) for name in builds}
            theirs = measure("torch_memory_saver", mode, arguments.peer_cycles) if peer else {}
            for row in measured["drop-in"]:
                print(f"{mode:8}{row:42}", *(f"{name}: first {show(rows.get(row, [])[:1])} later {show(rows.get(row, [])[1:])} "
                                             for name, rows in (("peer", theirs), *measured.items())), flush=True)
                complaints += [f"{mode}: {text}" for text in verdict(row, theirs.get(row, []), measured["drop-in"][row])]
        for name in builds:
            measure(name, arguments.modes.split(",")[-1], 3, NEAP_LOG="debug")
        out.write(json.dumps({"complaints": complaints}) + "\n")
    for text in complaints:
        print("slower:", text)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
