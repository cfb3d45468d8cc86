#!/usr/bin/env python3
"""Runs vLLM's tests of its sleep mode with vLLM's allocator and with neap.vllm, then times both in turns.

    tests/gpu/vllm_suite CHECKOUT [--lib DIR] [--out FILE] [--only WORDS] [--rounds N] [--seconds N] [--no-tests]
                         [--allocators vllm,neap] [--models FOLDER]

CHECKOUT   vLLM's source (pip download --no-binary vllm vllm==VERSION, unpacked); python3 imports the vllm of that version
--lib      holds libneap_hook.so (default build/core/lib)
--only     pytest's -k
--models   where the tests' models are kept for later runs
--rounds   cycles of sleep and wake of each engine and level (default 6, 0: none)

The tests are unchanged. They name models of the hub: here these have random weights (vllm_models.py) and nothing is fetched. The
timed engines have a 7B model's shape, random weights, captured graphs and 40 % of the GPU each, at the same time; one sleeps and
wakes while the other sleeps. A greedy generation before the first sleep and after each wake-up from level 1 must be the same; after
level 2, which keeps no weights, vLLM's tests compare it. Goes on after a failure, writes JSON lines, prints a table. Exits 1 unless
every test that passes on vLLM's allocator passes on Neap's.

test_sleep_mode starts `vllm serve`: `vllm` must be on PATH, and the server's packages (vllm_server.txt) in python3's path.
The wheel is too large for some ways to a GPU machine: cut_wheel.py makes it small.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import vllm_models  # noqa: E402
from python_suite import SOURCE, torch_environment  # noqa: E402
from side_by_side import runtime_folders  # noqa: E402

FILES = ["tests/basic_correctness/test_mem.py", "tests/entrypoints/serve/dev/test_sleep.py"]
NAMES = ["hmellor/tiny-random-LlamaForCausalLM", "facebook/opt-125m", "Qwen/Qwen2-0.5B", "meta-llama/Llama-3.2-1B"]
PLUGIN = """import json, os
import neap.vllm
neap.vllm.plugin()  # for tests without an engine
def write(test, outcome, seconds=None):
    with open(os.environ["SUITE_RESULTS"], "a") as out:
        out.write(json.dumps([test, outcome, seconds]) + "\\n")
def pytest_collection_finish(session):
    for item in session.items: write(item.nodeid, "not finished")
def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed": write(report.nodeid, report.outcome, round(report.duration, 1))
"""
ENGINE = Path(__file__).resolve().parent / "vllm_engine.py"


def lay_out_neap(folder):
    """The package and its entry point, as pip would install them."""
    shutil.copytree(SOURCE / "python" / "neap", folder / "neap")
    info = folder / "neap-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neap\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nneap = neap.vllm:plugin\n")
    (folder / "suite_plugin.py").write_text(PLUGIN)


def environment(allocator, site, cache, lib):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NEAP_", "PYTORCH_"))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # the modules are compiled once, not in each process of a server
    env["PYTHONPATH"] = os.pathsep.join([str(site), env.get("PYTHONPATH", "")])
    env["LD_LIBRARY_PATH"] = os.pathsep.join([*runtime_folders(), env.get("LD_LIBRARY_PATH", "")])
    env.update(PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_CACHE=str(cache), VLLM_NO_USAGE_STATS="1",
               VLLM_HOST_IP="127.0.0.1", VLLM_USE_FLASHINFER_SAMPLER="0", VLLM_USE_DEEP_GEMM="0",  # it is for fp8 weights, and no part of the cut wheel
               NEAP_HOOK_LIBRARY=str(lib / "libneap_hook.so"), NEAP_VLLM="1" if allocator == "neap" else "0")
    return env


def run_tests(checkout, env, only, limit, scratch):
    """Maps each test to (outcome, seconds); and what was printed."""
    home = scratch / "suite"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(checkout / "tests", home / "tests")  # apart from the package "vllm" of the checkout, which would be imported
    results, log = home / "results", home / "log"
    results.touch()
    command = [sys.executable, "-m", "pytest", "-v", "-s", "-p", "no:cacheprovider", "-p", "suite_plugin", "--noconftest", "--tb=short", "-o",
               "addopts=", *FILES]
    if only:
        command += ["-k", only]
    with open(log, "w") as out:
        process = subprocess.Popen(command, cwd=home, env={**env, "SUITE_RESULTS": str(results)}, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        end_session(process.pid)
        process.wait()
    found = {test: (outcome, seconds) for test, outcome, seconds in map(json.loads, results.read_text().splitlines())}
    return found, log.read_text(errors="replace")


def end_session(leader):
    """Ends all processes of a session: the tests' own are in other process groups, and would keep the GPU."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, ValueError):
            pass


