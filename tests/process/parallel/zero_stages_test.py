#!/usr/bin/env python3
"""`neap train` with stages of a pipeline whose replicas slice gradients and weights: ZeRO-2 and -3.
usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Stages give the bits of the replicas without stages that add each micro-batch's gradients up over ranks; of a table that is
embedding and head another order of the same sums. Checkpoints do not depend on either. NEAP_TEST_SLOW=1: every case.
"""
import sys
import unittest

import launch

from neap_program import SLOW, without
from rank_case import FILES, OPTIMIZER, ROWS, SGD, SIZE, STAGES
from rollout_case import CRITIC_SGD
from train_process_test import MODEL  # noqa: E402
from zero_stages_case import ADAPTER, SHARDS, TWO, ZERO, ZeroStagesCase

GENERATING = "actor_rollout_ref.rollout.tensor_model_parallel_size"


class ZeroStages(ZeroStagesCase):
    def test_untied_models_have_the_bits_of_replicas(self):
        self.assert_stages_are_replicas("base", 2, "trainer.test_freq=1")
        self.assert_stages_are_replicas("base3", 3, stages=2, zero=(3,))
        self.assert_stages_are_replicas("deep", 2, stages=3, zero=(3,))
        self.assert_stages_are_replicas("tensor", 2, tensor=2, zero=(2, 3) if SLOW else (2,))
        for stage in (2, 3):
            folder = f"base-p2-z{stage}"
            self.assertLess(self.part_bytes(folder, "actor.grads"), 0.4 * self.part_bytes("base-flat", "actor.weights"))
        self.assertLess(self.part_bytes("base-p2-z3", "actor.weights"), 0.4 * self.part_bytes("base-flat", "actor.weights"))

    def test_optimizers_types_updates_and_adapters(self):
        self.run_ranks(1, "started", "trainer.total_training_steps=1", task="stages")
        start = "actor_rollout_ref.model.path=out/started/latest/actor"
        bf16 = "device.dtype=bfloat16"
        cases = {"narrow": [bf16, *(f"{OPTIMIZER}{key}_dtype=bfloat16" for key in ("state", "gradient", "master"))],
                 "adafactor": [f"{OPTIMIZER}optimizer=adafactor", bf16], "split": [bf16, "memory.optimizer_offload=phase_split"],
                 "streamed": ["memory.optimizer_offload=cpu", f"{OPTIMIZER}optimizer=sm3", f"{OPTIMIZER}momentum=0.9"],
                 "recompute": ["actor_rollout_ref.model.activation_checkpointing=full"],
                 "lora": [start, bf16, "actor_rollout_ref.model.lora_rank=4"]}
        for name, words in without("split", "recompute", of=cases).items():
            self.assert_stages_are_replicas(name, 2, *words, zero=(3,), files=ADAPTER if name == "lora" else FILES)

    def test_tied_models_are_one_rank(self):
        """Both ends of the pipeline add to one table, and keep equal slices of it."""
        words = ("actor_rollout_ref.model.path=tied", "trainer.test_freq=2", *SGD)
        self.run_ranks(1, "tied-1", *words, task="stages")
        for name, ranks, more in without("tied-replicas", of=(("tied-z2", 4, (ZERO.format(2),)), ("tied-z3", 4, (ZERO.format(3),)),
                                                              ("tied-tensor", 8, (ZERO.format(3), f"{SIZE}=2", ROWS)),
                                                              ("tied-replicas", 8, (ZERO.format(3), SHARDS.format(2))))):
            with self.subTest(name):
                each = "data.micro_batch_size_per_gpu=1" if name == "tied-replicas" else "data.micro_batch_size_per_gpu=2"
                self.run_ranks(ranks, name, TWO, *more, *words, each, task="stages")
                self.assert_ranks_are_as_planned(name, ranks)
                self.assert_same_training("tied-1", name, near=2e-6)
        # A table of several tiles is cut between ranks.
        self.add_model("large", dict(MODEL, vocab_size=120_000, num_hidden_layers=2))
        words = ("actor_rollout_ref.model.path=large", "trainer.total_training_steps=1", "device.memory=512MiB", *SGD)
        self.run_ranks(1, "large-1", *words, task="stages")
        self.run_ranks(4, "large-z3", TWO, ZERO.format(3), *words, task="stages")
        self.assert_ranks_are_as_planned("large-z3", 4)
        self.assert_same_training("large-1", "large-z3", step=1, near=2e-6, files=("model",))

    def test_micro_batches_in_numbers_that_differ(self):
        """Ranks of a stage meet in each other's micro-batches."""
        for name, words in {"packed": (), "packed-tied": ("actor_rollout_ref.model.path=tied",)}.items():
            words = (*words, "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70", "trainer.test_freq=2", *SGD)
            self.run_ranks(1, f"{name}-1", *words, task="stages")
            for stage, ranks in ((2, 4), (3, 6)) if SLOW else ((2, 4),) if name == "packed-tied" else ((3, 6),):
                with self.subTest(name, stage=stage):
                    folder = f"{name}-z{stage}"
                    self.run_ranks(ranks, folder, TWO, ZERO.format(stage), *words, task="stages")
                    self.assert_within_plans(folder, ranks)
                    self.assert_same_training(f"{name}-1", folder, near=2e-6)

    def test_pairs(self):
        self.run_ranks(1, "before-pairs", "trainer.total_training_steps=1", task="stages")
        for name, words, role in without("dpo", of=(("reward", (), "reward"), ("dpo", ("task=dpo",), "actor"),
                                                    ("dpo-lora", ("task=dpo", "actor_rollout_ref.model.lora_rank=4"), "actor"))):
            files = ADAPTER if name == "dpo-lora" else [f.replace("actor", role) for f in FILES]
            self.assert_stages_are_replicas(name, 2, *words, "actor_rollout_ref.model.path=out/before-pairs/latest/actor", zero=(3,), files=files, task="pairs")

    def test_rollouts(self):
        cases = {"grpo": ("grpo", ()), "ppo": ("ppo", CRITIC_SGD),
                 "lora": ("ppo", (*CRITIC_SGD, "actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4"))}
        for name, (task, words) in cases.items():
            words = (*SGD, *words, "trainer.total_training_steps=1")
            self.run_mesh(f"{name}-d2", *words, task=task, copies=2)
            ways = ((ZERO.format(3),), (ZERO.format(3), f"{GENERATING}=2"))
            for more in ways if SLOW or name == "ppo" else ways[name == "lora":][:1]:
                folder = f"{name}-d2-p2-{len(more)}"
                with self.subTest(folder):
                    self.run_mesh(folder, *words, *more, task=task, copies=2, stages=2)
                    self.assertEqual(self.texts(f"{name}-d2"), self.texts(folder))
                    self.assert_same_run(f"{name}-d2", folder, step=1, model="adapter_model" if name == "lora" else "model",
                                         roles=("actor",) if task == "grpo" else ("actor", "critic"))

    def test_a_run_resumes_on_another_mesh(self):
        meshes = {"1": (1, ()), "z3": (2, (ZERO.format(3),)), "p2z2": (4, (TWO, ZERO.format(2))), "p2z3": (4, (TWO, ZERO.format(3))),
                  "p3z3": (6, (f"{STAGES}=3", ZERO.format(3))), "p2z3t2": (8, (TWO, ZERO.format(3), f"{SIZE}=2"))}
        words = ("device.dtype=bfloat16", "actor_rollout_ref.model.path=tied")
        for source in ("1", "p2z3", "p2z3t2"):
            self.run_ranks(meshes[source][0], f"from-{source}", *words, *meshes[source][1], task="stages")
        pairs = (("1", "p2z3"), ("p2z3", "1"), ("p2z3", "z3"), ("p2z3", "p3z3"), ("p2z3t2", "p2z2"), ("p2z3t2", "p2z3"))
        for source, target in pairs if SLOW else (pairs[0], pairs[3], pairs[4]):  # resume_pairs_test.py has others
            with self.subTest(source=source, target=target):
                folder = f"{source}-to-{target}"
                checkpoint = self.home / "out" / f"from-{source}" / "global_step_2"
                result = self.run_ranks(meshes[target][0], folder, *words, *meshes[target][1], f"trainer.resume_mode={checkpoint}",
                                        f"{OPTIMIZER}lr=0", "trainer.total_training_steps=3", task="stages")
                self.assertIn("Resuming from", result.stderr)
                # A step without a rate: the same weights, whoever read them.
                self.assertEqual((checkpoint / FILES[0]).read_bytes(), self.file(folder, FILES[0], 3).read_bytes())


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
