#!/usr/bin/env python3
"""Jobs of real sizes with random weights: planned beside measured memory of each phase, and how fast they run.

usage: plan_check.py OUT_DIR NAME=PACKAGE_DIR [NAME=PACKAGE_DIR ...] [--case CASE ...] [--steps N] [--tolerance PERCENT]
                     [--minutes M] [--rehearse]

Every package (scripts/package) runs the same cases in turn. A run is ended after N steps (default 5; medians leave out the
first two), before it would write a checkpoint of many GiB. Writes OUT_DIR/plan_check.jsonl: one line a run with the
environment, and a table on stdout. After M minutes (default 9) no further case starts. Exits 1 if a run fails, a phase is
further from its plan than the tolerance (default 0.2 %), moved bytes are not the planned ones, or a case did not start.
--rehearse: the same cases, tiny and on the host.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from phase_records import in_a_step, moves_of, stream_seconds, streamed_of
from random_models import MODELS, TINY, make_model

JOB = """task = "{task}"
[data]
train_files = ["{data}"]
train_batch_size = {rows}
use_dynamic_bsz = false
micro_batch_size_per_gpu = {micro}
max_prompt_length = {prompt}
max_response_length = {response}
[actor_rollout_ref.model]
path = "{model}"
{checkpointing}
[actor_rollout_ref.actor]
use_dynamic_bsz = false
ppo_mini_batch_size = {rows}
ppo_micro_batch_size_per_gpu = {micro}
use_kl_loss = {kl_loss}
optim.lr = 1e-6
[actor_rollout_ref.rollout]
n = {n}
log_prob_micro_batch_size_per_gpu = {micro}
[critic]
ppo_mini_batch_size = {rows}
ppo_micro_batch_size_per_gpu = {micro}
[reward_model.model]
path = "{reward}"
[algorithm]
adv_estimator = "{estimator}"
use_kl_in_reward = {kl_reward}
[trainer]
total_training_steps = 100000
logger = ["jsonl"]
{dpo}
"""

CHECKPOINTING = {"none": 'activation_checkpointing = "none"', "selective": 'activation_checkpointing = "selective"', "full": "enable_gradient_checkpointing = true"}

ARGS = argparse.Namespace(rehearse=False)  # of who imports this; the program reads its own


class Case:
    def __init__(self, model, task, rows, prompt, response, micro=0, n=1, checkpointing="selective", ceiling=0.0, once=False):
        self.model, self.task, self.rows, self.prompt, self.response = model, task, rows, prompt, response
        self.micro, self.n, self.checkpointing = micro or rows * n, n, checkpointing
        self.ceiling = ceiling  # share of all that the job would keep; 0: the whole device
        self.once = once        # of dpo: the reference runs before the first step

    @property
    def sequences(self):
        return self.rows * self.n * (2 if self.task == "dpo" else 1)

    @property
    def tokens(self):
        return self.sequences * (self.prompt + self.response)

    def toml(self, folder):
        rollout = self.task in ("ppo", "grpo")
        word = {False: "false", True: "true"}
        return JOB.format(task=self.task, data=folder / f"{self.task}.jsonl", rows=self.rows, micro=self.micro, prompt=self.prompt,
                          response=self.response, model=folder / self.model, checkpointing=CHECKPOINTING[self.checkpointing], n=self.n,
                          reward=folder / self.model if rollout else "", kl_loss=word[self.task == "grpo"],
                          kl_reward=word[self.task == "ppo"], estimator="grpo" if self.task == "grpo" else "gae",
                          dpo="[dpo]\nprecompute_ref_log_probs = true" if self.once else "")


CASES = {
    "sft-opt-1.3b": Case("opt-1.3b", "sft", 8, 64, 960),
    "ppo-opt-1.3b": Case("opt-1.3b", "ppo", 8, 256, 256),
    "ppo-opt-1.3b-ceiling": Case("opt-1.3b", "ppo", 8, 256, 256, ceiling=0.65),
    "sft-qwen2.5-1.5b-none": Case("qwen2.5-1.5b", "sft", 8, 64, 1984, checkpointing="none"),
    "sft-qwen2.5-1.5b": Case("qwen2.5-1.5b", "sft", 8, 64, 1984),
    "sft-qwen2.5-1.5b-recompute": Case("qwen2.5-1.5b", "sft", 8, 64, 1984, checkpointing="full"),
    "sft-qwen2.5-1.5b-of-1": Case("qwen2.5-1.5b", "sft", 8, 64, 1984, micro=1, checkpointing="none"),
    "grpo-qwen2.5-0.5b-short": Case("qwen2.5-0.5b", "grpo", 16, 256, 256, micro=16, n=4),  # one update a rollout
    "grpo-qwen2.5-0.5b": Case("qwen2.5-0.5b", "grpo", 16, 256, 1024, micro=16, n=4),
    "dpo-qwen2.5-1.5b": Case("qwen2.5-1.5b", "dpo", 8, 64, 960, micro=4),
    "dpo-qwen2.5-1.5b-once": Case("qwen2.5-1.5b", "dpo", 8, 64, 960, micro=4, once=True),
    "sft-qwen2.5-7b-recompute": Case("qwen2.5-7b", "sft", 4, 64, 1984, checkpointing="full"),
}
USUAL = [name for name in CASES if name not in ("sft-opt-1.3b", "sft-qwen2.5-1.5b-none", "sft-qwen2.5-1.5b-recompute",
                                                "sft-qwen2.5-1.5b-of-1", "grpo-qwen2.5-0.5b-short")
         and not name.startswith("dpo-")]


# ---- inputs ----

def make_data(folder, reviews, prompt_words=0, response_words=450, rehearsed_words=8):
    """`prompt_words`: so many words before each prompt of grpo and sft. `response_words`: of sft and dpo, in a rehearsal `rehearsed_words`."""
    rows = [json.loads(line) for line in open(reviews / "sft_train.jsonl")]
    words = " ".join(row["response"] for row in rows[:400]).split()
    for task in ("sft", "dpo", "ppo", "grpo"):
        with open(folder / f"{task}.jsonl", "w") as out:
            for i in range(64):
                row = {"prompt": rows[i]["prompt"]}
                if task in ("grpo", "sft") and prompt_words:
                    row["prompt"] = " ".join((words * (1 + prompt_words // len(words)))[i:i + prompt_words]) + row["prompt"]
                long = rehearsed_words if ARGS.rehearse else response_words
                if task == "sft":
                    row["response"] = " ".join(words[i:i + long])
                if task == "dpo":
                    row |= {"chosen": " ".join(words[i:i + long]), "rejected": " ".join(words[i + 100:i + 100 + long])}
                out.write(json.dumps(row) + "\n")


# ---- runs ----

def environment(neap):
    doctor = json.loads(subprocess.run([neap, "doctor", "--json", "--quick"], capture_output=True, text=True).stdout)
    smi = shutil.which("nvidia-smi")
    driver = subprocess.run([smi, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                            text=True).stdout.split() if smi else []
    gpus = [d for d in doctor["devices"] if "host" not in d["name"]]
    return {"gpu": gpus[0]["name"] if gpus else None, "driver": driver[0] if driver else None, "host": platform.node(),
            "version": doctor["neap"]["version"], "libtorch": doctor["trainer"].get("libtorch")}


def plan_of(neap, job, overrides):
    done = subprocess.run([neap, "plan", job, "--json", *overrides], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"neap plan: exit {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout)


def both_ways(plan):
    """A boundary over which one tag goes to the host while another comes from it."""
    return any({"pause", "resume"} <= {move["kind"] for move in phase["moves"] if move["copies"]} for phase in plan["phases"])


def ceiling_of(neap, job, case, overrides):
    """The smallest ceiling, from the case's share on, under which the job fits."""
    everything = plan_of(neap, job, overrides)["peak_without_offload"]
    share = case.ceiling
    while True:
        limit = f"device.memory={int(everything * share)}B"
        plan = plan_of(neap, job, [*overrides, limit])
        if plan["fits"]:
            break
        share += 0.05
    if not both_ways(plan):
        raise RuntimeError(f"no boundary moves both ways under {limit}")
    return limit


