#!/usr/bin/env python3
"""How much memory, disk and time a large data file takes: SFT of a small model on a generated file.

    large_file.py NEAP [--gib 4] [--packed] [--folder FOLDER] [--out RESULTS.jsonl]

Writes a file of texts like those of examples/reviews into a folder of its own in FOLDER (default: TMPDIR), trains on it with default settings,
and prints a line for each run: wall and CPU seconds, seconds to the first step, the largest resident memory of the process.

    small       on a file of 1 MiB: what the program takes without data
    killed      by SIGKILL while it encodes
    first       the next start: encodes all rows, is killed between two checkpoints
    resumed     the same command goes on to the last step
    second      another run on the same file, to its end: finds the encoded rows, and has to have the losses of the one that was killed

Every run validates after every tenth step. The folder is removed at the end; it needs about 1.3 times the file's size.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

from small_model import REVIEWS, environment, write_model

STEPS, SAVE, KILL = 60, 20, 30
JOB = f"""
task = "sft"
[data]
train_files = ["rows"]
val_files = ["held_out"]
train_batch_size = 16
micro_batch_size_per_gpu = 16
max_prompt_length = 64
max_response_length = 64
truncation = "right"
[actor_rollout_ref.model]
path = "model"
[trainer]
total_training_steps = {STEPS}
save_freq = {SAVE}
test_freq = 10
"""


def write_rows(path, size, packed=False):
    """Rows of about 1 KiB, each different; returns their number and bytes."""
    texts = [json.loads(line) for line in (REVIEWS / "sft_train.jsonl").read_text().splitlines()]
    words = sorted({word for text in texts for word in text["response"].split()})
    draw = random.Random(1)
    pieces = [" ".join(draw.choices(words, k=40)) for _ in range(4000)]
    packer = subprocess.Popen(["zstd", "-q", "-3", "-o", path], stdin=subprocess.PIPE) if packed else None
    rows = written = 0
    with packer.stdin if packed else path.open("wb") as out:
        while written < size:
            response = " ".join(draw.choices(pieces, k=4))
            line = json.dumps({"prompt": f"Review {rows}:", "response": f" {rows} {response}"}).encode() + b"\n"
            out.write(line)
            rows, written = rows + 1, written + len(line)
    if packed and packer.wait() != 0:
        raise SystemExit("zstd failed")
    return rows, written


class Runs:
    def __init__(self, neap, folder):
        self.neap, self.folder = neap, folder
        self.cache = folder / "user" / "neap" / "data"

    def lines(self, output):
        path = self.folder / output / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

    def partial(self):
        """Bytes of rows that are being encoded."""
        return sum(file.stat().st_size for file in self.cache.glob("*.rows.tmp-*"))

    def run(self, output, kill_when=None, **keys):
        """Kills the process once kill_when() is true."""
        words = [f"{key.replace('__', '.')}={value}" for key, value in keys.items()]
        told, start = self.folder / f"{output}.err", time.monotonic()
        with told.open("w") as errors:
            process = subprocess.Popen([self.neap, "train", "job.toml", f"trainer.default_local_dir={output}", *words], cwd=self.folder,
                                       stdout=subprocess.DEVNULL, stderr=errors,
                                       env=dict(os.environ, NEAP_PROGRESS="off", XDG_CACHE_HOME=str(self.folder / "user")))
        first, killed, ended = None, False, 0
        while ended == 0:
            time.sleep(0.01)
            if first is None and "neap: step " in told.read_text():
                first = time.monotonic() - start
            if kill_when and not killed and kill_when():
                process.kill()
                killed = True
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != (-9 if kill_when else 0):
            raise SystemExit(f"neap train ended with {process.returncode}: {told.read_text()}")
        return {"wall_s": round(time.monotonic() - start, 1), "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
                "first_step_s": first and round(first, 2), "peak_resident_mib": round(usage.ru_maxrss / 1024)}


def measure(neap, arguments, folder, report):
    write_model(folder / "model")
    (folder / "job.toml").write_text(JOB)
    runs = Runs(neap, folder)
    write_rows(folder / "held_out", 256 << 10)
    write_rows(folder / "rows", 1 << 20)
    report(case="small", **runs.run("small"))
    (folder / "rows").unlink()
    start = time.monotonic()
    rows, size = write_rows(folder / "rows", arguments.gib * 2**30, arguments.packed)
    report(case="file", rows=rows, bytes=size, on_disk_bytes=(folder / "rows").stat().st_size, written_in_s=round(time.monotonic() - start))
    if size > 512 << 20:  # a smaller file's rows may stay in memory
        report(case="killed", **runs.run("first", lambda: runs.partial() > 64 << 20), left_bytes=runs.partial())
    report(case="first", **runs.run("first", lambda: len(runs.lines("first")) >= KILL))
    report(case="disk", encoded_rows_bytes=sum(file.stat().st_size for file in runs.cache.glob("*")), left_bytes=runs.partial())
    report(case="resumed", **runs.run("first"))
    report(case="second", **runs.run("second"))
    losses = [[line["train/loss"] for line in runs.lines(name)] for name in ("first", "second")]
    report(case="losses", equal=losses[0] == losses[1], steps=len(losses[0]), last=losses[0][-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap", type=pathlib.Path)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--packed", action="store_true", help="as zstd")
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="neap-large-", dir=arguments.folder))
    neap = arguments.neap.resolve()
    lines = []

    def report(**line):
        lines.append(line)
        print(json.dumps(line), flush=True)

    try:
        report(environment=environment(neap, f"bench/data/large_file.py NEAP --gib {arguments.gib}{' --packed' if arguments.packed else ''}"))
        measure(neap, arguments, folder, report)
    finally:
        shutil.rmtree(folder)
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
