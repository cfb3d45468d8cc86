#!/usr/bin/env python3
"""`neap train` with stages of several chunks, interleaved 1F1B. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Chunks give the bits of one rank that accumulates, take what each rank's plan says, and checkpoints do not depend on them.
NEAP_TEST_SLOW=1: every case.
"""
import json
import sys
import unittest

import launch
import stages_case

from neap_program import SLOW
from pipeline_case import CHUNKS, STAGES


class Interleaved(stages_case.StagesCase):
    BLOCKS = 7
    DIVIDED = 2
    SCHEDULE = {"chunks": 2}
    LEFT_OUT = ("split", "recompute", "dpo", "tensor")

    def test_chunks_are_one_rank_bit_by_bit(self):
        """Six micro-batches: full rounds of two and of three stages, and of four stages a round that lacks two."""
        for stages, chunks in ((2, 2), (2, 3), (3, 2), (4, 1)) if SLOW else ((2, 3), (3, 2)):
            with self.subTest(stages=stages, chunks=chunks):
                one, divided = self.assert_stages_are_one_rank("adamw", stages, chunks=chunks)
                self.assertEqual(self.validations(f"out/{one}"), self.validations(f"out/{divided}"))
        self.write_model("deep", num_hidden_layers=8)
        self.assert_stages_are_one_rank("deep", 4, "actor_rollout_ref.model.path=deep", chunks=2)

    def test_a_layout_of_parts(self):
        self.assert_stages_are_one_rank("laid", 2, chunks=2)
        words = (STAGES.format(2), CHUNKS.format(2), "parallel.pipeline_model_parallel_layout=[1,3,2,1]")
        self.run_ranks(2, "laid-out", *words)
        self.assert_same_files("laid-1", "laid-out")
        self.assert_ranks_are_as_planned("laid-out", 2)

    def test_a_run_resumes_with_chunks_and_without(self):
        meshes = {"1": (1, ()), "2": (2, (STAGES.format(2),)), "2x2": (2, (STAGES.format(2), CHUNKS.format(2))),
                  "3x2": (3, (STAGES.format(3), CHUNKS.format(2)))}
        self.run_ranks(1, "straight", "trainer.total_training_steps=3")
        for name, (ranks, words) in meshes.items():
            self.run_ranks(ranks, f"from-{name}", *words)
            self.assert_same_files("from-1", f"from-{name}")
        # The same files, whatever saved them.
        pairs = (("2x2", "1"), ("1", "2x2"), ("2", "2x2"), ("2x2", "2"), ("2x2", "3x2"), ("3x2", "2x2"))
        for source, target in pairs if SLOW else pairs[-2:]:
            with self.subTest(source=source, target=target):
                ranks, words = meshes[target]
                folder, checkpoint = f"{source}-to-{target}", self.home / "out" / f"from-{source}" / "global_step_2"
                result = self.run_ranks(ranks, folder, *words, f"trainer.resume_mode={checkpoint}", "trainer.total_training_steps=3")
                self.assertIn("Resuming from", result.stderr)
                self.assertNotIn("pipeline_model_parallel_size", result.stderr)  # it changes no results
                self.assert_same_files("straight", folder, step=3)

    def test_what_chunks_do_not_go_with_is_refused(self):
        for ranks, words, expected in ((2, (STAGES.format(2), CHUNKS.format(4)), "more than the 7 blocks of the actor model; every part has one at least: take 3"),
                                       (1, (CHUNKS.format(2),), "parallel.virtual_pipeline_model_parallel_size"),
                                       (2, (STAGES.format(2), CHUNKS.format(2), "parallel.pipeline_model_parallel_layout=[3,4]"), "for 2 stages of 2 chunks, 4 parts")):
            with self.subTest(expected):
                result = launch.run(1, launch.NEAP, "plan", "sft.toml", f"trainer.n_gpus_per_node={ranks}", *words, cwd=self.home)
                self.assertIn(expected, " ".join(result.stderr.split()))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
