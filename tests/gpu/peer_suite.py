#!/usr/bin/env python3
"""Runs the tests of a checkout of torch_memory_saver on the drop-in, and on the peer beside it.

    tests/gpu/peer_suite CHECKOUT [--peer SITE] [--lib DIR] [--out FILE] [--only WORDS] [--seconds N]

CHECKOUT   a folder of https://github.com/fzyzcjy/torch_memory_saver with test/ and scripts/
--peer     a folder with the installed peer (pip install --no-deps --target SITE torch_memory_saver==VERSION);
           without it only the drop-in is tested
--lib      holds libneap_memory_saver.so (default build/core/lib)
--only     pytest's -k, to run a part

Every test runs by pytest in a process of its own. On two GPUs each package gets one, at the same time; tests
that need several devices then run on both GPUs, one package after the other. On one GPU the packages take turns.
Goes on after a failure. Prints a table; writes JSON lines, the first with the environment. Exits 1 unless every
test that passes on the peer passes on the drop-in. About five minutes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from python_suite import SOURCE, lay_out_drop_in, torch_environment  # noqa: E402
from side_by_side import runtime_folders  # noqa: E402

SEVERAL_DEVICES = "multi_device or test_cpu_backup["


class Package:
    def __init__(self, name, folders, scratch, suite):
        self.name, self.folders, self.results = name, folders, {}
        self.home = scratch / name.replace(" ", "-")
        # A copy of its own: the checkout's package must not be importable, and nothing is written there.
        for part in ("test", "scripts"):
            shutil.copytree(suite / part, self.home / part)

    def environment(self, devices):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NEAP_", "TMS_", "PYTORCH_"))}
        env.pop("LD_PRELOAD", None)
        env["PYTHONPATH"] = os.pathsep.join([str(f) for f in self.folders] + [env.get("PYTHONPATH", "")])
        env["LD_LIBRARY_PATH"] = os.pathsep.join([*runtime_folders(), env.get("LD_LIBRARY_PATH", "")])
        env["PYTHONUNBUFFERED"] = "1"
        if devices is not None:
            env["CUDA_VISIBLE_DEVICES"] = devices
        return env

    def run(self, words, devices, limit):
        """Adds to results: test -> (outcome, seconds, reason)."""
        report = self.home / f"report-{len(self.results)}.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
                   f"--junitxml={report}", "-o", "junit_logging=all", "."]
        if words:
            command += ["-k", words]
        try:
            done = subprocess.run(command, cwd=self.home / "test", env=self.environment(devices),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit)
            self.output = done.stdout
        except subprocess.TimeoutExpired as late:
            self.output = (late.stdout or b"").decode(errors="replace")
        if not report.exists():
            self.results[f"({words or 'all'})"] = ("failed", limit, "no report: " + self.output[-2500:])
            return
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            outcome, reason = "passed", ""
            for kind, word in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
                found = case.find(kind)
                if found is not None:
                    text = "".join(part.text or "" for part in
                                   (found, *case.findall("system-out"), *case.findall("system-err")))
                    outcome, reason = word, (found.get("message") or "") + "\n" + text
            self.results[name] = (outcome, round(float(case.get("time", 0)), 2), reason)

    def version(self):
        for folder in self.folders:
            for info in Path(folder).glob("torch_memory_saver-*.dist-info"):
                return info.name.split("-")[1][: -len(".dist")]
        return None


def run_all(packages, cards, only, seconds):
    begin = time.monotonic()

    def left():
        return max(5, seconds - (time.monotonic() - begin))

    def both(words, apart):
        text = f"({words})" + (f" and ({only})" if only else "")
        if apart and cards > 1 and len(packages) > 1:
            threads = [threading.Thread(target=p.run, args=(text, str(i), left())) for i, p in enumerate(packages)]
            [t.start() for t in threads]
            [t.join() for t in threads]
        else:
            for package in packages:
                package.run(text, "0" if apart else None, left())

    if cards > 1:
        both(f"not ({SEVERAL_DEVICES})", apart=True)
        both(SEVERAL_DEVICES, apart=False)
    else:
        both("test", apart=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--lib", type=Path, default=SOURCE / "build" / "core" / "lib")
    parser.add_argument("--out", type=Path, default=SOURCE / "output" / "gpu" / "peer_suite.jsonl")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=400, help="after which tests are ended")
    arguments = parser.parse_args()
    if not (arguments.checkout / "test").is_dir():
        parser.error(f"{arguments.checkout} has no folder test")
    if not (arguments.lib / "libneap_memory_saver.so").exists():
        parser.error(f"{arguments.lib} has no libneap_memory_saver.so (build neap_drop_in_library)")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    found = torch_environment()
    found["command"] = "tests/gpu/peer_suite"
    with tempfile.TemporaryDirectory() as scratch, open(arguments.out, "w") as out:
        scratch = Path(scratch)
        site = scratch / "site"
        site.mkdir()
        lay_out_drop_in(site, arguments.lib.resolve())
        drop_in = Package("drop-in", [site, SOURCE / "python"], scratch, arguments.checkout)
        packages = [drop_in]
        if arguments.peer is not None:
            packages.insert(0, Package("torch_memory_saver", [arguments.peer.resolve()], scratch, arguments.checkout))
            found["torch_memory_saver"] = packages[0].version()
        out.write(json.dumps({"environment": found}) + "\n")
        run_all(packages, found.get("cards", 0), arguments.only, arguments.seconds)
        return report(packages, out)


def report(packages, out):
    drop_in = packages[-1]
    names = sorted({name for package in packages for name in package.results})
    bad = 0
    for name in names:
        row = {"test": name}
        for package in packages:
            outcome, seconds, reason = package.results.get(name, ("not run", 0, ""))
            row[package.name] = outcome
            row[package.name + " seconds"] = seconds
            if outcome == "failed":
                row[package.name + " reason"] = reason[-3000:]
        wanted = packages[0].results.get(name, ("passed",))[0]
        bad += row["drop-in"] not in ("passed", "skipped") and (wanted == "passed" or len(packages) == 1)
        out.write(json.dumps(row) + "\n")
        print(f"{name:78}", *(f"{row[p.name]:8}" for p in packages))
    for name in names:
        outcome, _, reason = drop_in.results.get(name, ("not run", 0, ""))
        if outcome == "failed":
            print(f"--- {name}\n{reason[-1800:]}")
    sums = {p.name: {kind: sum(r[0] == kind for r in p.results.values())
                     for kind in ("passed", "skipped", "failed")} for p in packages}
    out.write(json.dumps({"sums": sums}) + "\n")
    for name, counts in sums.items():
        print(f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if bad or not drop_in.results else 0


if __name__ == "__main__":
    sys.exit(main())
