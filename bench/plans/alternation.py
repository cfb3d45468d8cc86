#!/usr/bin/env python3
"""Rollout and training on the same GPUs under four strategies, planned: how much KV cache each leaves room for.

    alternation.py NEAP > bench/results/planned-alternation.jsonl

The strategies are the values of actor_rollout_ref.rollout.colocation, by the names of the blog that describes them:
v0  resident  every tag stays on the device
v1  reload    the rollout's weights pass through the disk (memory.nvme_bandwidth, 2 GB/s); then its tags come at once
v2  whole     the rollout's tags come at once, while the trained weights are there
v3  stages    a tag comes when its phase begins, after those that the phase does not need have left
With v0 to v2 the rollout has a copy of the weights. With v3 it decodes with the trained ones if they are whole.
The ratio is that of SGLang's mem_fraction_static: weights and KV cache of the rollout, of the card's memory. Lines: a job, strategy and
ratio; and for each job and strategy the largest ratio that fits. "needs": the plan's peak, or the minimum capacity of a refused job.
"""
import json
import pathlib
import re
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
JOBS = {"Qwen2.5-7B on one H100": ("qwen2.5-7b", "h100", ()),
        "Qwen2.5-7B on one H200": ("qwen2.5-7b", "h200", ()),
        "Qwen2.5-32B on 8 H100": ("qwen2.5-32b", "h100", ("--ranks", "8", "parallel.zero_stage=3",
                                                          "actor_rollout_ref.rollout.tensor_model_parallel_size=2"))}
STRATEGIES = {"v0": "resident", "v1": "reload", "v2": "whole", "v3": "stages"}
RATIOS = (0.6, 0.7, 0.8, 0.9)
KEY = "actor_rollout_ref.rollout.colocation="
STEP = 8  # sequences
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Job:
    def __init__(self, neap, folder, name):
        self.neap, self.name = neap, name
        model, self.gpu, self.words = JOBS[name]
        self.file = folder / f"{model}.toml"
        self.file.write_text(JOB.format(model=MODELS / model))
        self.plans = {}
        least, _ = self.plan("stages", STEP)
        self.sizes = {tag["tag"]: tag["bytes"] for tag in least["tags"]}
        self.capacity, self.card = least["capacity"], least["capacity"] + least["context"]
        self.weights = self.sizes.get("actor.rollout_weights", self.sizes["actor.weights"])
        self.per_token = self.sizes["rollout.kv"] / STEP / 1536

    def plan(self, way, sequences):
        """(the plan, the bytes that it needs); without a plan, the minimum capacity."""
        if (way, sequences) not in self.plans:
            done = subprocess.run([self.neap, "plan", self.file, "--gpu", self.gpu, "--host", "2TiB", "--json", *self.words,
                                   f"actor_rollout_ref.rollout.batch_size={sequences}", KEY + way],
                                  capture_output=True, text=True)
            least = re.search(r"minimum capacity is ([\d.]+) (\w+)", done.stderr)
            if done.returncode == 0:
                plan = json.loads(done.stdout)
                self.plans[way, sequences] = plan, plan["peak"]
            elif done.returncode == 3 and least:
                self.plans[way, sequences] = None, round(float(least[1]) * UNITS[least[2]])
            else:
                raise SystemExit(f"{self.name}: {done.stderr[-500:]}")
        return self.plans[way, sequences]

    def row(self, strategy, sequences):
        plan, needs = self.plan(STRATEGIES[strategy], sequences)
        cache = round(self.per_token * 1536 * sequences)  # proportional to the sequences, up to a region's granularity
        row = {"job": self.name, "strategy": strategy, "colocation": STRATEGIES[strategy], "sequences": sequences,
               "ratio": round((self.weights + cache) / self.card, 3), "kv_bytes": cache, "kv_tokens": sequences * 1536,
               "fits": plan is not None, "needs": needs, "capacity": self.capacity}
        if plan:
            through_disk = sum(phase["seconds"] for phase in plan["phases"] if phase["name"] in ("store_weights", "wake_up"))
            row["transition_seconds"] = round(plan["move_seconds"] + through_disk, 3)
        return row

    def sequences_at(self, ratio):
        return max(STEP, int((ratio * self.card - self.weights) / (self.per_token * 1536) / STEP) * STEP)

    def rows(self):
        for strategy in STRATEGIES:
            for ratio in RATIOS:
                yield {"asked": ratio, **self.row(strategy, self.sequences_at(ratio))}
            low, high = 0, self.sequences_at(1.0)  # the largest number of sequences that fits
            while high - low > STEP:
                middle = (low + high) // 2 // STEP * STEP
                low, high = (middle, high) if self.row(strategy, middle)["fits"] else (low, middle)
            yield {"largest": True, **(self.row(strategy, low) if low else {"job": self.name, "strategy": strategy, "fits": False})}


def main():
    neap = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        for name in JOBS:
            for each in Job(neap, pathlib.Path(folder), name).rows():
                print(json.dumps(each), flush=True)


if __name__ == "__main__":
    main()
