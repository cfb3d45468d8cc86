#!/usr/bin/env python3
"""docs/start.md on a GPU: its job to the end, then its job with other keys (OWN_KEYS) on a 1.5B model: seconds and memory.

usage: start.py OUT_DIR PACKAGE_DIR [--steps N] [--minutes M] [--rehearse]

job   the example's SFT, then the files of docs/start.md: plan, train (150 steps), report, generate, as the page shows them
own   Qwen2.5-1.5B's shape with random weights, prompts of 100 to 400 words, responses of 512 tokens: N steps (default 2) of the job
      with OWN_KEYS: in full on the whole card and under 22 GiB, LoRA under 11 GiB; the last step is reported
Writes OUT_DIR/start.jsonl, a line a run, and to OUT_DIR what the job printed (start.log), its validation.jsonl and report.html; a
table on stdout. After M minutes (default 9) no further run starts. Exits 1 if a run fails or takes more memory than planned.
--rehearse: a tiny model and two steps, on the host.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import plan_check
import random_models
from card_memory import CardMemory

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "docs"))
import check_docs  # noqa: E402

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OWN_KEYS = ["data.max_prompt_length=512", "data.max_response_length=512", f"{ACTOR}.ppo_max_token_len_per_gpu=16384", f"{ROLLOUT}.n=8",
             f"{ROLLOUT}.batch_size=256", "data.truncation=left"]
FULL = [f"{ACTOR}.optim.lr=1e-6", f"{ACTOR}.use_kl_loss=true"]
LORA = [f"{ACTOR}.optim.lr=1e-5", "actor_rollout_ref.model.lora_rank=32"]
OWN = {"full": FULL, "full under 22 GiB": [*FULL, "device.memory=22GiB"], "LoRA-32 under 11 GiB": [*LORA, "device.memory=11GiB"]}


def shown(log, command, work, environment):
    """Runs a command of the page; its output goes to the log."""
    start = time.monotonic()
    done = subprocess.run(["bash", "-c", command], cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    seconds = time.monotonic() - start
    log.write(f"$ {command}\n{done.stdout}# exit {done.returncode}, {seconds:.1f} s\n\n")
    log.flush()
    if done.returncode:
        raise RuntimeError(f"{command}: exit {done.returncode}: {done.stdout[-800:]}")
    return seconds


def memory_of(folder):
    plan, phases = plan_check.compare(folder, plan_check.json_lines(folder / "metrics.jsonl"))
    return {"capacity": plan["capacity"], "planned_peak": plan["peak"], "measured_peak": max(p["measured"] for p in phases),
            "phases": [{key: p[key] for key in ("phase", "planned", "measured", "seconds")} for p in phases]}


def job(work, environment, overrides, steps):
    """The page's commands, in its order."""
    page = ROOT / "docs" / "start.md"
    check_docs.write_files(page, work)
    extra = "".join(f" {o}" for o in overrides)
    limit = f" trainer.total_training_steps={steps}" if steps else ""
    seconds = {}
    with open(plan_check.ARGS.out / "start.log", "w") as log:
        for _, command, _ in check_docs.commands(page):
            elsewhere = command.startswith("neap plan examples/gsm8k")  # a plan for another card
            if command.startswith(("neap train", "neap plan first")):
                command += extra
            if command.startswith("neap train"):
                command += limit
            if command.startswith("neap generate") and plan_check.ARGS.rehearse:
                command += " --device cpu"
            if not elsewhere:
                seconds[command.split(" trainer.")[0]] = round(shown(log, command, work, environment), 1)
    folder = work / "output" / "first"
    for name in ("validation.jsonl", "report.html"):
        shutil.copy(folder / name, plan_check.ARGS.out)
    curve = {row["step"]: {key: round(row[key], 4) for key in ("val/acc/mean@1", "val/score/mean")}
             for row in plan_check.json_lines(folder / "validation.jsonl")}
    return {"commands": seconds, "curve": curve, **memory_of(folder)}


