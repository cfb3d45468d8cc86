#!/usr/bin/env python3
"""PPO and GRPO with sequences that ranks divide (parallel.context_parallel_size). usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Every rank answers prompts of its own; scoring and training divide the responses. The texts are those of one rank, losses
and weights differ by the order of sums only, and no rank takes more memory than its plan says.
"""
import json
import sys
import unittest

import launch

from neap_program import SLOW
from rank_case import CONTEXT, name_of, OPTIMIZER, ROWS, SGD
from rollout_case import CRITIC_SGD, KL_LOSS, RolloutCase, SCORE, ZERO
from train_process_test import MODEL  # noqa: E402

MESHES = ({"context": 2}, {"context": 4}, {"context": 2, "copies": 2}, {"context": 2, "tensor": 2}, {"context": 2, "stages": 2})
RING = "parallel.cp_comm_type=p2p"


class ContextRollout(RolloutCase):
    def test_grpo_is_the_same_on_one_rank_and_several(self):
        words = (KL_LOSS, "actor_rollout_ref.actor.entropy_coeff=0.01", "actor_rollout_ref.rollout.top_p=0.9", *SGD)
        self.run_mesh("grpo-1", *words, task="grpo")
        for mesh in MESHES:
            folder = f"grpo-{name_of(mesh)}"
            with self.subTest(folder):
                self.run_mesh(folder, *words, *((ROWS,) if "tensor" in mesh else ()), task="grpo", **mesh)
                self.assert_same_run("grpo-1", folder)
        with self.subTest("a ring"):
            self.run_mesh("grpo-ring", *words, RING, task="grpo", context=4)
            self.assert_same_run("grpo-1", "grpo-ring")

    def test_ppo_is_the_same_on_one_rank_and_several(self):
        words = (*SGD, *CRITIC_SGD)
        self.run_mesh("ppo-1", *words, task="ppo")
        for mesh in MESHES if SLOW else MESHES[2:]:
            folder = f"ppo-{name_of(mesh)}"
            with self.subTest(folder):
                self.run_mesh(folder, *words, task="ppo", **mesh)
                # Copies of the model have rows that are dealt by their tokens: sums in another order.
                self.assert_same_run("ppo-1", folder, near=2e-6, roles=("actor", "critic"))
        with self.subTest("a ring"):
            self.run_mesh("ppo-ring", *words, RING, task="ppo", context=4)
            self.assert_same_run("ppo-1", "ppo-ring", roles=("actor", "critic"))
        with self.subTest("a ring and stages"):
            self.run_mesh("ppo-ring-stages", *words, RING, task="ppo", context=2, stages=2)
            self.assert_same_run("ppo-1", "ppo-ring-stages", near=2e-6, roles=("actor", "critic"))

    def test_what_a_step_may_have_besides(self):
        algorithm = "algorithm.adv_estimator="
        variants = {"dapo": ["algorithm.filter_groups.enable=true", "actor_rollout_ref.actor.clip_ratio_high=0.28"],
                    "dapo-remax": ["algorithm.filter_groups.enable=true", f"{algorithm}remax"], "remax": [f"{algorithm}remax"],
                    "corrected": ["algorithm.rollout_correction.rollout_is=sequence", "algorithm.rollout_correction.rollout_rs=token_k1",
                                  "algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0"],
                    "bypassed": ["algorithm.rollout_correction.bypass_mode=true"],
                    "gspo": ["actor_rollout_ref.actor.policy_loss.loss_mode=gspo"],
                    "in-turns": ["actor_rollout_ref.rollout.batch_size=3", "actor_rollout_ref.rollout.max_num_batched_tokens=16",
                                 "actor_rollout_ref.rollout.val_kwargs.n=3"]}
        for name, words in variants.items():
            words = (*words, "trainer.total_training_steps=1", *SGD)
            self.run_mesh(f"{name}-1", *words, task="grpo")
            for mesh in ({"context": 2}, {"context": 2, "copies": 2})[0 if SLOW else 1:]:
                folder = f"{name}-{name_of(mesh)}"
                with self.subTest(folder):
                    self.run_mesh(folder, *words, task="grpo", **mesh)
                    self.assert_same_run(f"{name}-1", folder, step=1)

    def test_slices_and_adapters(self):
        lora = ("actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4")
        words = (*SGD, *CRITIC_SGD, "trainer.total_training_steps=1")
        for name, more, stages in (("whole", (), (1, 2, 3) if SLOW else (1, 3)), ("lora", lora, (0, 3))):
            self.run_mesh(f"{name}-1", *words, *more, task="ppo")
            file = "model" if name == "whole" else "adapter_model"
            meshes = [(stage, {"context": 2} if stage < 2 else {"context": 2, "copies": 2}) for stage in stages]
            for stage, mesh in (*meshes, (3, {"context": 2, "tensor": 2}), (3, {"context": 2, "stages": 2})):
                folder = f"{name}-{stage}-{name_of(mesh)}"
                with self.subTest(folder):
                    self.run_mesh(folder, *words, *more, ZERO.format(stage), task="ppo", **mesh)
                    self.assert_same_run(f"{name}-1", folder, model=file, step=1, near=2e-6, roles=("actor", "critic"))

    def test_each_response_is_scored_once_by_a_function(self):
        asked = {}
        words = ("reward_model.model.path=", "reward.functions.0.kind=python", "reward.functions.0.name=sums", "reward.functions.0.path=sums.py")
        meshes = ({}, {"context": 2, "tensor": 2}, {"context": 2, "stages": 2}, {"context": 2}, {"context": 4})
        for mesh in meshes if SLOW else meshes[:3]:
            name = f"asked-{name_of(mesh) or 1}"
            calls = self.home / f"{name}.txt"
            (self.home / "sums.py").write_text(SCORE.replace("CALLS", str(calls)))
            self.run_mesh(name, *words, *SGD, task="grpo", **mesh)
            asked[name] = sorted(calls.read_text().splitlines())
            self.assert_same_run("asked-1", name)
        # Two steps of 8 prompts with 2 responses each; the 7 held-out prompts behind each of them, and before the first.
        self.assertGreaterEqual(len(asked["asked-1"]), 2 * (16 + 7))
        for name, texts in asked.items():
            self.assertEqual(texts, asked["asked-1"], name)

    def test_a_run_resumes_on_another_mesh(self):
        meshes = {"1": {}, "d2": {"copies": 2}, "c2": {"context": 2}, "c4": {"context": 4}, "c2d2": {"context": 2, "copies": 2}}
        for name in ("1", "c2") if SLOW else ("c2",):
            self.run_mesh(f"from-{name}", task="ppo", **meshes[name])
        pairs = (("c2", "1"), ("c2", "d2"), ("c2", "c4"), ("1", "c2"), ("c2", "c2d2"))
        for source, target in pairs if SLOW else pairs[:3]:
            with self.subTest(source=source, target=target):
                folder = f"{source}-to-{target}"
                checkpoint = self.home / "out" / f"from-{source}" / "global_step_2"
                self.run_mesh(folder, f"trainer.resume_mode={checkpoint}", f"{OPTIMIZER}lr=0", "critic.optim.lr=0",
                              "trainer.total_training_steps=3", task="ppo", **meshes[target])
                for role in ("actor", "critic"):
                    self.assertEqual(self.file(f"from-{source}", f"{role}/model.safetensors").read_bytes(),
                                     self.file(folder, f"{role}/model.safetensors", 3).read_bytes())
        for target in ("d2", "c4", "c2d2") if SLOW else ("d2", "c4"):
            self.assertEqual(self.texts("c2-to-1"), self.texts(f"c2-to-{target}"))

    def test_a_batch_is_a_multiple_of_the_ranks_that_generate(self):
        result = launch.run(4, launch.NEAP, "train", "grpo.toml", f"{CONTEXT}=2", "data.train_batch_size=6",
                            "actor_rollout_ref.actor.ppo_mini_batch_size=2", cwd=self.home)
        self.assert_fails(result, 2, "data.train_batch_size 6 cannot be shared by 4 ranks: it has to be a multiple, as 4 or 8")
        self.run_mesh("small", "data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_training_steps=1",
                      task="grpo", context=2, copies=2)

    def test_a_plan_divides_caches_and_activations(self):
        self.add_model("long", dict(MODEL, max_position_embeddings=65536))

        def plan(*words):
            result = launch.run(1, launch.NEAP, "plan", "grpo.toml", "--json", "--gpu", "h100", "device.kind=cuda", "device.memory=0B",
                                "actor_rollout_ref.model.path=long", "reward_model.model.path=", "reward.functions.0.kind=length", "reward.functions.0.buffer_length=100",
                                "data.max_response_length=32000", *words, cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            out = json.loads(result.stdout)
            cache = [tag["bytes"] for tag in out["tags"] if tag["tag"] == "rollout.kv"]
            return cache[0], {p["name"]: p["peak"] - p["persistent"] for p in out["phases"]}

        budget = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu={}"
        cache, whole = plan("trainer.n_gpus_per_node=1", budget.format(32768))
        half_cache, half = plan("trainer.n_gpus_per_node=2", f"{CONTEXT}=2", budget.format(16384))
        self.assertLess(half_cache, 0.51 * cache)
        for phase in ("actor_logp", "train_actor"):
            self.assertLess(half[phase], 0.75 * whole[phase], phase)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
