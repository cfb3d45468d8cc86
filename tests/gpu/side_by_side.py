#!/usr/bin/env python3
"""The same programs under torch_memory_saver and under Neap's drop-in, in turns, on one GPU.

    tests/gpu/side_by_side.py --peer DIR --lib DIR --out FILE [--rounds N]

DIR of --peer   where the torch_memory_saver of PyPI was unpacked (pip install --no-deps --target DIR)
DIR of --lib    holds libneap_memory_saver.so

Each program knows nothing but torch_memory_saver's interface, in its own hook mode "preload"; contents
and addresses are verified before anything is timed. "neap, pages kept" is the same program with
neap.pause(keep_pages=True), which the peer does not have. Writes JSON lines; prints a table.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from python_suite import SOURCE, lay_out_drop_in, torch_environment  # noqa: E402

PROGRAM = """
import json, sys, time
import torch
from torch_memory_saver import torch_memory_saver as saver
what, keep_pages = sys.argv[1], sys.argv[2] == "kept"
GIB, MIB = 1 << 30, 1 << 20
if keep_pages:
    import neap
    pause = lambda tag: neap.pause(tag, keep_pages=True)
else:
    pause = saver.pause
numbers = {}

def timed(key, call, *arguments):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call(*arguments)
    numbers.setdefault(key, []).append((time.perf_counter() - begin) * 1e3)

def cycle(tag, prefix):
    time.sleep(0.3)   # a phase of use: the driver clears what it got back
    timed(prefix + "pause_ms", pause, tag)
    timed(prefix + "resume_ms", saver.resume, tag)

if what in ("64 x 1 GiB", "2048 x 32 MiB"):
    size = GIB if what.startswith("64") else 32 * MIB
    with saver.region("kv"):
        tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(64 * GIB // size)]
    at = [t.data_ptr() for t in tensors]
    free = torch.cuda.mem_get_info()[0]
    saver.pause("kv")
    assert torch.cuda.mem_get_info()[0] - free > 63 * GIB
    saver.resume("kv")
    for i, t in enumerate(tensors[::7]): t.fill_(i % 199 + 1)
    assert at == [t.data_ptr() for t in tensors]
    assert all(int(t[-1]) == i % 199 + 1 for i, t in enumerate(tensors[::7]))
    for _ in range(7): cycle("kv", "")
elif what == "weights":
    sizes = [(15_200_000_000 // 198) // 512 * 512] * 198
    with saver.region("weights", enable_cpu_backup=True):
        tensors = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in sizes]
    for i, t in enumerate(tensors): t.random_(generator=torch.Generator("cuda").manual_seed(i))
    sums = [int(t.sum(dtype=torch.int64)) for t in tensors]
    cycle("weights", "first_")
    assert sums == [int(t.sum(dtype=torch.int64)) for t in tensors]
    for _ in range(5): cycle("weights", "")
    assert sums == [int(t.sum(dtype=torch.int64)) for t in tensors]
elif what == "allocate":
    with saver.region("many"):
        torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
        begin = time.perf_counter()
        tensors = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(1000)]
        numbers["microseconds"] = [(time.perf_counter() - begin) * 1e6 / len(tensors)]
print("numbers", json.dumps(numbers), flush=True)
import os; os._exit(0)
"""


def runtime_folders():
    """The CUDA runtime that comes with torch: the peer's library is linked against it."""
    torch = importlib.util.find_spec("torch")
    if torch is None:
        return []
    return sorted({str(p.parent) for p in Path(torch.origin).parents[1].glob("nvidia/*/lib/libcudart.so*")})


def run(package, program, folder, peer, runtime):
    """Milliseconds by key, or why there are none."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NEAP_", "TMS_", "PYTORCH_"))}
    site = peer if package == "torch_memory_saver" else folder
    library = site / "torch_memory_saver_hook_mode_preload_cu13.abi3.so"
    env["LD_PRELOAD"] = str(library)
    env["PYTHONPATH"] = os.pathsep.join([str(site), str(SOURCE / "python"), env.get("PYTHONPATH", "")])
    env["LD_LIBRARY_PATH"] = os.pathsep.join([*runtime, env.get("LD_LIBRARY_PATH", "")])
    keep = "kept" if package == "neap, pages kept" else "given"
    done = subprocess.run([sys.executable, "-c", PROGRAM, program, keep], env=env, capture_output=True,
                          text=True, timeout=170)
    for line in done.stdout.splitlines():
        if line.startswith("numbers "):
            return json.loads(line[8:])
    return {"failed": f"exit {done.returncode}: {done.stderr[-600:]}"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    peer, lib = arguments.peer.resolve(), arguments.lib.resolve()
    version = next((p.name.split("-")[1][:-len(".dist")] for p in peer.glob("torch_memory_saver-*.dist-info")), "?")
    packages = ["torch_memory_saver", "drop-in", "neap, pages kept"]
    table = {}
    runtime = runtime_folders()
    failed = False
    with tempfile.TemporaryDirectory() as scratch, open(arguments.out, "w") as out:
        lay_out_drop_in(Path(scratch), lib)
        found = torch_environment()
        found.update(command="tests/gpu/side_by_side.py", torch_memory_saver=version)
        out.write(json.dumps({"environment": found}) + "\n")
        for turn in range(arguments.rounds):
            for program in ("64 x 1 GiB", "2048 x 32 MiB", "weights", "allocate"):
                # Who begins changes, so that neither always finds a warm machine.
                for package in packages if turn % 2 == 0 else packages[::-1]:
                    if package == "neap, pages kept" and program == "allocate":
                        continue
                    numbers = run(package, program, Path(scratch), peer, runtime)
                    out.write(json.dumps({"round": turn, "program": program, "package": package, **numbers}) + "\n")
                    out.flush()
                    failed = failed or (package != "torch_memory_saver" and "failed" in numbers)
                    for key, values in numbers.items():
                        if key == "failed":
                            print(program, package, values)
                        else:
                            table.setdefault((program, key), {}).setdefault(package, []).extend(values)
        for (program, key), by_package in table.items():
            medians = {name: round(statistics.median(values), 2) for name, values in by_package.items()}
            out.write(json.dumps({"program": program, "number": key, "median": medians}) + "\n")
            print(f"{program:14} {key:16}", "  ".join(f"{name}: {value}" for name, value in medians.items()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
