#!/usr/bin/env python3
"""Trained blocks that rest on the host of each of several ranks. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

The same bits as with everything on the device, on the same ranks and whatever is sliced, in less memory.
NEAP_TEST_SLOW=1: every case.
"""
import json
import pathlib
import re
import sys
import unittest

import launch

from neap_program import least_host, slow
from rank_case import FILES, OPTIMIZER, SIZE, RankCase
from train_process_test import MODEL, PPO, REWARD, SFT, WIDE, read_lines  # noqa: E402

# Tables of 4 MiB.
TABLES = dict(WIDE, vocab_size=8192, num_hidden_layers=4)
DEEP = dict(WIDE, num_hidden_layers=16)
UNTIED = dict(TABLES, tie_word_embeddings=False)
# Units of more than a tile: ranks cut them.
LARGE = dict(MODEL, hidden_size=768, intermediate_size=2048, num_attention_heads=6, num_key_value_heads=6, head_dim=128, num_hidden_layers=3)
RESIDENT = ("device.memory=2GiB", "memory.offload=none")
KEPT = 'memory.allow=["recompute", "offload", "offload_optimizer"]'


def actor(name):
    return f"actor_rollout_ref.model.path=out/{name}/latest/actor"


class Streamed(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 2")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace('["sft_val.jsonl"]', "[]")
        (cls.home / "sft.toml").write_text(sft)
        pairs = REWARD.replace("train_batch_size = 8", "train_batch_size = 12").replace("per_gpu = 4", "per_gpu = 1")
        pairs = pairs.replace("total_training_steps = 3", "total_training_steps = 2").replace('["pairs_val.jsonl"]', "[]")
        (cls.home / "reward.toml").write_text(pairs.replace("save_freq = -1", "save_freq = 2"))
        (cls.home / "dpo.toml").write_text(pairs.replace('"reward"', '"dpo"').replace("save_freq = -1", "save_freq = 2"))
        ppo = PPO.replace("CEILING", "2GiB").replace("total_training_steps = 6", "total_training_steps = 2")
        ppo = ppo.replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 2")
        (cls.home / "ppo.toml").write_text(ppo)
        grpo = re.sub(r"\[critic\][^\[]*", "", ppo.replace('"ppo"', '"grpo"')).replace("out/reward/", "out/judge/")
        (cls.home / "grpo.toml").write_text(grpo.replace("ref.rollout]", "ref.rollout]\nn = 2"))
        models = {"wide": WIDE, "deep": DEEP, "tables": TABLES, "untied": UNTIED, "large": LARGE}
        for name, config in models.items():
            cls.add_model(name, config)
        once = ("trainer.total_training_steps=1", "trainer.save_freq=1", "device.memory=4GiB", "data.train_batch_size=4",
                "data.micro_batch_size_per_gpu=4")
        for name in models:
            result = launch.train(1, "sft.toml", f"actor_rollout_ref.model.path={name}", f"trainer.default_local_dir=out/{name}", *once, cwd=cls.home)
            assert result.returncode == 0, result.stderr
        result = launch.train(1, "reward.toml", actor("wide"), "trainer.default_local_dir=out/judge", *once, cwd=cls.home)
        assert result.returncode == 0, result.stderr

    def plan(self, ranks, task, *words):
        return launch.run(1, launch.NEAP, "plan", f"{task}.toml", "--ranks", str(ranks), *words, cwd=self.home)

    def least(self, ranks, task, *words):
        """The minimum capacity in MiB."""
        result = self.plan(ranks, task, *words, "device.memory=1MiB")
        self.assertEqual(result.returncode, 3, result.stderr)
        return int(re.search(r"minimum capacity is (\d+) MiB", result.stderr).group(1))

    def least_host(self, ranks, *words):
        """The least memory.host_budget in bytes."""
        return least_host(lambda budget: self.plan(ranks, "sft", *words, f"memory.host_budget={budget}B", "--json"))

    def assert_streamed_is_resident(self, name, ranks, *words, task="sft", stages=(0, 1, 2), models=("actor",), files=FILES, tables=False,
                                    peaks=1.0):
        """Of every stage; the folders."""
        whole = f"{name}-{ranks}-whole"
        self.run_ranks(ranks, whole, *words, *RESIDENT, task=task)
        folders = []
        for stage in stages:
            own = (*words, f"parallel.zero_stage={stage}")
            least = self.least(ranks, task, *own)
            self.assertLess(least, self.least(ranks, task, *own, KEPT), name)
            folder = f"{name}-{ranks}-{stage}"
            self.run_ranks(ranks, folder, *own, f"device.memory={least}MiB", task=task)
            trained = [f.replace("actor", model, 1) for f in files for model in models if model in ("actor", "critic")]
            self.assert_same_files(whole, folder, files=trained)
            self.assertEqual(self.metrics(f"out/{whole}"), self.metrics(f"out/{folder}"))
            for rank in range(ranks):
                of_rank = folder if rank == 0 else f"{folder}/ranks/{rank}"
                self.assert_comes_as_planned(of_rank, models, least << 20, tables, rank == 0 and stage < 3, peaks, sliced=stage > 0)
            folders.append(folder)
        return folders

    def assert_comes_as_planned(self, folder, models, capacity, tables, exact, peaks, sliced=False):
        """`sliced`: plans of updates are those of the largest slice, which may be another rank's."""
        plan = json.loads((self.home / "out" / folder / "plan.json").read_text())
        self.assertLessEqual(set(models), set(plan["offloaded_weights"]), folder)
        if tables:
            self.assertTrue(plan["offloaded_embeddings"], folder)
        planned = {phase["name"]: phase for phase in plan["phases"]}
        fetched, stored, runs = {}, {}, {}
        for record in read_lines(self.home / "out" / folder / "phases.jsonl"):
            phase = planned[record["phase"]]
            self.assertEqual(record["persistent"], phase["persistent"], record)
            self.assertLessEqual(record["peak"], min(capacity, peaks * phase["peak"]), record)
            key = record["step"], record["phase"]
            runs[key] = runs.get(key, 0) + 1
            fetched[key] = fetched.get(key, 0) + sum(s["to_device"] for s in record["streamed"])
            stored[key] = stored.get(key, 0) + sum(s["to_host"] for s in record["streamed"])
        self.assertTrue(any(fetched.values()), folder)
        for key, size in fetched.items() if exact else ():
            if size and sliced and key[1].startswith("update"):
                self.assertLessEqual(size, runs[key] * planned[key[1]]["loaded"], (folder, key))
            elif size:
                self.assertEqual(size % planned[key[1]]["loaded"], 0, (folder, key, size, planned[key[1]]["loaded"]))
                self.assertLessEqual(stored[key], planned[key[1]]["written_back"], (folder, key))

    def test_supervised(self):
        self.assert_streamed_is_resident("wide", 2, actor("wide"))
        self.assert_streamed_is_resident("wide", 4, actor("wide"), "data.micro_batch_size_per_gpu=3", stages=(1,))
        self.assert_streamed_is_resident("adafactor", 3, actor("wide"), f"{OPTIMIZER}optimizer=adafactor", f"{OPTIMIZER}lr=0.01", stages=(0, 1))
        self.assert_streamed_is_resident("masters", 2, actor("wide"), "device.dtype=bfloat16", stages=(0, 2))

    def test_blocks_on_disk(self):
        """Where no rank's host memory has room for them: each rank has files of its own."""
        allow = 'memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"]'
        scratch = self.home / "scratch"
        scratch.mkdir()
        for name, ranks, more in (("0", 2, ("parallel.zero_stage=0",)), ("1", 2, ("parallel.zero_stage=1",)), ("2", 3, ("parallel.zero_stage=2",)),
                                  ("masters", 2, ("parallel.zero_stage=1", "device.dtype=bfloat16"))):
            words = (actor("large"), "data.micro_batch_size_per_gpu=2", allow, *more)
            self.run_ranks(ranks, f"disk-{name}-whole", *words, "parallel.zero_stage=0", *RESIDENT)
            ceiling = f"device.memory={self.least(ranks, 'sft', *words) + 4}MiB"
            words = (*words, ceiling)
            self.run_ranks(ranks, f"disk-{name}", *words, f"memory.host_budget={self.least_host(ranks, *words)}B", f"memory.nvme_path={scratch}")
            self.assertEqual(list(scratch.iterdir()), [])
            self.assert_same_files(f"disk-{name}-whole", f"disk-{name}")
            self.assertEqual(self.metrics(f"out/disk-{name}-whole"), self.metrics(f"out/disk-{name}"))
            for rank in range(ranks):
                self.assert_disk_is_used_as_planned(f"disk-{name}" if rank == 0 else f"disk-{name}/ranks/{rank}", "stage=0" in more[0])

    def test_slices_on_disk(self):
        """Of weights and gradients: each rank has its own."""
        allow = 'memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"]'
        scratch = self.home / "scratch-slices"
        scratch.mkdir()
        for name, ranks, more in (("one", 2, ("data.micro_batch_size_per_gpu=6",)), ("groups", 2, ("data.micro_batch_size_per_gpu=3",)),
                                  ("masters", 3, ("data.micro_batch_size_per_gpu=4", "device.dtype=bfloat16"))):
            words = (actor("deep"), *more, "parallel.zero_stage=3")
            kept = self.least(ranks, "sft", *words, KEPT)
            self.run_ranks(ranks, f"slices-{name}-device", *words, KEPT, f"device.memory={kept}MiB")
            words = (*words, allow, f"device.memory={self.least(ranks, 'sft', *words)}MiB")
            self.run_ranks(ranks, f"slices-{name}", *words, f"memory.host_budget={self.least_host(ranks, *words)}B", f"memory.nvme_path={scratch}")
            self.assertEqual(list(scratch.iterdir()), [])
            self.assert_same_files(f"slices-{name}-device", f"slices-{name}")
            self.assertEqual(self.metrics(f"out/slices-{name}-device"), self.metrics(f"out/slices-{name}"))
            for rank in range(ranks):
                folder = f"slices-{name}" if rank == 0 else f"slices-{name}/ranks/{rank}"
                self.assert_disk_is_used_as_planned(folder, False)
                plan = json.loads((self.home / "out" / folder / "plan.json").read_text())
                self.assertEqual(plan["offloaded_gradients"], ["actor"])
                rests = [part for tag in plan["tags"] for part in tag.get("offloaded", []) if part.get("on") == "disk"]
                self.assertEqual(sorted(part["kind"] for part in rests), ["gradients", "states", "weights"])
                self.assertEqual(sum(part["bytes"] for part in rests), plan["disk_bytes"])

    def assert_disk_is_used_as_planned(self, folder, exact):
        """`exact`: else plans are those of the largest slice, which may be another rank's."""
        plan = json.loads((self.home / "out" / folder / "plan.json").read_text())
        self.assertEqual((plan["weights_on_nvme"], plan["optimizer_offload"]), (["actor"], {"actor": "nvme"}))
        for record in read_lines(self.home / "out" / folder / "phases.jsonl"):
            phase = next(phase for phase in plan["phases"] if phase["name"] == record["phase"])
            moved = {key: phase["times"] * sum(use.get(key, 0) for use in record["streamed"]) for key in ("disk_read", "disk_written")}
            self.assertGreater(min(moved.values()), 0, record)
            if exact:
                self.assertEqual(moved, {key: phase[key] for key in moved}, record)
            else:  # what others have stepped is written, too; the rank with most states may have more of a table
                self.assertLessEqual(sum(moved.values()), 1.1 * (phase["disk_read"] + phase["disk_written"]), record)

    def test_tables_in_turns(self):
        self.assert_streamed_is_resident("tables", 2, actor("tables"), tables=True)
        self.assert_streamed_is_resident("untied", 3, actor("untied"), tables=True, stages=(0, 1))

    @slow
    def test_units_that_ranks_cut(self):
        words = (actor("large"), "data.micro_batch_size_per_gpu=4")
        self.assert_streamed_is_resident("large", 3, *words, stages=(0, 1))

    def test_adapters(self):
        # Of one micro-batch: stage 2 sends adapters' gradients with each.
        self.assert_streamed_is_resident("lora", 3, actor("wide"), "actor_rollout_ref.model.lora_rank=4",
                                         "data.micro_batch_size_per_gpu=4", stages=(0, 2),
                                         files=("actor/adapter_model.safetensors", FILES[1]))

    def test_other_tasks(self):
        self.assert_streamed_is_resident("dpo", 2, actor("untied"), task="dpo", stages=(1,))
        self.assert_streamed_is_resident("grpo", 2, actor("wide"), "data.val_files=[]", task="grpo", stages=(0, 1))
        critic = ("critic.model.path=out/judge/latest/reward", "reward_model.model.path=out/judge/latest/reward")
        self.assert_streamed_is_resident("ppo", 2, actor("wide"), *critic, "data.val_files=[]", task="ppo", stages=(0, 1),
                                         models=("actor", "critic"))

    def test_slices_on_the_host(self):
        """Of one micro-batch, as always with stage 3."""
        whole = ("data.micro_batch_size_per_gpu=6",)
        self.assert_streamed_is_resident("slices", 2, actor("wide"), *whole, stages=(3,))
        self.assert_streamed_is_resident("slices-untied", 2, actor("untied"), *whole, "device.dtype=bfloat16", stages=(3,))
        self.assert_streamed_is_resident("slices-large", 3, actor("large"), "data.micro_batch_size_per_gpu=4", stages=(3,))
        self.assert_streamed_is_resident("slices-lora", 3, actor("wide"), "actor_rollout_ref.model.lora_rank=4",
                                         "data.micro_batch_size_per_gpu=4", stages=(3,), files=("actor/adapter_model.safetensors", FILES[1]))

    def test_inputs_of_slices(self):
        """They leave with the slices, and alone if these stay where their states do."""
        words = (actor("deep"), "data.train_batch_size=24", "data.micro_batch_size_per_gpu=12", "actor_rollout_ref.model.activation_checkpointing=full")
        folder, = self.assert_streamed_is_resident("inputs", 2, *words, stages=(3,))
        words = (*words, "parallel.zero_stage=3", "memory.optimizer_offload=none")
        room = self.least(2, "sft", *words)
        self.assertLess(room, self.least(2, "sft", *words, KEPT))
        self.run_ranks(2, "inputs-alone", *words, f"device.memory={room}MiB")
        self.assert_same_files("inputs-2-whole", "inputs-alone")
        self.assertEqual(self.metrics("out/inputs-2-whole"), self.metrics("out/inputs-alone"))
        self.assert_comes_as_planned("inputs-alone", (), room << 20, tables=False, exact=True, peaks=1.0, sliced=True)
        for name, weights in ((folder, ["actor"]), ("inputs-alone", [])):
            plan = json.loads((self.home / f"out/{name}/plan.json").read_text())
            self.assertEqual((plan["offloaded_weights"], plan["offloaded_layer_inputs"]), (weights, ["actor"]), name)

    @slow
    def test_slices_of_other_tasks(self):
        self.assert_streamed_is_resident("dpo-slices", 2, actor("untied"), "data.micro_batch_size_per_gpu=6", task="dpo", stages=(3,))
        critic = ("critic.model.path=out/judge/latest/reward", "reward_model.model.path=out/judge/latest/reward")
        self.assert_streamed_is_resident("grpo-slices", 2, actor("wide"), "data.val_files=[]",
                                         "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", task="grpo", stages=(3,))
        self.assert_streamed_is_resident("ppo-slices", 2, actor("wide"), *critic, "data.val_files=[]", task="ppo", stages=(3,),
                                         models=("actor", "critic"))

    def test_slices_of_gradients_on_the_host(self):
        """Where those of the weights are not enough: of one group of micro-batches, of several, and of replicas."""
        for name, ranks, words in (("one-group", 2, ("data.micro_batch_size_per_gpu=6",)),
                                   ("groups", 2, ("data.micro_batch_size_per_gpu=2", f"{OPTIMIZER}gradient_dtype=bfloat16", "device.dtype=bfloat16")),
                                   ("factored", 3, ("data.micro_batch_size_per_gpu=2", f"{OPTIMIZER}optimizer=adafactor", f"{OPTIMIZER}lr=0.01")),
                                   ("uneven", 3, ("data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70")),
                                   ("replicas", 4, ("data.micro_batch_size_per_gpu=1", "parallel.zero_shard_size=2"))):
            with self.subTest(name):
                words = (actor("deep"), *words, "parallel.zero_stage=3")
                least = self.least(ranks, "sft", *words)
                # In as little memory, so that groups have one micro-batch, too: each is added up over ranks.
                kept = self.least(ranks, "sft", *words, KEPT)
                self.run_ranks(ranks, f"{name}-device", *words, KEPT, f"device.memory={kept}MiB")
                self.run_ranks(ranks, f"{name}-host", *words, f"device.memory={least}MiB")
                self.assert_same_files(f"{name}-device", f"{name}-host")
                self.assertEqual(self.metrics(f"out/{name}-device"), self.metrics(f"out/{name}-host"))
                together = [json.loads((self.home / f"out/{name}-{where}/plan.json").read_text())["micro_batches_per_load"] for where in ("device", "host")]
                self.assertEqual(together, [{"actor": 1}] * 2)
                for rank in range(ranks):
                    self.assert_gradients_come_as_planned(f"{name}-host" if rank == 0 else f"{name}-host/ranks/{rank}", least << 20, name)
        # With more room they stay on the device, and weights alone come.
        words = (actor("deep"), "data.micro_batch_size_per_gpu=6", "parallel.zero_stage=3")
        least, kept = self.least(2, "sft", *words), self.least(2, "sft", *words, KEPT)
        plans = [json.loads(self.plan(2, "sft", *words, f"device.memory={size}MiB", "--json").stdout) for size in range(least, kept + 1)]
        chosen = [(plan["offloaded_weights"], plan["offloaded_gradients"]) for plan in plans]
        self.assertEqual(chosen[0], (["actor"], ["actor"]))
        self.assertIn((["actor"], []), chosen)
        self.assertEqual(chosen[-1], ([], []))

    def assert_gradients_come_as_planned(self, folder, capacity, name):
        plan = json.loads((self.home / "out" / folder / "plan.json").read_text())
        self.assertEqual(plan["offloaded_gradients"], ["actor"])
        self.assertNotIn("actor.grads", [tag["tag"] for tag in plan["tags"]])
        planned = {phase["name"]: phase for phase in plan["phases"]}
        moved = {"to_device": 0, "to_host": 0}
        for record in read_lines(self.home / "out" / folder / "phases.jsonl"):
            phase = planned[record["phase"]]
            self.assertEqual(record["persistent"], phase["persistent"], record)
            self.assertLessEqual(record["peak"], min(capacity, phase["peak"]), record)
            for use in record["streamed"]:
                if (use["tag"], use["what"]) != ("actor.unit_grads", "gradients"):
                    continue
                self.assertEqual(record["phase"], "backward")
                for way in moved:
                    moved[way] += use[way]
        self.assertGreater(moved["to_host"], 0)
        # The first group of a mini-batch brings nothing.
        if name == "one-group":
            self.assertEqual(moved["to_device"], 0)
        elif name in ("groups", "replicas"):
            self.assertEqual(moved["to_device"] * 3, moved["to_host"] * 2)

    def test_packed_rows_of_ranks_differ(self):
        packed = (actor("wide"), "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70")
        self.run_ranks(3, "packed-whole", *packed, *RESIDENT)
        for stage in (0, 1):
            own = (*packed, f"parallel.zero_stage={stage}")
            least = self.least(3, "sft", *own)
            self.run_ranks(3, f"packed-{stage}", *own, f"device.memory={least}MiB")
            self.assert_same_files("packed-whole", f"packed-{stage}")
            self.assertEqual(self.metrics("out/packed-whole"), self.metrics(f"out/packed-{stage}"))

    def test_models_that_ranks_divide(self):
        """A rank's part is streamed; with copies of it, too."""
        for ranks, stage in ((2, 0), (4, 1)):
            words = (actor("wide"), f"{SIZE}=2", f"parallel.zero_stage={stage}")
            self.run_ranks(ranks, f"divided-{ranks}", *words, *RESIDENT)
            least = self.least(ranks, "sft", *words)
            self.assertLess(least, self.least(ranks, "sft", *words, KEPT))
            self.run_ranks(ranks, f"divided-{ranks}-streamed", *words, f"device.memory={least}MiB")
            self.assert_same_files(f"divided-{ranks}", f"divided-{ranks}-streamed")
            self.assertEqual(self.metrics(f"out/divided-{ranks}"), self.metrics(f"out/divided-{ranks}-streamed"))
            self.assert_comes_as_planned(f"divided-{ranks}-streamed", ("actor",), least << 20, False, True, 1.0)

    @slow
    def test_replicas_of_slices(self):
        """What ranks keep and send is of the slices that two of them have together."""
        for stage in (1, 2, 3):
            words = (actor("wide"), "data.micro_batch_size_per_gpu=3", f"parallel.zero_stage={stage}", "parallel.zero_shard_size=2")
            self.run_ranks(4, f"replicas-{stage}-whole", *words, *RESIDENT)
            least = self.least(4, "sft", *words)
            self.assertLess(least, self.least(4, "sft", *words, KEPT))
            self.run_ranks(4, f"replicas-{stage}", *words, f"device.memory={least}MiB")
            self.assert_same_files(f"replicas-{stage}-whole", f"replicas-{stage}")
            self.assertEqual(self.metrics(f"out/replicas-{stage}-whole"), self.metrics(f"out/replicas-{stage}"))
            for rank in range(4):
                of_rank = f"replicas-{stage}" if rank == 0 else f"replicas-{stage}/ranks/{rank}"
                self.assert_comes_as_planned(of_rank, ("actor",), least << 20, False, rank == 0 and stage < 3, 1.0, sliced=True)

    def test_a_group_comes_together(self):
        words = (actor("wide"), "data.micro_batch_size_per_gpu=1", "parallel.zero_stage=1")
        least, kept = self.least(2, "sft", *words), self.least(2, "sft", *words, KEPT)
        for share in (0.25, 0.5, 0.75):
            capacity = least + int(share * (kept - least))
            shown = json.loads(self.plan(2, "sft", *words, f"device.memory={capacity}MiB", "--json").stdout)
            if max(shown["micro_batches_per_load"].values(), default=1) > 1:
                break
        self.assertGreater(max(shown["micro_batches_per_load"].values(), default=1), 1)
        self.run_ranks(2, "together-whole", *words, *RESIDENT)
        self.run_ranks(2, "together", *words, f"device.memory={capacity}MiB")
        self.assert_same_files("together-whole", "together")
        self.assert_comes_as_planned("together", ("actor",), capacity << 20, False, True, 1.0)

    def test_a_run_resumes_on_other_ranks(self):
        def go_on(ranks, folder, *words):
            checkpoint = self.home / "out/from/global_step_2"
            words = (*words, actor("wide"), f"trainer.resume_mode={checkpoint}", "trainer.total_training_steps=3")
            self.run_ranks(ranks, folder, *words)

        least = self.least(2, "sft", actor("wide"), "parallel.zero_stage=1")
        self.run_ranks(2, "from", actor("wide"), "parallel.zero_stage=1", f"device.memory={least}MiB")
        for ranks in (1, 3):
            go_on(ranks, f"to-{ranks}-whole", *RESIDENT)
            go_on(ranks, f"to-{ranks}", f"device.memory={self.least(ranks, 'sft', actor('wide'))}MiB")
            self.assert_same_files(f"to-{ranks}-whole", f"to-{ranks}", step=3)

    def test_the_plan_says_what_rests_on_the_host(self):
        # All rows in one micro-batch.
        stored = {}
        for stage in (0, 1, 2):
            words = (actor("wide"), "data.micro_batch_size_per_gpu=6", f"parallel.zero_stage={stage}")
            words = (*words, f"device.memory={self.least(2, 'sft', *words)}MiB")
            shown = self.plan(2, "sft", *words)
            self.assertRegex(shown.stdout, r"actor\.prefetch: 6 layers.* with gradients.*offloaded to the CPU", shown.stderr)
            plan = json.loads(self.plan(2, "sft", *words, "--json").stdout)
            backward = next(phase for phase in plan["phases"] if phase["name"] == "backward")
            stored[stage] = backward["written_back"]
            self.assertGreater(backward["communication_bytes"], 0)
        # A rank stores what it steps of the gradients, about half of them.
        self.assertLess(stored[1], 0.8 * stored[0])
        self.assertEqual(stored[2], stored[1])


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
