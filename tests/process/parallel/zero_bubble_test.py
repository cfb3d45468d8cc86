#!/usr/bin/env python3
"""`neap train` with stages whose backward is in two parts, zero bubble. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

They give the bits of one rank that accumulates, take what each rank's plan says, and checkpoints do not depend on them.
"""
import json
import sys
import unittest

import launch

from pipeline_case import CHUNKS, PipelineCase, STAGES, TENSOR
from rank_case import FILES, OPTIMIZER, ZERO_BUBBLE
from train_process_test import read_lines  # noqa: E402

ADAPTERS = ("actor/adapter_model.safetensors", "actor/optimizer.safetensors")


class ZeroBubble(PipelineCase):
    def assert_one_rank(self, name, stages, *words, **options):
        return self.assert_stages_are_one_rank(name, stages, *words, zero_bubble=True, **options)

    def test_stages_are_one_rank_bit_by_bit(self):
        """Six micro-batches: more than stages, and of six stages as many."""
        self.write_model("deep", num_hidden_layers=6)
        for stages in (2, 3, 4):
            with self.subTest(stages=stages):
                one, divided = self.assert_one_rank("adamw", stages)
                self.assertEqual(self.validations(f"out/{one}"), self.validations(f"out/{divided}"))
        self.assert_one_rank("deep", 6, "actor_rollout_ref.model.path=deep")

    def test_forms_of_training(self):
        self.write_model("untied", tie_word_embeddings=False)
        bf16 = "device.dtype=bfloat16"
        cases = {"untied": ["actor_rollout_ref.model.path=untied"], "streamed": ["memory.update=streamed", bf16], "split": ["memory.update=split", bf16],
                 "recompute": ["actor_rollout_ref.model.activation_checkpointing=full"], "one-micro-batch": ["data.micro_batch_size_per_gpu=12"],
                 "clipped": ["actor_rollout_ref.actor.grad_clip=0.01", f"{OPTIMIZER}optimizer=adafactor"]}
        for name, words in cases.items():
            with self.subTest(name):
                self.assert_one_rank(name, 3, *words)

    def test_packed_micro_batches(self):
        self.assert_one_rank("packed", 3, "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=130", exact=False)
        self.assert_within_plans("packed-3", 3)

    def test_replicas_and_divided_models(self):
        """The bits of as many ranks without stages: replicas, slices of states, layers that ranks divide, adapters of these."""
        start = "actor_rollout_ref.model.path=out/started/latest/actor"
        self.run_ranks(1, "started", "trainer.total_training_steps=1")
        for name, words, files in (("replicas", (), FILES), ("zero", ("parallel.zero_stage=1",), FILES), ("tensor", (TENSOR,), FILES),
                                   ("rows", (TENSOR, "parallel.sequence_parallel=true", "device.dtype=bfloat16"), FILES),
                                   ("lora", (TENSOR, start, "actor_rollout_ref.model.lora_rank=4"), ADAPTERS)):
            with self.subTest(name):
                self.assert_one_rank(name, 2, *words, replicas=2, files=files)

    def test_reward_and_preferences(self):
        self.run_ranks(1, "sft")
        self.assert_one_rank("reward", 3, task="reward", step=3, files=[f.replace("actor", "reward") for f in FILES])
        for name, words, files in (("dpo", (), FILES), ("dpo-lora", ("actor_rollout_ref.model.lora_rank=4",), ADAPTERS)):
            with self.subTest(name):
                one, divided = self.assert_one_rank(name, 3, *words, task="dpo", step=3, files=files)
                self.assertEqual(self.validations(f"out/{one}"), self.validations(f"out/{divided}"))

    def test_a_run_resumes_with_another_schedule(self):
        for name, source, target in (("parts", ZERO_BUBBLE, CHUNKS.format(2)), ("chunks", CHUNKS.format(2), ZERO_BUBBLE)):
            with self.subTest(name):
                self.run_ranks(2, f"from-{name}", STAGES.format(2), source)
                checkpoint = self.home / "out" / f"from-{name}" / "global_step_2"
                result = self.run_ranks(2, f"with-{name}", STAGES.format(2), target, f"trainer.resume_mode={checkpoint}", "trainer.total_training_steps=3")
                self.assertNotIn("pipeline_parallel_schedule", result.stderr)  # it changes no results
        self.run_ranks(1, "straight", "trainer.total_training_steps=3")
        for name in ("parts", "chunks"):
            self.assert_same_files("straight", f"with-{name}", step=3)

    def test_planned_seconds_are_those_of_the_simulation(self):
        words = (STAGES.format(3), ZERO_BUBBLE, "trainer.total_training_steps=1")
        self.run_ranks(3, "seconds", *words)
        said = [launch.run(1, launch.NEAP, "plan", "sft.toml", *words, "trainer.n_gpus_per_node=3", "--json", *more, cwd=self.home)
                for more in ((), ("--simulate",))]
        planned, simulated = (json.loads(each.stdout) for each in said)
        self.assertAlmostEqual(planned["seconds"], simulated["step_seconds"], places=9)
        self.assertTrue(simulated["zero_bubble"])
        for folder in ("seconds", "seconds/ranks/1", "seconds/ranks/2"):
            own = json.loads((self.home / "out" / folder / "plan.json").read_text())
            self.assertAlmostEqual(own["seconds"], planned["seconds"], places=9, msg=folder)

    def test_the_later_stages_keep_more_than_with_1f1b_and_wait_less(self):
        for name, words in (("1f1b", ()), ("zero-bubble", (ZERO_BUBBLE,))):
            self.run_ranks(3, name, STAGES.format(3), *words, "trainer.total_training_steps=1")
        kept = {(name, rank): phase["transient_allocated"] for name in ("1f1b", "zero-bubble") for rank in range(3)
                for phase in read_lines(self.home / "out" / name / (f"ranks/{rank}" if rank else "") / "phases.jsonl") if phase["phase"] == "train"}
        self.assertEqual(kept["1f1b", 0], kept["zero-bubble", 0])
        for rank in (1, 2):
            self.assertGreater(kept["zero-bubble", rank], kept["1f1b", rank])
        seconds = {name: json.loads((self.home / "out" / name / "plan.json").read_text())["seconds"] for name in ("1f1b", "zero-bubble")}
        self.assertLess(seconds["zero-bubble"], seconds["1f1b"])

    def test_what_it_does_not_go_with_is_refused(self):
        for ranks, words, expected in (
                (2, (CHUNKS.format(2),), "does not go with parallel.virtual_pipeline_model_parallel_size 2; take 1 chunk a stage, or \"1f1b\""),
                (4, ("parallel.zero_stage=2",), "\"zero_bubble\" does not go with parallel.zero_stage 2; take 0 or 1, or \"1f1b\"")):
            with self.subTest(expected):
                result = launch.run(1, launch.NEAP, "plan", "sft.toml", f"trainer.n_gpus_per_node={ranks}", STAGES.format(2), ZERO_BUBBLE, *words, cwd=self.home)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(expected, " ".join(result.stderr.split()))
        result = launch.run(1, launch.NEAP, "plan", "sft.toml", ZERO_BUBBLE, cwd=self.home)
        self.assertIn("parallel.pipeline_parallel_schedule", result.stderr)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
