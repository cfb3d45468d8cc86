#!/usr/bin/env python3
"""Pause and resume of two tags in turns, under torch_memory_saver and under the drop-in, on one GPU.

    tests/gpu/mixed_cycles.py [--peer SITE] --lib DIR [--lib DIR ...] --out FILE [--rounds N] [--cycles N]
                              [--peer-cycles N] [--moves all|kv] [--driver-times LIBRARY] [--seconds N]

SITE     the peer of PyPI (pip install --no-deps --target SITE torch_memory_saver==0.0.10); without it only the drop-in runs
DIR      holds libneap_memory_saver.so; of several builds the first is compared with the peer
LIBRARY  build/core/tests/gpu/libdriver_times.so: one more run of each package, in mode torch, counts and times
         its driver calls

The program knows only torch_memory_saver's interface: 64 GiB of KV cache without backup and a 7B model's
15.2 GB with CPU backup move in turns without any rest between; then the weights with retain_cpu_backup. With
--moves kv the weights stay. Both packages in both hook modes, one after the other; --rounds repeats that, because
two processes of one package can differ by more than two packages. Contents and addresses are checked. One more
run of each build has NEAP_LOG=debug: the steps of each move are in its log, which is written, too.

Writes JSON lines; prints median [lowest, highest] of the first cycles of all rounds and of the later ones. Exits 1
if the drop-in is slower than the peer in a row, by more than the 3 % that two equal runs differ by.
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
import ctypes, json, os, sys, time
import torch
from torch_memory_saver import torch_memory_saver as saver
mode, cycles, moves = sys.argv[1], int(sys.argv[2]), sys.argv[3]
take = lambda: b"{}"
if "DRIVER_TIMES" in os.environ:
    take = ctypes.CDLL(os.environ["DRIVER_TIMES"]).driver_times_take
    take.restype = ctypes.c_char_p
saver.hook_mode = mode
GIB = 1 << 30

def timed(row, call, *arguments):
    torch.cuda.synchronize()
    take()
    begin = time.perf_counter()
    call(*arguments)
    torch.cuda.synchronize()
    took = (time.perf_counter() - begin) * 1e3
    rows.setdefault(row, []).append(round(took, 2))
    if "DRIVER_TIMES" in os.environ:
        driver.append({"move": row, "took": round(took, 2), **json.loads(take())})
    print("move", row, round(took, 2), file=sys.stderr, flush=True)

rows, driver = {}, []
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
    if moves == "all":
        timed("pause 15.2 GB", saver.pause, "weights")
        timed("resume 15.2 GB, host memory given back", saver.resume, "weights")
assert sums == [int(w.sum(dtype=torch.int64)) for w in weights]
saver.retain_cpu_backup = True
for _ in range(cycles if moves == "all" else 0):
    timed("pause 15.2 GB, retained", saver.pause, "weights")
    timed("resume 15.2 GB, retained", saver.resume, "weights")
assert sums == [int(w.sum(dtype=torch.int64)) for w in weights]
assert at == [x.data_ptr() for x in kv + weights]
print("driver", json.dumps(driver), flush=True)
print("rows", json.dumps(rows), flush=True)
os._exit(0)
"""


def run(mode, cycles, moves, site, folders, limit, **changes):
    """Milliseconds by row, or why there are none; the log; the driver's calls by move."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NEAP_", "TMS_", "PYTORCH_"))}
    env.pop("LD_PRELOAD", None)
    if mode == "preload":
        env["LD_PRELOAD"] = str(site / "torch_memory_saver_hook_mode_preload_cu13.abi3.so")
    env["PYTHONPATH"] = os.pathsep.join([str(site), str(SOURCE / "python"), env.get("PYTHONPATH", "")])
    env["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, env.get("LD_LIBRARY_PATH", "")])
    if "DRIVER_TIMES" in changes:  # the peer links the driver, and in mode preload reads LD_PRELOAD as its own path
        env["LD_PRELOAD"] = env["NEAP_LIBCUDA"] = changes["DRIVER_TIMES"]
    env.update(changes)
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM, mode, str(cycles), moves], env=env, capture_output=True,
                              text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        return {"failed": f"no end after {limit} s"}, (late.stderr or b"").decode(errors="replace"), []
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("rows ", "driver ")))
    if "rows" in said:
        return json.loads(said["rows"]), done.stderr, json.loads(said["driver"])
    return {"failed": f"exit {done.returncode}: {done.stderr[-1500:]}"}, done.stderr, []


def show(values):
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]" if values else "-"


def firsts(runs):
    return [values[0] for values in runs if values]


def laters(runs):
    return [value for values in runs for value in values[1:]]


def verdict(row, peer, ours):
    """The drop-in's complaints in a row; every run has its own list of cycles."""
    found = []
    for part, pick in (("first", firsts), ("later", laters)):
        theirs, mine = pick(peer), pick(ours)
        if theirs and mine and statistics.median(mine) > 1.03 * statistics.median(theirs):
            found.append(f"{part} {statistics.median(mine):.1f} ms against {statistics.median(theirs):.1f} ms")
    half = min(map(len, ours), default=0) // 2
    early = [value for values in ours for value in values[1:half + 1]]
    if half >= 3 and statistics.median([v for values in ours for v in values[half:]]) > 1.1 * statistics.median(early):
        found.append("grows from cycle to cycle")
    return [f"{row}: {text}" for text in found]


