#!/usr/bin/env python3
"""actor_rollout_ref.rollout.colocation: the four ways to share the device train alike, as planned. usage: FILE NEAP REVIEWS"""
import json
import re

from train_process_test import grpo_of, main, MODEL, PPO, read_lines, TrainCase

KEY = "actor_rollout_ref.rollout.colocation="
WAYS = ("stages", "whole", "reload", "resident")


class Colocation(TrainCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        text = grpo_of(PPO).replace("CEILING", "256MiB").replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 4")
        (cls.home / "grpo.toml").write_text(text)

    def least(self, way, *words):
        """The minimum capacity in MiB."""
        result = self.neap("plan", "grpo.toml", KEY + way, "device.memory=1MiB", *words)
        self.assertEqual(result.returncode, 3, result.stderr)
        return int(re.search(r"minimum capacity is (\d+) MiB", result.stderr).group(1))

    def train(self, name, way, capacity, *words):
        folder = f"out/{name}-{way}"
        result = self.neap("train", "grpo.toml", KEY + way, f"device.memory={capacity}MiB", f"trainer.default_local_dir={folder}",
                           "trainer.total_training_steps=3", *words)
        self.assertEqual(result.returncode, 0, f"{way}\n{result.stderr}")
        return folder

    def assert_as_planned(self, folder, capacity):
        """A step inside the cycle has the plan's bytes and moves."""
        plan = json.loads((self.home / folder / "plan.json").read_text())
        planned = {phase["name"]: phase for phase in plan["phases"]}
        records = read_lines(self.home / folder / "phases.jsonl")
        for record in records:
            self.assertLessEqual(record["peak"], capacity << 20, record)
        last = [record for record in records if record["step"] == records[-1]["step"] - 1]
        runs = {}
        for record in last:
            phase, again = planned[record["phase"]], runs.get(record["phase"], 0)
            runs[record["phase"]] = again + 1
            self.assertTrue(record["as_planned"], record)
            self.assertEqual(record["persistent"], phase["persistent"], record)
            self.assertLessEqual(record["peak"], 1.03 * phase["peak"] + (2 << 20), record)
            self.assertEqual([(m["kind"], m["tag"]) for m in record["moves"]],
                             [(m["kind"], m["tag"]) for m in phase["again" if again else "moves"]])
        self.assertEqual(runs, {name: phase["times"] for name, phase in planned.items()})
        return plan, planned

    def assert_ways_agree(self, name, *words):
        plans, folders = {}, {}
        for way in WAYS:
            capacity = self.least(way, *words)
            folders[way] = self.train(name, way, capacity, *words)
            plans[way] = self.assert_as_planned(folders[way], capacity)
            self.assertEqual(self.metrics(folders[way]), self.metrics(folders["stages"]), way)
            for file in (self.home / folders["stages"] / "latest" / "actor").glob("*.safetensors"):
                self.assertEqual((self.home / folders[way] / "latest" / "actor" / file.name).read_bytes(), file.read_bytes(), way)
        return plans

    def test_losses_and_weights_are_the_same(self):
        plans = self.assert_ways_agree("full", "data.val_files=[]", "trainer.save_freq=-1")
        for way, (plan, phases) in plans.items():
            tags = {tag["tag"] for tag in plan["tags"]}
            self.assertEqual("actor.rollout_weights" in tags, way != "stages")
            self.assertEqual("wake_up" in phases, way != "stages")
            self.assertEqual("store_weights" in phases, way == "reload")
            self.assertEqual(plan["disk_bytes"] > 0, way == "reload")
        _, phases = plans["reload"]
        self.assertEqual(phases["store_weights"]["disk_written"], plans["reload"][0]["disk_bytes"])
        self.assertEqual(phases["wake_up"]["disk_read"], plans["reload"][0]["disk_bytes"])

    def test_validations_generate_with_the_copy(self):
        words = ("trainer.test_freq=1", "trainer.save_freq=-1")
        runs = [self.train("validated", way, 256, *words) for way in WAYS]
        for run in runs[1:]:
            self.assertEqual(self.metrics(run), self.metrics(runs[0]))
            self.assertEqual(self.validations(run), self.validations(runs[0]))

    def test_adapters_are_copied_with_the_base(self):
        self.assert_ways_agree("lora", "actor_rollout_ref.model.lora_rank=4", "data.val_files=[]", "trainer.save_freq=-1")

    def test_a_rollout_that_wakes_up_at_once_needs_room_for_the_trained_weights_too(self):
        # The KV cache is most of the memory, and weights are more than temporaries.
        self.add_model("wide", dict(MODEL, intermediate_size=1024))
        cache = ("actor_rollout_ref.model.path=wide", "algorithm.use_kl_in_reward=false", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
                 "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1", "reward_model.micro_batch_size_per_gpu=1",
                 "actor_rollout_ref.rollout.max_num_batched_tokens=64", "actor_rollout_ref.rollout.batch_size=0", "actor_rollout_ref.rollout.n=12",
                 "data.max_response_length=64", "data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16", "data.val_files=[]",
                 "trainer.save_freq=-1", 'memory.allow=["recompute","offload","offload_optimizer","offload_weights"]')
        least = {way: self.least(way, *cache) for way in WAYS}
        self.assertLess(least["stages"], least["whole"])
        self.assertLessEqual(least["stages"], least["reload"])
        self.assertLess(least["reload"], least["whole"])
        self.assertLess(least["whole"], least["resident"])
        plan, phases = self.assert_as_planned(self.train("cache", "whole", least["whole"], *cache), least["whole"])
        tags = {tag["tag"]: dict(zip(phases, tag["cells"])) | {"bytes": tag["bytes"]} for tag in plan["tags"]}
        self.assertEqual(phases["wake_up"]["peak"], plan["peak"])
        for tag in ("actor.weights", "actor.rollout_weights", "rollout.kv"):
            self.assertEqual(tags[tag]["wake_up"], "need")
        self.assertNotIn(tags["actor.weights"]["generate"], ("need", "drop"))
        self.assertEqual(tags["rollout.kv"]["train_actor" if "train_actor" in phases else "backward_actor"], "drop")

    def test_what_does_not_fit_is_refused_with_numbers(self):
        least = self.least("resident")
        result = self.neap("train", "grpo.toml", KEY + "resident", f"device.memory={least - 1}MiB", "trainer.default_local_dir=out/refused")
        self.assert_fails(result, 3, f"minimum capacity is {least} MiB", "actor.weights")
        advice = self.neap("plan", "grpo.toml", KEY + "resident", f"device.memory={least - 1}MiB")
        self.assertIn(KEY + "stages", advice.stdout + advice.stderr)
        self.assert_fails(self.neap("plan", "grpo.toml", KEY + "whole", "memory.offload=none"), 2, 'colocation "whole"', 'memory.offload is "none"')
        self.assert_fails(self.neap("plan", "grpo.toml", KEY + "reload", "algorithm.filter_groups.enable=true"), 2, "once per step")
        self.assert_fails(self.neap("plan", "grpo.toml", KEY + "asleep"), 2, '"stages", "whole", "reload", "resident"')


if __name__ == "__main__":
    main()
