#!/usr/bin/env python3
"""Blocks that rest on the host, of models beside others that have stages of a pipeline. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

The same bits as with everything on the device, on the same ranks; bytes and memory of each rank are those of its plan.
NEAP_TEST_SLOW=1: every case.
"""
import json
import sys
import unittest

import launch

from neap_program import without
from rank_case import FILES, STAGES
from streamed_stages_case import CRITIC_FILES, CRITIC_LORA, RESIDENT, StreamedStagesCase

REFERENCE, CRITIC, JUDGE = (f"{model}.pipeline_model_parallel_size" for model in ("actor_rollout_ref.ref", "critic", "reward_model"))
CRITIC_WHOLE = ("critic/model.safetensors", CRITIC_FILES[1])


class StreamedKinds(StreamedStagesCase):
    def test_whole_models_beside_an_actor_in_stages(self):
        whole = (f"{STAGES}=2", f"{REFERENCE}=1", f"{CRITIC}=1", f"{JUDGE}=1", CRITIC_LORA)
        frozen = ("reference", "critic", "reward")
        self.assert_streamed_is_resident("beside", 2, (frozen, frozen), *whole, task="ppo", files=(*FILES, *CRITIC_FILES))
        # Micro-batches that go through a block together, and slices on the host.
        self.assert_streamed_is_resident("beside-groups", 2, (frozen, frozen), *whole, "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
                                         task="ppo", files=(*FILES, *CRITIC_FILES), room=1)
        together = json.loads((self.home / "out/beside-groups/plan.json").read_text())["micro_batches_per_load"]
        self.assertGreater(together["reference"], 1)
        slices = ("actor_rollout_ref.ref.zero_stage=3", "reward_model.zero_stage=3", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1")
        for name, room in without("beside-slices", of=(("beside-slices", 0), ("beside-slices-groups", 2))):
            self.assert_streamed_is_resident(name, 2, (frozen[:2], frozen[:2]), *whole, *slices, task="ppo", files=(*FILES, *CRITIC_FILES), room=room)
        plans = [json.loads((self.home / f"out/beside-slices-groups{rank}/plan.json").read_text())["micro_batches_per_load"] for rank in ("", "/ranks/1")]
        self.assertGreater(plans[0]["reference"], 1)
        self.assertEqual(plans[0]["reference"], plans[1]["reference"])

    def test_trained_blocks_of_models_that_several_kinds_share(self):
        """A whole critic beside an actor in stages, a whole actor beside a critic in stages, stages that others cut: ranks add up gradients, and
        update, alike."""
        whole = (f"{STAGES}=2", f"{REFERENCE}=1", f"{CRITIC}=1", f"{JUDGE}=1")
        of_critic = (*FILES, *CRITIC_WHOLE)
        cases = (("", ("critic.grad_clip=0.01",), 0), ("-zero", ("critic.zero_stage=1",), 0), ("-gradients", ("critic.zero_stage=2",), 0),
                 ("-parts", ("critic.tensor_model_parallel_size=2", "critic.sequence_parallel=true"), 0),
                 ("-groups", ("critic.ppo_micro_batch_size_per_gpu=1",), 4))
        for name, words, room in without("-zero", of=cases):  # gradients are sliced with states
            with self.subTest(f"shared{name}"):
                self.assert_streamed_is_resident(f"shared{name}", 2, (("critic",),) * 2, *whole, *words, task="ppo", files=of_critic, room=room)
        with self.subTest("shared-slices"):
            self.assert_streamed_is_resident("shared-slices", 2, (("critic",),) * 2, *whole, "critic.zero_stage=3", task="ppo", files=of_critic, trains_slices=True)
        with self.subTest("shared-slices-groups"):  # the resident ones are in the largest, which have the same order of sums
            self.assert_streamed_is_resident("shared-slices-groups", 2, (("critic",),) * 2, *whole, "critic.zero_stage=3", "critic.ppo_micro_batch_size_per_gpu=1",
                                             task="ppo", files=of_critic, room=6, trains_slices=True)
        for name in ("groups", "slices-groups"):
            together = [json.loads((self.home / f"out/shared-{name}{rank}/plan.json").read_text())["micro_batches_per_load"]["critic"] for rank in ("", "/ranks/1")]
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
                streamed = ["actor" in json.loads((self.home / f"out/{folder}/plan.json").read_text())["offloaded_weights"]
                            for folder in (f"cut{name}", *(f"cut{name}/ranks/{rank}" for rank in (1, 2, 3)))]
                self.assertEqual(streamed, [streamed[0]] * 2 + [streamed[2]] * 2)
                self.assertIn(True, streamed)

    def test_each_stage_places_frozen_models_that_no_other_one_takes_part_in(self):
        """The second one has more of the actor, and less room. What a critic that trains has rests alike."""
        words = (f"{STAGES}=2", f"{REFERENCE}=1", f"{CRITIC}=1", f"{JUDGE}=1", CRITIC_LORA, "actor_rollout_ref.model.path=out/deep/latest/actor",
                 "actor_rollout_ref.actor.pipeline_model_parallel_layout=[1,11]", 'memory.allow=["recompute", "offload_optimizer", "offload_weights"]')
        self.run_ranks(2, "apart-whole", *words, *RESIDENT, task="ppo")
        self.run_ranks(2, "apart", *words, "device.memory=46MiB", task="ppo")
        self.assert_same_files("apart-whole", "apart", files=(*FILES, *CRITIC_FILES))
        self.assertEqual(self.metrics("out/apart-whole"), self.metrics("out/apart"))
        plans = [self.assert_comes_as_planned(folder, False) for folder in ("apart", "apart/ranks/1")]
        self.assertEqual([plan["offloaded_weights"] for plan in plans], [["reference", "critic"], ["reference", "critic", "reward"]])

    def test_an_actor_beside_stages(self):
        """It generates with all blocks."""
        words = (f"{CRITIC}=2", "actor_rollout_ref.model.path=out/deep/latest/actor", "actor_rollout_ref.model.lora_rank=4",
                 "critic.model.path=out/shallow/latest/reward", f"{JUDGE}=1")
        self.assert_streamed_is_resident("actor", 2, (("actor",), ("actor",)), *words, task="ppo",
                                         files=("actor/adapter_model.safetensors", FILES[1], *CRITIC_WHOLE))


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