class Engine:
    """A process with an LLM, which does what it is told on its standard input."""

    def __init__(self, allocator, model, env, log):
        self.allocator = allocator
        self.process = subprocess.Popen([sys.executable, str(ENGINE), str(model)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=log, text=True)

    def reply(self):
        for line in self.process.stdout:
            if line.startswith("reply "):
                return json.loads(line[len("reply "):])
        raise RuntimeError(f"the engine on {self.allocator}'s allocator ended with {self.process.wait()}")

    def tell(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.reply()

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


def in_turns(model, environments, rounds, out, log):
    """One engine is awake at a time. A row is a wake-up, from the sleep before it, and a sleep."""
    def write(row):
        out.write(json.dumps(row) + "\n")
        out.flush()

    engines = [Engine(allocator, model, env, log) for allocator, env in environments.items()]
    begun = [engine.reply() for engine in engines]  # of all, because vLLM's sleep fails if the GPU's free memory shrinks meanwhile
    texts = {}
    for engine, row in zip(engines, begun):
        texts[engine] = engine.tell("generate")["text"]
        write({"engine": engine.allocator, **row, "same_text": texts[engine] == texts[engines[0]],
               "first_sleep": engine.tell("sleep 1")})  # it allocates host memory
    woke_from = 1
    for level in (1, 2):
        for number in range(rounds):
            for engine in engines if number % 2 == 0 else engines[::-1]:
                row = {"allocator": engine.allocator, "level": level, "round": number, "woke_from": woke_from, **engine.tell("wake")}
                if woke_from == 1:  # level 2 keeps no weights
                    row["same_text"] = engine.tell("generate")["text"] == texts[engine]
                row.update(engine.tell(f"sleep {level}"))
                write(row)
                yield row
            woke_from = level
    for engine in engines:
        engine.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--lib", type=Path, default=SOURCE / "build" / "core" / "lib")
    parser.add_argument("--out", type=Path, default=SOURCE / "output" / "gpu" / "vllm_suite.jsonl")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=480, help="after which tests are ended")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--models", type=Path)
    parser.add_argument("--allocators", default="vllm,neap", help="whose tests run, in this order")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    found = torch_environment()
    found.update(command="tests/gpu/vllm_suite", date=time.strftime("%Y-%m-%d"))
    begin, bad = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as scratch, open(arguments.out, "w") as out:
        scratch = Path(scratch)
        site = scratch / "site"
        site.mkdir()
        lay_out_neap(site)
        hub = (arguments.models or scratch / "hub").resolve()
        environments = {name: environment(name, site, hub, arguments.lib.resolve()) for name in ("vllm", "neap")}
        version = subprocess.run([sys.executable, "-c", "from importlib.metadata import version; print(version('vllm'))"],
                                 env=environments["vllm"], capture_output=True, text=True)
        out.write(json.dumps({"environment": {**found, "vllm": version.stdout.strip()}}) + "\n")
        if not arguments.no_tests:
            results = {}
            for name in NAMES:
                vllm_models.make(hub, name)
            for name in arguments.allocators.split(","):
                left = (arguments.seconds - (time.monotonic() - begin)) / (arguments.allocators.count(",") + 1 - len(results))
                results[name], text = run_tests(arguments.checkout, environments[name], arguments.only, left, scratch)
                arguments.out.with_suffix(f".{name}.log").write_text(text[-2_000_000:])
                if name == "neap" and "CuMemAllocator: sleep freed" in text:  # what vLLM's own logs
                    print("an engine used vLLM's allocator, not Neap's")
                    bad += 1
                if {outcome for outcome, _ in results[name].values()} != {"passed"}:
                    print(f"--- {name}\n{text[-3500:]}")
            bad += report_tests(results, out)
        if arguments.rounds:
            vllm_models.write_model(scratch / "timed", vllm_models.MODELS["Qwen/Qwen2.5-7B"], weights=False)
            with open(arguments.out.with_suffix(".log"), "w") as log:
                rows = list(in_turns(scratch / "timed", environments, arguments.rounds, out, log))
            bad += report_turns(rows, out)
    return 1 if bad else 0


def report_tests(results, out):
    bad = not results.get("neap", True)
    for test in sorted({test for tests in results.values() for test in tests}):
        row = {"test": test}
        for name, tests in results.items():
            row[name], row[name + " seconds"] = tests.get(test, ("not run", None))
        bad += row.get("neap") != "passed" and row.get("vllm", "passed") == "passed"
        out.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    return bad


def report_turns(rows, out):
    for level in (1, 2):
        for name in dict.fromkeys(row["allocator"] for row in rows):
            summary = {"summary": name, "level": level}
            for key, which in (("sleep_s", "level"), ("asleep_mib", "level"), ("host_mib", "level"), ("wake_s", "woke_from"), ("awake_mib", "woke_from")):
                values = [row[key] for row in rows if row["allocator"] == name and row[which] == level and row.get(key) is not None]
                if values:
                    summary[key] = {"median": statistics.median(values), "least": min(values), "most": max(values), "count": len(values)}
            out.write(json.dumps(summary) + "\n")
            print(json.dumps(summary))
    return sum(not row.get("same_text", True) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
