#!/usr/bin/env python3
"""Rows dealt to ranks by their tokens (trainer.balance_batch). usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Texts are those without it, losses and weights but for the order of sums. Two runs have the same bits, a run that resumes,
too, and no rank takes more memory than its plan says.
"""
import sys
import unittest

import launch

from rank_case import FILES, OPTIMIZER, SGD
from rollout_case import CRITIC_SGD, KL_LOSS, RolloutCase, ZERO
from train_process_test import read_lines, REWARD

IN_TURNS = "trainer.balance_batch=false"
# Of responses the longest is 32 times the shortest.
SKEWED = ("actor_rollout_ref.rollout.sample_lengths=true", "data.max_response_length=32", *SGD)
PACKED = ("data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=128", *SGD)


class Balance(RolloutCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.home / "dpo.toml").write_text(REWARD.replace('"reward"', '"dpo"').replace("out/reward", "out/dpo"))

    def balance(self, folder):
        """Of each step the largest difference of ranks' tokens, in turns and dealt, and the most that a rank has of either."""
        def of(row, prefix=""):
            return [row[f"global_seqlen/{prefix}{end}"] for end in ("min", "max")]

        rows = read_lines(self.home / "out" / folder / "metrics.jsonl")
        self.assertTrue(rows)
        return [(of(row), of(row, "balanced_"), row["global_seqlen/mean"]) for row in rows]

    def compare(self, name, *words, task, ranks, step=2, near=1e-6):
        for n in ranks:
            dealt, turns = f"{name}-{n}", f"{name}-{n}-turns"
            with self.subTest(dealt):
                self.run_mesh(dealt, *words, task=task, copies=n)
                self.run_mesh(turns, *words, IN_TURNS, task=task, copies=n)
                if task in ("ppo", "grpo"):
                    self.assertEqual(self.texts(turns), self.texts(dealt))
                self.assert_same_training(turns, dealt, near=near, files=("model",), step=step,
                                          role="reward" if task == "reward" else "actor")
                for (least, most), (balanced_least, balanced_most), mean in self.balance(dealt):
                    self.assertLessEqual(balanced_most - balanced_least, most - least)
                    self.assertLess(balanced_most, 1.1 * mean)
                self.assertLess(sum(b[1] - b[0] for _, b, _ in self.balance(dealt)), sum(t[1] - t[0] for t, _, _ in self.balance(dealt)) / 2)

    def test_rollouts(self):
        self.compare("grpo", *SKEWED, KL_LOSS, "actor_rollout_ref.rollout.n=4", task="grpo", ranks=(2, 4))
        self.compare("ppo", *SKEWED, *CRITIC_SGD, "critic.ppo_mini_batch_size=8", "actor_rollout_ref.rollout.n=4", task="ppo",
                     ranks=(2,), near=3e-5)
        self.compare("dapo", *SKEWED, "algorithm.filter_groups.enable=true", "actor_rollout_ref.rollout.n=4", task="grpo", ranks=(2,))

    def test_rows_of_files(self):
        for task in ("sft", "reward", "dpo"):
            self.compare(task, *PACKED, "data.train_batch_size=16", "trainer.total_training_steps=2", "trainer.save_freq=2", task=task, ranks=(2, 4))

    def test_runs_repeat_and_resume(self):
        words = (*SKEWED, "actor_rollout_ref.rollout.n=4", ZERO.format(1), "trainer.save_freq=1", "trainer.max_ckpt_to_keep=3")
        for name in ("one", "other"):
            self.run_mesh(name, *words, task="grpo", copies=2)
        self.assert_same_files("one", "other", 2, FILES)
        self.assertEqual(self.balance("one"), self.balance("other"))
        first = self.home / "out" / "one" / "global_step_1"
        self.run_mesh("resumed", *words, f"trainer.resume_mode={first}", task="grpo", copies=2)
        self.assert_same_files("one", "resumed", 2, FILES)

    def test_padded_rows_stay(self):
        words = (*SKEWED, "actor_rollout_ref.actor.use_dynamic_bsz=false", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
                 "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2", f"{OPTIMIZER}lr=0", "trainer.total_training_steps=1")
        self.run_ranks(2, "padded", *words, task="grpo")
        for turns, dealt, _ in self.balance("padded"):
            self.assertEqual(turns, dealt)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
