#!/usr/bin/env python3
"""`neap train` with chunks, and with backwards in two parts, whose replicas slice gradients and weights: ZeRO-2 and -3.
usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

They give the bits of the replicas without stages, as those of zero_stages_test.py. NEAP_TEST_SLOW=1: every case with ZeRO-2, too.
"""
import sys
import unittest

import launch

from neap_program import SLOW
from rank_case import CHUNKS, OPTIMIZER, SGD, ZERO_BUBBLE
from train_process_test import MODEL  # noqa: E402
from zero_stages_case import ADAPTER, SHARDS, TWO, ZERO, ZeroStagesCase

BOTH = (2, 3) if SLOW else (3,)


class ZeroSchedules(ZeroStagesCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.add_model("blocks", dict(MODEL, num_hidden_layers=7, tie_word_embeddings=False))

    def assert_schedule_is_replicas(self, name, schedule, *more):
        """Six micro-batches on two stages and on three, of `more` in full."""
        start = f"actor_rollout_ref.model.path=out/{name}-flat/latest/actor"
        options = {"schedule": (schedule,)}
        self.assert_stages_are_replicas(name, 2, "trainer.test_freq=1", **options)
        self.assert_stages_are_replicas(f"{name}-parts", 2, "actor_rollout_ref.model.path=blocks", *more, stages=3, zero=BOTH, **options)
        self.assert_stages_are_replicas(f"{name}-tensor", 2, tensor=2, zero=(3,), **options)
        self.assert_stages_are_replicas(f"{name}-lora", 2, start, "device.dtype=bfloat16", "actor_rollout_ref.model.lora_rank=4", zero=(3,), files=ADAPTER,
                                        **options)
        words = ("actor_rollout_ref.model.path=tied", "trainer.test_freq=2", *SGD)
        packed = (*words, "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70")
        self.run_ranks(1, f"{name}-tied-1", *words, task="stages")
        self.run_ranks(1, f"{name}-packed-1", *packed, task="stages")
        for stage in BOTH:
            with self.subTest("tied", stage=stage):
                folder = f"{name}-tied-z{stage}"
                self.run_ranks(4, folder, TWO, schedule, ZERO.format(stage), *words, task="stages")
                self.assert_ranks_are_as_planned(folder, 4)
                self.assert_same_training(f"{name}-tied-1", folder, near=2e-6)
            with self.subTest("micro-batches in numbers that differ", stage=stage):
                folder = f"{name}-packed-z{stage}"
                self.run_ranks(6, folder, TWO, schedule, ZERO.format(stage), *packed, task="stages")
                self.assert_within_plans(folder, 6)
                self.assert_same_training(f"{name}-packed-1", folder, near=2e-6)

    def test_stages_of_chunks_have_the_bits_of_replicas(self):
        """On three stages a round lacks micro-batches."""
        self.assert_schedule_is_replicas("chunks", f"{CHUNKS}=2")

    def test_backwards_in_two_parts_have_the_bits_of_replicas(self):
        """Norms of heads, and narrow gradients: those of norms wait for the weights' part."""
        self.assert_schedule_is_replicas("parts", ZERO_BUBBLE, "actor_rollout_ref.model.activation_checkpointing=full")
        narrow = ("device.dtype=bfloat16", *(f"{OPTIMIZER}{key}_dtype=bfloat16" for key in ("state", "gradient", "master")))
        for model in ("qwen3", "olmo2", "gpt_neox"):
            self.assert_stages_are_replicas(f"parts-{model}", 2, f"actor_rollout_ref.model.path={self.architecture(model)[0]}", *narrow, schedule=(ZERO_BUBBLE,), zero=BOTH)
        # Replicas of slices meet the replicas of a stage in each part.
        self.assert_stages_are_replicas("parts-shards", 4, SHARDS.format(2), "data.micro_batch_size_per_gpu=1", schedule=(ZERO_BUBBLE,), zero=(3,))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