def show_driver(package, mode, moves):
    """The calls of the first pause and resume and of the later ones' median, longest first."""
    seen = {}
    for move in moves:
        seen.setdefault(move["move"], []).append(move)
    for name, all_of_it in seen.items():
        for part, some in (("first", all_of_it[:1]), ("later", all_of_it[1:])):
            calls = sorted({c for move in some for c in move if c.startswith("cu")},
                           key=lambda c: -statistics.median(move.get(c, [0, 0, 0])[1] for move in some))
            if some:
                print(f"{mode:8}{package:22}{name}, {part}: {show([m['took'] for m in some])} ms;", "; ".join(
                    f"{statistics.median(m.get(c, [0, 0, 0])[0] for m in some):.0f} {c} "
                    f"{statistics.median(m.get(c, [0, 0, 0])[1] for m in some):.2f} ms, longest "
                    f"{max(m.get(c, [0, 0, 0])[2] for m in some):.2f}" for c in calls[:7]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--lib", type=Path, required=True, action="append")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--peer-cycles", type=int, default=10)
    parser.add_argument("--moves", choices=("all", "kv"), default="all")
    parser.add_argument("--modes", default="preload,torch")
    parser.add_argument("--driver-times", type=Path)
    parser.add_argument("--seconds", type=int, default=170, help="limit of one run")
    arguments = parser.parse_args()
    peer = arguments.peer.resolve() if arguments.peer else None
    found = torch_environment()
    found.update(command="tests/gpu/mixed_cycles.py", cpus=os.cpu_count(), moves=arguments.moves, rounds=arguments.rounds)
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
        packages = [*builds, *(["torch_memory_saver"] if peer else [])]
        modes = arguments.modes.split(",")

        def measure(package, mode, cycles, note=lambda log, driver: {}, **changes):
            rows, log, driver = run(mode, cycles, arguments.moves, sites.get(package, peer), folders, arguments.seconds,
                                    **changes)
            out.write(json.dumps({"package": package, "mode": mode, **rows, **note(log, driver)}) + "\n")
            out.flush()
            if "failed" in rows:
                print(package, mode, rows["failed"], flush=True)
                if package in builds:
                    complaints.append(f"{mode}: the run of {package} failed")
                return {}, []
            return rows, driver

        measured = {}  # mode -> package -> row -> a list of cycles for each round
        for i in range(arguments.rounds):
            for mode in modes:
                for package in packages if i % 2 == 0 else packages[::-1]:
                    cycles = arguments.cycles if package in builds else arguments.peer_cycles
                    for row, values in measure(package, mode, cycles)[0].items():
                        if row != "failed":
                            measured.setdefault(mode, {}).setdefault(package, {}).setdefault(row, []).append(values)
        for mode, rows_of in measured.items():
            theirs = rows_of.get("torch_memory_saver", {})
            for row, ours in rows_of.get("drop-in", {}).items():
                print(f"{mode:8}{row:42}", *(
                    f"{name}: first {show(firsts(rows.get(row, [])))} later {show(laters(rows.get(row, [])))} "
                    for name, rows in rows_of.items()), flush=True)
                complaints += [f"{mode}: {text}" for text in verdict(row, theirs.get(row, []), ours)]
        for name in builds:
            measure(name, modes[-1], 3, lambda log, _: {
                "steps": re.findall(r"move .*|.*(?:pausing|resuming) .* took .*", log)}, NEAP_LOG="debug")
        if arguments.driver_times:
            for package in packages:
                _, driver = measure(package, "torch", 5, lambda _, driver: {"driver": driver},
                                    DRIVER_TIMES=str(arguments.driver_times.resolve()))
                show_driver(package, "torch", driver)
        out.write(json.dumps({"complaints": complaints}) + "\n")
    for text in complaints:
        print("slower:", text)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
