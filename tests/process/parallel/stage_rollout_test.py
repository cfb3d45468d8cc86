#!/usr/bin/env python3
"""PPO and GRPO with the stages of a pipeline: every rank generates with the whole model, or a part by heads, which stages give it.
usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Texts, checkpoints and metrics are those without stages, bit by bit, and no rank takes more memory than its plan says.
"""
import sys
import unittest

import launch

from rank_case import CHUNKS, FILES, name_of, OPTIMIZER, ROWS, SGD, STAGES, ZERO_BUBBLE
from rollout_case import CRITIC_SGD, KL_LOSS, RolloutCase, SCORE, ZERO

GENERATING = "actor_rollout_ref.rollout.tensor_model_parallel_size"
CRITIC = ("critic/model.safetensors", "critic/optimizer.safetensors")
ADAPTERS = ("actor/adapter_model.safetensors", "actor/optimizer.safetensors")


class StageRolloutCase(RolloutCase):
    def compare(self, name, *words, meshes, task="grpo", files=FILES, step=2, more=()):
        """Runs without stages and with them. meshes: what the same ranks of a stage divide, with numbers of stages."""
        for mesh, stages in meshes:
            whole = f"{name}-{name_of(mesh) or 1}"
            if not (self.home / "out" / whole).exists():
                self.run_mesh(whole, *words, task=task, **mesh)
            folder = f"{whole}-p{stages}" + "".join("-" + word.split("=")[-1] for word in more)
            with self.subTest(folder):
                self.run_mesh(folder, *words, *more, task=task, stages=stages, **mesh)
                self.assertEqual(self.texts(whole), self.texts(folder))
                self.assert_same_files(whole, folder, step, files)
                for one, two in zip(self.metrics(f"out/{whole}"), self.metrics(f"out/{folder}"), strict=True):
                    self.assert_near(one, two, 1e-6, folder)


