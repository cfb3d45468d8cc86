#!/usr/bin/env python3
"""`neap train` with keys and values that pass round the ranks that divide sequences (parallel.cp_comm_type = "p2p").
usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Losses and weights are those of one rank but for the order of sums, as with gathered ones (context_test.py); no rank takes
more memory than its plan says. NEAP_TEST_SLOW=1: every architecture.
"""
import json
import sys
import unittest

import launch

from neap_program import SLOW
from rank_case import ARCHITECTURES, CONTEXT, name_of, RankCase, ROWS, SGD, SHORT_TEXTS
from train_process_test import MODEL  # noqa: E402

ZERO = "parallel.zero_stage={}"
RING = "parallel.cp_comm_type=p2p"


class Ring(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_packed_home()

    def assert_same_on(self, mesh, one, folder, *words, task="sft", **near):
        with self.subTest(folder):
            self.run_mesh(folder, RING, *words, task=task, **mesh)
            self.assert_same_training(one, folder, **near)

    def test_sft_is_the_same_on_one_rank_and_several(self):
        self.run_mesh("sft-1", *SGD)
        for mesh, words in (({"context": 2}, ()), ({"context": 3}, ()), ({"context": 4}, ()),
                            ({"context": 2, "copies": 2}, (ZERO.format(2),)), ({"context": 2, "tensor": 2}, (ROWS,)),
                            ({"context": 2, "stages": 2}, ())):
            self.assert_same_on(mesh, "sft-1", f"sft-{name_of(mesh)}", *SGD, *words)

    def test_texts_of_few_tokens(self):
        (self.home / "short.jsonl").write_text(SHORT_TEXTS)
        words = ('data.train_files=["short.jsonl"]', 'data.val_files=["short.jsonl"]', *SGD)
        self.run_mesh("short-1", *words)
        for mesh in ({"context": 2}, {"context": 4}):
            self.assert_same_on(mesh, "short-1", f"short-{name_of(mesh)}", *words)

    def test_preferences_are_the_same_on_one_rank_and_several(self):
        words = ("actor_rollout_ref.model.path=start", *SGD)
        self.run_mesh("dpo-1", *words, task="dpo")
        self.assert_same_on({"context": 3}, "dpo-1", "dpo-3", *words, task="dpo", near=5e-6, numbers=1e-4, step=3)

    def test_adapters_and_recomputation(self):
        for name, words in {"lora-3": ("actor_rollout_ref.model.lora_rank=4", ZERO.format(3)),
                            "recomputed": ("actor_rollout_ref.model.activation_checkpointing=full",)}.items():
            words = ("actor_rollout_ref.model.path=start", *words, *SGD)
            self.run_mesh(f"{name}-1", *words)
            files = ("adapter_model" if "lora" in name else "model", "optimizer")
            self.assert_same_on({"context": 2}, f"{name}-1", f"{name}-2", *words, files=files, near=2e-6)
        self.run_mesh("bf16-1", "device.dtype=bfloat16")
        self.run_mesh("bf16-2", "device.dtype=bfloat16", RING, context=2)
        for a, b in zip(self.metrics("out/bf16-1"), self.metrics("out/bf16-2"), strict=True):
            self.assertLess(abs(a["train/loss"] / b["train/loss"] - 1), 5e-3)

    def test_architectures_are_the_same_on_one_rank_and_several(self):
        names = ["bloom", "gemma2"]  # biases by distance, windows with a cap
        if SLOW:
            names = sorted(path.stem for path in ARCHITECTURES.glob("*.json"))
        for name in names:
            model, _ = self.architecture(name)
            words = (f"actor_rollout_ref.model.path={model}", "trainer.total_training_steps=1", *SGD)
            self.run_mesh(f"{name}-1", *words)
            self.assert_same_on({"context": 4}, f"{name}-1", f"{name}-4", *words, near=2e-6, step=1)

    def test_a_window_is_shorter_than_texts(self):
        self.add_window_model()
        words = ("actor_rollout_ref.model.path=window", *SGD)
        self.run_mesh("window-1", *words)
        self.assert_same_on({"context": 3}, "window-1", "window-3", *words)

    def test_a_plan_holds_fewer_keys_and_values(self):
        # Many key heads: keys and values of all tokens are a large part.
        self.add_model("long", dict(MODEL, max_position_embeddings=32768, num_hidden_layers=2,
                                    num_key_value_heads=MODEL["num_attention_heads"]))

        def phase(*words):
            result = launch.run(1, launch.NEAP, "plan", "sft.toml", "--json", "--gpu", "h100", "device.kind=cuda",
                                "device.memory=0B", "actor_rollout_ref.model.path=long", "data.max_response_length=32000",
                                "trainer.n_gpus_per_node=8", f"{CONTEXT}=8", "data.max_token_len_per_gpu=4096", *words, cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            return {p["name"]: p for p in json.loads(result.stdout)["phases"]}["train"]

        gathered, ring = phase(), phase(RING)
        self.assertLess(ring["peak"] - ring["persistent"], 0.9 * (gathered["peak"] - gathered["persistent"]))
        self.assertGreater(ring["communication_bytes"], 0)

    def test_a_ring_of_one_rank_is_not_read(self):
        result = self.run_ranks(1, "alone", RING)
        self.assertIn("parallel.context_parallel_size is at least 2", result.stderr)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
