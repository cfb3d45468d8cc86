#!/usr/bin/env python3
"""`neap train` with the stages of a pipeline. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Stages give the bits of one rank that accumulates; checkpoints do not depend on them. NEAP_TEST_SLOW=1: every case.
"""
import json
import re
import sys
import unittest

import launch

import neap_program
from neap_program import SLOW, without
from pipeline_case import PipelineCase, STAGES, TENSOR
from rank_case import FILES, FP8, OPTIMIZER
from train_process_test import read_lines  # noqa: E402


class Pipeline(PipelineCase):
    def test_stages_are_one_rank_bit_by_bit(self):
        for stages in (2, 3, 4):
            with self.subTest(stages=stages):
                one, divided = self.assert_stages_are_one_rank("adamw", stages)
                self.assertEqual(self.validations(f"out/{one}"), self.validations(f"out/{divided}"))
                self.assertTrue(self.validations(f"out/{one}"))

    def test_planned_seconds_are_those_of_the_simulation(self):
        """On every rank: with what stages wait for each other."""
        for update in ("none", "phase_split"):
            with self.subTest(update):
                words = (STAGES.format(3), f"memory.optimizer_offload={update}", "trainer.total_training_steps=1")
                self.run_ranks(3, f"seconds-{update}", *words)
                said = [launch.run(1, launch.NEAP, "plan", "sft.toml", *words, "trainer.n_gpus_per_node=3", "--json", *more, cwd=self.home)
                        for more in ((), ("--simulate",))]
                planned, simulated = (json.loads(each.stdout) for each in said)
                self.assertAlmostEqual(planned["seconds"], simulated["step_seconds"], places=9)
                for folder in (f"seconds-{update}", f"seconds-{update}/ranks/1", f"seconds-{update}/ranks/2"):
                    own = json.loads((self.home / "out" / folder / "plan.json").read_text())
                    self.assertAlmostEqual(own["seconds"], planned["seconds"], places=9, msg=folder)
                    self.assertGreater(own["phases"][0]["bubble_seconds"], 0)

    def test_every_optimizer_type_and_form(self):
        self.write_model("untied", tie_word_embeddings=False)
        bf16 = "device.dtype=bfloat16"
        cases = {"masters": [bf16], "adafactor": [f"{OPTIMIZER}optimizer=adafactor", bf16],
                 "narrow": [bf16, *(f"{OPTIMIZER}{key}_dtype=bfloat16" for key in ("state", "gradient", "master"))],
                 "sm3": [f"{OPTIMIZER}optimizer=sm3", f"{OPTIMIZER}momentum=0.9"], "untied": ["actor_rollout_ref.model.path=untied"],
                 "clipped": ["actor_rollout_ref.actor.grad_clip=0.01"], "one-micro-batch": ["data.micro_batch_size_per_gpu=12"],
                 "recompute": ["actor_rollout_ref.model.activation_checkpointing=full"], "fp8": [bf16, FP8]}
        for name, words in without("masters", "recompute", of=cases).items():
            with self.subTest(name):
                self.assert_stages_are_one_rank(name, 3, *words)

    def test_every_way_to_update(self):
        for update in ("phase_split", "cpu"):
            with self.subTest(update):
                self.assert_stages_are_one_rank(update, 2, f"memory.optimizer_offload={update}", "device.dtype=bfloat16")

    def test_packed_micro_batches(self):
        self.assert_stages_are_one_rank("packed", 3, "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=130", exact=False)
        for folder in ("packed-3", "packed-3/ranks/1", "packed-3/ranks/2"):
            for phase in read_lines(self.home / "out" / folder / "phases.jsonl"):
                self.assertLessEqual(phase["peak"], phase["planned"], folder)

    def test_replicas_of_stages(self):
        self.assert_stages_are_one_rank("replicas", 2, replicas=2)

    def test_stages_of_divided_models(self):
        """Ranks divide layers by tensor, too: the bits of as many ranks by tensor alone."""
        self.write_model("untied", tie_word_embeddings=False)
        self.write_model("odd", intermediate_size=272)  # of which a rank has 136: these matrices stay in bfloat16
        start = "actor_rollout_ref.model.path=out/started/latest/actor"
        self.run_ranks(1, "started", "trainer.total_training_steps=1")
        adapter = ("actor/adapter_model.safetensors", "actor/optimizer.safetensors")
        cases = (("tensor", (), FILES), ("tensor-bf16", ("device.dtype=bfloat16",), FILES),
                 ("tensor-fp8", ("device.dtype=bfloat16", FP8, "actor_rollout_ref.model.path=odd"), FILES),
                 ("tensor-untied", ("actor_rollout_ref.model.path=untied",), FILES),
                 ("tensor-rows", ("parallel.sequence_parallel=true",), FILES),
                 ("tensor-lora", (start, "actor_rollout_ref.model.lora_rank=4"), adapter))
        for name, words, files in without("tensor-bf16", "tensor-untied", of=cases):
            with self.subTest(name):
                self.assert_stages_are_one_rank(name, 2, TENSOR, *words, replicas=2, files=files)
        # On one rank it goes on, and a run of one rank goes on here.
        checkpoint = self.home / "out/tensor-2/global_step_2"
        words = ("trainer.total_training_steps=3", f"trainer.resume_mode={checkpoint}", f"{OPTIMIZER}lr=0")
        self.run_ranks(1, "tensor-to-1", *words)
        self.run_ranks(4, "tensor-to-mesh", *words, STAGES.format(2), TENSOR)
        for folder in ("tensor-to-1", "tensor-to-mesh"):
            self.assertEqual((checkpoint / FILES[0]).read_bytes(),
                             (self.home / "out" / folder / "global_step_3" / FILES[0]).read_bytes())

    def test_stages_with_sliced_states(self):
        """Copies of a stage slice its optimizer states: the bits of whole ones."""
        cases = (("zero", 2, ()), ("zero-adafactor", 2, (f"{OPTIMIZER}optimizer=adafactor",)),
                 ("zero-streamed", 2, ("memory.optimizer_offload=cpu", "device.dtype=bfloat16")), ("mesh", 4, (TENSOR,)))
        for name, replicas, words in without("zero-adafactor", of=cases):
            with self.subTest(name):
                self.assert_stages_are_one_rank(name, 2, "parallel.zero_stage=1", *words, replicas=replicas)
        self.run_ranks(2, "whole-states")
        self.assert_same_files("zero-2", "whole-states")

    def test_adapters(self):
        self.run_ranks(1, "base", "trainer.total_training_steps=1")
        self.assert_stages_are_one_rank("lora", 3, "actor_rollout_ref.model.path=out/base/latest/actor", "device.dtype=bfloat16",
                                        "actor_rollout_ref.model.lora_rank=4",
                                        files=("actor/adapter_model.safetensors", "actor/optimizer.safetensors"))

    def test_reward_and_preferences(self):
        self.run_ranks(1, "sft")
        self.assert_stages_are_one_rank("reward", 3, task="reward", step=3, files=[f.replace("actor", "reward") for f in FILES])
        for name, words in {"dpo": [], "dpo-once": ["dpo.precompute_ref_log_probs=true"],
                            "dpo-lora": ["actor_rollout_ref.model.lora_rank=4"]}.items():
            with self.subTest(name):
                files = FILES if name != "dpo-lora" else ("actor/adapter_model.safetensors", "actor/optimizer.safetensors")
                for stages in (2, 3) if SLOW else (2 if name == "dpo-once" else 3,):
                    one, divided = self.assert_stages_are_one_rank(name, stages, *words, task="dpo", step=3, files=files)
                    self.assertEqual(self.validations(f"out/{one}"), self.validations(f"out/{divided}"))

    def test_a_run_resumes_on_another_number_of_stages(self):
        for stages in (1, 2, 3):
            self.run_ranks(stages, f"from-{stages}", STAGES.format(stages))
        self.run_ranks(1, "straight", "trainer.total_training_steps=3")
        for stages in (1, 2, 3):
            self.assert_same_files("from-1", f"from-{stages}")
            for to in (1, 2, 3) if SLOW else (stages % 3 + 1,):  # the same files, whatever saved them
                with self.subTest(stages=stages, to=to):
                    folder = f"from-{stages}-to-{to}"
                    checkpoint = self.home / "out" / f"from-{stages}" / "global_step_2"
                    result = self.run_ranks(to, folder, STAGES.format(to), f"trainer.resume_mode={checkpoint}",
                                            "trainer.total_training_steps=3")
                    self.assertIn("Resuming from", result.stderr)
                    self.assertNotIn("pipeline_model_parallel_size", result.stderr)  # it changes no results
                    self.assert_same_files("straight", folder, step=3)

    def test_a_killed_stage_ends_the_others_and_the_run_goes_on(self):
        words = ("trainer.save_freq=2", "trainer.total_training_steps=6", STAGES.format(3))
        process = launch.start(3, launch.NEAP, "train", "sft.toml", "trainer.default_local_dir=out/killed", *words, cwd=self.home)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(self.home / "out/killed") >= 3, timeout=120)
        launch.kill_rank(process, 1, 3)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("Resuming from", self.run_ranks(3, "killed", *words).stderr)
        self.run_ranks(1, "calm", *words[:2])
        self.assertEqual(self.metrics("out/killed"), self.metrics("out/calm"))
        self.assert_same_files("killed", "calm", step=6)

    def least(self, *words):
        """The minimum capacity in MiB."""
        result = launch.run(1, launch.NEAP, "plan", "sft.toml", "--ranks", "2", *words, "device.memory=1MiB", cwd=self.home)
        self.assertEqual(result.returncode, 3, result.stderr)
        return int(re.search(r"minimum capacity is (\d+) MiB", result.stderr).group(1))

    def overrides(self, folder):
        """What each of two ranks' plans chose."""
        return [json.loads((self.home / "out" / of / "plan.json").read_text())["overrides"] for of in (folder, f"{folder}/ranks/1")]

    def test_sizes_and_types_that_stages_choose_together(self):
        """They are the run with these keys written out. A resumed run keeps the types of its states."""
        self.write_model("chosen", num_hidden_layers=12, tie_word_embeddings=False)
        words = (STAGES.format(2), "actor_rollout_ref.model.path=chosen", "parallel.pipeline_model_parallel_layout=[3, 9]", "memory.optimizer_offload=none")
        for measure, more, key in (("micro_batch", ("data.micro_batch_size_per_gpu=12",), "data.micro_batch_size_per_gpu="),
                                   ("bf16_states", (), f"{OPTIMIZER}state_dtype=bfloat16")):
            with self.subTest(measure):
                allow = f'memory.allow=["{measure}"]'
                ceiling = self.least(*words, *more, allow)
                self.assertLess(ceiling, self.least(*words, *more, "memory.allow=[]"))
                self.run_ranks(2, measure, *words, *more, allow, f"device.memory={ceiling}MiB")
                chosen = self.overrides(measure)
                self.assertEqual(chosen[0], chosen[1])
                self.assertEqual([each[:len(key)] for each in chosen[0]], [key])
                self.assert_ranks_are_as_planned(measure, 2)
                self.run_ranks(2, f"{measure}-written", *words, *more, *chosen[0])
                self.assert_same_files(measure, f"{measure}-written")
                self.assertEqual(self.metrics(f"out/{measure}"), self.metrics(f"out/{measure}-written"))
        for folder in ("bf16_states", "bf16_states-written"):
            self.run_ranks(2, folder, *words, allow if folder == "bf16_states" else key, "trainer.total_training_steps=4")
        self.assertEqual(self.overrides("bf16_states"), [[], []])  # the checkpoint decides
        self.assert_same_files("bf16_states", "bf16_states-written", step=4)

    def test_what_stages_do_not_go_with_is_refused(self):
        result = launch.run(1, launch.NEAP, "plan", "sft.toml", "trainer.n_gpus_per_node=6", STAGES.format(6), cwd=self.home)
        self.assertIn("is more than the 5 blocks of the actor model", result.stderr)
        words = ("trainer.n_gpus_per_node=4", STAGES.format(4), TENSOR)
        result = launch.run(1, launch.NEAP, "plan", "sft.toml", *words, cwd=self.home)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("parallel.pipeline_model_parallel_size, 8 does not divide the 4 ranks", result.stderr)
        result = launch.run(2, launch.NEAP, "train", "sft.toml", STAGES.format(3), cwd=self.home)
        self.assertIn("parallel.pipeline_model_parallel_size 3 does not divide the 2 ranks", result.stderr)

    def test_a_plan_says_which_stage_needs_most(self):
        words = ("trainer.n_gpus_per_node=3", STAGES.format(3))
        shown = launch.run(1, launch.NEAP, "plan", "sft.toml", *words, cwd=self.home)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual(len(re.findall(r"stage \d  layers", shown.stdout)), 3, shown.stdout)
        self.assertEqual(shown.stdout.count("needs most"), 1)
        plan = json.loads(launch.run(1, launch.NEAP, "plan", "sft.toml", "--json", *words, cwd=self.home).stdout)
        peaks = [stage["peak"] for stage in plan["stages"]]
        self.assertEqual(plan["peak"], max(peaks))
        self.assertEqual(sum(stage["blocks"] for stage in plan["stages"]), 5)
        result = self.run_ranks(3, "as-planned", words[1], "trainer.total_training_steps=1")
        self.assertIn("(+0.0 % of planned)", result.stdout)
        for rank, peak in enumerate(peaks):
            folder = "as-planned" if rank == 0 else f"as-planned/ranks/{rank}"
            self.assertEqual(json.loads((self.home / "out" / folder / "plan.json").read_text())["peak"], peak)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