def make_own(work, reviews):
    config = random_models.MODELS["qwen2.5-1.5b"]
    if plan_check.ARGS.rehearse:
        config = {**config, **{key: value for key, value in random_models.TINY.items() if key in config}}
    random_models.make_model(work / "own", config, reviews / "model")
    words = " ".join(json.loads(line)["response"] for line in open(reviews / "sft_train.jsonl")).split()
    draw = random.Random(1)
    for name, count in (("own_train.jsonl", 512), ("own_val.jsonl", 64)):
        with open(work / "first" / name, "w") as out:
            for _ in range(count):
                start, length = draw.randrange(len(words) - 400), draw.randrange(100, 400)
                out.write(json.dumps({"prompt": " ".join(words[start:start + length]), "answer": str(draw.randrange(100, 1000))}) + "\n")


def own(neap, work, folder, overrides, steps):
    common = [f"actor_rollout_ref.model.path={work / 'own'}", "data.train_files=own_train.jsonl", "data.val_files=own_val.jsonl", *OWN_KEYS]
    command, metrics = plan_check.run_job(neap, work / "first" / "grpo.toml", folder, [*common, *overrides], steps, 300)
    return {"command": command, "seconds_a_step": metrics[-1]["timing_s/step"],
            "response_length": metrics[-1]["response_length/mean"],
            "seconds": {key.removeprefix("timing_s/"): value for key, value in metrics[-1].items() if key.startswith("timing_s/")},
            **memory_of(folder)}


def wrong_in(result):
    # The plan counts full micro-batches and the longest prompts; the host's plan of a tiny model may be a page short.
    return [f"{p['phase']} took {p['measured']} bytes, planned {p['planned']}" for p in result["phases"]
            if p["measured"] > 1.002 * p["planned"] + (4096 if plan_check.ARGS.rehearse else 0)]


def show(name, result):
    gib = 2.0**30
    print(f"{name}: planned {result['planned_peak'] / gib:.3f} GiB, measured {result['measured_peak'] / gib:.3f}, card at most "
          f"{result['card_mib']} MiB")
    for p in result["phases"]:
        print(f"  {p['phase']:<14}{p['planned'] / gib:>10.3f} GiB planned{p['measured'] / gib:>10.3f} measured{p['seconds']:>10.4f} s a step")
    if "curve" in result:
        for command, seconds in result["commands"].items():
            print(f"  {seconds:>7.1f} s  {command}")
        for step, values in result["curve"].items():
            print(f"  step {step:>4}  " + "  ".join(f"{key} {value}" for key, value in values.items()))
    else:
        print(f"  {result['seconds_a_step']:.2f} s a step, responses of {result['response_length']:.0f} tokens; "
              + ", ".join(f"{key} {value:.2f}" for key, value in result["seconds"].items() if value))
    sys.stdout.flush()


def main():
    args = plan_check.ARGS
    package = args.package.resolve()
    neap, runs = package / "bin" / "neap", plan_check.Runs("start")
    known = plan_check.environment(neap)
    host = ["device.kind=cpu", "device.memory=1GiB"] if args.rehearse else []
    tiny = [*host, "data.max_prompt_length=32", "data.max_response_length=16", "data.train_batch_size=8", f"{ACTOR}.ppo_mini_batch_size=4"]
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        shutil.copytree(package / "examples", work / "examples")
        environment = dict(os.environ, PATH=f"{package / 'bin'}:{os.environ['PATH']}", NEAP_PROGRESS="off")

        def run(name, measure):
            if not runs.may_start(name):
                return
            with CardMemory() as cards:
                result = runs.run(name, {"case": name, "environment": known}, work / "none",
                                  lambda: {**measure(), "card_mib": max(cards.most, default=None)}, wrong_in)
            if result:
                show(name, result)

        run("job", lambda: job(work, environment, host, 2 if args.rehearse else 0))
        make_own(work, package / "examples" / "reviews")
        for name, overrides in OWN.items():
            if args.rehearse:
                overrides = [o for o in overrides if not o.startswith("device.")]
            folder = work / name.replace(" ", "-")
            run(name, lambda: own(neap, work, folder, [*overrides, *(tiny if args.rehearse else [])], 2 if args.rehearse else args.steps))
            shutil.rmtree(folder, ignore_errors=True)
    return runs.end()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--rehearse", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    plan_check.ARGS = arguments()
    sys.exit(main())