def json_lines(file):
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def run_job(neap, job, folder, overrides, steps, seconds, times=None):
    """Until `steps` are logged or the run ends; then it is killed: nobody wants its checkpoint. `times`: seconds to each step's row are appended."""
    command = [neap, "train", job, f"trainer.default_local_dir={folder}", *overrides]
    with open(f"{folder}.err", "w") as err:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, env=dict(os.environ, NEAP_PROGRESS="off"))
        start = time.monotonic()
        deadline = start + seconds
        while process.poll() is None and (count := len(json_lines(folder / "metrics.jsonl"))) < steps and time.monotonic() < deadline:
            if times is not None:
                times += [round(time.monotonic() - start, 2)] * (count - len(times))
            time.sleep(0.05)
        ended = process.poll()
        if ended is None:
            process.kill()
            process.wait()
    metrics = json_lines(folder / "metrics.jsonl")[:steps]
    if len(metrics) < steps:
        why = "timed out" if ended is None else f"exit {ended}"
        raise RuntimeError(f"{why} after {len(metrics)} of {steps} steps: " + pathlib.Path(f"{folder}.err").read_text()[-800:])
    return " ".join(map(str, command)), metrics


def compare(folder, metrics):
    plan = json.loads((folder / "plan.json").read_text())
    records = [r for r in json_lines(folder / "phases.jsonl") if r["step"] <= len(metrics)]
    phases = []
    for p, phase in enumerate(plan["phases"]):
        mine = [r for r in records if r["phase"] == phase["name"]]
        if not mine:
            if phase["name"] == "validate":  # there are no val_files
                continue
            raise RuntimeError(f"phase {phase['name']} was planned and did not run")
        measured = max(r["peak"] for r in mine)
        last = [r for r in mine if r["step"] == max(r["step"] for r in mine)]
        streamed = sum(2 * tag["bytes"] for tag in plan["tags"] if tag["cells"][p] == "stream")
        warm = min(2, len(metrics) - 1) if phase["times"] else -1  # those that run once come before the first step
        copied = lambda moves: sum(m["bytes"] for m in moves if m["copies"])
        phases.append({"phase": phase["name"], "planned": phase["peak"], "measured": measured,
                       "percent": round(100 * (measured / phase["peak"] - 1), 3),
                       "planned_transient": phase["temporary"], "temporary": max(r["temporary_reserved"] for r in mine),
                       "temporary_allocated": max(r["temporary_allocated"] for r in mine),
                       "times": phase["times"],
                       "planned_moved": copied(phase["moves"]) + (phase["times"] - 1) * copied(phase["again"])
                       + phase["times"] * streamed + phase.get("loaded", 0),
                       "moved": sum(r["moved"] for r in last), "as_planned": all(r["as_planned"] for r in last),
                       "move_seconds": in_a_step(mine, warm, "move_seconds"), "seconds": in_a_step(mine, warm, "seconds"),
                       "streamed": streamed_of(last), "stream_seconds": in_a_step(mine, warm, stream_seconds), "moves": moves_of(mine, warm)})
    unplanned = {r["phase"] for r in records} - {p["name"] for p in plan["phases"]}
    if unplanned:
        raise RuntimeError(f"phases ran that were not planned: {sorted(unplanned)}")
    return plan, phases


