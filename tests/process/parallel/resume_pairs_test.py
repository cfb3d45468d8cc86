#!/usr/bin/env python3
"""What any mesh of ranks saves, any other one goes on from: same bits. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Runs of two steps on twelve meshes, and for pairs of them a third step on the other mesh that changes nothing: no learning rate, a
gradient clipped to nothing and a momentum of 1. Its checkpoint has the bits of the one that it began with, weights and states.
NEAP_TEST_SLOW=1: all 144 pairs.
"""
import itertools
import json
import pathlib
import random
import struct
import sys
import unittest

import launch

from neap_program import SLOW
from rank_case import CHUNKS, CONTEXT, FILES, OPTIMIZER, ROWS, SIZE, STAGES, ZERO_BUBBLE, RankCase
from train_process_test import MODEL, SFT  # noqa: E402

ZERO = "parallel.zero_stage"
# Ranks and how they divide the model.
MESHES = {"one": (1,), "data": (2,), "zero1": (2, f"{ZERO}=1"), "zero2": (4, f"{ZERO}=2"), "zero3": (3, f"{ZERO}=3"),
          "replicas": (4, f"{ZERO}=3", "parallel.zero_shard_size=2"), "tensor": (2, f"{SIZE}=2"),
          "rows-zero3": (4, f"{SIZE}=2", ROWS, f"{ZERO}=3"), "stages": (3, f"{STAGES}=3"),
          "stages-zero2": (4, f"{STAGES}=2", f"{ZERO}=2", ZERO_BUBBLE), "chunks-tensor": (4, f"{STAGES}=2", f"{CHUNKS}=2", f"{SIZE}=2"),
          "context-zero1": (4, f"{CONTEXT}=2", f"{ZERO}=1", "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=96")}
KINDS = {kind: (f"{OPTIMIZER}optimizer={kind}", f"{OPTIMIZER}lr=0.05", f"{OPTIMIZER}momentum=0.9") for kind in ("sgd", "sm3")}
NO_CHANGE = (f"{OPTIMIZER}lr=0", f"{OPTIMIZER}momentum=1", f"{OPTIMIZER}weight_decay=0", "actor_rollout_ref.actor.grad_clip=1e-40", "trainer.total_training_steps=3")


def contents(path):
    """Name to type, shape and bytes: all but the number of steps and checksums."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__")
    return {name: (entry["dtype"], entry["shape"], data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


class ResumePairs(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 1")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace("save_freq = 3", "save_freq = -1")
        (cls.home / "sft.toml").write_text(sft.replace('["sft_val.jsonl"]', "[]").replace('path = "model"', 'path = "deep"'))
        cls.add_model("deep", dict(MODEL, num_hidden_layers=4))

    def train(self, mesh, folder, *words):
        ranks, *divided = MESHES[mesh]
        return self.run_ranks(ranks, folder, *divided, *words)

    def pairs(self, kind):
        every = list(itertools.product(MESHES, repeat=2))
        return every if SLOW else random.Random(f"pairs of {kind}").sample(every, 10)

    def assert_pairs(self, kind):
        for saved, resumed in self.pairs(kind):
            source, folder = f"{kind}-{saved}", f"{kind}-{saved}-on-{resumed}"
            if not (self.home / "out" / source).exists():
                self.train(saved, source, *KINDS[kind])
            checkpoint = self.home / "out" / source / "global_step_2"
            with self.subTest(kind=kind, saved=saved, resumed=resumed):
                result = self.train(resumed, folder, *KINDS[kind], f"trainer.resume_mode={checkpoint}", *NO_CHANGE)
                self.assertEqual(result.stderr.count("Differs from the checkpoint: actor_rollout_ref.actor.grad_clip"), 1, result.stderr)
                for file in FILES:
                    before, after = contents(self.file(source, file, 2)), contents(self.file(folder, file, 3))
                    self.assertEqual(before.keys(), after.keys())
                    self.assertEqual([name for name in before if before[name] != after[name]], [], file)

    def test_momentum(self):
        self.assert_pairs("sgd")

    def test_factored_states(self):
        self.assert_pairs("sm3")


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
