#!/usr/bin/env python3
"""`neap train` with sliced weights of models that ranks divide: ZeRO-3 with tensor, sequence and context parallelism.
usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

On the same ranks losses and files have the bits of whole parts where a mini-batch is one micro-batch a rank; each rank takes
the memory that the plan says. NEAP_TEST_SLOW=1: every architecture and case.
"""
import json
import pathlib
import sys
import unittest

import launch

from neap_program import SLOW, without
from rank_case import ARCHITECTURES, CONTEXT, FILES, OPTIMIZER, RankCase, ROWS, SGD, SIZE
from train_process_test import grpo_of, MODEL, PPO, REWARD, SFT  # noqa: E402

ZERO = "parallel.zero_stage={}"
SLICED = ZERO.format(3)
PARTS = (f"{SIZE}=2",)
RANKS = 4  # two parts, of two copies each
START = "actor_rollout_ref.model.path=start"
ADAPTER = ("actor/adapter_model.safetensors", FILES[1])


class ZeroTensor(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 8").replace("per_gpu = 8", "per_gpu = 4")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace("save_freq = 3", "save_freq = -1")
        (cls.home / "sft.toml").write_text(sft)
        (cls.home / "reward.toml").write_text(REWARD.replace("total_training_steps = 3", "total_training_steps = 2"))
        ppo = PPO.replace("CEILING", "64MiB").replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 2")
        ppo = ppo.replace("total_training_steps = 6", "total_training_steps = 1")
        (cls.home / "ppo.toml").write_text(ppo)
        grpo = grpo_of(ppo)
        grpo = grpo.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2")
        (cls.home / "grpo.toml").write_text(grpo.replace("ppo_micro_batch_size_per_gpu = 2", "ppo_micro_batch_size_per_gpu = 4"))
        for stage in ("sft", "reward"):
            result = launch.train(1, f"{stage}.toml", cwd=cls.home)
            assert result.returncode == 0, result.stderr
        (cls.home / "start").symlink_to("out/sft/latest/actor")

    def assert_sliced_is_whole(self, name, *words, files=FILES, step=2, task="sft"):
        """Of parts that two copies have; the folders of both runs."""
        whole, sliced = f"{name}-whole", f"{name}-sliced"
        self.run_ranks(RANKS, whole, *PARTS, *words, task=task)
        self.run_ranks(RANKS, sliced, *PARTS, *words, SLICED, task=task)
        self.assert_same_files(whole, sliced, step=step, files=files)
        self.assertEqual(self.metrics(f"out/{whole}"), self.metrics(f"out/{sliced}"))
        self.assertEqual(self.validations(f"out/{whole}"), self.validations(f"out/{sliced}"))
        self.assert_ranks_are_as_planned(sliced, RANKS)
        return whole, sliced

    def test_models_and_ways_to_train(self):
        deep = dict(MODEL, num_hidden_layers=5)
        self.add_model("deep", deep)
        self.add_model("untied", dict(deep, tie_word_embeddings=False))
        narrow = (f"{OPTIMIZER}{key}_dtype=bfloat16" for key in ("state", "gradient", "master"))
        lora = ("actor_rollout_ref.model.lora_rank=4", START)
        cases = {"tied": ("actor_rollout_ref.model.path=deep",), "rows": ("actor_rollout_ref.model.path=deep", ROWS),
                 "untied": ("actor_rollout_ref.model.path=untied", "actor_rollout_ref.actor.grad_clip=0.5"),
                 "untied-rows": ("actor_rollout_ref.model.path=untied", ROWS, "actor_rollout_ref.model.activation_checkpointing=full"),
                 "narrow": ("device.dtype=bfloat16", *narrow), "split": ("device.dtype=bfloat16", "memory.optimizer_offload=phase_split"),
                 "streamed": ("device.dtype=bfloat16", "memory.optimizer_offload=cpu", ROWS),
                 "adafactor": (f"{OPTIMIZER}optimizer=adafactor", START), "sm3": (f"{OPTIMIZER}optimizer=sm3", START, ROWS),
                 "lora": lora, "lora-rows": (*lora, ROWS, "device.dtype=bfloat16"),
                 "validated": ("trainer.test_freq=1", 'data.val_files=["three.jsonl"]')}
        # Held-out rows that one copy has more of than the other.
        (self.home / "three.jsonl").write_text("".join((self.home / "sft_val.jsonl").read_text().splitlines(keepends=True)[:5]))
        for name, words in without("tied", "split", "lora", "untied", of=cases).items():
            with self.subTest(name):
                whole, sliced = self.assert_sliced_is_whole(name, *words, files=ADAPTER if "lora" in name else FILES)
                self.assertLess(self.part_bytes(sliced, "actor.weights"), 0.66 * self.part_bytes(whole, "actor.weights"))

    def test_every_architecture(self):
        names = sorted(path.stem for path in ARCHITECTURES.glob("*.json"))
        if not SLOW:
            names = ["bloom", "gemma2", "gpt2", "olmo2", "phi3"]
        for i, name in enumerate(names):
            model, sizes = self.architecture(name)
            if 2 not in sizes:
                continue
            with self.subTest(name):
                self.assert_sliced_is_whole(name, f"actor_rollout_ref.model.path={model}", "trainer.total_training_steps=1",
                                            *((ROWS,) if i % 2 else ()), step=1)

    def test_every_task(self):
        lora = ("actor_rollout_ref.model.lora_rank=4",)
        cases = {"reward": ("reward", ["reward"], FILES, ("trainer.test_freq=1",)),
                 "dpo": ("reward", ["actor"], FILES, ("task=dpo", "trainer.test_freq=1", ROWS)),
                 "ppo": ("ppo", ["actor", "critic"], FILES, ()), "ppo-rows": ("ppo", ["actor", "critic"], FILES, (ROWS,)),
                 "grpo": ("grpo", ["actor"], FILES, ("actor_rollout_ref.actor.use_kl_loss=true",)),
                 "grpo-lora": ("grpo", ["actor"], ADAPTER, lora)}
        for name, (task, models, files, words) in without("ppo-rows", of=cases).items():
            with self.subTest(name):
                whole, sliced = self.assert_sliced_is_whole(
                    name, *words, files=[f.replace("actor", model, 1) for f in files for model in models],
                    step=2 if task == "reward" else 1, task=task)
                for frozen in {"ppo": ("reference", "reward"), "dpo": ("reference",)}.get(name, ()):
                    self.assertLess(self.part_bytes(sliced, f"{frozen}.weights"),
                                    0.51 * self.part_bytes(whole, f"{frozen}.weights"), frozen)

    def test_several_micro_batches_and_packed_ones(self):
        """In numbers that differ between copies: another order of the same sums."""
        packed = ("data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70")
        for name, words in {"micro": ("data.micro_batch_size_per_gpu=1",), "packed": packed, "packed-rows": (*packed, ROWS)}.items():
            words = (*words, "trainer.test_freq=2", *SGD)
            self.run_ranks(1, f"{name}-1", *(word for word in words if word != ROWS))
            with self.subTest(name):
                self.run_ranks(RANKS, f"{name}-sliced", *words, *PARTS, SLICED)
                self.assert_within_plans(f"{name}-sliced", RANKS)
                self.assert_same_training(f"{name}-1", f"{name}-sliced", near=2e-6)

    def test_divided_sequences(self):
        words = ("data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=128", "trainer.test_freq=2", *SGD)
        self.run_ranks(1, "context-1", *words)
        for name, more in {"context-2": (), "context-2-rows": (ROWS,)}.items():
            with self.subTest(name):
                self.run_ranks(RANKS, name, *words, *PARTS, *more, f"{CONTEXT}=2", SLICED)
                self.assert_within_plans(name, RANKS)
                self.assert_same_training("context-1", name)

    def test_a_run_resumes_on_another_mesh(self):
        meshes = {"1": (1, ()), "t2": (2, PARTS), "z3": (2, (SLICED,)), "t2d2": (RANKS, PARTS),
                  "z1t2": (RANKS, (*PARTS, ZERO.format(1))), "z3t2": (RANKS, (*PARTS, SLICED)), "z3t2-rows": (RANKS, (*PARTS, SLICED, ROWS))}
        # Each rank's rows of a mini-batch together.
        words = {name: (*keys, f"data.micro_batch_size_per_gpu={8 if name in ('1', 't2') else 4}", "device.dtype=bfloat16")
                 for name, (_, keys) in meshes.items()}
        for source in ("1", "t2", "z3", "z1t2", "z3t2") if SLOW else ("z3", "z1t2", "z3t2"):
            self.run_ranks(meshes[source][0], f"from-{source}", *words[source])
        # A checkpoint of slices of parts is that of parts.
        self.assert_same_files("from-z1t2", "from-z3t2")

        def resume(source, target):
            folder = f"{source}-to-{target}"
            result = self.run_ranks(meshes[target][0], folder, *words[target], "trainer.total_training_steps=3",
                                    f"trainer.resume_mode={self.home / 'out' / f'from-{source}' / 'global_step_2'}")
            self.assertIn("Resuming from", result.stderr)
            return folder

        for source in ("1", "t2", "z3", "z1t2", "z3t2") if SLOW else ("z3",):
            with self.subTest(source=source):
                self.assert_same_files(resume(source, "t2d2"), resume(source, "z3t2"), step=3)
        with self.subTest("the other way round"):
            self.assert_same_files(resume("z1t2", "1"), resume("z3t2", "1"), step=3)
            resume("z3t2", "t2")
            resume("z3t2", "z3")
            resume("z3t2", "z3t2-rows")
        # A step without a rate: the same weights.
        still = (f"{OPTIMIZER}lr=0", "trainer.total_training_steps=1", "actor_rollout_ref.model.path=out/from-z3t2/latest/actor")
        self.run_ranks(RANKS, "still", *words["z3t2"], *still)
        for file in ("model.safetensors", "config.json"):
            self.assertEqual(self.file("still", f"actor/{file}", 1).read_bytes(), self.file("from-z3t2", f"actor/{file}").read_bytes())

    def test_a_plan_divides_slices_by_both(self):
        def plan(*words):
            result = launch.run(1, launch.NEAP, "plan", "sft.toml", "--json", "trainer.n_gpus_per_node=8", "device.memory=4GiB",
                                "data.train_batch_size=32", "actor_rollout_ref.model.path=wide", *words, cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            tags = {tag["tag"]: tag for tag in json.loads(result.stdout)["tags"]}
            return [sum(part["bytes"] for region in tags[f"actor.{name}"]["regions"] for part in region["parts"])
                    for name in ("weights", "grads", "optimizer")]

        self.add_model("wide", dict(MODEL, vocab_size=64_000, hidden_size=1024, intermediate_size=4096, num_attention_heads=16,
                                    num_key_value_heads=8, head_dim=64, num_hidden_layers=8))
        for mine, whole in zip(plan(*PARTS, SLICED), plan(), strict=True):
            self.assertLess(mine / whole, 1.25 / 8)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