# The first two steps warm up.
def median(metrics, key):
    values = [m[key] for m in metrics[min(2, len(metrics) - 1):] if key in m]
    return statistics.median(values) if values else None


def planned_and_measured(neap, job, folder, overrides):
    """One run: its plan, its metrics, and what every suite keeps of them."""
    command, metrics = run_job(neap, job, folder, overrides, ARGS.steps, ARGS.seconds)
    plan, phases = compare(folder, metrics)
    return plan, metrics, {"command": command, "capacity": plan["capacity"], "peak_without_offload": plan["peak_without_offload"],
                           "planned_peak": plan["peak"], "measured_peak": max(p["measured"] for p in phases), "phases": phases,
                           "seconds_a_step": median(metrics, "timing_s/step")}


def measure(case, neap, job, folder, overrides):
    _, metrics, result = planned_and_measured(neap, job, folder, overrides)
    result |= {"tokens_a_second": case.tokens / result["seconds_a_step"],
              "seconds": {key.removeprefix("timing_s/"): median(metrics, key) for key in metrics[-1] if key.startswith("timing_s/")},
              "loss": [m.get("train/loss", m.get("actor/pg_loss")) for m in metrics]}
    if case.task in ("ppo", "grpo"):
        result["decode_ms_a_token"] = 1000 * median(metrics, "timing_s/gen") / median(metrics, "response_length/max")
    return result


def off_plan(result):
    return [f"{p['phase']} is {p['percent']:+.2f} % off its plan" for p in result["phases"] if abs(p["percent"]) > ARGS.tolerance]


def wrong_in(result):
    return off_plan(result) + [f"{p['phase']} moved {p['moved']} bytes, planned {p['planned_moved']}" for p in result["phases"]
                               if p["moved"] != p["planned_moved"] or not p["as_planned"]]


