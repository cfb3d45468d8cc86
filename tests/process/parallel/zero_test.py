#!/usr/bin/env python3
"""`neap train` with optimizer states sliced over ranks. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Sliced and whole states give the same bits on the same ranks; checkpoints do not depend on ranks and stage.
"""
import json
import pathlib
import sys
import unittest

import launch

from train_process_test import PPO, SFT, TrainCase, read_lines  # noqa: E402

STAGE = "parallel.zero_stage=1"
OPTIMIZER = "actor_rollout_ref.actor.optim."
FILES = ("actor/model.safetensors", "actor/optimizer.safetensors")


class Zero(TrainCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 1")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace('["sft_val.jsonl"]', "[]")
        (cls.home / "sft.toml").write_text(sft)

    def run_ranks(self, ranks, folder, *words, stage="sft"):
        result = launch.run(ranks, launch.NEAP, "train", f"{stage}.toml", f"trainer.default_local_dir=out/{folder}", *words,
                            cwd=self.home)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def assert_same_files(self, one, two, step=2, files=FILES):
        for file in files:
            a, b = (self.home / "out" / folder / f"global_step_{step}" / file for folder in (one, two))
            self.assertEqual(a.read_bytes(), b.read_bytes(), (one, two, file))

    def assert_planned_is_measured(self, folder, plan_of=None):
        """Exactly: what is resident, and what the device took at most in each phase."""
        plan = json.loads((self.home / "out" / (plan_of or folder) / "plan.json").read_text())
        planned = {phase["name"]: phase for phase in plan["phases"]}
        phases = read_lines(self.home / "out" / folder / "phases.jsonl")
        self.assertTrue(phases)
        for phase in phases:
            plan_of_phase = planned[phase["phase"]]
            self.assertEqual(phase["persistent"], plan_of_phase["persistent"], (folder, phase["phase"]))
            self.assertEqual(phase["peak"], plan_of_phase["peak"], (folder, phase["phase"]))
        return plan

    def optimizer_bytes(self, folder):
        plan = json.loads((self.home / "out" / folder / "plan.json").read_text())
        (tag,) = (t for t in plan["tags"] if t["tag"] == "actor.optimizer")
        return sum(part["bytes"] for region in tag["regions"] for part in region["parts"])

    def assert_sliced_is_whole(self, name, ranks, *words):
        whole, sliced = f"{name}-{ranks}-whole", f"{name}-{ranks}-sliced"
        self.run_ranks(ranks, whole, *words)
        self.run_ranks(ranks, sliced, STAGE, *words)
        self.assert_same_files(whole, sliced)
        self.assertEqual(self.metrics(f"out/{whole}"), self.metrics(f"out/{sliced}"))
        for rank in range(ranks):
            self.assert_planned_is_measured(sliced if rank == 0 else f"{sliced}/ranks/{rank}")
        return whole, sliced

    def test_sliced_states_are_the_same_bits(self):
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                whole, sliced = self.assert_sliced_is_whole("adamw", ranks)
                share = self.optimizer_bytes(sliced) / self.optimizer_bytes(whole)
                self.assertLess(share, 1.05 / ranks)  # units of this model are small: rests count
                self.assertGreaterEqual(share, 1 / ranks)

    def test_every_optimizer_and_type(self):
        cases = {"masters": ["device.dtype=bfloat16"],
                 "narrow": ["device.dtype=bfloat16", *(f"{OPTIMIZER}{key}_dtype=bfloat16" for key in ("state", "gradient", "master"))],
                 "adafactor": [f"{OPTIMIZER}optimizer=adafactor", "device.dtype=bfloat16"],
                 "sm3": [f"{OPTIMIZER}optimizer=sm3", f"{OPTIMIZER}momentum=0.9"],
                 "plain-sgd": [f"{OPTIMIZER}optimizer=sgd"]}
        for name, words in cases.items():
            with self.subTest(name):
                self.assert_sliced_is_whole(name, 3, *words)

    def test_every_way_to_update(self):
        for update in ("joined", "split", "streamed"):
            with self.subTest(update):
                self.assert_sliced_is_whole(update, 2, f"memory.update={update}", "device.dtype=bfloat16")
        self.assert_sliced_is_whole("stay", 2, "memory.residency=all")

    def test_adapters_are_sliced(self):
        whole, sliced = "lora-whole", "lora-sliced"
        self.run_ranks(1, "base", "trainer.total_training_steps=1")
        for folder, words in ((whole, ()), (sliced, (STAGE,))):
            self.run_ranks(3, folder, "actor_rollout_ref.model.path=out/base/latest/actor", "device.dtype=bfloat16",
                           "actor_rollout_ref.model.lora_rank=4", *words)
        self.assert_same_files(whole, sliced, files=("actor/adapter_model.safetensors", "actor/optimizer.safetensors"))
        for folder in (sliced, f"{sliced}/ranks/2"):
            self.assert_planned_is_measured(folder)

    def test_two_models_are_sliced(self):
        ppo = PPO.replace("CEILING", "64MiB").replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 2")
        (self.home / "ppo.toml").write_text(ppo)
        self.run_ranks(1, "sft")
        reward = (self.home / "reward.toml").read_text().replace("micro_batch_size_per_gpu = 4", "micro_batch_size_per_gpu = 2")
        (self.home / "reward.toml").write_text(reward)
        self.run_ranks(1, "reward", "trainer.total_training_steps=1", stage="reward")
        for folder, words in (("ppo-whole", ()), ("ppo-sliced", (STAGE,))):
            self.run_ranks(2, folder, "trainer.total_training_steps=2", *words, stage="ppo")
        self.assert_same_files("ppo-whole", "ppo-sliced", files=(*FILES, *(f.replace("actor", "critic") for f in FILES)))
        self.assertEqual(self.metrics("out/ppo-whole"), self.metrics("out/ppo-sliced"))

    def test_a_run_resumes_on_other_ranks_and_another_stage(self):
        words = ("device.dtype=bfloat16",)
        for ranks in (1, 2, 3):
            self.run_ranks(ranks, f"from-{ranks}", *words, *((STAGE,) if ranks > 1 else ()))
            self.run_ranks(ranks, f"plain-{ranks}", *words)
            self.assert_same_files(f"from-{ranks}", f"plain-{ranks}")
        for ranks in (1, 2, 3):
            for to in (1, 2, 3):
                expected = self.resume(f"from-{ranks}", to, "whole", *words)
                if to == 1:
                    continue
                with self.subTest(ranks=ranks, to=to):
                    self.assert_same_files(expected, self.resume(f"from-{ranks}", to, "sliced", STAGE, *words), step=3)

    def resume(self, source, ranks, name, *words):
        """The folder of a run that went a step further than `source`."""
        folder = f"{source}-to-{ranks}-{name}"
        checkpoint = self.home / "out" / source / "global_step_2"
        result = self.run_ranks(ranks, folder, f"trainer.resume_mode={checkpoint}", "trainer.total_training_steps=3", *words)
        self.assertIn("Resuming from", result.stderr)
        self.assertNotIn("zero_stage", result.stderr)  # it is no difference that changes results
        return folder

    def test_what_has_no_effect_or_is_not_supported_is_said(self):
        result = self.run_ranks(1, "one", STAGE, "trainer.total_training_steps=1")
        self.assertIn("parallel.zero_stage=1", result.stderr)
        self.assertIn("there is one rank", result.stderr)
        for stage in (2, 3):
            result = launch.run(2, launch.NEAP, "train", "sft.toml", f"parallel.zero_stage={stage}", cwd=self.home)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"parallel.zero_stage {stage} is not supported", result.stderr)

    def test_a_plan_for_many_ranks(self):
        def plan(ranks, *words):
            result = launch.run(1, launch.NEAP, "plan", "sft.toml", "--json", f"trainer.n_gpus_per_node={ranks}",
                                "data.train_batch_size=64", *words, cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            tags = {tag["tag"]: tag for tag in json.loads(result.stdout)["tags"]}
            return sum(part["bytes"] for region in tags["actor.optimizer"]["regions"] for part in region["parts"])

        whole = plan(8)
        self.assertLess(plan(8, STAGE), whole / 8 * 1.1)
        self.assertEqual(plan(1, STAGE), whole)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
