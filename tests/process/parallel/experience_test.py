#!/usr/bin/env python3
"""Kept experience on two ranks: each row is kept once, and trained as in the run that made it. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN"""
import json
import struct
import sys
import unittest

import launch

from rank_case import FILES, SGD
from rollout_case import CRITIC_SGD, RolloutCase
from train_process_test import UNSTEADY

KEEP = "trainer.experience=keep"
CRITIC = ("critic/model.safetensors", "critic/optimizer.safetensors")
WORDS = (*SGD, *CRITIC_SGD, "actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.rollout.sample_lengths=true", "data.val_files=[]")


def read_from(folder):
    return "trainer.experience=read", f"trainer.experience_dir=out/{folder}"


def kept(path):
    """Name to the bytes of a tensor."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    return {name: data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]]
            for name, entry in header.items() if name != "__metadata__"}


class Experience(RolloutCase):
    def test_ranks(self):
        for ranks, name in ((1, "one"), (2, "two")):
            self.run_mesh(name, *WORDS, KEEP, task="ppo", copies=ranks)
            self.run_mesh(f"{name}-read", *WORDS, *read_from(name), task="ppo", copies=ranks)
            self.assertEqual(self.metrics(f"out/{name}-read"), self.metrics(f"out/{name}"))
            self.assert_same_files(name, f"{name}-read", 2, FILES + CRITIC)
        # The first step has the same weights: the same rows, in the batch's order.
        one, two = (kept(self.home / "out" / name / "experience/step_1.safetensors") for name in ("one", "two"))
        self.assertEqual(one.keys(), two.keys())
        for tensor in ("tokens", "lengths", "response_lengths", "mask"):
            self.assertTrue(one[tensor] == two[tensor], tensor)
        # Experience of one number of ranks, trained on another: as there, but for the order of sums.
        for ranks, name in ((2, "one"), (1, "two")):
            self.run_mesh(f"{name}-on-{ranks}", *WORDS, *read_from(name), task="ppo", copies=ranks)
            for file in (FILES[0], CRITIC[0]):
                self.assert_near_weights(*(self.file(run, file) for run in (name, f"{name}-on-{ranks}")), 1e-5, (name, file))
            losses = [[{k: v for k, v in row.items() if not k.startswith(UNSTEADY)} for row in self.metrics(f"out/{run}")]
                      for run in (name, f"{name}-on-{ranks}")]
            for one, other in zip(*losses, strict=True):
                for key, value in one.items():
                    if not key.startswith("global_seqlen"):
                        self.assertLessEqual(abs(value - other[key]), 3e-5 * max(1, abs(value)), key)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
