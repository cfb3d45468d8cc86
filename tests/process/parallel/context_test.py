#!/usr/bin/env python3
"""`neap train` with sequences that ranks divide (parallel.context_parallel_size). usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Losses and weights are those of one rank but for the order of sums; files do not depend on the mesh; no rank takes more
memory than its plan says. NEAP_TEST_SLOW=1: every architecture. Jobs that generate: context_rollout_test.py.
"""
import json
import sys
import unittest

import launch

from neap_program import SLOW
from rank_case import ARCHITECTURES, CONTEXT, name_of, OPTIMIZER, RankCase, ROWS, SGD, SHORT_TEXTS
from train_process_test import MODEL  # noqa: E402

ZERO = "parallel.zero_stage={}"


class Context(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_packed_home()

    def test_sft_is_the_same_on_one_rank_and_several(self):
        self.run_mesh("sft-1", *SGD)
        for mesh, words in (({"context": 2}, ()), ({"context": 3}, ()), ({"context": 4}, ()), ({"context": 2, "copies": 2}, ()),
                            ({"context": 2, "tensor": 2}, (ROWS,)),
                            ({"context": 2, "stages": 2}, ())):
            folder = f"sft-{name_of(mesh)}{'-rows' if words else ''}"
            with self.subTest(folder):
                self.run_mesh(folder, *SGD, *words, **mesh)
                self.assert_same_training("sft-1", folder)
        config = [self.file(folder, "actor/config.json").read_bytes() for folder in ("sft-1", "sft-context4")]
        self.assertEqual(*config)

    def test_texts_of_few_tokens(self):
        (self.home / "short.jsonl").write_text(SHORT_TEXTS)
        words = ('data.train_files=["short.jsonl"]', 'data.val_files=["short.jsonl"]', "trainer.total_training_steps=2", *SGD)
        self.run_mesh("short-1", *words)
        for mesh in ({"context": 2}, {"context": 4, "copies": 2}):
            folder = f"short-{name_of(mesh)}"
            with self.subTest(folder):
                self.run_mesh(folder, *words, **mesh)
                self.assert_same_training("short-1", folder)

    def test_preferences_and_rewards_are_the_same_on_one_rank_and_several(self):
        for task, role in (("dpo", "actor"), ("reward", "reward")):
            # A margin is a difference of sums: its rounding, and that of its gradients, is that of the sums.
            words = ("actor_rollout_ref.model.path=start", *SGD)
            self.run_mesh(f"{task}-1", *words, task=task)
            meshes = (({"context": 2}, ()), ({"context": 4}, ()), ({"context": 2, "stages": 2}, ()), ({"context": 2, "tensor": 2}, (ROWS,)))
            for mesh, more in meshes if SLOW else meshes[task == "dpo"::2]:
                folder = f"{task}-{name_of(mesh)}"
                with self.subTest(folder):
                    self.run_mesh(folder, *words, *more, task=task, **mesh)
                    self.assert_same_training(f"{task}-1", folder, near=5e-6, numbers=1e-4, step=3, role=role)

    def test_slices_are_the_same_on_one_rank_and_several(self):
        self.run_mesh("sliced-1", *SGD)
        for stage in (1, 2, 3):
            for mesh in ({"context": 2}, {"context": 2, "copies": 2})[0 if SLOW or stage == 3 else stage - 1:][:2 if SLOW or stage == 3 else 1]:
                folder = f"sliced-{stage}-{name_of(mesh)}"
                with self.subTest(folder):
                    self.run_mesh(folder, *SGD, ZERO.format(stage), **mesh)
                    self.assert_same_training("sliced-1", folder)
        two, four = (self.part_bytes(f"sliced-3-{mesh}", "actor.weights") for mesh in ("context2", "context2-copies2"))
        self.assertLess(four, 0.6 * two)

    def test_adapters_and_ways_to_update(self):
        cases = {"lora": ("actor_rollout_ref.model.lora_rank=4",), "split": ("memory.optimizer_offload=phase_split",),
                 "recomputed": ("actor_rollout_ref.model.activation_checkpointing=full",),
                 "lora-3": ("actor_rollout_ref.model.lora_rank=4", ZERO.format(3))}
        for name, words in cases.items():
            with self.subTest(name):
                words = ("actor_rollout_ref.model.path=start", *words, *SGD)
                self.run_mesh(f"{name}-1", *words)
                self.run_mesh(f"{name}-2", *words, context=2)
                files = ("adapter_model" if "lora" in name else "model", "optimizer")
                self.assert_same_training(f"{name}-1", f"{name}-2", files=files, near=2e-6)
        for name, words in {"bf16": ("device.dtype=bfloat16",), "streamed": ("device.dtype=bfloat16", "memory.optimizer_offload=cpu")}.items():
            with self.subTest(name):
                self.run_mesh(f"{name}-1", *words)
                self.run_mesh(f"{name}-2", *words, context=2)
                for a, b in zip(self.metrics(f"out/{name}-1"), self.metrics(f"out/{name}-2"), strict=True):
                    self.assertLess(abs(a["train/loss"] / b["train/loss"] - 1), 5e-3, name)

    def test_every_architecture_is_the_same_on_one_rank_and_several(self):
        names = sorted(path.stem for path in ARCHITECTURES.glob("*.json"))
        if not SLOW:
            names = ["bloom", "gemma2", "gpt2", "mistral", "phi3_longrope"]  # biases by distance, windows, tables of positions
        for name in names:
            model, _ = self.architecture(name)
            words = (f"actor_rollout_ref.model.path={model}", "trainer.total_training_steps=1", *SGD)
            self.run_mesh(f"{name}-1", *words)
            for ranks in (2, 4) if SLOW else (4,):
                folder = f"{name}-{ranks}"
                with self.subTest(folder):
                    self.run_mesh(folder, *words, context=ranks)
                    self.assert_same_training(f"{name}-1", folder, near=2e-6, step=1)

    def test_a_window_is_shorter_than_texts(self):
        self.add_window_model()
        words = ("actor_rollout_ref.model.path=window", *SGD)
        self.run_mesh("window-1", *words)
        for ranks in (2, 4) if SLOW else (4,):
            self.run_mesh(f"window-{ranks}", *words, context=ranks)
            self.assert_same_training("window-1", f"window-{ranks}")
        self.run_mesh("no-window", *words, 'actor_rollout_ref.model.path=model')
        self.assertNotEqual(self.metrics("out/window-1"), self.metrics("out/no-window"))

    def test_a_run_resumes_on_another_mesh(self):
        meshes = {"1": {}, "d2": {"copies": 2}, "c2": {"context": 2}, "c4": {"context": 4}, "c2d2": {"context": 2, "copies": 2},
                  "z3c2": {"context": 2}, "c2t2": {"context": 2, "tensor": 2}}
        zero = {name: () for name in meshes} | {"z3c2": (ZERO.format(3),)}
        for source in ("1", "c2", "c4", "z3c2") if SLOW else ("c2", "c4"):
            self.run_mesh(f"from-{source}", *zero[source], **meshes[source])
        pairs = (("c2", "1"), ("c2", "d2"), ("1", "c2"), ("c4", "c2d2"), ("z3c2", "1"), ("c2", "z3c2"), ("c4", "c2t2"))
        for source, target in pairs if SLOW else (*pairs[:2], pairs[-1]):  # resume_pairs_test.py has others
            with self.subTest(source=source, target=target):
                folder = f"{source}-to-{target}"
                checkpoint = self.home / "out" / f"from-{source}" / "global_step_2"
                self.run_mesh(folder, f"trainer.resume_mode={checkpoint}", f"{OPTIMIZER}lr=0", "trainer.total_training_steps=3",
                              *zero[target], **meshes[target])
                # A step without a rate: the same weights, bit by bit, and states that have seen a gradient more.
                self.assertEqual(self.file(f"from-{source}", "actor/model.safetensors").read_bytes(),
                                 self.file(folder, "actor/model.safetensors", 3).read_bytes())
        self.assert_near_weights(self.file("c2-to-1", "actor/optimizer.safetensors", 3),
                                 self.file("c2-to-d2", "actor/optimizer.safetensors", 3), 1e-5, "states")

    def test_what_does_not_go_together_is_refused(self):
        def refusal(ranks, *words):
            result = launch.run(ranks, launch.NEAP, "train", "sft.toml", "trainer.default_local_dir=out/refused", *words, cwd=self.home)
            self.assertEqual(result.returncode, 2, result.stderr)
            return result.stderr

        self.assertIn("does not divide the 2 ranks that were started; possible: 1, 2", refusal(2, f"{CONTEXT}=4"))
        self.assertIn("packed sequences; set true", refusal(2, f"{CONTEXT}=2", "data.use_dynamic_bsz=false"))

    def test_a_plan_divides_activations(self):
        self.add_model("long", dict(MODEL, max_position_embeddings=32768))

        def phase(*words):
            result = launch.run(1, launch.NEAP, "plan", "sft.toml", "--json", "--gpu", "h100", "device.kind=cuda",
                                "device.memory=0B", "actor_rollout_ref.model.path=long", "data.max_response_length=32000", *words, cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            return {p["name"]: p for p in json.loads(result.stdout)["phases"]}["train"]

        # The same texts a step, divided.
        whole = phase("trainer.n_gpus_per_node=1", "data.max_token_len_per_gpu=32768")
        half = phase("trainer.n_gpus_per_node=2", f"{CONTEXT}=2", "data.max_token_len_per_gpu=16384")
        self.assertLess(half["peak"] - half["persistent"], 0.7 * (whole["peak"] - whole["persistent"]))
        self.assertGreater(half["communication_bytes"], 0)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
