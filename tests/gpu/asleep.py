#!/usr/bin/env python3
"""What a sleeping program still holds on the card, and whether it grows: under torch_memory_saver and under Neap's drop-in.

    tests/gpu/asleep.py --out FILE [--peer DIR --lib DIR] [--cycles N] [--neap PROGRAM [--only-neap] [--set KEY=VALUE]...]

DIR of --peer   where the torch_memory_saver of PyPI was unpacked (pip install --no-deps --target DIR)
DIR of --lib    holds libneap_memory_saver.so: build/full/lib
--neap          also N steps of GRPO (examples/arithmetic, random weights): what the card holds beyond the trainer's own account
                of its memory, from a sample each millisecond: the most in a phase, less that phase's peak in phases.jsonl. (A phase can be
                shorter than nvidia-smi takes.) "beyond_when_loaded" is that of the first phase: context and kernels that loading needs

The program is a decoder in torch with captured graphs, in hook mode "preload": weights with a CPU backup, a KV cache, and the
graphs' memory are paused and resumed N times (default 100) with a replay between. The parts are measured as they appear, before
anything sleeps: the context, kernels and cuBLAS (used memory less what torch has reserved), graphs, torch's reserve outside of
regions. "unexplained" is what the first sleep holds beyond these. The card must be otherwise idle. JSON lines; a table. Exits 1 if
the drop-in holds 10 MiB more than explained, or its last sleep more than its first, or the trainer more in its
last quarter of steps than in its first.
"""

import argparse
import bisect
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from python_suite import SOURCE, lay_out_drop_in, torch_environment  # noqa: E402
from side_by_side import runtime_folders  # noqa: E402

MIB = 1 << 20
TRACE = "memory.ntrace"
LIBRARY = "libneap_memory_saver.so"
PRELOAD = "torch_memory_saver_hook_mode_preload_cu13.abi3.so"
PROGRAM = """
import json, subprocess, sys
def smi():
    done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    return int(done.stdout.split()[0])
idle = smi()
import torch
import torch.nn.functional as F
from torch_memory_saver import torch_memory_saver as saver
cycles, MIB = int(sys.argv[1]), 1 << 20
def used():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / MIB
def reserved(): return torch.cuda.memory_reserved() / MIB
torch.cuda.init()
torch.cuda.synchronize()
context = used()
WIDTH, LAYERS, SEQUENCES, CONTEXT = 2048, 6, 64, 256
def make():
    return [[torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda") * 0.02
             for rows, columns in ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))] for _ in range(LAYERS)]
def step(x, layers, cache):
    for i, (qkv, out, up, down) in enumerate(layers):
        q, k, v = F.linear(F.layer_norm(x, (WIDTH,)), qkv).view(len(x), 3, WIDTH // 128, 128).unbind(1)
        cache[i, 0, : len(x), :, 5], cache[i, 1, : len(x), :, 5] = k, v
        mixed = F.scaled_dot_product_attention(q.unsqueeze(2), cache[i, 0, : len(x)], cache[i, 1, : len(x)])
        x = x + F.linear(mixed.reshape(len(x), WIDTH), out)
        x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (WIDTH,)), up)), down)
    return x
SIZES = (1, 2, 4, 8, 16, 32, 64)
def cache(): return torch.zeros(LAYERS, 2, SEQUENCES, WIDTH // 128, CONTEXT, 128, dtype=torch.bfloat16, device="cuda")
with torch.no_grad():
    layers, kv = make(), cache()                       # without regions: kernels and handles
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            for size in SIZES: step(torch.zeros(size, WIDTH, dtype=torch.bfloat16, device="cuda"), layers, kv)
            torch.isfinite(kv[0]).all().item()
    torch.cuda.synchronize()
    del layers, kv
    torch.cuda.empty_cache()
    outside = reserved()
    kernels = used() - context - outside
    with saver.region("weights", enable_cpu_backup=True): layers = make()
    with saver.region("kv"): kv = cache()
    in_regions = reserved() - outside
    inputs = [torch.randn(size, WIDTH, dtype=torch.bfloat16, device="cuda") for size in SIZES]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, before_reserved = used(), reserved()
    graphs, outputs = [], []
    for x in inputs:
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, tag="graphs"): y = step(x, layers, kv)
        graphs.append(graph); outputs.append(y)
    def replay():
        for graph in graphs: graph.replay()
        torch.cuda.synchronize()
        return [y.float().sum().item() for y in outputs]
    kv.zero_()
    first = replay()
    torch.cuda.empty_cache()
    in_regions += reserved() - before_reserved
    graph_bytes = used() - before - (reserved() - before_reserved)
    awake = used()
    asleep = []
    for cycle in range(cycles):
        saver.pause()
        torch.cuda.empty_cache()
        asleep.append((used(), smi()) if cycle in (0, 1, 9, cycles // 2, cycles - 1) else (used(), None))
        saver.resume()
        kv.zero_()
        again = replay()
        assert again == first, (cycle, again, first)
    print("result " + json.dumps({
        "idle_smi_mib": idle, "context_mib": context, "kernels_and_cublas_mib": kernels, "graphs_mib": graph_bytes,
        "reserved_mib": reserved(), "in_regions_mib": in_regions, "awake_mib": awake, "released_mib": awake - asleep[0][0],
        "asleep_mib": [a for a, _ in asleep], "asleep_smi_mib": [s for _, s in asleep if s is not None]}))
"""


