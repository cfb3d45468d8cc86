#!/usr/bin/env python3
"""`neap train` with optimizer states, gradients and weights sliced over ranks. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Sliced and whole ones give the same bits on the same ranks, with sliced gradients where a mini-batch is one micro-batch;
checkpoints do not depend on ranks and stage. NEAP_TEST_SLOW=1: every case with every stage.
"""
import json
import pathlib
import sys
import unittest

import launch
import neap_program

from neap_program import SLOW
from rank_case import FILES, FP8, OPTIMIZER, RankCase
from train_process_test import grpo_of, MODEL, PPO, read_lines, SFT  # noqa: E402

STAGE = "parallel.zero_stage=1"
STAGES = (STAGE, "parallel.zero_stage=2", "parallel.zero_stage=3")


def in_turns(cases):
    """Each case with one stage, in turns: a stage slices alike whatever is trained."""
    return [(case, STAGES if SLOW else STAGES[i % 3:i % 3 + 1]) for i, case in enumerate(cases)]


class Zero(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 1")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace('["sft_val.jsonl"]', "[]")
        (cls.home / "sft.toml").write_text(sft)

    def assert_sliced_is_whole(self, name, ranks, *words, stages=STAGES, **more):
        """Of one micro-batch; the folders of whole and sliced runs."""
        words = (f"data.micro_batch_size_per_gpu={12 // ranks}", *words)
        whole = f"{name}-{ranks}-whole"
        folders = [whole]
        self.run_ranks(ranks, whole, *words)
        for stage in stages:
            sliced = f"{name}-{ranks}-sliced-{stage[-1]}"
            self.run_ranks(ranks, sliced, stage, *words)
            self.assert_same_files(whole, sliced, **more)
            self.assertEqual(self.metrics(f"out/{whole}"), self.metrics(f"out/{sliced}"))
            self.assert_ranks_are_as_planned(sliced, ranks)
            folders.append(sliced)
        return folders

    def test_sliced_ones_are_the_same_bits(self):
        for ranks in (2, 3, 4) if SLOW else (2, 4):  # many others have three
            with self.subTest(ranks=ranks):
                whole, *sliced = self.assert_sliced_is_whole("adamw", ranks)
                # Units of this model are smaller than tiles: two blocks and a table, of about the same size.
                most = 0.66 if ranks == 2 else 0.36
                for folder in sliced:
                    self.assertLess(self.part_bytes(folder) / self.part_bytes(whole), most)
                for tag, folders in (("actor.grads", sliced[1:]), ("actor.weights", sliced[2:])):
                    for folder in folders:
                        self.assertLess(self.part_bytes(folder, tag) / self.part_bytes(whole, tag), most)

    def test_layers_in_fp8(self):
        self.assert_sliced_is_whole("fp8", 2, "device.dtype=bfloat16", FP8, stages=STAGES[2:])

    def test_formulas_beside_what_a_rank_measured(self):
        words = (STAGES[1], "data.micro_batch_size_per_gpu=6")
        self.run_ranks(2, "formulas", *words)
        for rank, folder in enumerate(("out/formulas", "out/formulas/ranks/1")):
            result = launch.run(1, launch.NEAP, "plan", "--formulas", "sft.toml", *words, "trainer.n_gpus_per_node=2", "--run", folder,
                                "--json", cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            sheet = json.loads(result.stdout)
            self.assertIn("d = 2, ZeRO-2", sheet["letters"])
            lines = {line["id"]: line for section in sheet["sections"] for line in section["lines"]}
            tags = {tag["tag"]: tag["bytes"] for tag in json.loads((self.home / folder / "plan.json").read_text())["tags"]}
            for line, tag in (("weights", "actor.weights"), ("gradients", "actor.grads"), ("optimizer", "actor.optimizer")):
                self.assertEqual(lines[f"rank.{line}"]["measured"]["value"], tags[tag], (rank, line))
                self.assertEqual(lines[f"rank.{line}"]["counted"], tags[tag], (rank, line))
                self.assertIsNone(lines[f"actor.{line}"]["measured"])

    def test_units_are_cut_between_tiles(self):
        self.add_model("large", dict(MODEL, vocab_size=60_000))
        whole, *sliced = self.assert_sliced_is_whole("large", 3, "actor_rollout_ref.model.path=large",
                                                     "trainer.total_training_steps=1", stages=STAGES[::2], step=1)
        for folder in sliced:
            # A table of 7.7 million elements, tiles of 4.2 million, and 0.3 million in blocks.
            self.assertLess(self.part_bytes(folder) / self.part_bytes(whole), 0.56)

    def test_several_micro_batches_differ_by_the_order_of_sums(self):
        for folder, words in (("micro-whole", ()), ("micro-1", (STAGES[0],)), ("micro-2", (STAGES[1],))):
            self.run_ranks(2, folder, *words)
        self.assert_same_files("micro-whole", "micro-1")
        for a, b in zip(self.metrics("out/micro-whole"), self.metrics("out/micro-2"), strict=True):
            for key in ("train/loss", "train/grad_norm"):
                self.assertAlmostEqual(a[key] / b[key], 1, delta=1e-5)
        self.assert_planned_is_measured("micro-2")
        # Ranks pack their rows into numbers of micro-batches that differ.
        packed = ("data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70")
        for folder, words in (("packed-whole", ()), ("packed-2", (STAGES[1],))):
            self.run_ranks(3, folder, *packed, *words)
        for a, b in zip(self.metrics("out/packed-whole"), self.metrics("out/packed-2"), strict=True):
            self.assertAlmostEqual(a["train/loss"] / b["train/loss"], 1, delta=1e-5)
        # Stage 3 may run micro-batches in groups, each of which adds to the sums over ranks once.
        for one, words, ranks in (("micro", (), 2), ("packed", packed, 3)):
            self.run_ranks(ranks, f"{one}-3", *words, STAGES[2])
            for a, b in zip(self.metrics(f"out/{one}-whole"), self.metrics(f"out/{one}-3"), strict=True):
                self.assertAlmostEqual(a["train/loss"] / b["train/loss"], 1, delta=1e-5)
        self.assert_planned_is_measured("micro-3")

    def test_weights_come_to_slots(self):
        """Of more blocks than slots, tied and untied, in models whose embedding is read again in backward and of which
        ranks without rows validate with the others, in more or fewer micro-batches."""
        deep = dict(MODEL, num_hidden_layers=5)
        models = {"deep": deep, "untied": dict(deep, tie_word_embeddings=False),
                  "projected": {"model_type": "opt", "vocab_size": 1024, "hidden_size": 128, "ffn_dim": 256, "num_hidden_layers": 3,
                                "num_attention_heads": 4, "max_position_embeddings": 128, "word_embed_proj_dim": 64,
                                "do_layer_norm_before": False, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1},
                  "normed": {"model_type": "bloom", "vocab_size": 1024, "hidden_size": 128, "n_layer": 3, "n_head": 4,
                             "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}}
        (self.home / "two.jsonl").write_text("".join((self.home / "sft_val.jsonl").read_text().splitlines(keepends=True)[:2]))
        validate = ("trainer.test_freq=1", 'data.val_files=["two.jsonl"]')
        for name, config in models.items():
            self.add_model(name, config)
            with self.subTest(name):
                whole, sliced = self.assert_sliced_is_whole(name, 3, f"actor_rollout_ref.model.path={name}", *validate,
                                                            stages=STAGES[2:])
                self.assertEqual(self.validations(f"out/{whole}"), self.validations(f"out/{sliced}"))
        # Most rows of two ranks are in more micro-batches than those of the third.
        packed = ("data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70", "trainer.test_freq=1", 'data.val_files=["sft_val.jsonl"]')
        for folder, words in (("validated-whole", ()), ("validated-3", STAGES[2:])):
            self.run_ranks(3, folder, *packed, *words)
        for a, b in zip(self.validations("out/validated-whole"), self.validations("out/validated-3"), strict=True):
            self.assertAlmostEqual(a["val/loss"] / b["val/loss"], 1, delta=1e-5)

    def test_every_optimizer_and_type(self):
        cases = {"masters": ["device.dtype=bfloat16"],
                 "narrow": ["device.dtype=bfloat16", *(f"{OPTIMIZER}{key}_dtype=bfloat16" for key in ("state", "gradient", "master"))],
                 "adafactor": [f"{OPTIMIZER}optimizer=adafactor", "device.dtype=bfloat16"],
                 "sm3": [f"{OPTIMIZER}optimizer=sm3", f"{OPTIMIZER}momentum=0.9"],
                 "plain-sgd": [f"{OPTIMIZER}optimizer=sgd"]}
        for (name, words), stages in in_turns(cases.items()):
            with self.subTest(name):
                self.assert_sliced_is_whole(name, 3, *words, stages=stages)

    def test_every_way_to_update(self):
        for update, stages in in_turns(("none", "phase_split", "cpu", "nvme")):
            with self.subTest(update):
                self.assert_sliced_is_whole(update, 2, f"memory.optimizer_offload={update}", "device.dtype=bfloat16",
                                            'memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"]', stages=stages)
        self.assert_sliced_is_whole("stay", 2, "memory.offload=none", stages=STAGES[2:])

    def test_adapters_are_sliced(self):
        self.run_ranks(1, "base", "trainer.total_training_steps=1")
        self.assert_sliced_is_whole("lora", 3, "actor_rollout_ref.model.path=out/base/latest/actor", "device.dtype=bfloat16",
                                    "actor_rollout_ref.model.lora_rank=4", stages=STAGES[::2],
                                    files=("actor/adapter_model.safetensors", "actor/optimizer.safetensors"))

    def write_jobs(self):
        """Reward, PPO and GRPO, each mini-batch of two ranks in one micro-batch."""
        ppo = PPO.replace("CEILING", "64MiB").replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 2")
        (self.home / "ppo.toml").write_text(ppo)
        grpo = grpo_of(ppo)
        grpo = grpo.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2")
        (self.home / "grpo.toml").write_text(grpo.replace("ppo_micro_batch_size_per_gpu = 2", "ppo_micro_batch_size_per_gpu = 4"))
        self.run_ranks(1, "sft")
        self.run_ranks(1, "reward", "trainer.total_training_steps=1", task="reward")

    def test_every_task(self):
        self.write_jobs()
        lora = ("actor_rollout_ref.model.lora_rank=4",)
        cases = {"reward": ("reward", ["reward"], FILES), "dpo": ("reward", ["actor"], FILES),
                 "known": ("reward", ["actor"], FILES), "ppo": ("ppo", ["actor", "critic"], FILES),
                 "grpo": ("grpo", ["actor"], FILES),
                 "grpo-lora": ("grpo", ["actor"], ("actor/adapter_model.safetensors", FILES[1]))}
        for name, (stage, models, files) in cases.items():
            words = ["trainer.total_training_steps=2", "trainer.save_freq=2"]
            words += ["task=dpo"] if name in ("dpo", "known") else []
            words += ["dpo.precompute_ref_log_probs=true"] if name == "known" else []
            words += ["trainer.test_freq=1"] if name in ("reward", "dpo") else []
            words += lora if name == "grpo-lora" else []
            with self.subTest(name):
                self.run_ranks(2, f"{name}-whole", *words, task=stage)
                for sliced in STAGES if SLOW else STAGES[1:]:
                    folder = f"{name}-sliced-{sliced[-1]}"
                    self.run_ranks(2, folder, *words, sliced, task=stage)
                    self.assert_same_files(f"{name}-whole", folder,
                                           files=[f.replace("actor", model, 1) for f in files for model in models])
                    self.assertEqual(self.metrics(f"out/{name}-whole"), self.metrics(f"out/{folder}"))
                    for frozen in ("reference", "reward")[:0 if sliced != STAGES[2] else {"ppo": 2, "grpo": 2, "dpo": 1}.get(name, 0)]:
                        self.assertLess(self.part_bytes(folder, f"{frozen}.weights"),
                                        0.51 * self.part_bytes(f"{name}-whole", f"{frozen}.weights"), frozen)
                    for rank in ("", "/ranks/1"):
                        self.assert_planned_is_measured(folder + rank)

    def test_a_killed_rank_ends_the_others_and_the_run_goes_on(self):
        words = (STAGES[2], "data.micro_batch_size_per_gpu=6", "trainer.save_freq=2", "trainer.total_training_steps=6")
        self.run_ranks(2, "calm", *words)
        process = launch.start(2, launch.NEAP, "train", "sft.toml", "trainer.default_local_dir=out/killed", *words, cwd=self.home)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(self.home / "out/killed") >= 3, timeout=120)
        launch.kill_rank(process, 1, 2)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("Resuming from", self.run_ranks(2, "killed", *words).stderr)
        self.assertEqual(self.metrics("out/killed"), self.metrics("out/calm"))
        self.assert_same_files("killed", "calm", step=6)

    def test_a_run_resumes_on_other_ranks_and_another_stage(self):
        words = ("device.dtype=bfloat16",)
        for ranks in (1, 2, 3):
            own = (*words, f"data.micro_batch_size_per_gpu={12 // ranks}")
            self.run_ranks(ranks, f"from-{ranks}", *own, *((STAGES[2],) if ranks > 1 else ()))
            self.run_ranks(ranks, f"plain-{ranks}", *own)
            self.assert_same_files(f"from-{ranks}", f"plain-{ranks}")
        for ranks in (1, 2, 3):
            for to in (1, 2, 3):
                own = (*words, f"data.micro_batch_size_per_gpu={12 // to}")
                expected = self.resume(f"from-{ranks}", to, "whole", *own)
                if to == 1:
                    continue
                for stage in STAGES if SLOW else (STAGES[(ranks + to) % 3],):
                    with self.subTest(ranks=ranks, to=to, stage=stage):
                        self.assert_same_files(expected, self.resume(f"from-{ranks}", to, f"sliced-{stage[-1]}", stage, *own), step=3)

    def resume(self, source, ranks, name, *words):
        """The folder of a run that went a step further than `source`."""
        folder = f"{source}-to-{ranks}-{name}"
        checkpoint = self.home / "out" / source / "global_step_2"
        result = self.run_ranks(ranks, folder, f"trainer.resume_mode={checkpoint}", "trainer.total_training_steps=3", *words)
        self.assertIn("Resuming from", result.stderr)
        self.assertNotIn("zero_stage", result.stderr)  # it is no difference that changes results
        return folder

    def test_what_has_no_effect_is_said(self):
        result = self.run_ranks(1, "one", STAGE, "trainer.total_training_steps=1")
        self.assertIn("parallel.zero_stage=1", result.stderr)
        self.assertIn("one rank has each part of the model", result.stderr)

    def test_a_plan_for_many_ranks(self):
        def plan(ranks, *words):
            result = launch.run(1, launch.NEAP, "plan", "sft.toml", "--json", "--ranks", str(ranks),
                                "data.train_batch_size=64", "device.memory=4GiB", "actor_rollout_ref.model.path=many", *words, cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            out = json.loads(result.stdout)
            self.assertEqual(out["ranks"], ranks)
            tags = {tag["tag"]: sum(part["bytes"] for region in tag["regions"] for part in region["parts"]) for tag in out["tags"]}
            return [tags.get(f"actor.{name}", 0) for name in ("optimizer", "grads", "unit_grads", "weights", "prefetch")]

        # 33 million elements of tables and 16 blocks of 3 million.
        self.add_model("many", dict(MODEL, vocab_size=32_000, hidden_size=512, intermediate_size=1408, num_attention_heads=8,
                                    head_dim=64, num_hidden_layers=16, tie_word_embeddings=False))
        states, gradients, _, weights, _ = plan(8)
        self.assertLess(plan(8, STAGES[0])[0], states / 8 * 1.25)
        self.assertEqual(plan(8, STAGES[0])[1:], [gradients, 0, weights, 0])
        sliced = plan(8, STAGES[1])
        self.assertEqual(sliced[0], plan(8, STAGES[0])[0])
        self.assertLess(sliced[1], gradients / 8 * 1.25)
        # The head's, with its norm, is the largest unit; the other memory has the largest block.
        self.assertEqual(sliced[2], 4 * (32_000 * 512 + 512 + 2 * 512 * (512 + 128) + 3 * 512 * 1408 + 2 * 512))
        self.assertEqual(sliced[3:], [weights, 0])
        gathered = plan(8, STAGES[2])
        self.assertEqual(gathered[:3], sliced[:3])
        self.assertLess(gathered[3], weights / 8 * 1.25)
        self.assertEqual(plan(1, STAGES[2]), plan(1))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
