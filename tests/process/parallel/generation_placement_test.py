#!/usr/bin/env python3
"""PPO and GRPO whose actor is divided otherwise where it generates than in training: sliced, whole, in stages or in parts
of another size there (actor_rollout_ref.rollout.tensor_model_parallel_size). usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Texts are those of one rank, weights those of the same ranks that each generate with the whole model, bit by bit, and no
rank takes more memory than its plan says.
"""
import json
import sys
import unittest

import launch

from neap_program import SLOW
from rank_case import CONTEXT, FILES, name_of, ROWS, SGD, SIZE, STAGES
from rollout_case import CRITIC_SGD, KL_LOSS, RolloutCase, ZERO

GENERATING = "actor_rollout_ref.rollout.tensor_model_parallel_size"
ADAPTERS = ("actor/adapter_model.safetensors", "actor/optimizer.safetensors")


class GenerationPlacement(RolloutCase):
    def compare(self, name, *words, ranks=(2, 4), task="grpo", files=FILES, step=2):
        """Runs on one rank, and on several each way: with the whole model, and divided by 2 and by all."""
        self.run_mesh(f"{name}-1", *words, task=task)
        for n in ranks if SLOW else ranks[-1:]:
            whole = f"{name}-{n}-whole"
            self.run_mesh(whole, *words, ZERO.format(3), task=task, copies=n)
            for size in sorted({2, n}):
                folder = f"{name}-{n}-{size}"
                with self.subTest(folder):
                    self.run_mesh(folder, *words, ZERO.format(3), f"{GENERATING}={size}", task=task, copies=n)
                    self.assertEqual(self.texts(f"{name}-1"), self.texts(folder))
                    self.assert_same_files(whole, folder, step, files)
                    for one, two in zip(self.metrics(f"out/{whole}"), self.metrics(f"out/{folder}"), strict=True):
                        self.assert_near(one, two, 1e-6, folder)
                    self.assertLess(self.part_bytes(folder, "actor.rollout_weights"), 1.25 / size * self.part_bytes(whole, "actor.rollout_weights"))

    def compare_parts(self, name, *words, cases, task="grpo", files=FILES, step=2):
        """Runs on each mesh as it trains, and with the numbers of ranks that divide the model where it generates."""
        for mesh, sizes, *more in cases:
            sizes = sizes if SLOW else sizes[-1:]
            alike = "-".join([name, name_of(mesh), *(word.split("=")[-1] for word in more)])
            self.run_mesh(alike, *words, *more, task=task, **mesh)
            for size in sizes:
                folder = f"{alike}-r{size}"
                with self.subTest(folder):
                    self.run_mesh(folder, *words, *more, f"{GENERATING}={size}", task=task, **mesh)
                    self.assertEqual(self.texts(alike), self.texts(folder))
                    self.assert_same_files(alike, folder, step, files)
                    for one, two in zip(self.metrics(f"out/{alike}"), self.metrics(f"out/{folder}"), strict=True):
                        self.assert_near(one, two, 1e-6, folder)

    def test_parts_become_parts_of_another_size(self):
        words = ("actor_rollout_ref.rollout.calculate_log_probs=true", "trainer.total_training_steps=1", *SGD)
        self.compare_parts("parts", *words, step=1, cases=(
            ({"tensor": 2}, (1,)), ({"tensor": 2, "copies": 2}, (1, 4)), ({"tensor": 4}, (1, 2), ROWS),
            ({"tensor": 2, "copies": 2}, (4,), ROWS, ZERO.format(1)), ({"tensor": 2, "copies": 2}, (1,), ZERO.format(2)),
            ({"tensor": 2, "copies": 2}, (1, 4), ZERO.format(3)), ({"tensor": 2, "stages": 2}, (1, 4)), ({"copies": 2}, (2,))))

    def test_ranks_that_divide_sequences_divide_a_generation(self):
        words = ("trainer.total_training_steps=1", *SGD)
        self.compare_parts("context", *words, step=1, cases=(
            ({"context": 2}, (2,), ZERO.format(3)), ({"context": 2, "copies": 2}, (2, 4)), ({"context": 2, "tensor": 2}, (1, 4))))

    def test_adapters_of_parts(self):
        lora = (*SGD, *CRITIC_SGD, "actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4", "trainer.total_training_steps=1")
        self.compare_parts("lora-parts", *lora, task="ppo", files=ADAPTERS, step=1, cases=(
            ({"tensor": 2, "copies": 2}, (1, 4)), ({"tensor": 4}, (2,), ZERO.format(3)), ({"tensor": 2, "stages": 2}, (4,))))

    def test_grpo(self):
        self.compare("grpo", KL_LOSS, "actor_rollout_ref.actor.entropy_coeff=0.01", "actor_rollout_ref.rollout.top_p=0.9",
                     "actor_rollout_ref.rollout.calculate_log_probs=true", *SGD)

    def test_ppo(self):
        critic = ("critic/model.safetensors", "critic/optimizer.safetensors")
        self.compare("ppo", *SGD, *CRITIC_SGD, task="ppo", files=FILES + critic, ranks=(4, 2))

    def test_adapters(self):
        self.compare("lora", *SGD, *CRITIC_SGD, "actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4", task="ppo",
                     files=ADAPTERS, ranks=(4,))

    def test_what_a_step_may_have_besides(self):
        variants = {"dapo-remax": ["algorithm.filter_groups.enable=true", "algorithm.adv_estimator=remax"],
                    "in-turns": ["actor_rollout_ref.rollout.batch_size=3", "actor_rollout_ref.rollout.max_num_batched_tokens=16",
                                 "actor_rollout_ref.rollout.val_kwargs.n=3"]}
        for name, words in variants.items():
            self.compare(name, *words, "trainer.total_training_steps=1", *SGD, ranks=(4,), step=1)

    def test_a_cache_has_its_share_of_heads_and_the_sequences_of_all(self):
        def bytes_of(*words):
            result = launch.run(1, launch.NEAP, "plan", "grpo.toml", "--json", "--ranks", "4", ZERO.format(3), *words, cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            tags = {tag["tag"]: tag for tag in json.loads(result.stdout)["tags"]}
            return (sum(part["bytes"] for region in tags[name]["regions"] for part in region["parts"]) for name in ("actor.rollout_weights", "rollout.kv"))

        (whole, alone), (part, together) = bytes_of(), bytes_of(f"{GENERATING}=2")
        self.assertLess(part, 0.6 * whole)
        self.assertEqual(alone, together)

    def test_what_does_not_go_together(self):
        for words, ranks, message in (
                ((f"{GENERATING}=3", ZERO.format(3)), 4, f"{GENERATING} 3 does not divide the 4 ranks"),
                ((f"{GENERATING}=1", f"{SIZE}=2", "data.train_batch_size=6", "actor_rollout_ref.actor.ppo_mini_batch_size=6"), 4,
                 "data.train_batch_size 6 cannot be shared by 4 ranks"),
                ((f"{GENERATING}=8", ZERO.format(3), "actor_rollout_ref.actor.ppo_mini_batch_size=8"), 8, "attention heads")):
            result = launch.run(1, launch.NEAP, "plan", "grpo.toml", "--ranks", str(ranks), *words, cwd=self.home)
            self.assertNotEqual(result.returncode, 0, words)
            self.assertIn(message, " ".join(result.stderr.split()), words)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
