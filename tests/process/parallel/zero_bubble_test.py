#!/usr/bin/env python3
"""`neap train` with stages whose backward is in two parts, zero bubble. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

They give the bits of one rank that accumulates, take what each rank's plan says, and checkpoints do not depend on them.
NEAP_TEST_SLOW=1: every case.
"""
import json
import sys
import unittest

import launch
import stages_case

from pipeline_case import CHUNKS, STAGES
from rank_case import ZERO_BUBBLE
from train_process_test import read_lines  # noqa: E402


class ZeroBubble(stages_case.StagesCase):
    SCHEDULE = {"zero_bubble": True}
    LEFT_OUT = ("split", "untied", "dpo", "tensor")

    def test_stages_are_one_rank_bit_by_bit(self):
        """Six micro-batches: more than stages, and of six stages as many."""
        self.write_model("deep", num_hidden_layers=6)
        for stages in (2, 3, 4):
            with self.subTest(stages=stages):
                one, divided = self.assert_one_rank("adamw", stages)
                self.assertEqual(self.validations(f"out/{one}"), self.validations(f"out/{divided}"))
        self.assert_one_rank("deep", 6, "actor_rollout_ref.model.path=deep")

    def test_a_run_resumes_with_another_schedule(self):
        for name, source, target in (("parts", ZERO_BUBBLE, CHUNKS.format(2)), ("chunks", CHUNKS.format(2), ZERO_BUBBLE)):
            with self.subTest(name):
                self.run_ranks(2, f"from-{name}", STAGES.format(2), source)
                checkpoint = self.home / "out" / f"from-{name}" / "global_step_2"
                result = self.run_ranks(2, f"with-{name}", STAGES.format(2), target, f"trainer.resume_mode={checkpoint}", "trainer.total_training_steps=3")
                self.assertNotIn("pipeline_parallel_schedule", result.stderr)  # it changes no results
        self.run_ranks(1, "straight", "trainer.total_training_steps=3")
        for name in ("parts", "chunks"):
            self.assert_same_files("straight", f"with-{name}", step=3)

    def test_the_later_stages_keep_more_than_with_1f1b_and_wait_less(self):
        for name, words in (("1f1b", ()), ("zero-bubble", (ZERO_BUBBLE,))):
            self.run_ranks(3, name, STAGES.format(3), *words, "trainer.total_training_steps=1")
        kept = {(name, rank): phase["temporary_allocated"] for name in ("1f1b", "zero-bubble") for rank in range(3)
                for phase in read_lines(self.home / "out" / name / (f"ranks/{rank}" if rank else "") / "phases.jsonl") if phase["phase"] == "train"}
        self.assertEqual(kept["1f1b", 0], kept["zero-bubble", 0])
        for rank in (1, 2):
            self.assertGreater(kept["zero-bubble", rank], kept["1f1b", rank])
        seconds = {name: json.loads((self.home / "out" / name / "plan.json").read_text())["seconds"] for name in ("1f1b", "zero-bubble")}
        self.assertLess(seconds["zero-bubble"], seconds["1f1b"])

    def test_what_it_does_not_go_with_is_refused(self):
        result = launch.run(1, launch.NEAP, "plan", "sft.toml", "trainer.n_gpus_per_node=2", STAGES.format(2), ZERO_BUBBLE, CHUNKS.format(2), cwd=self.home)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("does not go with parallel.virtual_pipeline_model_parallel_size 2; take 1 chunk a stage, or \"1f1b\"", " ".join(result.stderr.split()))
        result = launch.run(1, launch.NEAP, "plan", "sft.toml", ZERO_BUBBLE, cwd=self.home)
        self.assertIn("parallel.pipeline_parallel_schedule", result.stderr)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