class Runs:
    """The runs of a suite: for each a line of OUT_DIR/SUITE.jsonl, and what is wrong with it. None starts after the time limit."""

    def __init__(self, suite):
        self.suite, self.start, self.count, self.failures = suite, time.monotonic(), 0, []
        ARGS.out.mkdir(parents=True, exist_ok=True)
        self.log = open(ARGS.out / f"{suite}.jsonl", "a")

    def seconds(self):
        return time.monotonic() - self.start

    def may_start(self, name):
        if self.seconds() <= 60 * ARGS.minutes:
            return True
        self.failures.append(f"{name}: did not start in time")
        return False

    def run(self, name, about, folder, measure, wrong):
        """`measure()` and what `wrong` finds in it; None when it fails. The run's folder is removed."""
        print(f"== {name} at {self.seconds():.0f} s", flush=True)
        self.count += 1
        line = {"suite": self.suite, **about, "rehearsal": ARGS.rehearse, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        result = None
        try:
            result = measure()
            line |= {**result, "wrong": wrong(result)}
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            line["wrong"] = [f"{type(error).__name__}: {error}"]
        for what in line["wrong"]:
            print(f"   {what}", flush=True)
            self.failures.append(f"{name}: {what}")
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()
        shutil.rmtree(folder, ignore_errors=True)
        return result

    def end(self):
        self.log.close()
        for failure in self.failures:
            print(f"FAILED {failure}")
        print(f"{self.suite}: {self.count} runs, {len(self.failures)} failures, {self.seconds():.0f} s")
        return bool(self.failures)


def show(result):
    gib = 2.0**30
    print(f"{'phase':<14}{'planned GiB':>13}{'measured':>11}{'%':>8}{'transient GiB':>15}{'measured':>11}{'moved GiB':>11}"
          f"{'planned':>9}{'move s':>8}{'s':>9}")
    for p in result["phases"]:
        print(f"{p['phase']:<14}{p['planned'] / gib:>13.3f}{p['measured'] / gib:>11.3f}{p['percent']:>+8.2f}"
              f"{p['planned_transient'] / gib:>15.3f}{p['temporary'] / gib:>11.3f}{p['moved'] / gib:>11.3f}"
              f"{p['planned_moved'] / gib:>9.3f}{p['move_seconds']:>8.3f}{p['seconds']:>9.4f}")
    decode = f", decode {result['decode_ms_a_token']:.2f} ms a token" if "decode_ms_a_token" in result else ""
    print(f"{result['seconds_a_step']:.4f} s a step, {result['tokens_a_second']:.0f} tokens/s{decode}; all resident "
          f"{result['peak_without_offload'] / gib:.2f} GiB, ceiling {result['capacity'] / gib:.2f} GiB", flush=True)


def common_arguments(description, cases, steps):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--case", action="append", choices=cases)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--tolerance", type=float, default=0.2)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--seconds", type=float, default=300, help="the longest that a run may take")
    parser.add_argument("--rehearse", action="store_true")
    return parser


def arguments():
    parser = common_arguments(__doc__, list(CASES), steps=5)
    parser.add_argument("packages", nargs="+", metavar="NAME=PACKAGE_DIR")
    return parser.parse_args()


def rehearsed(case):
    return Case(case.model, case.task, min(case.rows, 4), 32, 32, micro=min(2, case.rows), n=case.n, checkpointing=case.checkpointing, ceiling=case.ceiling,
                once=case.once)


def make_only_model(work, name, *arguments):
    """One model at a time on the disk."""
    for old in work.glob("*/model.safetensors"):
        if old.parent.name != name:
            shutil.rmtree(old.parent)
    if not (work / name).exists():
        make_case_model(work, name, *arguments)


def make_case_model(work, name, reviews, tiny):
    config = MODELS[name]
    if ARGS.rehearse:
        config = {**config, **{key: value for key, value in tiny.items() if key in config}}
    make_model(work / name, config, reviews / "model")


def main():
    packages = {name: pathlib.Path(folder).resolve() for name, folder in (p.split("=", 1) for p in ARGS.packages)}
    reviews = next(iter(packages.values())) / "examples" / "reviews"
    known = {name: environment(package / "bin" / "neap") for name, package in packages.items()}
    runs = Runs("plan_check")
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        make_data(work, reviews)
        for name in ARGS.case or USUAL:
            if not runs.may_start(name):
                continue
            case = rehearsed(CASES[name]) if ARGS.rehearse else CASES[name]
            make_only_model(work, case.model, reviews, TINY)
            job = work / f"{name}.toml"
            job.write_text(case.toml(work))
            for package_name, package in packages.items():
                neap, folder = package / "bin" / "neap", work / f"{name}-{package_name}"

                def measured():
                    overrides = ["device.kind=cpu", "device.memory=1GiB"] if ARGS.rehearse else []
                    if case.ceiling:
                        overrides.append("memory.optimizer_offload=none")  # a divided update needs no boundary that moves both ways
                        overrides.append(ceiling_of(neap, job, case, overrides))
                    return measure(case, neap, job, folder, overrides)

                about = {"case": name, "package": package_name, "environment": known[package_name]}
                result = runs.run(f"{name} {package_name}", about, folder, measured, wrong_in)
                if result:
                    show(result)
    return runs.end()


if __name__ == "__main__":
    ARGS = arguments()
    sys.exit(main())