def run(package, site, cycles):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NEAP_", "TMS_", "PYTORCH_"))}
    folders = [str(site)] + ([str(SOURCE / "python")] if package == "drop-in" else [])
    env["PYTHONPATH"] = os.pathsep.join(folders + [env.get("PYTHONPATH", "")])
    env["LD_LIBRARY_PATH"] = os.pathsep.join([*runtime_folders(), env.get("LD_LIBRARY_PATH", "")])
    env["LD_PRELOAD"] = str(site / PRELOAD)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(cycles)], env=env, capture_output=True, text=True)
    refused = re.search(r"object '(.+)' from LD_PRELOAD cannot be preloaded \((.+?)\)", done.stderr)
    if refused:
        return {"error": f"{refused[1]} cannot be preloaded: {refused[2]}"}
    for line in done.stdout.splitlines():
        if line.startswith("result "):
            return json.loads(line[len("result "):])
    return {"error": f"exit {done.returncode}: {done.stderr[-2000:]}"}


def explained(row):
    outside = row["reserved_mib"] - row["in_regions_mib"]
    parts = {"context": row["context_mib"], "kernels, cuBLAS": row["kernels_and_cublas_mib"], "graphs": row["graphs_mib"],
             "torch's reserve outside of regions": outside}
    return {key: round(value, 1) for key, value in parts.items()}


class Sampler:
    """Used memory of the card by NVML, a sample each millisecond while it is open: (ns since 1970, MiB more than when it was made)."""

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)):
            raise SystemExit("NVML cannot be opened")
        self.idle, self.samples, self.ends = self.used(), [], threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def used(self):
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        if self.nvml.nvmlDeviceGetMemoryInfo(self.handle, memory):
            raise SystemExit("NVML tells no memory")
        return memory[2] / MIB

    def sample(self):
        while not self.ends.wait(0.001):
            self.samples.append((time.time_ns(), self.used() - self.idle))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def start_of(trace):
    """Time 0 of a trace, in ns since 1970: its first block (docs/trace-format.md)."""
    data = trace.read_bytes()[16:200]
    kind, codec, stored = data[4], data[5], int.from_bytes(data[8:12], "little")
    payload = data[24:24 + stored]
    payload = zlib.decompress(payload) if codec == 2 else payload
    if kind != 1 or codec == 1:
        raise SystemExit(f"{trace} does not begin with a plain START block")
    value, shift = 0, 0
    for byte in payload[1:]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value
    raise SystemExit(f"{trace} has no time")


def phases_of(neap, run, folder):
    """Of a run's trace: (begin ns, end ns) of each phase, in order."""
    view = folder / "trace.json"
    subprocess.run([neap, "report", str(run), "--perfetto", str(view)], check=True, capture_output=True, text=True)
    begin = start_of(run / TRACE)
    spans = [(event["ts"], event["dur"]) for event in json.loads(view.read_text())["traceEvents"] if event["ph"] == "X"]
    return [(begin + int(ts * 1000), begin + int((ts + dur) * 1000)) for ts, dur in sorted(spans)]


def beyond_account(samples, phases, records):
    """(step, phase, MiB) of each phase in which a sample fell: the most that was used, less the phase's peak in the trainer's account."""
    times, out = [ns for ns, _ in samples], []
    for (begin, end), record in zip(phases, records):
        here = samples[bisect.bisect_left(times, begin):bisect.bisect_right(times, end)]
        if here:
            out.append((record["step"], record["phase"], round(max(used for _, used in here) - record["peak"] / MIB, 1)))
    return out


