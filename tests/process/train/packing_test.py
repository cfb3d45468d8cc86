#!/usr/bin/env python3
"""Packed micro-batches as `neap train` runs them: the same training as padded ones, within the plan. usage: FILE NEAP REVIEWS"""
import json
import math

from train_process_test import grpo_of, PPO, REWARD, TrainCase, main, read_lines

DPO = REWARD.replace('task = "reward"', 'task = "dpo"').replace("out/reward", "out/dpo").replace(
    "[trainer]", "[actor_rollout_ref.actor]\noptim.lr = 1e-3\n[trainer]")
GRPO = grpo_of(PPO).replace(
    "[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2")
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


class Packing(TrainCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, text in (("dpo", DPO), ("grpo", GRPO), ("ppo", PPO)):
            (cls.home / f"{name}.toml").write_text(text.replace("CEILING", "256MiB"))

    def run_job(self, task, name, *overrides):
        folder = f"out/{name}"
        result = self.neap("train", f"{task}.toml", f"trainer.default_local_dir={folder}", "trainer.total_training_steps=2",
                           "memory.allow=[]", "trainer.save_freq=-1", *overrides)
        self.assertEqual(result.returncode, 0, result.stderr)
        return folder

    def peaks(self, folder):
        """Of each phase: planned and measured bytes of transients."""
        plan = json.loads((self.home / folder / "plan.json").read_text())
        out = {}
        for phase in plan["phases"]:
            mine = [r for r in read_lines(self.home / folder / "phases.jsonl") if r["phase"] == phase["name"]]
            if mine:
                out[phase["name"]] = (phase["temporary"], max(r["temporary_reserved"] for r in mine),
                                      phase["temporary_allocated"], max(r["temporary_allocated"] for r in mine))
        self.assertTrue(out)
        return out

    def expect_same(self, task, budgets, names):
        padded = self.run_job(task, f"{task}-padded")
        packed = self.run_job(task, f"{task}-packed", *budgets)
        for row, wanted in zip(self.metrics(packed), self.metrics(padded), strict=True):
            for name in names:
                self.assertTrue(math.isclose(row[name], wanted[name], rel_tol=2e-4, abs_tol=2e-5), (name, row[name], wanted[name]))
        for row, wanted in zip(self.validations(packed), self.validations(padded), strict=True):
            for name in set(wanted) & {"val/loss", "val/accuracy", "val/score/mean"}:
                self.assertTrue(math.isclose(row[name], wanted[name], rel_tol=2e-3), (name, row[name], wanted[name]))
        for phase, (reserved, measured, allocated, live) in self.peaks(packed).items():
            self.assertLessEqual(measured, reserved, phase)
            self.assertLessEqual(live, allocated, phase)

    def test_supervised(self):
        self.expect_same("sft", ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=200"], ["train/loss", "train/grad_norm"])

    def test_reward_model(self):
        self.expect_same("reward", ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=200"],
                         ["train/loss", "train/grad_norm", "train/accuracy", "train/margin"])

    def test_preferences(self):
        self.expect_same("dpo", ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=200",
                                 "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=100"],
                         ["train/loss", "train/grad_norm", "rewards/margins", "logps/chosen"])

    def test_ppo(self):
        self.expect_same("ppo", [f"{ACTOR}use_dynamic_bsz=true", f"{ACTOR}ppo_max_token_len_per_gpu=100",
                                 f"{ROLLOUT}log_prob_max_token_len_per_gpu=150", "critic.ppo_max_token_len_per_gpu=90"],
                         ["actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "critic/grad_norm", "critic/score/mean",
                          "actor/entropy"])

    def test_grpo_with_lengths_that_are_drawn(self):
        drawn = f"{ROLLOUT}sample_lengths=true"
        budgets = [f"{ACTOR}use_dynamic_bsz=true", f"{ACTOR}ppo_max_token_len_per_gpu=90", "algorithm.mask_truncated_completions=true"]
        padded = self.run_job("grpo", "drawn-padded", drawn, budgets[-1])
        packed = self.run_job("grpo", "drawn-packed", drawn, *budgets)
        for row, wanted in zip(self.metrics(packed), self.metrics(padded), strict=True):
            self.assertGreater(row["response_length/max"], 3 * row["response_length/min"])
            for name in ("actor/pg_loss", "actor/grad_norm", "response_length/mean"):
                self.assertTrue(math.isclose(row[name], wanted[name], rel_tol=2e-4, abs_tol=2e-5), name)

    def test_full_micro_batches_take_what_was_planned(self):
        # Every row has the greatest length: micro-batches of three are full to the last token.
        row = {"prompt": "Last night we ate", "response": " ".join(["good food"] * 60)}
        (self.home / "long.jsonl").write_text((json.dumps(row) + "\n") * 48)
        common = ["data.train_files=[\"long.jsonl\"]", "data.val_files=[]", "data.truncation=right", "data.max_prompt_length=4",
                  "data.train_batch_size=12", "data.micro_batch_size_per_gpu=3"]
        folder = self.run_job("sft", "full", *common, "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=132")
        reserved, measured, allocated, live = self.peaks(folder)["train"]
        self.assertEqual(measured, reserved)
        self.assertLessEqual(live, allocated)
        self.assertGreater(live, 0.9 * allocated)  # fewer sequences, and prompts that nothing is computed of

    def test_a_budget_below_the_longest_sequence_is_refused(self):
        result = self.neap("plan", "sft.toml", "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=63")
        self.assert_fails(result, 2, "data.max_token_len_per_gpu is 63", "at least 64",
                          "data.max_prompt_length 24 + data.max_response_length 40")
        result = self.neap("plan", "reward.toml", "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=127")
        self.assert_fails(result, 2, "at least 128", "2 x of a pair")
        result = self.neap("plan", "ppo.toml", f"{ACTOR}use_dynamic_bsz=true", "critic.ppo_max_token_len_per_gpu=39")
        self.assert_fails(result, 2, "critic.ppo_max_token_len_per_gpu is 39", "at least 40")


if __name__ == "__main__":
    main()
