#!/usr/bin/env python3
"""`neap train` with models that ranks divide (parallel.tensor_model_parallel_size). usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Losses and weights are those of one rank but for the order of sums; files have whole models; each rank takes
the memory that the plan says. NEAP_TEST_SLOW=1: every architecture and case.
"""
import json
import pathlib
import re
import sys
import unittest

import launch

from neap_program import SLOW, without
from rank_case import ARCHITECTURES, FP8, OPTIMIZER, RankCase, ROWS, SGD, SIZE
from train_process_test import MODEL, PPO, REWARD, SFT, read_lines  # noqa: E402


class Tensor(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 8").replace("per_gpu = 8", "per_gpu = 2")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace("save_freq = 3", "save_freq = -1")
        (cls.home / "sft.toml").write_text(sft)
        reward = REWARD.replace("micro_batch_size_per_gpu = 4", "micro_batch_size_per_gpu = 2")
        (cls.home / "reward.toml").write_text(reward)
        ppo = PPO.replace("CEILING", "64MiB").replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 2")
        (cls.home / "ppo.toml").write_text(ppo)
        # A start whose losses are no longer those of random weights, and a reward model.
        for stage in ("sft", "reward"):
            result = launch.train(1, f"{stage}.toml", cwd=cls.home)
            assert result.returncode == 0, result.stderr

    def run_ranks(self, ranks, folder, *words, task="sft", tensor=1):
        return super().run_ranks(ranks, folder, *words, *([f"{SIZE}={tensor}"] if tensor > 1 else []), task=task)

    def test_sft_is_the_same_on_one_rank_and_several(self):
        self.run_ranks(1, "sft-1", *SGD)
        meshes = [(ranks, tensor, rows) for ranks, tensor in ((2, 2), (4, 4), (4, 2)) for rows in ((), (ROWS,))]
        for ranks, tensor, rows in meshes:
            folder = f"sft-{ranks}-{tensor}{'-rows' if rows else ''}"
            with self.subTest(folder):
                self.run_ranks(ranks, folder, *SGD, *rows, tensor=tensor)
                for a, b in zip(self.metrics("out/sft-1"), self.metrics(f"out/{folder}"), strict=True):
                    self.assert_near(a, b, 1e-6, folder)
                self.assert_near_weights(self.file("sft-1", "actor/model.safetensors"),
                                         self.file(folder, "actor/model.safetensors"), 1e-6, folder)
                self.assert_near_weights(self.file("sft-1", "actor/optimizer.safetensors"),
                                         self.file(folder, "actor/optimizer.safetensors"), 1e-5, folder)
                self.assertEqual(self.file("sft-1", "actor/config.json").read_bytes(),
                                 self.file(folder, "actor/config.json").read_bytes())
                self.assert_ranks_are_as_planned(folder, ranks)

    def test_layers_in_fp8(self):
        """Each rank's part of a matrix has a scale of its own."""
        words = ("device.dtype=bfloat16", FP8, *SGD)
        self.run_ranks(1, "fp8-1", *words)
        self.run_ranks(2, "fp8-2", *words, tensor=2)
        for a, b in zip(self.metrics("out/fp8-1"), self.metrics("out/fp8-2"), strict=True):
            self.assertAlmostEqual(a["train/loss"], b["train/loss"], delta=0.01 * a["train/loss"])
        self.assert_ranks_are_as_planned("fp8-2", 2)

    def test_every_architecture_is_the_same_on_one_rank_and_several(self):
        names = sorted(path.stem for path in ARCHITECTURES.glob("*.json"))
        if not SLOW:
            names = ["bloom", "gemma2", "gpt2", "gpt_neox", "olmo2", "opt_post_norm", "phi3", "qwen3"]
        for i, name in enumerate(names):
            model, sizes = self.architecture(name)
            start = (f"actor_rollout_ref.model.path={model}", "trainer.total_training_steps=1")
            self.run_ranks(1, f"{name}-1", *start, *SGD)
            for size, rows in [(s, r) for s in sizes for r in ((), (ROWS,))] if SLOW else [(sizes[-1], (ROWS,) if i % 2 else ())]:
                folder = f"{name}-{size}{'-rows' if rows else ''}"
                with self.subTest(folder):
                    self.run_ranks(size, folder, *start, *SGD, *rows, tensor=size)
                    (a,), (b,) = self.metrics(f"out/{name}-1"), self.metrics(f"out/{folder}")
                    self.assert_near(a, b, 2e-6, folder)
                    one, two = (self.file(f, "actor/model.safetensors", 1) for f in (f"{name}-1", folder))
                    self.assert_near_weights(one, two, 2e-6, folder)
                    self.assert_ranks_are_as_planned(folder, size)

    def test_a_model_that_is_loaded_and_saved_is_the_same_file(self):
        still = (f"{OPTIMIZER}lr=0", "trainer.total_training_steps=1", "actor_rollout_ref.model.path=out/sft/latest/actor")
        for ranks, tensor in ((2, 2), (4, 4)):
            folder = f"still-{tensor}"
            self.run_ranks(ranks, folder, *still, tensor=tensor)
            self.assertEqual(self.file(folder, "actor/model.safetensors", 1).read_bytes(),
                             (self.home / "out/sft/latest/actor/model.safetensors").read_bytes())

    def test_adapters_are_divided_with_their_layers(self):
        base = ("actor_rollout_ref.model.path=out/sft/latest/actor", "actor_rollout_ref.model.lora_rank=4", *SGD)
        self.run_ranks(1, "lora-1", *base)
        for tensor in (2, 4):
            self.run_ranks(tensor, f"lora-{tensor}", *base, tensor=tensor)
            for a, b in zip(self.metrics("out/lora-1"), self.metrics(f"out/lora-{tensor}"), strict=True):
                self.assert_near(a, b, 2e-6, tensor)
            self.assert_near_weights(self.file("lora-1", "actor/adapter_model.safetensors"),
                                     self.file(f"lora-{tensor}", "actor/adapter_model.safetensors"), 1e-5, tensor)
            self.assert_ranks_are_as_planned(f"lora-{tensor}", tensor)
        self.run_ranks(2, "lora-rows", *base, ROWS, tensor=2)
        self.assert_near_weights(self.file("lora-1", "actor/adapter_model.safetensors"),
                                 self.file("lora-rows", "actor/adapter_model.safetensors"), 1e-5, "rows")
        self.assert_ranks_are_as_planned("lora-rows", 2)
        # On other ranks the adapter continues.
        words = ("actor_rollout_ref.model.path=out/sft/latest/actor", "trainer.total_training_steps=3", *SGD)
        step = self.home / "out/lora-2/global_step_2"
        self.run_ranks(1, "lora-on", *words, "actor_rollout_ref.model.lora_rank=4", f"trainer.resume_mode={step}")

    def test_a_run_resumes_on_another_mesh(self):
        meshes = {"1": (1, 1), "2": (2, 1), "t2": (2, 2), "d2t2": (4, 2), "t4": (4, 4), "z2t2": (4, 2), "s2t2": (4, 2)}
        zero = {name: () for name in meshes} | {"z2t2": ("parallel.zero_stage=1",), "s2t2": ("parallel.zero_stage=2",)}
        pairs = [(a, b) for a in meshes for b in meshes] if SLOW else \
            [("1", "t2"), ("t4", "z2t2"), ("d2t2", "t4"), ("s2t2", "1")]  # resume_pairs_test.py has others
        for source in dict(pairs):
            ranks, tensor = meshes[source]
            self.run_ranks(ranks, f"from-{source}", *zero[source], tensor=tensor)
        for source, target in pairs:
            with self.subTest(source=source, target=target):
                ranks, tensor = meshes[target]
                folder = f"{source}-to-{target}"
                checkpoint = self.home / "out" / f"from-{source}" / "global_step_2"
                result = self.run_ranks(ranks, folder, f"trainer.resume_mode={checkpoint}", f"{OPTIMIZER}lr=0",
                                        "trainer.total_training_steps=3", *zero[target], tensor=tensor)
                self.assertIn("Resuming from", result.stderr)
                # A step without a rate: the same weights, bit by bit, and states that have seen a gradient more.
                self.assertEqual(self.file(f"from-{source}", "actor/model.safetensors").read_bytes(),
                                 self.file(folder, "actor/model.safetensors", 3).read_bytes())
        for target in ("t2", "t4", "z2t2", "s2t2"):  # the states after that step are those of a run on one rank
            one = f"1-to-{target}"
            if not (self.home / "out" / one).exists():
                continue
            ranks, tensor = meshes[target]
            self.run_ranks(1, f"{one}-alone", f"trainer.resume_mode={self.home / 'out/from-1/global_step_2'}",
                           f"{OPTIMIZER}lr=0", "trainer.total_training_steps=3")
            self.assert_near_weights(self.file(f"{one}-alone", "actor/optimizer.safetensors", 3),
                                     self.file(one, "actor/optimizer.safetensors", 3), 1e-5, one)

    def test_types_and_ways_to_update(self):
        cases = {"bf16": ["device.dtype=bfloat16"], "split": ["memory.optimizer_offload=phase_split"],
                 "streamed": ["memory.optimizer_offload=cpu", "device.dtype=bfloat16"],
                 "packed": ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=128"],
                 "zero1": ["parallel.zero_stage=1", "device.dtype=bfloat16"],
                 "zero2": ["parallel.zero_stage=2", "memory.optimizer_offload=cpu"],
                 "recomputed": ["actor_rollout_ref.model.activation_checkpointing=full"]}
        for name, words in without("bf16", "split", "zero1", of=cases).items():
            for rows in ((), (ROWS,)):
                folder = f"{name}{'-rows' if rows else ''}"
                with self.subTest(folder):
                    ranks = 4 if name.startswith("zero") else 2
                    self.run_ranks(ranks, folder, *words, *rows, tensor=2)
                    if name != "packed":  # a micro-batch may be smaller than planned
                        self.assert_ranks_are_as_planned(folder, ranks)
                    if not rows:
                        continue
                    near = 5e-2 if "device.dtype=bfloat16" in words else 2e-6
                    for a, b in zip(self.metrics(f"out/{name}"), self.metrics(f"out/{folder}"), strict=True):
                        self.assertLess(abs(a["train/loss"] / b["train/loss"] - 1), near, folder)

    def test_factored_moments_are_those_of_whole_matrices(self):
        kinds = {"adafactor": (f"{OPTIMIZER}optimizer=adafactor",),
                 "adafactor-relative": (f"{OPTIMIZER}optimizer=adafactor", f"{OPTIMIZER}relative_step=true", f"{OPTIMIZER}lr=1e-2"),
                 "sm3": (f"{OPTIMIZER}optimizer=sm3", f"{OPTIMIZER}momentum=0.9")}
        sliced = ("parallel.zero_stage=1",)
        # In the first steps from gradients that are zero but for rounding every step would be large: a trained start.
        start = ("actor_rollout_ref.model.path=out/sft/latest/actor",)
        for name, words in without("adafactor", of=kinds).items():
            self.run_ranks(1, f"{name}-1", *start, *words)
            for ranks, tensor, more in ((2, 2, ()), (4, 4, (ROWS,)), (4, 2, sliced)):
                folder = f"{name}-{ranks}-{tensor}"
                with self.subTest(folder):
                    self.run_ranks(ranks, folder, *start, *words, *more, tensor=tensor)
                    for a, b in zip(self.metrics(f"out/{name}-1"), self.metrics(f"out/{folder}"), strict=True):
                        self.assert_near(a, b, 1e-6, folder)
                    for file, near in (("model", 1e-6), ("optimizer", 1e-5)):
                        self.assert_near_weights(self.file(f"{name}-1", f"actor/{file}.safetensors"),
                                                 self.file(folder, f"actor/{file}.safetensors"), near, (folder, file))
                    self.assert_ranks_are_as_planned(folder, ranks)
            # A checkpoint of parts continues on one rank, and the other way round, with the same states.
            for source, ranks, tensor, more in ((f"{name}-4-4", 1, 1, ()), (f"{name}-1", 4, 2, sliced), (f"{name}-4-2", 2, 2, ())):
                folder = f"{source}-on-{ranks}"
                checkpoint = self.home / "out" / source / "global_step_2"
                self.run_ranks(ranks, folder, *start, *words, *more, "trainer.total_training_steps=3",
                               f"trainer.resume_mode={checkpoint}", tensor=tensor)
            for file in ("model", "optimizer"):
                self.assert_near_weights(self.file(f"{name}-4-4-on-1", f"actor/{file}.safetensors", 3),
                                         self.file(f"{name}-1-on-4", f"actor/{file}.safetensors", 3), 1e-5, (name, file))

    def test_slices_of_parts_have_the_bits_of_whole_states(self):
        """A mini-batch is one micro-batch a rank: stage 2 adds the same two terms."""
        words = ("data.micro_batch_size_per_gpu=4", "actor_rollout_ref.actor.grad_clip=0.5")
        for name, more in {"plain": (), "lora": ("actor_rollout_ref.model.path=out/sft/latest/actor",
                                                 "actor_rollout_ref.model.lora_rank=4")}.items():
            self.run_ranks(4, f"whole-{name}", *words, *more, tensor=2)
            for stage in (1, 2) if SLOW or name == "plain" else (2,):
                folder = f"sliced-{name}-{stage}"
                self.run_ranks(4, folder, *words, *more, f"parallel.zero_stage={stage}", tensor=2)
                for file in (("adapter_model" if more else "model"), "optimizer"):
                    self.assertEqual(self.file(f"whole-{name}", f"actor/{file}.safetensors").read_bytes(),
                                     self.file(folder, f"actor/{file}.safetensors").read_bytes(), (folder, file))
                norms = [[row["train/grad_norm"] for row in self.metrics(f"out/{f}")] for f in (f"whole-{name}", folder)]
                self.assertEqual(norms[0], norms[1])
                self.assert_ranks_are_as_planned(folder, 4)

    def compare_stage(self, stage, name, tolerance, *words, tensor=2, ranks=None, rows=()):
        ranks = ranks or tensor
        one, several = f"{name}-1", f"{name}-{ranks}-{tensor}{'-rows' if rows else ''}"
        if not (self.home / "out" / one).exists():
            self.run_ranks(1, one, *words, task=stage)
        self.run_ranks(ranks, several, *words, *rows, task=stage, tensor=tensor)
        for a, b in zip(self.metrics(f"out/{one}"), self.metrics(f"out/{several}"), strict=True):
            self.assert_near(a, b, tolerance, several)
        self.assert_ranks_are_as_planned(several, ranks)
        return one, several

    def test_preferences_are_the_same_on_one_rank_and_several(self):
        words = ("task=dpo", "trainer.total_training_steps=2", "actor_rollout_ref.ref.model.path=model-start", *SGD)
        (self.home / "model-start").symlink_to("out/sft/latest/actor")
        self.compare_stage("reward", "dpo", 1e-4, *words)
        self.compare_stage("reward", "dpo", 1e-4, *words, ranks=4)
        self.compare_stage("reward", "dpo", 1e-4, *words, rows=(ROWS,))

    def test_reward_models_are_the_same_on_one_rank_and_several(self):
        words = ("trainer.total_training_steps=2", *SGD)
        self.compare_stage("reward", "rm", 1e-4, *words)
        self.compare_stage("reward", "rm", 1e-4, *words, tensor=4)
        self.compare_stage("reward", "rm", 1e-4, *words, tensor=4, rows=(ROWS,))

    def test_ppo_is_the_same_on_one_rank_and_several(self):
        words = ("trainer.total_training_steps=1", "actor_rollout_ref.rollout.top_p=0.9", "actor_rollout_ref.rollout.top_k=50",
                 "actor_rollout_ref.actor.entropy_coeff=0.01")
        one, two = self.compare_stage("ppo", "ppo", 2e-2, *words)
        texts = [[s["response"] for s in read_lines(self.home / f"out/{name}/validation.jsonl")[0]["samples"]]
                 for name in (one, two)]
        self.assertEqual(texts[0], texts[1])
        self.compare_stage("ppo", "ppo", 2e-2, *words, ranks=4)
        self.compare_stage("ppo", "ppo", 2e-2, *words, rows=(ROWS,))

    def test_grpo_is_the_same_on_one_rank_and_several(self):
        text = (self.home / "ppo.toml").read_text().replace('task = "ppo"', 'task = "grpo"')
        text = re.sub(r"\[critic\].*?(?=\[reward_model\])", "", text, flags=re.S)
        text = text.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2")
        (self.home / "grpo.toml").write_text(text)
        self.compare_stage("grpo", "grpo", 2e-2, "trainer.total_training_steps=1", "actor_rollout_ref.actor.use_kl_loss=true",
                           tensor=4)
        self.compare_stage("grpo", "grpo", 2e-2, "trainer.total_training_steps=1", "actor_rollout_ref.actor.use_kl_loss=true",
                           tensor=4, rows=(ROWS,))

    def test_what_does_not_go_together_is_refused(self):
        def refusal(ranks, *words):
            result = launch.run(ranks, launch.NEAP, "train", "sft.toml", "trainer.default_local_dir=out/refused", *words,
                                cwd=self.home)
            self.assertEqual(result.returncode, 2, result.stderr)
            return result.stderr

        self.assertIn("does not divide the 2 ranks that were started; possible: 1, 2", refusal(2, f"{SIZE}=4"))
        self.assertIn("attention heads. Possible: 1, 2, 4", refusal(3, f"{SIZE}=3"))

    def test_one_rank_has_all_rows(self):
        result = self.run_ranks(1, "one-rank-rows", ROWS, "trainer.total_training_steps=1")
        self.assertIn("parallel.sequence_parallel", result.stderr)

    def test_a_plan_for_ranks_that_divide_a_model(self):
        def plan(*words):
            result = launch.run(1, launch.NEAP, "plan", "sft.toml", "--json", "trainer.n_gpus_per_node=4", *words, cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            tags = {tag["tag"]: tag for tag in json.loads(result.stdout)["tags"]}
            return sum(part["bytes"] for region in tags["actor.weights"]["regions"] for part in region["parts"])

        whole = plan()
        self.assertLess(plan(f"{SIZE}=2"), 0.55 * whole)
        self.assertLess(plan(f"{SIZE}=4"), 0.35 * whole)  # keys are on two ranks each, and norms on all


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
