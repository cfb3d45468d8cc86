#!/usr/bin/env python3
"""neap generate on the GPU: its texts and the host's, chunked prefill and whole prompts, how fast it decodes, and how fast
checkpoints are read and written.

usage: generate.py OUT_DIR PACKAGE_DIR [--case CASE ...] [--minutes M] [--rehearse]

Qwen2.5-0.5B's shape with random weights.
  same      float32, 12 prompts: the likeliest tokens on the GPU are the host's, log-probabilities within 1e-3; a text may part from
            the host's at a step where it is within 1e-3, too, which counts as a tie
  chunks    float32, prompts of about 400 tokens, prefilled 64 tokens at a time: log-probabilities of the first new token within 1e-3
            of those of whole prompts
  long      bfloat16, 4 prompts of 12 000 words or more tokens, 1 024 tokens at a time and whole: seconds
  rate      bfloat16, 512 prompts x 128 new tokens with --batch-size 16, 64 and 256: tokens/s beside the arithmetic's limit (a step
            reads every weight once)
  skip      what was written before an interruption and --skip's output together are a whole run's
  load      7B in bfloat16 (load, 40 GB: 20B), not in the page cache and in it: seconds to the first token, the disk's own speed (dd), peak resident memory
  save      1.5B with its optimizer's state: seconds until training could go on
Writes OUT_DIR/generate.jsonl and a table on stdout; exits 1 where something differs. --rehearse: tiny models, everything on the host.
"""
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import plan_check
import random_models

TOLERANCE = 1e-3
SHAPE = "qwen2.5-0.5b"


def write_prompts(file, count, words, text):
    draw = random.Random(2)
    with open(file, "w") as out:
        for _ in range(count):
            start = draw.randrange(len(text) - words)
            out.write(json.dumps({"prompt": " ".join(text[start:start + words])}) + "\n")


class Program:
    def __init__(self, package, model):
        self.neap, self.model = package / "bin" / "neap", model

    def lines(self, prompts, device, *options):
        command = [self.neap, "generate", self.model, "--input", prompts, "--device", "cpu" if plan_check.ARGS.rehearse else device,
                   "--json", *map(str, options)]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"exit {done.returncode}: {done.stderr[-600:]}")
        return [json.loads(line) for line in done.stdout.splitlines()], time.monotonic() - start


def parts_wrongly(a, b):
    """Where two texts differ for another reason than a tie; the largest difference of log-probabilities before."""
    worst = 0.0
    for i, (x, y) in enumerate(zip(a["log_probs"], b["log_probs"])):
        worst = max(worst, abs(x - y))
        if worst > TOLERANCE:
            return f"log-probability {i} is {x}, not {y}", worst
        if a["tokens"][i] != b["tokens"][i]:
            return None, worst
    return None, worst


def compared(ours, theirs):
    equal, worst, wrong = 0, 0.0, []
    for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        why, difference = parts_wrongly(a, b)
        equal += a["tokens"] == b["tokens"]
        worst = max(worst, difference)
        if why:
            wrong.append(f"row {row}: {why}")
    return {"texts": len(ours), "equal": equal, "largest_difference": worst}, wrong


def same(program, work, text):
    options = ["--temperature", 0, "--max-new-tokens", 48, "--dtype", "float32"]
    ours, _ = program.lines(work / "same.jsonl", "cuda", *options)
    theirs, _ = program.lines(work / "same.jsonl", "host", *options)
    return compared(ours, theirs)


def chunks(program, work, text):
    write_prompts(work / "chunks.jsonl", 8, 300, text)
    options = ["--temperature", 0, "--max-new-tokens", 1, "--dtype", "float32"]
    ours, _ = program.lines(work / "chunks.jsonl", "cuda", *options, "--max-num-batched-tokens", 64)
    theirs, _ = program.lines(work / "chunks.jsonl", "cuda", *options)
    return compared(ours, theirs)


def long(program, work, text):
    tiny = plan_check.ARGS.rehearse
    write_prompts(work / "long.jsonl", 4, 400 if tiny else 12000, text * 2)
    options = ["--temperature", 0, "--max-new-tokens", 1, "--batch-size", 4]
    result = {}
    for name, budget in (("chunks", 64 if tiny else 1024), ("whole", 30000)):
        _, start = program.lines(work / "same.jsonl", "cuda", "--max-new-tokens", 1)
        rows, seconds = program.lines(work / "long.jsonl", "cuda", *options, "--max-num-batched-tokens", budget)
        result |= {f"{name}_seconds": seconds - start, f"{name}_log_prob": rows[0]["log_probs"][0]}
    return result, []


def rate(program, work, text, batch):
    tiny = plan_check.ARGS.rehearse
    write_prompts(work / "rate.jsonl", 8 if tiny else 512, 20, text)
    options = ["--max-new-tokens", 128, "--batch-size", batch]
    if not tiny:
        options += ["--dtype", "bfloat16"]
    _, start = program.lines(work / "same.jsonl", "cuda", "--max-new-tokens", 1, "--batch-size", 16)  # loading and one pass
    rows, seconds = program.lines(work / "rate.jsonl", "cuda", *options)
    tokens = sum(len(row["tokens"]) for row in rows)
    weights = (work / SHAPE / "model.safetensors").stat().st_size
    steps = tokens / min(batch, len(rows))
    return {"batch": batch, "tokens": tokens, "seconds": seconds, "start_seconds": start, "tokens_a_second": tokens / (seconds - start),
            "ms_a_step": 1000 * (seconds - start) / steps, "ms_a_step_at_4_tb_a_second": 1000 * weights / 4e12}, []


