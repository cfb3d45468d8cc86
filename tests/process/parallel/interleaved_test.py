#!/usr/bin/env python3
"""`neap train` with stages of several chunks, interleaved 1F1B. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Chunks give the bits of one rank that accumulates, take what each rank's plan says, and checkpoints do not depend on them.
"""
import json
import sys
import unittest

import launch

from pipeline_case import CHUNKS, PipelineCase, STAGES, TENSOR
from rank_case import FILES, OPTIMIZER
from train_process_test import read_lines  # noqa: E402

ADAPTERS = ("actor/adapter_model.safetensors", "actor/optimizer.safetensors")


class Interleaved(PipelineCase):
    BLOCKS = 7

    def test_chunks_are_one_rank_bit_by_bit(self):
        """Six micro-batches: full rounds of two and of three stages, and of four stages a round that lacks two."""
        for stages, chunks in ((2, 2), (2, 3), (3, 2), (4, 1)):
            with self.subTest(stages=stages, chunks=chunks):
                one, divided = self.assert_stages_are_one_rank("adamw", stages, chunks=chunks)
                self.assertEqual(self.validations(f"out/{one}"), self.validations(f"out/{divided}"))
        self.write_model("deep", num_hidden_layers=8)
        self.assert_stages_are_one_rank("deep", 4, "actor_rollout_ref.model.path=deep", chunks=2)

    def test_forms_of_training(self):
        self.write_model("untied", tie_word_embeddings=False)
        bf16 = "device.dtype=bfloat16"
        cases = {"untied": ["actor_rollout_ref.model.path=untied"], "streamed": ["memory.update=streamed", bf16], "split": ["memory.update=split", bf16],
                 "recompute": ["actor_rollout_ref.model.activation_checkpointing=full"], "one-micro-batch": ["data.micro_batch_size_per_gpu=12"],
                 "clipped": ["actor_rollout_ref.actor.grad_clip=0.01", f"{OPTIMIZER}optimizer=adafactor"]}
        for name, words in cases.items():
            with self.subTest(name):
                self.assert_stages_are_one_rank(name, 2, *words, chunks=2)

    def test_a_layout_of_parts(self):
        self.assert_stages_are_one_rank("laid", 2, chunks=2)
        words = (STAGES.format(2), CHUNKS.format(2), "parallel.pipeline_model_parallel_layout=[1,3,2,1]")
        self.run_ranks(2, "laid-out", *words)
        self.assert_same_files("laid-1", "laid-out")
        self.assert_ranks_are_as_planned("laid-out", 2)

    def test_packed_micro_batches(self):
        self.assert_stages_are_one_rank("packed", 2, "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=130", chunks=2, exact=False)
        for folder in ("packed-2x2", "packed-2x2/ranks/1"):
            for phase in read_lines(self.home / "out" / folder / "phases.jsonl"):
                self.assertLessEqual(phase["peak"], phase["planned"], folder)

    def test_replicas_and_divided_models(self):
        """The bits of as many ranks without stages: replicas, slices of states, layers that ranks divide, adapters of these."""
        start = "actor_rollout_ref.model.path=out/started/latest/actor"
        self.run_ranks(1, "started", "trainer.total_training_steps=1")
        for name, words, files in (("replicas", (), FILES), ("zero", ("parallel.zero_stage=1",), FILES), ("tensor", (TENSOR,), FILES),
                                   ("rows", (TENSOR, "parallel.sequence_parallel=true", "device.dtype=bfloat16"), FILES),
                                   ("lora", (TENSOR, start, "actor_rollout_ref.model.lora_rank=4"), ADAPTERS)):
            with self.subTest(name):
                self.assert_stages_are_one_rank(name, 2, *words, chunks=2, replicas=2, files=files)

    def test_reward_and_preferences(self):
        self.run_ranks(1, "sft")
        self.assert_stages_are_one_rank("reward", 2, chunks=3, task="reward", step=3, files=[f.replace("actor", "reward") for f in FILES])
        for name, words, files in (("dpo", (), FILES), ("dpo-once", ("dpo.precompute_ref_log_probs=true",), FILES),
                                   ("dpo-lora", ("actor_rollout_ref.model.lora_rank=4",), ADAPTERS)):
            with self.subTest(name):
                one, divided = self.assert_stages_are_one_rank(name, 2, *words, chunks=2, task="dpo", step=3, files=files)
                self.assertEqual(self.validations(f"out/{one}"), self.validations(f"out/{divided}"))

    def test_a_run_resumes_with_chunks_and_without(self):
        meshes = {"1": (1, ()), "2": (2, (STAGES.format(2),)), "2x2": (2, (STAGES.format(2), CHUNKS.format(2))),
                  "3x2": (3, (STAGES.format(3), CHUNKS.format(2)))}
        self.run_ranks(1, "straight", "trainer.total_training_steps=3")
        for name, (ranks, words) in meshes.items():
            self.run_ranks(ranks, f"from-{name}", *words)
            self.assert_same_files("from-1", f"from-{name}")
        for source, target in (("2x2", "1"), ("1", "2x2"), ("2", "2x2"), ("2x2", "2"), ("2x2", "3x2"), ("3x2", "2x2")):
            with self.subTest(source=source, target=target):
                ranks, words = meshes[target]
                folder, checkpoint = f"{source}-to-{target}", self.home / "out" / f"from-{source}" / "global_step_2"
                result = self.run_ranks(ranks, folder, *words, f"trainer.resume_mode={checkpoint}", "trainer.total_training_steps=3")
                self.assertIn("Resuming from", result.stderr)
                self.assertNotIn("pipeline_model_parallel_size", result.stderr)  # it changes no results
                self.assert_same_files("straight", folder, step=3)

    def test_planned_seconds_are_those_of_the_simulation(self):
        words = (STAGES.format(3), CHUNKS.format(2), "trainer.total_training_steps=1")
        self.run_ranks(3, "seconds", *words)
        said = [launch.run(1, launch.NEAP, "plan", "sft.toml", *words, "trainer.n_gpus_per_node=3", "--json", *more, cwd=self.home)
                for more in ((), ("--simulate",))]
        planned, simulated = (json.loads(each.stdout) for each in said)
        self.assertAlmostEqual(planned["seconds"], simulated["step_seconds"], places=9)
        self.assertEqual(simulated["chunks"], 2)
        for folder in ("seconds", "seconds/ranks/1", "seconds/ranks/2"):
            own = json.loads((self.home / "out" / folder / "plan.json").read_text())
            self.assertAlmostEqual(own["seconds"], planned["seconds"], places=9, msg=folder)
            self.assertGreater(own["phases"][0]["bubble_seconds"], 0)

    def test_what_chunks_do_not_go_with_is_refused(self):
        for ranks, words, expected in ((2, (STAGES.format(2), CHUNKS.format(4)), "more than the 7 blocks of the actor model; every part has one at least: take 3"),
                                       (1, (CHUNKS.format(2),), "parallel.virtual_pipeline_model_parallel_size"),
                                       (2, (STAGES.format(2), CHUNKS.format(2), "parallel.pipeline_model_parallel_layout=[3,4]"), "for 2 stages of 2 chunks, 4 parts")):
            with self.subTest(expected):
                result = launch.run(1, launch.NEAP, "plan", "sft.toml", f"trainer.n_gpus_per_node={ranks}", *words, cwd=self.home)
                self.assertIn(expected, " ".join(result.stderr.split()))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
