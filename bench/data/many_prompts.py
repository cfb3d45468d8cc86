#!/usr/bin/env python3
"""Memory, order and continuation of `neap generate` over a file of many prompts.

    many_prompts.py NEAP [--rows 1000000] [--folder FOLDER] [--out RESULTS.jsonl]

Two tokens for each of the prompts, by a small model. A run is killed half way, and a second goes on with --skip where its output ends. Both
together have to be the lines of every prompt, in order. Prints the resident memory when some counts of lines are written, rates, CPU seconds,
and what the program says at its end.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from small_model import environment, write_model

JOB = """
task = "sft"
[data]
train_files = ["rows"]
train_batch_size = 16
[actor_rollout_ref.model]
path = "model"
[trainer]
total_training_steps = 1
default_local_dir = "start"
"""
WORDS = ["--input", "prompts.jsonl", "--json", "--max-new-tokens", "2", "--batch-size", "256"]


def prompt(i):
    return f"Room {i} was"


def resident_mib(process):
    with open(f"/proc/{process.pid}/status") as status:
        return next((int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS")), None)


def generate(neap, folder, output, marks, kill_at=None, skip=0):
    """Appends to the file `output`; marks are counts of lines at which memory is taken."""
    start, memory, seen = time.monotonic(), {}, 0
    with open(output, "ab") as out, open(folder / "errors", "w") as errors:
        process = subprocess.Popen([neap, "generate", "start", *WORDS, "--skip", str(skip)], cwd=folder, stdout=out, stderr=errors)
        with open(output, "rb") as lines:
            lines.seek(0, os.SEEK_END)
            ended, killed = 0, False
            while ended == 0:
                time.sleep(0.02)
                seen += lines.read().count(b"\n")
                for mark in (m for m in marks if m <= seen and m not in memory):
                    memory[mark] = resident_mib(process)
                if kill_at and seen >= kill_at and not killed:
                    os.kill(process.pid, signal.SIGKILL)
                    killed = True
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    told = (folder / "errors").read_text().strip().splitlines()
    if process.returncode != (-9 if kill_at else 0):
        raise SystemExit(f"neap generate ended with {process.returncode}: {told}")
    seconds = time.monotonic() - start
    return {"lines": seen, "wall_s": round(seconds, 1), "lines_per_s": round(seen / seconds), "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
            "resident_mib": memory, "peak_resident_mib": round(usage.ru_maxrss / 1024), "told": told[-2:]}


def check(output, rows):
    with open(output) as lines:
        for i, line in enumerate(lines):
            row = json.loads(line)
            if row["prompt"] != prompt(i) or row["sample"] != 0 or not 1 <= len(row["tokens"]) <= 2:
                raise SystemExit(f"line {i + 1} is {line}")
    if i + 1 != rows:
        raise SystemExit(f"{i + 1} lines of {rows}")


def measure(neap, rows, folder, report):
    write_model(folder / "model")
    (folder / "job.toml").write_text(JOB)
    (folder / "rows").write_text("".join(json.dumps({"prompt": f"Room {i}", "response": " was good."}) + "\n" for i in range(16)))
    subprocess.run([neap, "train", "job.toml"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(folder / "prompts.jsonl", "w") as out:
        out.writelines(json.dumps({"prompt": prompt(i)}) + "\n" for i in range(rows))
    output = folder / "answers.jsonl"
    marks = [rows // 100, rows // 10, rows // 4, rows // 2, rows * 3 // 4, rows - 2048]
    report(case="killed", rows=rows, **generate(neap, folder, output, marks, rows // 2))
    text = output.read_bytes()
    done = text.count(b"\n")
    report(case="cut", whole_lines=text.endswith(b"\n"), lines=done)
    del text
    report(case="continued", **generate(neap, folder, output, marks, skip=done))
    check(output, rows)
    report(case="order", kept=True, lines=rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=1000000)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="neap-prompts-", dir=arguments.folder))
    neap = arguments.neap.resolve()
    lines = []

    def report(**line):
        lines.append(line)
        print(json.dumps(line), flush=True)

    try:
        report(environment=environment(neap, f"bench/data/many_prompts.py NEAP --rows {arguments.rows}"))
        measure(neap, arguments.rows, folder, report)
    finally:
        shutil.rmtree(folder)
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
