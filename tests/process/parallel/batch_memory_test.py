#!/usr/bin/env python3
"""Host memory of a step's batch beside what the plan counts. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Responses end early and have long rows, so that a step is short and its batch large. What a large batch takes more than a
small one is the batch's, because all else of the job is the same.
"""
import json
import pathlib
import sys
import unittest

import launch

from rank_case import RankCase
from train_process_test import MODEL

# Of each rank the most memory that the program had, in KiB.
WATCH = """
import os, pathlib, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
pathlib.Path(sys.argv[1] + "." + os.environ.get("OMPI_COMM_WORLD_RANK", "0")).write_text(str(used))
sys.exit(code)
"""
RESPONSE = 6000
MIB = 1 << 20
GRPO = f"""
task = "grpo"
[device]
kind = "cpu"
memory = "1GiB"
[data]
train_files = ["prompts.jsonl"]
max_prompt_length = 24
max_response_length = {RESPONSE}
[actor_rollout_ref.model]
path = "long"
[actor_rollout_ref.actor]
use_dynamic_bsz = true
ppo_max_token_len_per_gpu = {RESPONSE + 24}
[actor_rollout_ref.rollout]
n = 2
batch_size = 8
stop = ["a", "e", "i", "o", "u", "n", "s", "t"]
[[reward.functions]]
kind = "python"
path = "size.py"
[trainer]
test_freq = -1
save_freq = -1
rollout_freq = -1
total_training_steps = 1
"""


class BatchMemory(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        cls.add_model("long", {**MODEL, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
                               "head_dim": 16, "max_position_embeddings": RESPONSE + 24})
        (cls.home / "watch.py").write_text(WATCH)
        (cls.home / "size.py").write_text("def compute_score(solution_str):\n    return float(len(solution_str))\n")
        row = (cls.home / "prompts.jsonl").read_text().splitlines()[0]
        (cls.home / "prompts.jsonl").write_text(256 * (row + "\n"))
        (cls.home / "grpo.toml").write_text(GRPO)

    # glibc gives larger blocks back at once.
    def most(self, ranks, folder, prompts, *words):
        """MiB of the rank that had most, and those of its plan."""
        words = (f"trainer.default_local_dir=out/{folder}", f"data.train_batch_size={prompts}",
                 f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}", *words)
        result = launch.run(ranks, sys.executable, "watch.py", str(self.home / folder), launch.NEAP, "train", "grpo.toml", *words,
                            cwd=self.home, MALLOC_MMAP_THRESHOLD_=str(MIB))
        self.assertEqual(result.returncode, 0, result.stderr)
        used = max(int((self.home / f"{folder}.{rank}").read_text()) * 1024 for rank in range(ranks))
        return used / MIB, json.loads((self.home / "out" / folder / "plan.json").read_text())["batch_bytes"] / MIB

    def test_a_batch_takes_what_its_plan_counts(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                few, counted_few = self.most(ranks, f"few-{ranks}", 8)
                many, counted_many = self.most(ranks, f"many-{ranks}", 256)
                measured, counted = many - few, counted_many - counted_few
                self.assertGreater(counted, 100)
                # The plan counts responses of full length; these end early, so metrics copy few values.
                self.assertGreater(measured / counted, 0.7, (measured, counted))
                self.assertLess(measured / counted, 1.1, (measured, counted))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
