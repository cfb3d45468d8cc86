#!/usr/bin/env python3
"""Neap's plans of the study's rows: OPT-1.3b and OPT-350m with LoRA of rank 128, 4 ranks of an RTX 3090, 2 x (256 + 256) tokens a rank.

    planned.py NEAP > bench/results/study-planned.jsonl
    planned.py NEAP --check     exits 1 if the file has other plans
"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "bench" / "results" / "study-planned.jsonl"
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
sys.dont_write_bytecode = True
import ceilings  # noqa: E402
import plan_check  # noqa: E402

JOB = """task = "ppo"
[device]
kind = "cuda"
[data]
train_batch_size = 8
max_prompt_length = 256
max_response_length = 256
[actor_rollout_ref]
model = {path = "opt-1.3b", lora_rank = 128, activation_checkpointing = "none"}
actor = {ppo_mini_batch_size = 8, ppo_micro_batch_size_per_gpu = 2, use_dynamic_bsz = false}
[critic]
model = {path = "opt-350m", lora_rank = 128, activation_checkpointing = "none"}
ppo_mini_batch_size = 8
ppo_micro_batch_size_per_gpu = 2
[reward_model.model]
path = "opt-350m"
[algorithm]
use_kl_in_reward = true
"""
CHECKPOINTING = ('actor_rollout_ref.model.activation_checkpointing="full"', 'critic.model.activation_checkpointing="full"')
KEPT_THERE = 'memory.offload="none"'
# A strategy's keys; None: the least capacity that the plan of these keys names.
STRATEGIES = {
    "none": (KEPT_THERE,), "zero1": (KEPT_THERE, "parallel.zero_stage=1"), "zero2": (KEPT_THERE, "parallel.zero_stage=2"),
    "zero3": (KEPT_THERE, "parallel.zero_stage=3"), "zero3-offload": ("parallel.zero_stage=3", None), "checkpointing": (KEPT_THERE, *CHECKPOINTING),
    "all": ("parallel.zero_stage=3", *CHECKPOINTING, None),
}


def plan(neap, folder, words):
    done = subprocess.run([neap, "plan", "job.toml", "--json", "--ranks", "4", "--gpu", "rtx3090", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{words}: exit {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout)


def plans(neap):
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        (folder / "job.toml").write_text(JOB)
        for name, config in (("opt-1.3b", plan_check.MODELS["opt-1.3b"]), ("opt-350m", ceilings.OPT_350M)):
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(config))
        for strategy, keys in STRATEGIES.items():
            words = [key for key in keys if key]
            found = plan(neap, folder, words)
            if None in keys:
                words += ["--capacity", f"{found['alternatives']['min_capacity']}B"]
                found = plan(neap, folder, words)
            # The arena reserves what tensors need; only temporary tensors are in a caching allocator.
            allocated = [phase["persistent"] + phase["temporary_allocated"] for phase in found["phases"]]
            peak = max(found["phases"], key=lambda phase: phase["peak"])
            yield {"strategy": strategy, "keys": [key for key in keys if key], "ranks": found["ranks"], "device": found["device"], "reserved": found["peak"],
                   "allocated": max(allocated), "fragmentation": peak["temporary"] - peak["temporary_allocated"], "phase": peak["name"],
                   "host_bytes": found["host_bytes"]}


def main():
    text = "".join(json.dumps(line) + "\n" for line in plans(str(pathlib.Path(sys.argv[1]).resolve())))
    if sys.argv[2:] != ["--check"]:
        print(text, end="")
        return 0
    differs = text != KEPT.read_text()
    if differs:
        print(f"{KEPT.relative_to(ROOT)} has other plans; bench/study/planned.py NEAP > {KEPT.relative_to(ROOT)}, then bench/study/page.py --write")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
