#!/usr/bin/env python3
"""`neap train` on two ranks against one. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

The jobs are those of train_process_test.py, a few steps each.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import unittest

import launch
import neap_program

from train_process_test import MODEL, PPO, REWARD, SFT, TrainCase, head, read_lines  # noqa: E402


class Train(TrainCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS), fewer=1)  # an odd number of held-out rows: ranks do not get the same number
        (cls.home / "sft.toml").write_text(SFT.replace("total_training_steps = 8", "total_training_steps = 4"))
        (cls.home / "reward.toml").write_text(REWARD.replace("micro_batch_size_per_gpu = 4", "micro_batch_size_per_gpu = 2"))
        ppo = PPO.replace("CEILING", "64MiB").replace("ppo_micro_batch_size_per_gpu = 4", "ppo_micro_batch_size_per_gpu = 2")
        (cls.home / "ppo.toml").write_text(ppo)
        for stage in ("sft", "reward"):
            result = cls.train(1, stage)
            assert result.returncode == 0, result.stderr

    @classmethod
    def train(cls, ranks, stage, *overrides, **more):
        return launch.run(ranks, launch.NEAP, "train", f"{stage}.toml", *overrides, cwd=cls.home, **more)

    def assert_near(self, one, two, relative, where):
        self.assertEqual(one.keys(), two.keys())
        for key, value in one.items():
            if isinstance(value, float):
                self.assertLessEqual(abs(value - two[key]), relative * max(1e-3, abs(value)), (where, key, value, two[key]))

    def assert_planned_is_measured(self, folder):
        plan = json.loads((self.home / folder / "plan.json").read_text())
        peaks = {phase["name"]: phase["peak"] for phase in plan["phases"]}
        phases = read_lines(self.home / folder / "phases.jsonl")
        self.assertTrue(phases)
        for phase in phases:
            self.assertLessEqual(abs(phase["peak"] / peaks[phase["phase"]] - 1), 0.03, (folder, phase, peaks))

    def two_ranks(self, stage, folder, *overrides):
        result = self.train(2, stage, f"trainer.default_local_dir=out/{folder}", *overrides)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("2 ranks over mpi"), 1)  # one rank prints
        return result

    def test_sft_is_the_same_on_one_rank_and_two(self):
        self.two_ranks("sft", "sft-2")
        one, two = self.metrics("out/sft"), self.metrics("out/sft-2")
        self.assertEqual(len(one), len(two))
        for a, b in zip(one, two):
            self.assert_near(a, b, 1e-4, "sft")
        for a, b in zip(read_lines(self.home / "out/sft/validation.jsonl"),
                        read_lines(self.home / "out/sft-2/validation.jsonl")):
            self.assertLess(abs(a["val/loss"] - b["val/loss"]), 1e-3)
        self.assert_planned_is_measured("out/sft-2")
        self.assert_planned_is_measured("out/sft-2/ranks/1")
        plan = json.loads((self.home / "out/sft-2/plan.json").read_text())
        (sent,) = [phase["communication_bytes"] for phase in plan["phases"] if phase["name"] == "train"]
        self.assertGreater(sent, 0)
        for folder, expected in (("sft", 0), ("sft-2", sent), ("sft-2/ranks/1", sent)):
            rows = [row for row in read_lines(self.home / "out" / folder / "phases.jsonl") if row["phase"] == "train"]
            # As a ring each of two ranks sends as much as the sums have.
            self.assertEqual({row["communication_bytes"] for row in rows}, {expected})
            self.assertTrue(all((row["communication_seconds"] > 0) == (expected > 0) for row in rows))

    def test_reward_is_the_same_on_one_rank_and_two(self):
        self.two_ranks("reward", "reward-2")
        for a, b in zip(self.metrics("out/reward"), self.metrics("out/reward-2")):
            self.assert_near(a, b, 1e-3, "reward")
        a = read_lines(self.home / "out/reward/validation.jsonl")[-1]
        b = read_lines(self.home / "out/reward-2/validation.jsonl")[-1]
        self.assertLess(abs(a["val/loss"] - b["val/loss"]), 1e-3)
        self.assertAlmostEqual(a["val/accuracy"], b["val/accuracy"])

    def test_ppo_is_the_same_on_one_rank_and_two_and_twice(self):
        steps = ("trainer.total_training_steps=2",)
        alone = self.train(1, "ppo", "trainer.default_local_dir=out/ppo-1", *steps)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.two_ranks("ppo", "ppo-2", *steps)
        self.two_ranks("ppo", "ppo-2-again", *steps)
        self.assertEqual(self.metrics("out/ppo-2"), self.metrics("out/ppo-2-again"))
        # The same prompts draw the same texts; what follows from them differs by the order of sums.
        for a, b in zip(self.metrics("out/ppo-1"), self.metrics("out/ppo-2")):
            self.assert_near(a, b, 2e-2, "ppo")
        texts = [[s["response"] for s in read_lines(self.home / f"out/{name}/validation.jsonl")[0]["samples"]]
                 for name in ("ppo-1", "ppo-2")]
        self.assertEqual(texts[0], texts[1])
        self.assert_planned_is_measured("out/ppo-2")
        self.assert_planned_is_measured("out/ppo-2/ranks/1")

    def assert_first_step_is_the_same(self, stage, name, *overrides):
        """Before what differs in the last bits has been trained on."""
        steps = ("trainer.total_training_steps=1", 'data.val_files=[]', *overrides)
        alone = self.train(1, stage, f"trainer.default_local_dir=out/{name}-1", *steps)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.two_ranks(stage, f"{name}-2", *steps)
        (one,), (two,) = self.metrics(f"out/{name}-1"), self.metrics(f"out/{name}-2")
        self.assertEqual(one.keys(), two.keys())
        for key, value in one.items():
            if isinstance(value, float):
                limit = 1e-6 if key.endswith("loss") else 1e-4
                self.assertLessEqual(abs(value - two[key]), limit * max(1, abs(value)), (name, key, value, two[key]))

    def test_fewer_held_out_rows_than_ranks(self):
        for name, stage, words in (("sft", "sft", []), ("pairs", "reward", []), ("pairs", "reward", ["task=dpo"])):
            head(self.home / f"{name}_val.jsonl", self.home / "one.jsonl", 1)
            folder = f"one-row-{stage}-{len(words)}"
            words = [*words, "data.val_files=one.jsonl", "trainer.total_training_steps=1"]
            self.two_ranks(stage, folder, *words)
            alone = self.train(1, stage, f"trainer.default_local_dir=out/{folder}-alone", *words)
            self.assertEqual(alone.returncode, 0, alone.stderr)
            one, two = (read_lines(self.home / f"out/{f}/validation.jsonl")[0]["val/loss"] for f in (f"{folder}-alone", folder))
            self.assertAlmostEqual(one, two, 6)

    def test_ranks_of_an_evaluation_plan_for_the_least_memory(self):
        """Otherwise they would decode other numbers of sequences together, and exchange other parts of the responses."""
        def command(memory):
            return (launch.NEAP, "eval", "out/sft", "many.jsonl", "--config", "ppo.toml", "--json", f"device.memory={memory}")

        lines = (self.home / "prompts_val.jsonl").read_text().splitlines(keepends=True)
        (self.home / "many.jsonl").write_text("".join((lines * 200)[:200]))
        refused = launch.run(1, *command("1MiB"), cwd=self.home)
        least = re.search(r"minimum capacity is (\d+) MiB", refused.stderr)[1]
        outputs = []
        for first, second in (("1GiB", "1GiB"), ("1GiB", f"{least}MiB")):
            result = launch.run(1, launch.MPIRUN, *launch.FLAGS, "-n", "1", *command(first), ":", "-n", "1", *command(second), cwd=self.home)
            self.assertEqual(result.returncode, 0, result.stderr)
            outputs.append(json.loads(result.stdout))
        roomy, tight = outputs
        self.assertEqual(roomy["metrics"], tight["metrics"])
        self.assertLess(tight["planned_peak"], roomy["planned_peak"])

    def test_every_preference_loss_is_the_same_on_one_rank_and_two(self):
        lora = ["actor_rollout_ref.model.lora_rank=4"]
        for name, words in {"sigmoid": ["dpo.label_smoothing=0.1"], "sigmoid_norm": [], "ipo": [], "ipo_sum": [], "hinge": lora,
                            "robust": ["dpo.label_smoothing=0.1"]}.items():
            with self.subTest(name):
                # Against another reference: the first losses are not those of equal models.
                other = [] if words == lora else ["actor_rollout_ref.ref.model.path=out/sft/global_step_3/actor"]
                self.assert_first_step_is_the_same("reward", f"dpo-{name}", "task=dpo", f"dpo.loss_type={name}", *other, *words)

    def test_a_reference_that_runs_once_is_the_same_on_one_rank_and_two(self):
        words = ("task=dpo", "dpo.precompute_ref_log_probs=true", "trainer.total_training_steps=1",
                 "actor_rollout_ref.ref.model.path=out/sft/global_step_3/actor")
        alone = self.train(1, "reward", "trainer.default_local_dir=out/once-1", *words)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.two_ranks("reward", "once-2", *words)
        for read in (lambda name: self.metrics(f"out/{name}"),
                     lambda name: [{k: v for k, v in row.items() if not k.startswith("timing")}
                                   for row in read_lines(self.home / f"out/{name}/validation.jsonl")]):
            for a, b in zip(read("once-1"), read("once-2"), strict=True):
                self.assert_near(a, b, 1e-3, "once")
        for folder in ("once-2", "once-2/ranks/1"):
            self.assert_planned_is_measured(f"out/{folder}")
        # What one rank has computed another number of them goes on with.
        file = "reference_log_probs.safetensors"
        (self.home / "out/once-3").mkdir()
        shutil.copy(self.home / "out/once-1" / file, self.home / "out/once-3")
        result = self.two_ranks("reward", "once-3", *words)
        self.assertIn("has the reference's log-probabilities of 55 of 55 pairs", result.stderr)
        one, two = ((self.home / f"out/{name}" / file).read_bytes() for name in ("once-1", "once-3"))
        self.assertEqual(one, two)
        for a, b in zip(self.metrics("out/once-1"), self.metrics("out/once-3"), strict=True):
            self.assert_near(a, b, 1e-3, "once-3")

    def test_every_policy_loss_is_the_same_on_one_rank_and_two(self):
        """But for those that look at a micro-batch as a whole (docs/algorithms.md)."""
        self.write_grpo()
        loss = "actor_rollout_ref.actor.policy_loss"
        variants = {name: [f"{loss}.loss_mode={name}"] for name in ("vanilla", "gspo", "cispo", "gpg", "sapo", "geo_mean")}
        variants |= {name: [f"algorithm.adv_estimator={name}"] for name in ("remax", "rloo", "reinforce_plus_plus_baseline", "opo")}
        variants |= {"dro": [f"{loss}.loss_mode=dro", f"{loss}.dro_beta=0.1"],
                     "dr_grpo": ["algorithm.norm_adv_by_std_in_grpo=false", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"],
                     "dapo": ["algorithm.filter_groups.enable=true", "actor_rollout_ref.actor.clip_ratio_high=0.28"],
                     "dapo-remax": ["algorithm.filter_groups.enable=true", "algorithm.adv_estimator=remax"],
                     "corrected": ["algorithm.rollout_correction.rollout_is=sequence"]}
        for name, words in variants.items():
            with self.subTest(name):
                self.assert_first_step_is_the_same("grpo", f"grpo-{name}", "actor_rollout_ref.actor.use_kl_loss=true", *words)

    def write_grpo(self):
        text = (self.home / "ppo.toml").read_text().replace('task = "ppo"', 'task = "grpo"')
        text = re.sub(r"\[critic\].*?(?=\[reward_model\])", "", text, flags=re.S)
        text = text.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2")
        (self.home / "grpo.toml").write_text(text)

    def test_grpo_compares_whole_groups(self):
        self.write_grpo()
        steps = ("trainer.total_training_steps=1",)
        alone = self.train(1, "grpo", "trainer.default_local_dir=out/grpo-1", *steps)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.two_ranks("grpo", "grpo-2", *steps)
        self.assert_near(self.metrics("out/grpo-1")[0], self.metrics("out/grpo-2")[0], 2e-2, "grpo")

    def test_packed_micro_batches_are_each_ranks_own(self):
        """Ranks pack their own rows, into numbers of micro-batches that differ."""
        self.two_ranks("sft", "sft-packed-2", "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=70")
        for a, b in zip(self.metrics("out/sft"), self.metrics("out/sft-packed-2"), strict=True):
            self.assert_near(a, b, 2e-4, "sft")
        budgets = ("actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=50",
                   "critic.ppo_max_token_len_per_gpu=60", "trainer.total_training_steps=1")
        alone = self.train(1, "ppo", "trainer.default_local_dir=out/ppo-packed-1", "trainer.total_training_steps=1")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.two_ranks("ppo", "ppo-packed-2", *budgets)
        self.assert_near(self.metrics("out/ppo-packed-1")[0], self.metrics("out/ppo-packed-2")[0], 2e-2, "ppo")

    def wait_for_steps(self, process, folder, steps):
        neap_program.wait_for(process, lambda: neap_program.logged_steps(self.home / folder) >= steps, timeout=120)

    def test_a_killed_rank_ends_the_others_and_the_run_goes_on(self):
        overrides = ("trainer.default_local_dir=out/killed", "trainer.save_freq=2", "trainer.total_training_steps=6")
        calm = self.train(2, "sft", *overrides[1:], "trainer.default_local_dir=out/calm")
        self.assertEqual(calm.returncode, 0, calm.stderr)
        process = launch.start(2, launch.NEAP, "train", "sft.toml", *overrides, cwd=self.home)
        self.wait_for_steps(process, "out/killed", 3)
        launch.kill_rank(process, 1, 2)
        self.assertNotEqual(process.returncode, 0)
        on = self.train(2, "sft", *overrides)
        self.assertEqual(on.returncode, 0, on.stderr)
        self.assertEqual(on.stderr.count("Resuming from"), 1)
        self.assertEqual(self.metrics("out/killed"), self.metrics("out/calm"))
        # One rank resumes what two wrote.
        alone = self.train(1, "sft", overrides[0], "trainer.total_training_steps=7")
        self.assertEqual(alone.returncode, 0, alone.stderr)

    def test_a_signal_to_one_rank_stops_all_after_the_same_step(self):
        process = launch.start(2, launch.NEAP, "train", "sft.toml", "trainer.default_local_dir=out/stopped",
                               "trainer.total_training_steps=2000", cwd=self.home)
        self.wait_for_steps(process, "out/stopped", 2)
        os.kill(launch.rank_process(process.pid, 1), signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertNotEqual(process.returncode, 0)
        steps = len(self.metrics("out/stopped"))
        self.assertTrue((self.home / f"out/stopped/global_step_{steps}/trainer.json").exists(), err)

    def test_slips_are_told_once_and_end_all_ranks(self):
        result = self.train(2, "sft", "data.train_batch_size=15", "data.micro_batch_size_per_gpu=1")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stderr.count("data.train_batch_size 15 cannot be shared by 2 ranks"), 1, result.stderr)
        result = self.train(2, "sft", "data.train_files=['gone.jsonl']", "trainer.default_local_dir=out/slip")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stderr.count("gone.jsonl"), 1, result.stderr)
        result = self.train(2, "ppo", "device.memory=4MiB", "trainer.default_local_dir=out/slip")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(result.stderr.count("minimum capacity"), 1, result.stderr)
        result = self.train(2, "sft", "trainer.n_gpus_per_node=3", "trainer.default_local_dir=out/slip")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("2 processes", result.stderr)

    def test_ranks_with_different_jobs_are_refused(self):
        def both(stage, *other):
            one = (launch.NEAP, "train", "sft.toml", "trainer.default_local_dir=out/different")
            result = launch.run(1, launch.MPIRUN, *launch.FLAGS, "-n", "1", *one, ":", "-n", "1", launch.NEAP, "train",
                                f"{stage}.toml", "trainer.default_local_dir=out/different", *other, cwd=self.home)
            self.assertFalse((self.home / "out/different/metrics.jsonl").exists())
            return result

        for stage, name, *other in (("sft", "data.train_batch_size", "data.train_batch_size=32"),
                                    ("sft", "actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.optim.lr=1e-4"),
                                    ("reward", "task")):
            with self.subTest(name=name):
                result = both(stage, *other)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertRegex(result.stderr, rf"Ranks differ in .*{re.escape(name)} \(")
        # The same words, but another model or other rows behind them, as on machines with folders of their own.
        other = self.base / "other"
        shutil.copytree(self.home, other, ignore=shutil.ignore_patterns("out"))
        (other / "out").symlink_to(self.home / "out")
        elsewhere = (launch.NEAP, "train", "sft.toml", "trainer.default_local_dir=out/different")

        def apart():
            return launch.run(1, launch.MPIRUN, *launch.FLAGS, "-n", "1", *elsewhere, ":", "-n", "1", "-wdir", str(other),
                              *elsewhere, cwd=self.home)
        head(self.home / "sft.jsonl", other / "sft.jsonl", 64)
        self.assertRegex(apart().stderr, r"Ranks differ in data.train_files")
        shutil.copy(self.home / "sft.jsonl", other)
        (other / "model" / "config.json").write_text(json.dumps(dict(MODEL, num_hidden_layers=3)))
        self.assertRegex(apart().stderr, r"Ranks differ in the size of actor.weights")

    def test_cpu_ranks_under_torchrun_are_told_to_use_mpirun(self):
        result = self.train(1, "sft", RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2",
                            MASTER_ADDR="127.0.0.1", MASTER_PORT="29400")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("mpirun -n 2", result.stderr)

    def test_plan_for_ranks_that_do_not_run(self):
        rows = "data.train_batch_size=64"
        alone = launch.run(1, launch.NEAP, "plan", "ppo.toml", "--json", rows, cwd=self.home)
        two = launch.run(1, launch.NEAP, "plan", "ppo.toml", "--json", rows, "trainer.n_gpus_per_node=2",
                         cwd=self.home)
        self.assertEqual(two.returncode, 0, two.stderr)
        kv = [next(t["bytes"] for t in json.loads(r.stdout)["tags"] if t["tag"] == "rollout.kv") for r in (alone, two)]
        self.assertLess(kv[1], kv[0])


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
