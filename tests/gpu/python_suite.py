#!/usr/bin/env python3
"""Runs tests/gpu/python_cases.py and python_shared_cases.py, each case in a process of its own; see python_suite.sh.

With --rehearse the runner itself is tried: it lists what would run and checks that every case's
code compiles, without a GPU.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))
import python_cases  # noqa: E402
import python_shared_cases  # noqa: E402
from python_cases import PRELUDE  # noqa: E402

CASES = python_cases.CASES + python_shared_cases.CASES


def torch_environment():
    """What torch needs to be found, and what was run: for the first line of the results."""
    code = ("import json, torch; p = torch.cuda.get_device_properties(0); "
            "print(json.dumps({'gpu': p.name, 'cards': torch.cuda.device_count(), "
            "'memory': p.total_memory, 'torch': torch.__version__, "
            "'cuda': torch.version.cuda}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    found = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-500:]}
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True) if shutil.which("nvidia-smi") else None
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=SOURCE,
                              capture_output=True, text=True)
    return {"driver": driver.stdout.strip() if driver else None, "host": platform.platform(),
            "revision": os.environ.get("NEAP_REVISION") or revision.stdout.strip(),
            "python": platform.python_version(), "command": "tests/gpu/python_suite.sh", **found}


def lay_out_drop_in(folder, lib):
    """The drop-in as pip would install it."""
    shutil.copytree(SOURCE / "python" / "memory_saver" / "torch_memory_saver",
                    folder / "torch_memory_saver")
    for mode in ("preload", "torch"):
        for cuda in ("", "_cu12", "_cu13"):
            os.symlink(lib / "libneap_memory_saver.so",
                       folder / f"torch_memory_saver_hook_mode_{mode}{cuda}.abi3.so")


def environment(case, mode, lib, drop_in):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NEAP_", "TMS_", "PYTORCH_"))}
    env.pop("LD_PRELOAD", None)
    env["PYTHONPATH"] = os.pathsep.join([str(SOURCE / "python"), str(drop_in),
                                         env.get("PYTHONPATH", "")])
    env["PYTHONUNBUFFERED"] = "1"
    if case.drop_in:
        library = drop_in / "torch_memory_saver_hook_mode_preload_cu13.abi3.so"
    else:
        library = lib / "libneap_hook.so"
        env["NEAP_HOOK_LIBRARY"] = str(library)
    if mode == "preload":
        env["LD_PRELOAD"] = str(library)
    env.update(case.environment)
    return env


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=280, help="after which no case begins")
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    if arguments.rehearse:
        for case in CASES:
            compile(PRELUDE + case.code, case.name, "exec")
            print(case.name, *case.modes)
        return 0
    found = torch_environment()
    cards = found.get("cards", 0)
    results = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, open(arguments.out, "w") as out:
        out.write(json.dumps({"environment": found}) + "\n")
        lay_out_drop_in(Path(scratch), arguments.lib)
        for case in CASES:
            if arguments.only and case.name not in arguments.only.split(","):
                continue
            for mode in case.modes:
                name = f"{case.name}[{mode}]"
                left = arguments.seconds - (time.monotonic() - begin)
                start = time.monotonic()
                record = {"case": name}
                if case.cards > cards:
                    record.update(result="skipped", why=f"needs {case.cards} GPUs, here are {cards}")
                elif left < 5:
                    record.update(result="not run", why="the suite's time was used up")
                else:
                    record.update(run_case(case, mode, arguments.lib, Path(scratch),
                                           min(case.seconds, left)))
                record["seconds"] = round(time.monotonic() - start, 2)
                results.append(record)
                out.write(json.dumps(record) + "\n")
                out.flush()
                print(f"{record['result']:8} {name} {record['seconds']} s", flush=True)
                if record["result"] != "passed":
                    print(record.get("why", ""), flush=True)
    passed = sum(r["result"] == "passed" for r in results)
    skipped = sum(r["result"] == "skipped" for r in results)
    print(f"{passed} of {len(results)} passed, {skipped} skipped in {time.monotonic() - begin:.0f} s; {arguments.out}")
    for record in results:
        if record["result"] != "passed":
            print(f"  {record['result']}: {record['case']}")
    return 0 if passed > 0 and passed + skipped == len(results) else 1


def run_case(case, mode, lib, drop_in, limit):
    code = PRELUDE + f"MODE = {mode!r}\nHERE = {str(SOURCE / 'tests' / 'gpu')!r}\n" + case.code
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=limit, env=environment(case, mode, lib, drop_in))
    except subprocess.TimeoutExpired as late:
        tail = (late.stderr or b"")[-1500:]
        return {"result": "failed", "why": f"no end after {limit:.0f} s\n{tail}"}
    numbers = {}
    for line in done.stdout.splitlines():
        if line.startswith("number "):
            _, key, value = line.split(" ", 2)
            numbers[key] = float(value)
    outcome = {"result": "passed" if done.returncode == 0 else "failed"}
    if numbers:
        outcome["numbers"] = numbers
    if done.returncode != 0:
        outcome["why"] = (
            f"exit {done.returncode}\n{done.stdout[-800:]}\n"
            f"{done.stderr[:1200]}\n...\n{done.stderr[1200:][-1300:]}")  # C++ says why first, Python last
    return outcome


if __name__ == "__main__":
    sys.exit(main())
