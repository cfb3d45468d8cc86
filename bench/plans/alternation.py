#!/usr/bin/env python3
"""Rollout and training on the same GPUs under four strategies, planned: how much KV cache each leaves room for.

    alternation.py NEAP > bench/results/planned-alternation.jsonl

Strategies for a GRPO job, in the tags of its plan:
v0  everything is resident in every phase: memory.offload = "none"
v1  the rollout starts anew each step: its memory as of v3, and the weights go through the disk (memory.nvme_bandwidth, 2 GB/s)
v2  the rollout sleeps as a whole: it wakes up while what the update has on the device, with all its weights, is still there
v3  stages: a tag comes when its phase begins, after those that the phase does not need have left: memory.offload = "auto"
v0 and v3 are plans that `neap train` runs. v1 and v2 are computed from plans; no key of `neap train` does them.
The ratio is that of SGLang's mem_fraction_static: weights and KV cache of the rollout, of the card's memory. Lines: a job, strategy and
ratio; and for each job and strategy the largest ratio that fits.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "examples" / "plan" / "models"
JOB = """task = "grpo"
[data]
train_files = ["train.jsonl"]
train_batch_size = 512
max_prompt_length = 512
max_response_length = 1024
[actor_rollout_ref]
model.path = "{model}"
actor.optim.lr = 1e-6
rollout.n = 8
[[reward.functions]]
kind = "numeric"
"""
JOBS = {"Qwen2.5-7B on one H100": ("qwen2.5-7b", ()),
        "Qwen2.5-32B on 8 H100": ("qwen2.5-32b", ("--ranks", "8", "parallel.zero_stage=3", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"))}
RATIOS = (0.6, 0.7, 0.8, 0.9)
STEP = 8  # sequences
DISK = 2e9
WEIGHTS_STAY = 'memory.allow=["recompute", "offload", "offload_optimizer"]'


class Job:
    def __init__(self, neap, folder, name):
        self.neap, self.name, self.folder = neap, name, folder
        model, self.words = JOBS[name]
        self.file = folder / f"{model}.toml"
        self.file.write_text(JOB.format(model=MODELS / model))
        self.plans = {}

    def plan(self, sequences, *words):
        """None if nothing fits."""
        key = (sequences, *words)
        if key not in self.plans:
            done = subprocess.run([self.neap, "plan", self.file, "--gpu", "h100", "--host", "2TiB", "--json",
                                   f"actor_rollout_ref.rollout.batch_size={sequences}", *self.words, *words], capture_output=True, text=True)
            if done.returncode not in (0, 3):
                raise SystemExit(f"{self.name}: {done.stderr[-500:]}")
            self.plans[key] = json.loads(done.stdout) if done.stdout.strip() else None
        return self.plans[key]

    def card(self):
        plan = self.plan(STEP)
        return plan["capacity"] + plan["context"]

    def weights(self):
        """Bytes of the rollout's weights on a rank."""
        sizes = {tag["tag"]: tag["bytes"] for tag in self.plan(STEP)["tags"]}
        return sizes.get("actor.rollout_weights", sizes["actor.weights"])

    def cache(self, sequences):
        """The cache's size is proportional to the sequences, up to a region's granularity."""
        return bytes_of(self.plan(STEP), "rollout.kv") * sequences // STEP

    def needs(self, strategy, sequences):
        """(bytes on the device, seconds of the transitions of a step), or None if the planner finds no plan."""
        if strategy == "v0":
            plan = self.plan(sequences, "memory.offload=none")
            return (plan["peak"], 0.0) if plan else None
        if strategy == "v2":
            plan = self.plan(STEP, WEIGHTS_STAY)  # what the update has there does not depend on the rollout
            return max(plan["peak"], self.woken(plan, sequences)), plan["move_seconds"]
        plan = self.plan(sequences)
        if plan is None:
            return None
        through_disk = 2 * self.weights() / DISK if strategy == "v1" else 0.0
        return plan["peak"], plan["move_seconds"] + through_disk

    def woken(self, plan, sequences):
        names = [phase["name"] for phase in plan["phases"]]
        last = max(i for i, name in enumerate(names) if "actor" in name)
        first = names.index("generate")
        both = sum(tag["bytes"] for tag in plan["tags"]
                   if tag["tag"] != "rollout.kv" and {tag["cells"][last], tag["cells"][first]} & {"need", "stay"})
        return both + self.cache(sequences)


def bytes_of(plan, name):
    return next(tag["bytes"] for tag in plan["tags"] if tag["tag"] == name)


def rows(job):
    card, weights = job.card(), job.weights()
    capacity = job.plan(STEP)["capacity"]
    per_token = bytes_of(job.plan(STEP), "rollout.kv") / STEP / 1536

    def row(strategy, sequences):
        found = job.needs(strategy, sequences)
        cache = job.cache(sequences)
        return {"job": job.name, "strategy": strategy, "sequences": sequences, "ratio": round((weights + cache) / card, 3),
                "kv_bytes": cache, "kv_tokens": round(cache / per_token), "fits": bool(found) and found[0] <= capacity,
                "needs": found and found[0], "capacity": capacity, "transition_seconds": found and round(found[1], 3)}

    def sequences_at(ratio):
        return max(STEP, int((ratio * card - weights) / (per_token * 1536) / STEP) * STEP)

    for strategy in ("v0", "v1", "v2", "v3"):
        for ratio in RATIOS:
            yield {"asked": ratio, **row(strategy, sequences_at(ratio))}
        low, high = 0, sequences_at(1.0)  # the largest number of sequences that fits
        while high - low > STEP:
            middle = (low + high) // 2 // STEP * STEP
            low, high = (middle, high) if row(strategy, middle)["fits"] else (low, middle)
        yield {"largest": True, **(row(strategy, low) if low else {"job": job.name, "strategy": strategy, "fits": False})}


def main():
    neap = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        for name in JOBS:
            for each in rows(Job(neap, pathlib.Path(folder), name)):
                print(json.dumps(each), flush=True)


if __name__ == "__main__":
    main()