def context_mib():
    """Of a process that only has a context of the driver."""
    code = ("import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); device, context = ctypes.c_int(), ctypes.c_void_p()\n"
            "assert not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), 0)\n"
            "assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device); input()")
    card = Sampler()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        time.sleep(3)
        mib = card.used() - card.idle
        process.communicate(b"\n")
    return round(mib, 1)


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run_trainer(neap, steps, folder, overrides=()):
    shutil.copytree(SOURCE / "examples" / "arithmetic", folder / "arithmetic")
    shutil.copytree(SOURCE / "examples" / "reviews" / "model", folder / "reviews" / "model")
    out = folder / "out"
    command = [neap, "train", str(folder / "arithmetic" / "grpo.toml"), "actor_rollout_ref.model.path=model", "trainer.test_freq=-1",
               "trainer.best_metric=", f"trainer.total_training_steps={steps}", f"trainer.default_local_dir={out}", *overrides]
    with Sampler() as card:
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": f"exit {done.returncode}: {done.stderr[-2000:]}"}
    records = lines_of(out / "phases.jsonl")
    return {"steps": steps, "overrides": list(overrides), "module_loading": os.environ.get("CUDA_MODULE_LOADING", "LAZY"),
            "context_mib": context_mib(), **summary(beyond_account(card.samples, phases_of(neap, out, folder), records), records, steps)}


def summary(beyond, records, steps):
    def most(first, last):
        return max(mib for step, _, mib in beyond if first <= step <= last)
    last = [mib for step, _, mib in beyond if step >= 3 * steps // 4]
    return {"account_mib": max(record["peak"] for record in records) >> 20, "beyond_when_loaded_mib": beyond[0][2],
            "beyond_account_mib": most(1, steps), "beyond_by_phase_mib": {name: max(mib for step, phase, mib in beyond if phase == name and step > 1)
                                                                         for name in dict.fromkeys(phase for _, phase, _ in beyond)},
            "grown_mib": round(max(last) - most(2, steps // 4), 1), "phases_sampled": len(beyond)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--lib", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--neap", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the trainer's run")
    parser.add_argument("--only-neap", action="store_true", help="the trainer alone, without the sleeping programs")
    arguments = parser.parse_args()
    if arguments.only_neap and arguments.neap is None:
        raise SystemExit("--only-neap needs --neap PROGRAM")
    if not arguments.only_neap:
        for option, folder, file in (("--peer", arguments.peer, "torch_memory_saver"), ("--peer", arguments.peer, PRELOAD),
                                     ("--lib", arguments.lib, LIBRARY)):
            if folder is None or not (folder / file).exists():
                raise SystemExit(f"{option} is {folder}, which has no {file}; name the folder that has it"
                                 + (", as build/full/lib" if file == LIBRARY else ""))
    bad = 0
    with tempfile.TemporaryDirectory() as scratch, open(arguments.out, "w") as out:
        site = Path(scratch)
        out.write(json.dumps({"environment": {**torch_environment(), "command": "tests/gpu/asleep.py"}}) + "\n")
        programs = []
        if not arguments.only_neap:
            lay_out_drop_in(site, arguments.lib.resolve())
            programs = [("torch_memory_saver", arguments.peer.resolve()), ("drop-in", site)]
        for package, folder in programs:
            row = run(package, folder, arguments.cycles)
            if "error" not in row:
                asleep = row.pop("asleep_mib")
                row.update(cycles=len(asleep), asleep_first_mib=asleep[0], asleep_last_mib=asleep[-1], asleep_most_mib=max(asleep))
                row["parts_mib"] = explained(row)
                row["unexplained_mib"] = round(asleep[0] - sum(row["parts_mib"].values()), 1)
                row["grown_mib"] = round(asleep[-1] - asleep[0], 1)
            if package == "drop-in":
                bad += "error" in row or abs(row["unexplained_mib"]) > 10 or row["grown_mib"] > 0
            out.write(json.dumps({"package": package, **row}) + "\n")
            print(package, json.dumps(row, indent=1), flush=True)
        if arguments.neap is not None:
            with tempfile.TemporaryDirectory() as folder:
                row = run_trainer(arguments.neap.resolve(), arguments.cycles, Path(folder), arguments.set)
            bad += "error" in row or row["grown_mib"] > 0.5
            out.write(json.dumps({"package": "neap train", **row}) + "\n")
            print("neap train", json.dumps(row, indent=1), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
