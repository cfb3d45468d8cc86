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

from rank_case import CHUNKS, FILES, RankCase, ROWS, SIZE, STAGES, ZERO_BUBBLE
from train_process_test import grpo_of, MODEL, PPO, read_lines, REWARD, SFT  # noqa: E402

# Blocks of 1 MiB beside a table as large.
DEEP = dict(MODEL, num_hidden_layers=12, hidden_size=128, intermediate_size=512, tie_word_embeddings=False)
TABLES = dict(DEEP, vocab_size=8192)
RESIDENT = ("device.memory=2GiB", "memory.residency=all")
KEPT = 'memory.allow=["recompute", "move", "stream"]'
REFERENCE, CRITIC, JUDGE = (f"{model}.pipeline_model_parallel_size" for model in ("actor_rollout_ref.ref", "critic", "reward_model"))
CRITIC_FILES = ("critic/adapter_model.safetensors", "critic/optimizer.safetensors")
CRITIC_WHOLE = ("critic/model.safetensors", CRITIC_FILES[1])
ADAPTERS = ("actor/adapter_model.safetensors", FILES[1])
CRITIC_LORA = "critic.model.lora_rank=4"


class StreamedStages(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        models = {"deep": DEEP, "tables": TABLES, "tied": dict(TABLES, tie_word_embeddings=True), "joined": dict(DEEP, tie_word_embeddings=True), "few": dict(MODEL, num_hidden_layers=4)}
        for name, config in models.items():
            cls.add_model(name, config)
        (cls.home / "sft.toml").write_text(SFT.replace("total_training_steps = 8", "total_training_steps = 2"))
        (cls.home / "reward.toml").write_text(REWARD.replace("total_training_steps = 3", "total_training_steps = 1"))
        (cls.home / "dpo.toml").write_text(REWARD.replace('"reward"', '"dpo"').replace("total_training_steps = 3", "total_training_steps = 2")
                                           .replace("save_freq = -1", "save_freq = 2").replace('["pairs_val.jsonl"]', "[]"))
        once = ("trainer.total_training_steps=1", "trainer.save_freq=1", "device.memory=4GiB")
        for task, name, path in (("sft", "small", "few"), ("sft", "deep", "deep"), ("sft", "tables", "tables"), ("sft", "tied", "tied"),
                                 ("reward", "judge", "out/deep/latest/actor"),
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
        (cls.home / "grpo.toml").write_text(grpo_of(ppo))

    def plan(self, ranks, task, *words):
        return launch.run(1, launch.NEAP, "plan", f"{task}.toml", "--ranks", str(ranks), *words, cwd=self.home)

    def least(self, ranks, task, *words):
        """The least capacity in MiB that all kinds of ranks fit in: what the first refusal says."""
        result = self.plan(ranks, task, *words, "device.memory=1MiB")
        self.assertEqual(result.returncode, 3, result.stderr)
        least = int(re.search(r"least capacity is (\d+) MiB", result.stderr).group(1))
        result = self.plan(ranks, task, *words, f"device.memory={least}MiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        return least

    def assert_streamed_is_resident(self, name, ranks, models, *words, task="sft", files=FILES, room=0, trains_slices=False):
        """`models`: what each rank streams at least, at the least capacity with `room` MiB more; one of them something."""
        self.run_ranks(ranks, f"{name}-whole", *words, *RESIDENT, task=task)
        least = self.least(ranks, task, *words)
        self.assertLess(least, self.least(ranks, task, *words, KEPT), name)
        self.run_ranks(ranks, name, *words, f"device.memory={least + room}MiB", task=task)
        self.assert_same_files(f"{name}-whole", name, files=files)
        self.assertEqual(self.metrics(f"out/{name}-whole"), self.metrics(f"out/{name}"))
        any_streams = False
        for rank in range(ranks):
            plan = self.assert_comes_as_planned(name if rank == 0 else f"{name}/ranks/{rank}", any("zero_stage" in word for word in words), trains_slices)
            self.assertLessEqual(set(models[rank] if models else ()), set(plan["streamed_weights"]), (name, rank))
            any_streams = any_streams or bool(plan["streamed_weights"])
        self.assertTrue(any_streams, name)

    def assert_comes_as_planned(self, folder, sliced, trains_slices=False):
        plan = self.assert_planned_is_measured(folder)
        planned = {phase["name"]: phase for phase in plan["phases"]}
        moved, runs = {}, {}
        for record in read_lines(self.home / "out" / folder / "phases.jsonl"):
            if record["phase"] == "validate":
                continue  # of other rows
            key = record["step"], record["phase"]
            runs[key] = runs.get(key, 0) + 1
            of = moved.setdefault(key, {"fetched": 0, "stored": 0})
            of["fetched"] += sum(use["to_device"] for use in record["streamed"])
            of["stored"] += sum(use["to_host"] for use in record["streamed"])
        if plan["streamed_weights"]:
            self.assertTrue(any(of["fetched"] for of in moved.values()), folder)
        for (step, phase), of in moved.items():
            self.assertEqual(runs[step, phase], planned[phase]["times"], (folder, step, phase))
            if trains_slices and phase in ("backward", "backward_critic", "values"):  # ranks have slices of other units, each used as often as these
                self.assertGreater(of["fetched"], 0, (folder, step, phase))
                self.assertEqual(of["stored"] > 0, phase != "values" and bool(plan["streamed_gradients"]), (folder, step, phase))
                continue
            # Planned of the largest slice, which may be another rank's.
            if sliced and (phase.startswith("update") or (phase == "backward" and plan["streamed_tables"])):
                for way, size in of.items():
                    self.assertLessEqual(size, planned[phase][way], (folder, step, phase))
                continue
            self.assertEqual(of, {way: planned[phase][way] for way in of}, (folder, step, phase))
        return plan

    def test_whole_models_beside_an_actor_in_stages(self):
        whole = (f"{STAGES}=2", f"{REFERENCE}=1", f"{CRITIC}=1", f"{JUDGE}=1", CRITIC_LORA)
        frozen = ("reference", "critic", "reward")
        self.assert_streamed_is_resident("beside", 2, (frozen, frozen), *whole, task="ppo", files=(*FILES, *CRITIC_FILES))
        # Micro-batches that go through a block together, and slices on the host.
        self.assert_streamed_is_resident("beside-groups", 2, (frozen, frozen), *whole, "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
                                         task="ppo", files=(*FILES, *CRITIC_FILES), room=1)
        together = json.loads((self.home / "out/beside-groups/plan.json").read_text())["streamed_together"]
        self.assertGreater(together["reference"], 1)
        slices = ("actor_rollout_ref.ref.zero_stage=3", "reward_model.zero_stage=3", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1")
        for name, room in (("beside-slices", 0), ("beside-slices-groups", 2)):
            self.assert_streamed_is_resident(name, 2, (frozen[:2], frozen[:2]), *whole, *slices, task="ppo", files=(*FILES, *CRITIC_FILES), room=room)
        plans = [json.loads((self.home / f"out/beside-slices-groups{rank}/plan.json").read_text())["streamed_together"] for rank in ("", "/ranks/1")]
        self.assertGreater(plans[0]["reference"], 1)
        self.assertEqual(plans[0]["reference"], plans[1]["reference"])

    def test_trained_blocks_of_models_that_several_kinds_share(self):
        """A whole critic beside an actor in stages, a whole actor beside a critic in stages, stages that others cut: ranks add up gradients, and
        update, alike."""
        whole = (f"{STAGES}=2", f"{REFERENCE}=1", f"{CRITIC}=1", f"{JUDGE}=1")
        of_critic = (*FILES, *CRITIC_WHOLE)
        for name, words, room in (("", ("critic.grad_clip=0.01",), 0), ("-zero", ("critic.zero_stage=1",), 0), ("-gradients", ("critic.zero_stage=2",), 0),
                                  ("-parts", ("critic.tensor_model_parallel_size=2", "critic.sequence_parallel=true"), 0),
                                  ("-groups", ("critic.ppo_micro_batch_size_per_gpu=1",), 4)):
            with self.subTest(f"shared{name}"):
                self.assert_streamed_is_resident(f"shared{name}", 2, (("critic",),) * 2, *whole, *words, task="ppo", files=of_critic, room=room)
        with self.subTest("shared-slices"):
            self.assert_streamed_is_resident("shared-slices", 2, (("critic",),) * 2, *whole, "critic.zero_stage=3", task="ppo", files=of_critic, trains_slices=True)
        with self.subTest("shared-slices-groups"):  # the resident ones are in the largest, which have the same order of sums
            self.assert_streamed_is_resident("shared-slices-groups", 2, (("critic",),) * 2, *whole, "critic.zero_stage=3", "critic.ppo_micro_batch_size_per_gpu=1",
                                             task="ppo", files=of_critic, room=6, trains_slices=True)
        for name in ("groups", "slices-groups"):
            together = [json.loads((self.home / f"out/shared-{name}{rank}/plan.json").read_text())["streamed_together"]["critic"] for rank in ("", "/ranks/1")]
            self.assertGreater(together[0], 1, name)
            self.assertEqual(together[0], together[1], name)
        generates = (f"{CRITIC}=2", "critic.model.path=out/shallow/latest/reward", f"{JUDGE}=1")
        for name, path in (("", "out/deep/latest/actor"), ("-tied", "joined")):
            with self.subTest(f"shared-actor{name}"):
                self.assert_streamed_is_resident(f"shared-actor{name}", 2, (("actor",),) * 2, *generates, f"actor_rollout_ref.model.path={path}",
                                                 task="ppo", files=of_critic)
        cut = ("actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.ref.model.path=out/small/latest/actor", f"{REFERENCE}=4")
        for name, words in (("", ()), ("-zero", ("parallel.zero_stage=2",))):
            with self.subTest(f"cut{name}"):
                self.assert_streamed_is_resident(f"cut{name}", 4, (), f"{STAGES}=2", *cut, *words, task="dpo")
                streamed = ["actor" in json.loads((self.home / f"out/{folder}/plan.json").read_text())["streamed_weights"]
                            for folder in (f"cut{name}", *(f"cut{name}/ranks/{rank}" for rank in (1, 2, 3)))]
                self.assertEqual(streamed, [streamed[0]] * 2 + [streamed[2]] * 2)
                self.assertIn(True, streamed)

    def test_each_stage_places_frozen_models_that_no_other_one_takes_part_in(self):
        """The second one has more of the actor, and less room. What a critic that trains has rests alike."""
        words = (f"{STAGES}=2", f"{REFERENCE}=1", f"{CRITIC}=1", f"{JUDGE}=1", CRITIC_LORA, "actor_rollout_ref.model.path=out/deep/latest/actor",
                 "actor_rollout_ref.actor.pipeline_model_parallel_layout=[1,11]", 'memory.allow=["recompute", "stream", "stream_weights"]')
        self.run_ranks(2, "apart-whole", *words, *RESIDENT, task="ppo")
        self.run_ranks(2, "apart", *words, "device.memory=46MiB", task="ppo")
        self.assert_same_files("apart-whole", "apart", files=(*FILES, *CRITIC_FILES))
        self.assertEqual(self.metrics("out/apart-whole"), self.metrics("out/apart"))
        plans = [self.assert_comes_as_planned(folder, False) for folder in ("apart", "apart/ranks/1")]
        self.assertEqual([plan["streamed_weights"] for plan in plans], [["reference", "critic"], ["reference", "critic", "reward"]])

    def test_an_actor_beside_stages(self):
        """It generates with all blocks."""
        words = (f"{CRITIC}=2", "actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.model.lora_rank=4",
                 "critic.model.path=out/shallow/latest/reward", f"{JUDGE}=1")
        self.assert_streamed_is_resident("actor", 2, (("actor",), ("actor",)), *words, task="ppo",
                                         files=("actor/adapter_model.safetensors", FILES[1], *CRITIC_WHOLE))

    def test_frozen_blocks_of_stages(self):
        """Of adapters that train, and of their base, which is the reference."""
        lora = ("actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.model.lora_rank=4", "data.micro_batch_size_per_gpu=2")
        blocks = "parallel.pipeline_model_parallel_layout={}"
        # Layouts by which most times each stage has too much for what the others need.
        for name, ranks, words in (("1f1b", 2, (blocks.format([4, 8]), "trainer.test_freq=1")), ("three", 3, (blocks.format([3, 4, 5]),)),
                                   ("chunks", 2, (f"{CHUNKS}=2", "trainer.test_freq=1")),
                                   ("rounds", 3, (f"{CHUNKS}=2", "data.train_batch_size=12", blocks.format([1, 2, 2, 1, 3, 3]))),
                                   ("parts", 2, (ZERO_BUBBLE, blocks.format([6, 6]))),
                                   ("split", 2, ("memory.update=split", "device.dtype=bfloat16", blocks.format([4, 8]))),
                                   ("replicas", 4, ("parallel.zero_stage=1", "data.micro_batch_size_per_gpu=1")),
                                   ("slices", 4, ("parallel.zero_stage=3", "data.micro_batch_size_per_gpu=1")),
                                   ("tensor", 4, (f"{SIZE}=2", ROWS, blocks.format([4, 8])))):
            with self.subTest(name):
                of = 3 if ranks == 3 else 2
                models = () if name in ("three", "rounds", "split") else (("actor",),) * ranks
                self.assert_streamed_is_resident(name, ranks, models, f"{STAGES}={of}", *lora, *words, files=ADAPTERS)
        self.assert_streamed_is_resident("dpo", 2, (("actor",),) * 2, f"{STAGES}=2", *lora, blocks.format([4, 8]), task="dpo", files=ADAPTERS)

    def test_trained_blocks_of_stages(self):
        """Weights, gradients and states rest on the host; gradients are summed up over the replicas of a stage before they leave."""
        deep = ("actor_rollout_ref.model.path=out/deep/latest/actor", "data.micro_batch_size_per_gpu=2")
        tied = "actor_rollout_ref.model.path=out/tied/latest/actor"
        blocks = "parallel.pipeline_model_parallel_layout={}"
        clipped = "actor_rollout_ref.actor.grad_clip=0.01"
        for name, ranks, words in (("full", 2, (blocks.format([4, 8]), clipped)), ("full-chunks", 2, (f"{CHUNKS}=2", clipped)), ("full-tied", 2, (tied, "trainer.test_freq=1")),
                                   ("full-masters", 2, ("device.dtype=bfloat16",)),
                                   ("full-replicas", 4, ("data.micro_batch_size_per_gpu=1",)), ("full-zero", 4, ("parallel.zero_stage=1",)),
                                   ("full-gradients", 4, ("parallel.zero_stage=2", "data.micro_batch_size_per_gpu=8")),
                                   ("full-tensor", 4, (f"{SIZE}=2", ROWS)), ("full-parts", 2, (ZERO_BUBBLE, clipped)),
                                   ("full-parts-few", 2, (ZERO_BUBBLE, clipped, blocks.format([8, 4]))), ("full-parts-fewer", 2, (ZERO_BUBBLE, clipped, blocks.format([9, 3]))),
                                   ("full-parts-replicas", 4, (ZERO_BUBBLE, "parallel.zero_stage=1", "data.micro_batch_size_per_gpu=1"))):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, ranks, (), f"{STAGES}=2", *deep, *words)
                if name == "full":
                    plan = json.loads((self.home / "out/full/ranks/1/plan.json").read_text())
                    self.assertEqual((plan["streamed_weights"], plan["updates"]), (["actor"], {"actor": "streamed"}))

    def test_trained_slices_of_stages(self):
        """Of weights and of gradients, also of a table that two stages have."""
        slices = ("parallel.zero_stage=3", "actor_rollout_ref.actor.grad_clip=0.01", "data.micro_batch_size_per_gpu=1")
        for name, path, words in (("slices-full", "deep", ()), ("slices-chunks", "deep", (f"{CHUNKS}=2",)), ("slices-tied", "joined", ("trainer.test_freq=1",)),
                                  ("slices-parts", "deep", (ZERO_BUBBLE,))):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, 4, (("actor",),) * 4, f"{STAGES}=2", f"actor_rollout_ref.model.path={path}", *slices, *words, trains_slices=True)
                if name == "slices-parts":
                    continue
                plans = [json.loads((self.home / f"out/{folder}/plan.json").read_text()) for folder in (name, f"{name}/ranks/3")]
                self.assertIn(["actor"], [plan["streamed_gradients"] for plan in plans])  # of one stage at least

    def test_blocks_of_stages_on_disk(self):
        """Frozen ones are read from the model's own files, those that train rest in files of each rank."""
        scratch = self.home / "scratch"
        scratch.mkdir()
        deep = ("actor_rollout_ref.model.path=out/deep/latest/actor", "data.micro_batch_size_per_gpu=2", f"{STAGES}=2")
        allow = 'memory.allow=["recompute", "move", "stream", "stream_weights", "disk"]'
        for name, words, files in (("disk-lora", ("actor_rollout_ref.model.lora_rank=4",), ADAPTERS), ("disk-full", (), FILES),
                                   ("disk-tables", ("actor_rollout_ref.model.path=out/tables/latest/actor",), FILES)):
            with self.subTest(name):
                words = (*deep, *words, allow)
                self.run_ranks(2, f"{name}-whole", *words, *RESIDENT)
                ceiling = f"device.memory={self.least(2, 'sft', *words)}MiB"
                low, high = 0, 1 << 18
                while high - low > 128:
                    middle = (low + high) // 2
                    fits = self.plan(2, "sft", *words, ceiling, f"memory.host_budget={middle}KiB").returncode == 0
                    low, high = (low, middle) if fits else (middle, high)
                self.run_ranks(2, name, *words, ceiling, f"memory.host_budget={high}KiB", f"memory.disk_folder={scratch}")
                self.assertEqual(list(scratch.iterdir()), [])
                self.assert_same_files(f"{name}-whole", name, files=files)
                self.assertEqual(self.metrics(f"out/{name}-whole"), self.metrics(f"out/{name}"))
                plans = [self.assert_comes_as_planned(folder, False) for folder in (name, f"{name}/ranks/1")]
                self.assertIn(["actor"], [plan["streamed_from_disk"] for plan in plans])

    def test_tables_of_stages(self):
        """A head takes turns with its stage's blocks, also that of a table which both ends have."""
        lora = ("actor_rollout_ref.model.lora_rank=4", "data.micro_batch_size_per_gpu=2")
        for name, words in (("1f1b", ()), ("chunks", (f"{CHUNKS}=2",))):
            for model in ("tied", "tables"):
                with self.subTest(name, model=model):
                    path = f"actor_rollout_ref.model.path=out/{model}/latest/actor"
                    self.assert_streamed_is_resident(f"{model}-{name}", 2, ((), ("actor",)), f"{STAGES}=2", path, *lora, *words, "trainer.test_freq=1",
                                                     files=ADAPTERS)
                    plan = json.loads((self.home / f"out/{model}-{name}/ranks/1/plan.json").read_text())
                    self.assertEqual(plan["streamed_tables"], ["actor"])

    def test_trained_tables_of_stages(self):
        """The first stage's embedding and the last one's head come in turns with its blocks, with their gradients."""
        words = ("actor_rollout_ref.model.path=out/tables/latest/actor", "data.micro_batch_size_per_gpu=2", "actor_rollout_ref.actor.grad_clip=0.01")
        streamed = []
        for name, ranks, more in (("turns-full", 2, ("trainer.test_freq=1",)), ("turns-chunks", 2, (f"{CHUNKS}=2",)), ("turns-parts", 2, (ZERO_BUBBLE,)),
                                  ("turns-masters", 2, ("device.dtype=bfloat16",)), ("turns-tensor", 4, (f"{SIZE}=2", ROWS)),
                                  ("turns-zero", 4, ("parallel.zero_stage=1", "data.micro_batch_size_per_gpu=1"))):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, ranks, (("actor",),) * ranks, f"{STAGES}=2", *words, *more)
                tables = [json.loads((self.home / f"out/{folder}/plan.json").read_text())["streamed_tables"] for folder in (name, f"{name}/ranks/{ranks - 1}")]
                self.assertEqual(tables[1], ["actor"])
                streamed.append(tables[0])
        self.assertIn(["actor"], streamed)  # in some stage that has the embedding, too

    def test_frozen_blocks_of_stages_in_files(self):
        """Where no rank's host memory has room for them: each stage reads its own, and the last one the head."""
        words = (f"{STAGES}=2", "actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.model.lora_rank=4",
                 "data.micro_batch_size_per_gpu=2", "parallel.pipeline_model_parallel_layout=[4, 8]")
        self.run_ranks(2, "in-memory", *words, *RESIDENT)
        words = (*words, KEPT.replace('"stream"', '"stream", "stream_weights", "disk"'))
        words = (*words, f"device.memory={self.least(2, 'sft', *words) + 2}MiB", "memory.host_budget=2MiB")
        self.run_ranks(2, "in-files", *words)
        self.assert_same_files("in-memory", "in-files", files=ADAPTERS)
        self.assertEqual(self.metrics("out/in-memory"), self.metrics("out/in-files"))
        for folder in ("in-files", "in-files/ranks/1"):
            plan = self.assert_comes_as_planned(folder, False)
            self.assertEqual((plan["streamed_from_files"], plan["disk_bytes"]), (["actor"], 0), folder)
            planned = {phase["name"]: phase["disk_read"] for phase in plan["phases"]}
            for record in read_lines(self.home / "out" / folder / "phases.jsonl"):
                read = sum(use.get("disk_read", 0) for use in record["streamed"])
                self.assertEqual(read, planned[record["phase"]], (folder, record))

    def test_an_actor_in_stages_that_generates(self):
        """Blocks or slices come from each stage's host memory to those who generate."""
        deep = "actor_rollout_ref.model.path=out/deep/latest/actor"
        lora, slices = "actor_rollout_ref.model.lora_rank=4", "parallel.zero_stage=3"
        parts = "actor_rollout_ref.rollout.tensor_model_parallel_size=2"
        for name, ranks, words, files in (("rollout-full", 2, (), FILES), ("rollout-chunks", 2, (f"{CHUNKS}=2", lora), ADAPTERS),
                                          ("rollout-parts", 2, (lora, parts), ADAPTERS), ("rollout-tensor", 4, (f"{SIZE}=2", lora), ADAPTERS),
                                          ("rollout-slices", 4, (slices, lora), ADAPTERS), ("rollout-slices-parts", 4, (slices, lora, parts), ADAPTERS)):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, ranks, (("actor",),) * ranks, f"{STAGES}=2", deep, *words, task="grpo", files=files)

    def test_an_actor_in_stages_generates_from_files(self):
        words = (f"{STAGES}=2", "actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.model.lora_rank=4")
        self.run_ranks(2, "rollout-memory", *words, *RESIDENT, task="grpo")
        words = (*words, KEPT.replace('"stream"', '"stream", "stream_weights", "disk"'), "memory.host_budget=12MiB")
        self.run_ranks(2, "rollout-files", *words, f"device.memory={self.least(2, 'grpo', *words)}MiB", task="grpo")
        self.assert_same_files("rollout-memory", "rollout-files", files=ADAPTERS)
        self.assertEqual(self.metrics("out/rollout-memory"), self.metrics("out/rollout-files"))
        for folder in ("rollout-files", "rollout-files/ranks/1"):
            self.assertIn("actor", self.assert_comes_as_planned(folder, False)["streamed_from_files"])

    def test_parts_that_generate_come_from_the_host(self):
        """Of an actor that ranks divide otherwise in training, without stages."""
        words = ("actor_rollout_ref.model.path=out/deep/latest/actor", f"{SIZE}=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=1")
        for name, more, files in (("halves", (), FILES), ("halves-lora", ("actor_rollout_ref.model.lora_rank=4",), ADAPTERS)):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, 2, (("actor",),) * 2, *words, *more, task="grpo", files=files)

    def test_frozen_models_in_stages(self):
        frozen = ("reference", "critic")
        for name, words in (("all", ()), ("interleaved", (f"{CHUNKS}=2", "critic.ppo_micro_batch_size_per_gpu=1")), ("in-parts", (ZERO_BUBBLE,))):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, 2, (frozen, frozen), f"{STAGES}=2", *words, CRITIC_LORA, task="ppo", files=(*FILES, *CRITIC_FILES))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
