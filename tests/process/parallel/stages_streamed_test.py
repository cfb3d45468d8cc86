#!/usr/bin/env python3
"""Blocks of stages of a pipeline that rest on the host. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

The same bits as with everything on the device, on the same ranks; bytes and memory of each rank are those of its plan.
NEAP_TEST_SLOW=1: every case.
"""
import json
import sys
import unittest

import launch

from neap_program import least_host, without
from rank_case import CHUNKS, FILES, ROWS, SIZE, STAGES, ZERO_BUBBLE
from streamed_stages_case import CRITIC_FILES, CRITIC_LORA, KEPT, RESIDENT, StreamedStagesCase
from train_process_test import read_lines  # noqa: E402

ADAPTERS = ("actor/adapter_model.safetensors", FILES[1])


class StreamedStages(StreamedStagesCase):
    def test_frozen_blocks_of_stages(self):
        """Of adapters that train, and of their base, which is the reference."""
        lora = ("actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.model.lora_rank=4", "data.micro_batch_size_per_gpu=2")
        blocks = "parallel.pipeline_model_parallel_layout={}"
        # Layouts by which most times each stage has too much for what the others need.
        for name, ranks, words in without("three", "chunks", "parts", "replicas", of=(("1f1b", 2, (blocks.format([4, 8]), "trainer.test_freq=1")), ("three", 3, (blocks.format([3, 4, 5]),)),
                                   ("chunks", 2, (f"{CHUNKS}=2", "trainer.test_freq=1")),
                                   ("rounds", 3, (f"{CHUNKS}=2", "data.train_batch_size=12", blocks.format([1, 2, 2, 1, 3, 3]))),
                                   ("parts", 2, (ZERO_BUBBLE, blocks.format([6, 6]))),
                                   ("split", 2, ("memory.optimizer_offload=phase_split", "device.dtype=bfloat16", blocks.format([4, 8]))),
                                   ("replicas", 4, ("parallel.zero_stage=1", "data.micro_batch_size_per_gpu=1")),
                                   ("slices", 4, ("parallel.zero_stage=3", "data.micro_batch_size_per_gpu=1")),
                                   ("tensor", 4, (f"{SIZE}=2", ROWS, blocks.format([4, 8]))))):
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
        for name, ranks, words in without("full-replicas", "full-zero", "full-parts", "full-parts-few", of=(("full", 2, (blocks.format([4, 8]), clipped)), ("full-chunks", 2, (f"{CHUNKS}=2", clipped)), ("full-tied", 2, (tied, "trainer.test_freq=1")),
                                   ("full-masters", 2, ("device.dtype=bfloat16",)),
                                   ("full-replicas", 4, ("data.micro_batch_size_per_gpu=1",)), ("full-zero", 4, ("parallel.zero_stage=1",)),
                                   ("full-gradients", 4, ("parallel.zero_stage=2", "data.micro_batch_size_per_gpu=8")),
                                   ("full-tensor", 4, (f"{SIZE}=2", ROWS)), ("full-parts", 2, (ZERO_BUBBLE, clipped)),
                                   ("full-parts-few", 2, (ZERO_BUBBLE, clipped, blocks.format([8, 4]))), ("full-parts-fewer", 2, (ZERO_BUBBLE, clipped, blocks.format([9, 3]))),
                                   ("full-parts-replicas", 4, (ZERO_BUBBLE, "parallel.zero_stage=1", "data.micro_batch_size_per_gpu=1")))):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, ranks, (), f"{STAGES}=2", *deep, *words)
                if name == "full":
                    plan = json.loads((self.home / "out/full/ranks/1/plan.json").read_text())
                    self.assertEqual((plan["offloaded_weights"], plan["optimizer_offload"]), (["actor"], {"actor": "cpu"}))

    def test_trained_slices_of_stages(self):
        """Of weights and of gradients, also of a table that two stages have."""
        slices = ("parallel.zero_stage=3", "actor_rollout_ref.actor.grad_clip=0.01", "data.micro_batch_size_per_gpu=1")
        for name, stages, path, words in without("slices-full", of=(("slices-full", 2, "deep", ()), ("slices-chunks", 2, "deep", (f"{CHUNKS}=2",)),
                                                                    ("slices-tied", 2, "joined", ("trainer.test_freq=1",)), ("slices-parts", 2, "deep", (ZERO_BUBBLE,)),
                                                                    ("slices-three", 3, "deep", ("parallel.pipeline_model_parallel_layout=[2, 8, 2]",)))):  # a stage has no table
            with self.subTest(name):
                words = (f"{STAGES}={stages}", f"actor_rollout_ref.model.path={path}", *slices, *words)
                self.assert_streamed_is_resident(name, 2 * stages, () if stages == 3 else (("actor",),) * 4, *words, trains_slices=True)
                if name in ("slices-parts", "slices-three"):
                    continue
                plans = [json.loads((self.home / f"out/{folder}/plan.json").read_text()) for folder in (name, f"{name}/ranks/3")]
                self.assertIn(["actor"], [plan["offloaded_gradients"] for plan in plans])  # of one stage at least

    def test_inputs_of_stages(self):
        """Several micro-batches wait for their backward. Their inputs leave with the blocks, and alone if these stay where their states do."""
        rows = (f"{STAGES}=2", "actor_rollout_ref.model.path=out/deep/latest/actor", "data.train_batch_size=64", "data.micro_batch_size_per_gpu=16",
                "actor_rollout_ref.model.activation_checkpointing=full")
        layout = "parallel.pipeline_model_parallel_layout={}"
        for name, more in (("inputs", (layout.format([10, 2]),)), ("inputs-chunks", (f"{CHUNKS}=2", layout.format([8, 2, 1, 1])))):
            with self.subTest(name):
                words = (*rows, *more)
                self.assert_streamed_is_resident(name, 2, (), *words)
                words = (*words, "memory.optimizer_offload=none")
                least = self.least(2, "sft", *words)
                self.assertLess(least, self.least(2, "sft", *words, KEPT), name)
                self.run_ranks(2, f"{name}-alone", *words, f"device.memory={least}MiB")
                self.assert_same_files(f"{name}-whole", f"{name}-alone")
                self.assertEqual(self.metrics(f"out/{name}-whole"), self.metrics(f"out/{name}-alone"))
                self.assertEqual(json.loads((self.home / f"out/{name}/plan.json").read_text())["offloaded_layer_inputs"], ["actor"])
                plan = self.assert_comes_as_planned(f"{name}-alone", False)
                self.assertEqual((plan["offloaded_weights"], plan["offloaded_layer_inputs"]), ([], ["actor"]))

    def test_inputs_of_backwards_in_two_parts(self):
        """The second stage's first part reads them. The products of a model without norms before its layers read them again in the second part."""
        rows = (f"{STAGES}=3", ZERO_BUBBLE, "data.train_batch_size=64", "data.micro_batch_size_per_gpu=16",
                "actor_rollout_ref.model.activation_checkpointing=full", "memory.optimizer_offload=none", "parallel.pipeline_model_parallel_layout=[2, 8, 2]")
        for name, model in (("read-back", "deep"), ("read-later", "after")):
            with self.subTest(name):
                words = (*rows, f"actor_rollout_ref.model.path={model}")
                self.run_ranks(3, f"{name}-whole", *words, *RESIDENT)
                least = self.least(3, "sft", *words)
                self.assertLess(least, self.least(3, "sft", *words, KEPT))
                self.run_ranks(3, name, *words, f"device.memory={least}MiB")
                self.assert_same_files(f"{name}-whole", name)
                self.assertEqual(self.metrics(f"out/{name}-whole"), self.metrics(f"out/{name}"))
                self.assert_comes_as_planned(name, False)
                self.assertEqual(self.assert_comes_as_planned(f"{name}/ranks/1", False)["offloaded_layer_inputs"], ["actor"])

    def test_blocks_of_stages_on_disk(self):
        """Frozen ones are read from the model's own files, those that train rest in files of each rank."""
        scratch = self.home / "scratch"
        scratch.mkdir()
        deep = ("actor_rollout_ref.model.path=out/deep/latest/actor", "data.micro_batch_size_per_gpu=2", f"{STAGES}=2")
        allow = 'memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"]'
        for name, words, files in (("disk-lora", ("actor_rollout_ref.model.lora_rank=4",), ADAPTERS), ("disk-full", (), FILES),
                                   ("disk-tables", ("actor_rollout_ref.model.path=out/tables/latest/actor",), FILES)):
            with self.subTest(name):
                words = (*deep, *words, allow)
                self.run_ranks(2, f"{name}-whole", *words, *RESIDENT)
                words = (*words, f"device.memory={self.least(2, 'sft', *words)}MiB")
                budget = least_host(lambda size: self.plan(2, "sft", *words, f"memory.host_budget={size}B", "--json"))
                self.run_ranks(2, name, *words, f"memory.host_budget={budget}B", f"memory.nvme_path={scratch}")
                self.assertEqual(list(scratch.iterdir()), [])
                self.assert_same_files(f"{name}-whole", name, files=files)
                self.assertEqual(self.metrics(f"out/{name}-whole"), self.metrics(f"out/{name}"))
                plans = [self.assert_comes_as_planned(folder, False) for folder in (name, f"{name}/ranks/1")]
                self.assertIn(["actor"], [plan["weights_on_nvme"] for plan in plans])

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
                    self.assertEqual(plan["offloaded_embeddings"], ["actor"])

    def test_trained_tables_of_stages(self):
        """The first stage's embedding and the last one's head come in turns with its blocks, with their gradients."""
        words = ("actor_rollout_ref.model.path=out/tables/latest/actor", "data.micro_batch_size_per_gpu=2", "actor_rollout_ref.actor.grad_clip=0.01")
        streamed = []
        for name, ranks, more in without("turns-full", of=(("turns-full", 2, ("trainer.test_freq=1",)), ("turns-chunks", 2, (f"{CHUNKS}=2",)), ("turns-parts", 2, (ZERO_BUBBLE,)),
                                  ("turns-masters", 2, ("device.dtype=bfloat16",)), ("turns-tensor", 4, (f"{SIZE}=2", ROWS)),
                                  ("turns-zero", 4, ("parallel.zero_stage=1", "data.micro_batch_size_per_gpu=1")))):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, ranks, (("actor",),) * ranks, f"{STAGES}=2", *words, *more)
                tables = [json.loads((self.home / f"out/{folder}/plan.json").read_text())["offloaded_embeddings"] for folder in (name, f"{name}/ranks/{ranks - 1}")]
                self.assertEqual(tables[1], ["actor"])
                streamed.append(tables[0])
        self.assertIn(["actor"], streamed)  # in some stage that has the embedding, too

    def test_frozen_blocks_of_stages_in_files(self):
        """Where no rank's host memory has room for them: each stage reads its own, and the last one the head."""
        words = (f"{STAGES}=2", "actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.model.lora_rank=4",
                 "data.micro_batch_size_per_gpu=2", "parallel.pipeline_model_parallel_layout=[4, 8]")
        self.run_ranks(2, "in-memory", *words, *RESIDENT)
        words = (*words, KEPT.replace('"offload_optimizer"', '"offload_optimizer", "offload_weights", "nvme"'))
        words = (*words, f"device.memory={self.least(2, 'sft', *words) + 2}MiB", "memory.host_budget=2MiB")
        self.run_ranks(2, "in-files", *words)
        self.assert_same_files("in-memory", "in-files", files=ADAPTERS)
        self.assertEqual(self.metrics("out/in-memory"), self.metrics("out/in-files"))
        for folder in ("in-files", "in-files/ranks/1"):
            plan = self.assert_comes_as_planned(folder, False)
            self.assertEqual((plan["weights_in_model_files"], plan["disk_bytes"]), (["actor"], 0), folder)
            planned = {phase["name"]: phase["disk_read"] for phase in plan["phases"]}
            for record in read_lines(self.home / "out" / folder / "phases.jsonl"):
                read = sum(use.get("disk_read", 0) for use in record["streamed"])
                self.assertEqual(read, planned[record["phase"]], (folder, record))

    def test_an_actor_in_stages_that_generates(self):
        """Blocks or slices come from each stage's host memory to those who generate."""
        deep = "actor_rollout_ref.model.path=out/deep/latest/actor"
        lora, slices = "actor_rollout_ref.model.lora_rank=4", "parallel.zero_stage=3"
        parts = "actor_rollout_ref.rollout.tensor_model_parallel_size=2"
        for name, ranks, words, files in without("rollout-chunks", "rollout-slices", of=(("rollout-full", 2, (), FILES), ("rollout-chunks", 2, (f"{CHUNKS}=2", lora), ADAPTERS),
                                          ("rollout-parts", 2, (lora, parts), ADAPTERS), ("rollout-tensor", 4, (f"{SIZE}=2", lora), ADAPTERS),
                                          ("rollout-slices", 4, (slices, lora), ADAPTERS), ("rollout-slices-parts", 4, (slices, lora, parts), ADAPTERS))):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, ranks, (("actor",),) * ranks, f"{STAGES}=2", deep, *words, task="grpo", files=files)

    def test_an_actor_in_stages_generates_from_files(self):
        words = (f"{STAGES}=2", "actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.model.lora_rank=4")
        self.run_ranks(2, "rollout-memory", *words, *RESIDENT, task="grpo")
        words = (*words, KEPT.replace('"offload_optimizer"', '"offload_optimizer", "offload_weights", "nvme"'), "memory.host_budget=12MiB")
        self.run_ranks(2, "rollout-files", *words, f"device.memory={self.least(2, 'grpo', *words)}MiB", task="grpo")
        self.assert_same_files("rollout-memory", "rollout-files", files=ADAPTERS)
        self.assertEqual(self.metrics("out/rollout-memory"), self.metrics("out/rollout-files"))
        for folder in ("rollout-files", "rollout-files/ranks/1"):
            self.assertIn("actor", self.assert_comes_as_planned(folder, False)["weights_in_model_files"])

    def test_parts_that_generate_come_from_the_host(self):
        """Of an actor that ranks divide otherwise in training, without stages."""
        words = ("actor_rollout_ref.model.path=out/deep/latest/actor", f"{SIZE}=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=1")
        for name, more, files in (("halves", (), FILES), ("halves-lora", ("actor_rollout_ref.model.lora_rank=4",), ADAPTERS)):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, 2, (("actor",),) * 2, *words, *more, task="grpo", files=files)

    def test_frozen_models_in_stages(self):
        frozen = ("reference", "critic")
        for name, words in without("all", of=(("all", ()), ("interleaved", (f"{CHUNKS}=2", "critic.ppo_micro_batch_size_per_gpu=1")), ("in-parts", (ZERO_BUBBLE,)))):
            with self.subTest(name):
                self.assert_streamed_is_resident(name, 2, (frozen, frozen), f"{STAGES}=2", *words, CRITIC_LORA, task="ppo", files=(*FILES, *CRITIC_FILES))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
