#!/usr/bin/env python3
"""Blocks that rest on the host, in jobs whose models have stages of a pipeline. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

The same bits as with everything on the device, on the same ranks; bytes and memory of each rank are those of its plan.
"""
import json
import pathlib
import re
import sys
import unittest

import launch

from rank_case import FILES, RankCase, STAGES
from train_process_test import MODEL, PPO, read_lines, REWARD, SFT  # noqa: E402

# Blocks of 1 MiB beside a table as large.
DEEP = dict(MODEL, num_hidden_layers=12, hidden_size=128, intermediate_size=512, tie_word_embeddings=False)
RESIDENT = ("device.memory=2GiB", "memory.residency=all")
KEPT = 'memory.allow=["recompute", "move", "stream"]'
REFERENCE, CRITIC, JUDGE = (f"{model}.pipeline_model_parallel_size" for model in ("actor_rollout_ref.ref", "critic", "reward_model"))
CRITIC_FILES = ("critic/adapter_model.safetensors", "critic/optimizer.safetensors")
CRITIC_WHOLE = ("critic/model.safetensors", CRITIC_FILES[1])
CRITIC_LORA = "critic.model.lora_rank=4"


class StreamedStages(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        cls.add_model("deep", DEEP)
        (cls.home / "sft.toml").write_text(SFT.replace("total_training_steps = 8", "total_training_steps = 2"))
        (cls.home / "reward.toml").write_text(REWARD.replace("total_training_steps = 3", "total_training_steps = 1"))
        once = ("trainer.total_training_steps=1", "trainer.save_freq=1", "device.memory=4GiB")
        for task, name, path in (("sft", "small", "model"), ("sft", "deep", "deep"), ("reward", "judge", "out/deep/latest/actor"),
                                 ("reward", "shallow", "out/small/latest/actor")):
            result = launch.run(1, launch.NEAP, "train", f"{task}.toml", f"actor_rollout_ref.model.path={path}",
                                f"trainer.default_local_dir=out/{name}", *once, cwd=cls.home)
            assert result.returncode == 0, result.stderr
        ppo = PPO.replace("CEILING", "2GiB").replace("total_training_steps = 6", "total_training_steps = 2")
        ppo = ppo.replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 2").replace('["prompts_val.jsonl"]', "[]")
        ppo = ppo.replace("log_prob_micro_batch_size_per_gpu = 4", "log_prob_micro_batch_size_per_gpu = 2")
        ppo = ppo.replace("out/sft/latest/actor", "out/small/latest/actor").replace("out/reward/latest/reward", "out/judge/latest/reward")
        ppo = ppo.replace("[actor_rollout_ref.rollout]", '[actor_rollout_ref.ref]\nmodel.path = "out/deep/latest/actor"\n[actor_rollout_ref.rollout]')
        (cls.home / "ppo.toml").write_text(ppo)

    def plan(self, ranks, task, *words):
        return launch.run(1, launch.NEAP, "plan", f"{task}.toml", "--ranks", str(ranks), *words, cwd=self.home)

    def least(self, ranks, task, *words):
        """The least capacity in MiB that all kinds of ranks fit in."""
        least = 1
        while (result := self.plan(ranks, task, *words, f"device.memory={least}MiB")).returncode == 3:
            least = int(re.search(r"least capacity is (\d+) MiB", result.stderr).group(1))
        self.assertEqual(result.returncode, 0, result.stderr)
        return least

    def assert_streamed_is_resident(self, name, ranks, models, *words, task="sft", files=FILES, room=0):
        """`models`: what each rank streams at least, at the least capacity with `room` MiB more."""
        self.run_ranks(ranks, f"{name}-whole", *words, *RESIDENT, task=task)
        least = self.least(ranks, task, *words)
        self.assertLess(least, self.least(ranks, task, *words, KEPT), name)
        self.run_ranks(ranks, name, *words, f"device.memory={least + room}MiB", task=task)
        self.assert_same_files(f"{name}-whole", name, files=files)
        self.assertEqual(self.metrics(f"out/{name}-whole"), self.metrics(f"out/{name}"))
        for rank, streamed in enumerate(models):
            self.assert_comes_as_planned(name if rank == 0 else f"{name}/ranks/{rank}", streamed)

    def assert_comes_as_planned(self, folder, models):
        plan = self.assert_planned_is_measured(folder)
        self.assertLessEqual(set(models), set(plan["streamed_weights"]), folder)
        planned = {phase["name"]: phase for phase in plan["phases"]}
        moved = {}
        for record in read_lines(self.home / "out" / folder / "phases.jsonl"):
            of = moved.setdefault((record["step"], record["phase"]), {"fetched": 0, "stored": 0})
            of["fetched"] += sum(use["to_device"] for use in record["streamed"])
            of["stored"] += sum(use["to_host"] for use in record["streamed"])
        self.assertTrue(not models or any(of["fetched"] for of in moved.values()), folder)
        for (step, phase), of in moved.items():
            self.assertEqual(of, {way: planned[phase][way] for way in of}, (folder, step, phase))

    def test_whole_models_beside_an_actor_in_stages(self):
        whole = (f"{STAGES}=2", f"{REFERENCE}=1", f"{CRITIC}=1", f"{JUDGE}=1", CRITIC_LORA)
        frozen = ("reference", "critic", "reward")
        self.assert_streamed_is_resident("beside", 2, (frozen, frozen), *whole, task="ppo", files=(*FILES, *CRITIC_FILES))
        # Micro-batches that go through a block together, and slices on the host.
        self.assert_streamed_is_resident("beside-groups", 2, (frozen, frozen), *whole, "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
                                         task="ppo", files=(*FILES, *CRITIC_FILES), room=1)
        together = json.loads((self.home / "out/beside-groups/plan.json").read_text())["streamed_together"]
        self.assertGreater(together["reference"], 1)
        slices = ("actor_rollout_ref.ref.zero_stage=3", "reward_model.zero_stage=3")
        self.assert_streamed_is_resident("beside-slices", 2, (frozen[:2], frozen[:2]), *whole, *slices, task="ppo", files=(*FILES, *CRITIC_FILES))

    def test_an_actor_beside_stages(self):
        """It generates with all blocks."""
        words = (f"{CRITIC}=2", "actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.model.lora_rank=4",
                 "critic.model.path=out/shallow/latest/reward", f"{JUDGE}=1")
        self.assert_streamed_is_resident("actor", 2, (("actor",), ("actor",)), *words, task="ppo",
                                         files=("actor/adapter_model.safetensors", FILES[1], *CRITIC_WHOLE))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