def skip(program, work, _):
    options = ["--max-new-tokens", 16, "--batch-size", 16]
    whole, _ = program.lines(work / "rate.jsonl", "cuda", *options)
    rest, _ = program.lines(work / "rate.jsonl", "cuda", *options, "--skip", len(whole) // 3)
    # bfloat16 rounds otherwise beside other rows, so only the places are compared.
    same_places = [row["prompt"] for row in rest] == [row["prompt"] for row in whole[len(whole) // 3:]]
    return {"texts": len(whole), "skipped": len(whole) // 3}, [] if same_places else ["--skip goes on at another prompt"]


def evict(file):
    """Out of the page cache."""
    with open(file, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first_token(program, model):
    """Seconds and peak resident bytes of a process that generates one token."""
    start = time.monotonic()
    device = "host" if plan_check.ARGS.rehearse else "cuda"
    process = subprocess.Popen([program.neap, "generate", model, "--prompt", "The", "--max-new-tokens", "1", "--device", device],
                               stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode}")
    return time.monotonic() - start, usage.ru_maxrss * 1024


def load(program, work, _, model="qwen2.5-7b"):
    plan_check.make_case_model(work, model, REVIEWS, random_models.TINY)
    file = work / model / "model.safetensors"
    small, _ = first_token(program, work / SHAPE)
    evict(file)
    start = time.monotonic()
    subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=16M"], check=True, stderr=subprocess.DEVNULL)
    disk = time.monotonic() - start
    evict(file)
    cold, resident = first_token(program, file.parent)
    warm, _ = first_token(program, file.parent)
    size = file.stat().st_size
    shutil.rmtree(file.parent)
    return {"bytes": size, "dd_seconds": disk, "cold_seconds": cold, "warm_seconds": warm, "half_billion_seconds": small,
            "resident_bytes": resident, "dd_gb_a_second": size / disk / 1e9, "warm_gb_a_second": size / warm / 1e9}, []


def save(program, work, _):
    plan_check.make_case_model(work, "qwen2.5-1.5b", REVIEWS, random_models.TINY)
    plan_check.make_data(work, REVIEWS)
    job, folder = work / "save.toml", work / "saved"
    job.write_text(plan_check.CASES["sft-qwen2.5-1.5b"].toml(work))
    overrides = ["trainer.total_training_steps=2", f"trainer.default_local_dir={folder}"]
    if plan_check.ARGS.rehearse:
        overrides += ["device.kind=cpu", "device.memory=1GiB", "data.max_response_length=32"]
    start = time.monotonic()
    done = subprocess.run([program.neap, "train", job, *overrides], capture_output=True, text=True)
    wrote = re.search(r"wrote \S+ in ([\d.]+) s", done.stderr)
    if done.returncode or not wrote:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr[-600:]}")
    size = sum(f.stat().st_size for f in (folder / "latest").rglob("*") if f.is_file())
    return {"bytes": size, "blocked_seconds": float(wrote[1]), "run_seconds": time.monotonic() - start,
            "gb_a_second": size / max(float(wrote[1]), 0.05) / 1e9}, []


def main():
    global REVIEWS
    args = plan_check.ARGS
    package = pathlib.Path(args.package).resolve()
    reviews = REVIEWS = package / "examples" / "reviews"
    known, runs = plan_check.environment(package / "bin" / "neap"), plan_check.Runs("generate")
    text = " ".join(json.loads(line)["response"] for line in open(reviews / "sft_train.jsonl")).split()
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        plan_check.make_case_model(work, SHAPE, reviews, random_models.TINY)
        program = Program(package, work / SHAPE)
        cases = {"same": same, "chunks": chunks, "long": long}
        cases |= {f"rate, batch {batch}": lambda p, w, t, batch=batch: rate(p, w, t, batch) for batch in (16, 64, 256)}
        cases |= {"skip": skip, "load": load, "save": save}
        cases["load, 40 GB"] = lambda p, w, t: load(p, w, t, "qwen2.5-20b")
        write_prompts(work / "same.jsonl", 12, 20, text)
        for name, case in cases.items():
            if args.case and name not in args.case:
                continue
            if not runs.may_start(name):
                continue
            wrong = []

            def measured():
                result, found = case(program, work, text)
                wrong.extend(found)
                print("   " + ", ".join(f"{key} {value:.6g}" for key, value in result.items()), flush=True)
                return result

            runs.run(name, {"case": name, "environment": known}, work / "none", measured, lambda _: wrong)
    return runs.end()


def arguments():
    parser = plan_check.common_arguments(__doc__, None, steps=1)
    parser.add_argument("package", metavar="PACKAGE_DIR")
    return parser.parse_args()


if __name__ == "__main__":
    plan_check.ARGS = arguments()
    sys.exit(main())
