#!/usr/bin/env python3
"""actor_rollout_ref.rollout.colocation on two ranks. Weights are sharded or on the host; rollouts from a copy equal those from them.
usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN
"""
import json
import pathlib
import re
import sys
import unittest

import launch

from rank_case import FILES, RankCase
from train_process_test import grpo_of, PPO, SFT, WIDE  # noqa: E402

KEY = "actor_rollout_ref.rollout.colocation="
ZERO = "parallel.zero_stage={}"
ADAPTER = ("actor/adapter_model.safetensors", FILES[1])


class Colocation(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        cls.add_model("wide", WIDE)
        (cls.home / "sft.toml").write_text(SFT.replace("total_training_steps = 8", "total_training_steps = 1").replace('["sft_val.jsonl"]', "[]"))
        for name, words in (("model", ()), ("wide", ("data.train_batch_size=4", "data.micro_batch_size_per_gpu=4"))):
            result = launch.train(1, "sft.toml", f"actor_rollout_ref.model.path={name}", f"trainer.default_local_dir=out/{name}-sft", *words, cwd=cls.home)
            assert result.returncode == 0, result.stderr
        grpo = grpo_of(PPO).replace("CEILING", "256MiB").replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 4")
        grpo = grpo.replace("out/sft/", "out/model-sft/").replace('["prompts_val.jsonl"]', "[]")
        grpo = grpo.replace("total_training_steps = 6", "total_training_steps = 2").replace("save_freq = 2", "save_freq = -1")
        # A mini-batch is one micro-batch: groups of them, which ZeRO-3 sums over ranks, may differ between plans.
        grpo = grpo.replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 8")
        # A rule, so that no reward model is trained for it.
        grpo = re.sub(r"\[reward_model\][^\[]*", '[[reward.functions]]\nkind = "regex"\npattern = "e"\n', grpo)
        (cls.home / "grpo.toml").write_text(grpo)

    def least(self, *words):
        """The minimum capacity in MiB."""
        result = launch.run(1, launch.NEAP, "plan", "grpo.toml", "--ranks", "2", *words, "device.memory=1MiB", cwd=self.home)
        self.assertEqual(result.returncode, 3, result.stderr)
        return int(re.search(r"minimum capacity is (\d+) MiB", result.stderr).group(1))

    def assert_ways_agree(self, name, ways, *words, files=FILES):
        """In the least memory of each way. The plans by way."""
        plans = {}
        for way in ("stages", *ways):
            own = (*words, KEY + way)
            self.run_ranks(2, f"{name}-{way}", *own, f"device.memory={self.least(*own)}MiB", task="grpo")
            self.assert_within_plans(f"{name}-{way}", 2)
            self.assert_same_files(f"{name}-stages", f"{name}-{way}", files=files)
            self.assertEqual(self.metrics(f"out/{name}-stages"), self.metrics(f"out/{name}-{way}"), way)
            plans[way] = json.loads((self.home / f"out/{name}-{way}/plan.json").read_text())
            tags = {tag["tag"] for tag in plans[way]["tags"]}
            self.assertLessEqual({"actor.rollout_weights"} if way != "stages" else set(), tags, way)
        return plans

    def test_shards_with_adapters(self):
        plans = self.assert_ways_agree("lora", ("reload",), ZERO.format(3), "actor_rollout_ref.model.lora_rank=4", files=ADAPTER)
        self.assertGreater(plans["reload"]["disk_bytes"], 0)

    def test_weights_that_rest_on_the_host(self):
        wide = "actor_rollout_ref.model.path=out/wide-sft/latest/actor"
        for stage in (0, 3):
            with self.subTest(stage=stage):
                plans = self.assert_ways_agree(f"host-{stage}", ("whole",), wide, ZERO.format(stage))
                self.assertEqual(plans["whole"]["offloaded_weights"], ["actor"])


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