class StageRollout(StageRolloutCase):
    def test_grpo(self):
        words = (KL_LOSS, "actor_rollout_ref.actor.entropy_coeff=0.01", "actor_rollout_ref.rollout.top_p=0.9",
                 "actor_rollout_ref.rollout.calculate_log_probs=true", *SGD)
        self.compare("grpo", *words, meshes=(({}, 2), ({"copies": 2}, 2), ({"tensor": 2}, 2)))
        for size in (2, 4):  # the ranks of a stage, and of both
            self.compare("grpo", *words, meshes=(({"copies": 2}, 2),), more=(f"{GENERATING}={size}",))

    def test_ppo(self):
        self.compare("ppo", *SGD, *CRITIC_SGD, task="ppo", files=FILES + CRITIC, meshes=(({}, 2), ({"copies": 2}, 2)))
        self.compare("ppo-rows", *SGD, *CRITIC_SGD, ROWS, task="ppo", files=FILES + CRITIC, meshes=(({"tensor": 2}, 2),))

    def test_adapters_and_slices(self):
        lora = (*SGD, *CRITIC_SGD, "actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4", "trainer.total_training_steps=1")
        self.compare("lora", *lora, task="ppo", files=ADAPTERS, step=1, meshes=(({}, 2), ({"tensor": 2}, 2)))
        self.compare("lora", *lora, task="ppo", files=ADAPTERS, step=1, meshes=(({"copies": 2}, 2),), more=(f"{GENERATING}=2",))
        self.compare("zero", *SGD, "trainer.total_training_steps=1", ZERO.format(1), step=1, meshes=(({"copies": 2}, 2),))

    def test_what_a_step_may_have_besides(self):
        variants = {"dapo-remax": ["algorithm.filter_groups.enable=true", "algorithm.adv_estimator=remax"],
                    "in-turns": ["actor_rollout_ref.rollout.batch_size=3", "actor_rollout_ref.rollout.max_num_batched_tokens=16",
                                 "actor_rollout_ref.rollout.val_kwargs.n=3"]}
        for name, words in variants.items():
            self.compare(name, *words, "trainer.total_training_steps=1", *SGD, step=1, meshes=(({"copies": 2}, 2),))

    def test_log_probabilities_of_samples_are_near(self):
        """They are computed beside other sequences."""
        words = ("algorithm.rollout_correction.bypass_mode=true", "trainer.total_training_steps=1", *SGD)
        self.run_mesh("bypassed-2", *words, task="grpo", copies=2)
        self.run_mesh("bypassed-2-p2", *words, task="grpo", copies=2, stages=2)
        self.assert_same_run("bypassed-2", "bypassed-2-p2", step=1)

    def test_each_response_is_scored_once_by_a_function(self):
        asked = {}
        words = ("reward_model.model.path=", "reward.functions.0.kind=python", "reward.functions.0.name=sums", "reward.functions.0.path=sums.py")
        for mesh in ({}, {"stages": 2}, {"stages": 2, "tensor": 2}):
            name = f"asked-{name_of(mesh) or 1}"
            calls = self.home / f"{name}.txt"
            (self.home / "sums.py").write_text(SCORE.replace("CALLS", str(calls)))
            self.run_mesh(name, *words, *SGD, "trainer.total_training_steps=1", task="grpo", **mesh)
            asked[name] = sorted(calls.read_text().splitlines())
        for name, texts in asked.items():
            self.assertEqual(texts, asked["asked-1"], name)

    def test_a_run_resumes_without_stages_and_with_them(self):
        for name, mesh, more in (("1", {}, ()), ("p2", {"stages": 2}, ())):
            self.run_mesh(f"from-{name}", *more, task="ppo", **mesh)
        for source, target, mesh in (("p2", "1", {}), ("1", "p2", {"stages": 2}), ("p2", "d2", {"copies": 2})):
            with self.subTest(source=source, target=target):
                folder = f"{source}-to-{target}"
                checkpoint = self.home / "out" / f"from-{source}" / "global_step_2"
                self.run_mesh(folder, f"trainer.resume_mode={checkpoint}", f"{OPTIMIZER}lr=0", "critic.optim.lr=0",
                              "trainer.total_training_steps=3", task="ppo", **mesh)
                for role in ("actor", "critic"):
                    self.assertEqual(self.file(f"from-{source}", f"{role}/model.safetensors").read_bytes(),
                                     self.file(folder, f"{role}/model.safetensors", 3).read_bytes())

    def test_what_does_not_go_together(self):
        result = launch.run(1, launch.NEAP, "plan", "grpo.toml", "--ranks", "4", f"{STAGES}=2", f"{GENERATING}=3", cwd=self.home)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("3 does not divide the 4 ranks", " ".join(result.stderr.split()))


class ChunkRollout(StageRolloutCase):
    @classmethod
    def add_model(cls, name, config):
        super().add_model(name, {**config, "num_hidden_layers": 5})

    def test_stages_of_chunks(self):
        words = (KL_LOSS, *SGD, *CRITIC_SGD)
        self.compare("chunks", *words, meshes=(({}, 2), ({"copies": 2}, 2)), more=(f"{CHUNKS}=2",))
        self.compare("chunks-ppo", *words[1:], task="ppo", files=FILES + CRITIC, meshes=(({"tensor": 2}, 2),), more=(f"{CHUNKS}=2",))
        words = (*words[1:], "trainer.total_training_steps=1")
        self.run_mesh("chunks-replicas", *words, task="ppo", copies=2)
        self.run_mesh("chunks-slices", *words, f"{CHUNKS}=2", ZERO.format(3), task="ppo", copies=2, stages=2)
        self.assertEqual(self.texts("chunks-replicas"), self.texts("chunks-slices"))
        self.assert_same_run("chunks-replicas", "chunks-slices", step=1, roles=("actor", "critic"))

    def test_stages_whose_backward_is_in_two_parts(self):
        self.compare("parts", *SGD, *CRITIC_SGD, task="ppo", files=FILES + CRITIC, meshes=(({}, 2), ({"copies": 2}, 2)), more=(ZERO_BUBBLE,))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
