#!/usr/bin/env python3
"""`neap train` with replicas of slices: some of the ranks that have the same part of the model slice it together.
usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Stages 1 to 3 give the same bits where a mini-batch is one micro-batch a rank, and training is that of one rank but for the
order of sums. A rank has the bytes of as many ranks as slice together. Replicas compare their slices before each checkpoint.
NEAP_TEST_SLOW=1: every case with every stage.
"""
import json
import pathlib
import sys
import unittest

import launch

from neap_program import SLOW
from rank_case import CONTEXT, FILES, OPTIMIZER, RankCase, SGD, SIZE
from train_process_test import grpo_of, MODEL, PPO, REWARD, SFT  # noqa: E402

ZERO = "parallel.zero_stage={}"
SHARDS = "parallel.zero_shard_size={}"
START = "actor_rollout_ref.model.path=start"
ADAPTER = ("actor/adapter_model.safetensors", FILES[1])
TAGS = tuple(f"actor.{name}" for name in ("weights", "grads", "unit_grads", "optimizer", "prefetch"))


class ZeroShards(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 3")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace("save_freq = 3", "save_freq = -1")
        (cls.home / "sft.toml").write_text(sft)
        (cls.home / "reward.toml").write_text(REWARD.replace("total_training_steps = 3", "total_training_steps = 2").replace("per_gpu = 4", "per_gpu = 2"))
        ppo = PPO.replace("CEILING", "64MiB").replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 1")
        ppo = ppo.replace("total_training_steps = 6", "total_training_steps = 1")
        (cls.home / "ppo.toml").write_text(ppo)
        grpo = grpo_of(ppo)
        grpo = grpo.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2")
        (cls.home / "grpo.toml").write_text(grpo.replace("ppo_micro_batch_size_per_gpu = 1", "ppo_micro_batch_size_per_gpu = 2"))
        for stage in ("sft", "reward"):
            result = launch.train(1, f"{stage}.toml", cwd=cls.home)
            assert result.returncode == 0, result.stderr
        (cls.home / "start").symlink_to("out/sft/latest/actor")

    def assert_stages_are_the_same_bits(self, name, ranks, shards, *words, files=FILES, step=2, task="sft", stages=(1, 2, 3) if SLOW else (1, 3)):
        """Of one micro-batch a rank. The folder of the last stage."""
        folders = [f"{name}-{stage}" for stage in stages]
        for stage, folder in zip(stages, folders, strict=True):
            self.run_ranks(ranks, folder, *words, ZERO.format(stage), SHARDS.format(shards), task=task)
            self.assert_ranks_are_as_planned(folder, ranks)
        for folder in folders[1:]:
            self.assert_same_files(folders[0], folder, step, files)
            self.assertEqual(self.metrics(f"out/{folders[0]}"), self.metrics(f"out/{folder}"))
        return folders[-1]

    def test_training_is_that_of_one_rank(self):
        words = ("trainer.test_freq=2", *SGD)
        self.run_ranks(1, "one", *words, "data.micro_batch_size_per_gpu=12")
        for ranks, shards, stages in ((4, 2, (1, 2, 3)), *(((6, 2, (3,)),) if SLOW else ()), (6, 3, (2, 3))):
            with self.subTest(ranks=ranks, shards=shards):
                name = f"of-{ranks}-{shards}"
                folder = self.assert_stages_are_the_same_bits(name, ranks, shards, *words, f"data.micro_batch_size_per_gpu={12 // ranks}",
                                                              stages=stages)
                self.assert_same_training("one", folder)
                # Bytes are those of as many ranks as slice together.
                self.run_ranks(shards, f"{name}-alone", *words, ZERO.format(3), f"data.micro_batch_size_per_gpu={12 // shards}")
                for tag in TAGS:
                    self.assertEqual(self.part_bytes(folder, tag), self.part_bytes(f"{name}-alone", tag), tag)

    def test_several_micro_batches_and_packed_ones(self):
        """In numbers that differ between ranks: only those that slice together wait for each other."""
        for name, words in {"micro": ("data.micro_batch_size_per_gpu=1",),
                            "packed": ("data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70")}.items():
            words = (*words, "trainer.test_freq=2", *SGD)
            self.run_ranks(1, f"{name}-1", *words)
            for stage in (2, 3) if SLOW or name == "packed" else (3,):
                with self.subTest(name, stage=stage):
                    self.run_ranks(4, f"{name}-z{stage}", *words, ZERO.format(stage), SHARDS.format(2))
                    self.assert_within_plans(f"{name}-z{stage}", 4)
                    self.assert_same_training(f"{name}-1", f"{name}-z{stage}", near=2e-6)

    def test_models_that_ranks_divide(self):
        self.run_ranks(1, "whole", *SGD, "data.micro_batch_size_per_gpu=12")
        folder = self.assert_stages_are_the_same_bits("tensor", 8, 2, f"{SIZE}=2", *SGD)
        self.assert_same_training("whole", folder)
        packed = ("data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=128", *SGD)
        self.run_ranks(1, "sequences", *packed)
        # Ranks that slice together divide the same sequences, or some of them and others.
        for name, ranks, shards in (("context", 4, 2), ("context-across", 8, 4)):
            with self.subTest(name):
                words = () if ranks == 4 else ("data.train_batch_size=12",)
                self.run_ranks(ranks, name, *packed, *words, f"{CONTEXT}=2", ZERO.format(3), SHARDS.format(shards))
                self.assert_within_plans(name, ranks)
                self.assert_same_training("sequences", name)
        self.run_ranks(4, "stages", "parallel.pipeline_model_parallel_size=1", ZERO.format(1), SHARDS.format(2))
        self.run_ranks(8, "staged", "parallel.pipeline_model_parallel_size=2", ZERO.format(1), SHARDS.format(2))
        self.assert_same_files("stages", "staged")
        self.assert_ranks_are_as_planned("staged", 8)

    def test_optimizers_types_updates_and_adapters(self):
        bf16 = "device.dtype=bfloat16"
        cases = {"narrow": [bf16, *(f"{OPTIMIZER}{key}_dtype=bfloat16" for key in ("state", "gradient", "master"))],
                 "adafactor": [f"{OPTIMIZER}optimizer=adafactor", bf16], "sm3": [f"{OPTIMIZER}optimizer=sm3", f"{OPTIMIZER}momentum=0.9"],
                 "split": [bf16, "memory.optimizer_offload=phase_split"], "streamed": [bf16, "memory.optimizer_offload=cpu"],
                 "lora": [START, bf16, "actor_rollout_ref.model.lora_rank=4"]}
        for name, words in cases.items():
            with self.subTest(name):
                self.assert_stages_are_the_same_bits(name, 4, 2, *words, files=ADAPTER if name == "lora" else FILES)

    def test_every_task(self):
        rollout = "actor_rollout_ref.rollout.tensor_model_parallel_size=2"
        cases = {"reward": ("reward", ["reward"], FILES, ()), "dpo": ("reward", ["actor"], FILES, ("task=dpo",)),
                 "ppo": ("ppo", ["actor", "critic"], FILES, ()), "grpo": ("grpo", ["actor"], FILES, ()),
                 "grpo-lora": ("grpo", ["actor"], ADAPTER, ("actor_rollout_ref.model.lora_rank=4",))}
        for name, (task, models, files, words) in cases.items():
            with self.subTest(name):
                folder = self.assert_stages_are_the_same_bits(
                    name, 4, 2, *words, files=[f.replace("actor", model, 1) for f in files for model in models],
                    step=2 if task == "reward" else 1, task=task)
                if name != "grpo":
                    continue
                # Where ranks divide the actor to generate, too: the same texts, but for rounding.
                self.run_ranks(4, "grpo-parts", *words, rollout, ZERO.format(3), SHARDS.format(2), task=task)
                self.assert_ranks_are_as_planned("grpo-parts", 4)
                self.assertEqual(self.metrics("out/grpo-parts")[0]["critic/score/mean"], self.metrics(f"out/{folder}")[0]["critic/score/mean"])

    def test_a_run_resumes_on_another_mesh(self):
        meshes = {"1": (1, ()), "z3": (2, (ZERO.format(3),)), "h1": (4, (ZERO.format(1), SHARDS.format(2))),
                  "h3": (4, (ZERO.format(3), SHARDS.format(2))), "h3t2": (8, (ZERO.format(3), SHARDS.format(2), f"{SIZE}=2"))}
        words = {name: (*keys, f"data.micro_batch_size_per_gpu={12 // min(ranks, 4)}", "device.dtype=bfloat16")
                 for name, (ranks, keys) in meshes.items()}
        for source in ("1", "h1", "h3t2") if SLOW else ("h1", "h3t2"):
            self.run_ranks(meshes[source][0], f"from-{source}", *words[source])

        def resume(source, target, *more):
            folder = f"{source}-to-{target}"
            result = self.run_ranks(meshes[target][0], folder, *words[target], "trainer.total_training_steps=3", *more,
                                    f"trainer.resume_mode={self.home / 'out' / f'from-{source}' / 'global_step_2'}")
            self.assertIn("Resuming from", result.stderr)
            self.assertNotIn("zero_", result.stderr)  # it is no difference that changes results
            return folder

        for source in ("1", "h1", "h3t2") if SLOW else ("h3t2",):
            with self.subTest(source=source):
                self.assert_same_files(resume(source, "h1"), resume(source, "h3"), step=3)
        # A step without a rate: the same weights, whoever read them.
        for source, target in (("h1", "1"), ("h1", "h3t2"), ("h3t2", "z3")):
            with self.subTest(source=source, target=target):
                folder = resume(source, target, f"{OPTIMIZER}lr=0")
                self.assertEqual(self.file(folder, FILES[0], 3).read_bytes(), self.file(f"from-{source}", FILES[0]).read_bytes())

    def test_sizes_that_do_not_fit(self):
        for size in (1, 3, 8):
            result = launch.run(1, launch.NEAP, "plan", "sft.toml", "trainer.n_gpus_per_node=4", ZERO.format(2), SHARDS.format(size),
                                cwd=self.home)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"parallel.zero_shard_size {size} does not divide the 4 ranks", result.stderr)
            self.assertIn("possible: 2, 4", result.stderr)
        result = launch.run(1, launch.NEAP, "plan", "sft.toml", "trainer.n_gpus_per_node=4", SHARDS.format(2), cwd=self.home)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("parallel.zero_stage is at least 1", result.stderr)

    def test_gathers_stay_within_a_machine(self):
        def plan(*words):
            words = ("sft.toml", "trainer.nnodes=2", "trainer.n_gpus_per_node=4", "parallel.intra_node_bandwidth=20GB",
                     "parallel.inter_node_bandwidth=100MB", "data.train_batch_size=32", "data.micro_batch_size_per_gpu=4", ZERO.format(3), *words)
            outputs = [launch.run(1, launch.NEAP, "plan", *words, *more, cwd=self.home) for more in (("--json",), ("--simulate",))]
            for result in outputs:
                self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(outputs[0].stdout), outputs[1].stdout

        self.add_model("wide", dict(MODEL, vocab_size=16_000, hidden_size=512, intermediate_size=1024, num_attention_heads=8, head_dim=64,
                                    num_hidden_layers=8))
        every, text = plan("actor_rollout_ref.model.path=wide")
        self.assertNotIn("ZeRO shard group", text)
        some, text = plan("actor_rollout_ref.model.path=wide", SHARDS.format(4))
        self.assertIn("ZeRO shard group of 4", text)
        self.assertLess(some["seconds"], 0.8 * every["seconds"])
        weights = [next(tag["bytes"] for tag in out["tags"] if tag["tag"] == "actor.weights") for out in (every, some)]
        self.assertLess(weights[0], weights[1])


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
