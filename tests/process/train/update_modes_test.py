#!/usr/bin/env python3
"""memory.optimizer_offload: none, phase_split, cpu and nvme give the same losses and weights under any ceiling, and survive
kills. usage: FILE NEAP REVIEWS

NEAP_MODE_SEEDS=FIRST:COUNT runs other random jobs; NEAP_TEST_SLOW=1: twice as many, and kills with states on the host.
"""
import json
import os
import random
import re
import resource
import signal
import time

from neap_program import SLOW
from train_process_test import TrainCase, WIDE, main, read_lines

DISK = 'memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"]'
TRAINED = {"sft": ["actor"], "reward": ["reward"], "ppo": ["actor", "critic"], "grpo": ["actor"]}
# A step's numbers that depend on the plan.
RECIPES = {
    "sft": ["sft.toml"],
    "reward": ["reward.toml"],
    "ppo": ["ppo.toml"],
    "grpo": ["ppo.toml", "task=grpo", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2"],
}


class UpdateModes(TrainCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # More blocks than the others have, so that the states come in many parts.
        cls.add_model("deep", WIDE)
        for stage, folder in (("sft", "deep-actor"), ("reward", "deep-reward")):
            result = cls.neap("train", f"{stage}.toml", "actor_rollout_ref.model.path=deep", "trainer.total_training_steps=1",
                              "device.memory=1GiB", f"trainer.default_local_dir=out/{folder}")
            assert result.returncode == 0, result.stderr

    def least(self, arguments, mode):
        """The minimum capacity in MiB under an update mode."""
        result = self.neap("plan", *arguments, f"memory.optimizer_offload={mode}", "device.memory=1MiB")
        self.assertEqual(result.returncode, 3, result.stderr)
        return int(re.search(r"minimum capacity is (\d+) MiB", result.stderr).group(1))

    def train(self, name, arguments):
        folder = f"out/{name}"
        result = self.neap("train", *arguments, f"trainer.default_local_dir={folder}")
        self.assertEqual(result.returncode, 0, f"{arguments}\n{result.stderr}")
        return folder

    def assert_equal_runs(self, task, one, other):
        self.assertEqual(self.metrics(one), self.metrics(other))
        for model in TRAINED[task]:
            files = sorted(path.name for path in (self.home / one / "latest" / model).glob("*.safetensors"))
            self.assertEqual(len(files), 2, files)  # weights or, with LoRA, the adapter; and the optimizer's states
            for file in files:
                pair = [(self.home / run / "latest" / model / file).read_bytes() for run in (one, other)]
                self.assertEqual(*map(len, pair))
                self.assertTrue(pair[0] == pair[1], f"{model}/{file} of {one} and {other} differ")

    def assert_as_planned(self, folder, capacity):
        """Peaks hold, and what a step in the middle of the cycle moved is the plan's."""
        plan = json.loads((self.home / folder / "plan.json").read_text())
        self.assertLessEqual(plan["peak"], capacity << 20)
        planned = {p["name"]: p for p in plan["phases"]}
        records = read_lines(self.home / folder / "phases.jsonl")
        for record in records:
            self.assertLessEqual(record["peak"], capacity << 20, record)
            self.assertLessEqual(record["peak"], 1.03 * planned[record["phase"]]["peak"] + (2 << 20), record)
        if "validate" in planned:  # the cycle is another one in the steps without a validation
            return
        last = [r for r in records if r["step"] == records[-1]["step"] - 1]
        runs = {}
        for record in last:
            self.assertTrue(record["as_planned"], record)
            phase, round = planned[record["phase"]], runs.get(record["phase"], 0)
            runs[record["phase"]] = round + 1
            moves = [(m["kind"], m["tag"], m["bytes"] if m["copies"] else 0) for m in phase["again" if round else "moves"]]
            self.assertEqual([(m["kind"], m["tag"], m["copied"]) for m in record["moves"]], moves)
        self.assertEqual(runs, {name: p["times"] for name, p in planned.items()})
        self.assertEqual(sum(r["moved"] for r in last), plan["copied_per_step"])

    def assert_disk_as_planned(self, folder, used):
        """A step reads and writes what the plan says, which is all states for each mini-batch."""
        plan = json.loads((self.home / folder / "plan.json").read_text())
        records = read_lines(self.home / folder / "phases.jsonl")
        step = [r for r in records if r["step"] == records[-1]["step"]]
        for key in ("disk_read", "disk_written"):
            moved = sum(s.get(key, 0) for r in step for s in r["streamed"])
            self.assertEqual(moved, sum(p[key] for p in plan["phases"]))
            self.assertEqual(moved > 0, used)
        states = [part for tag in plan["tags"] for part in tag.get("offloaded", []) if part.get("on") == "disk"]
        self.assertEqual(sum(part["bytes"] for part in states), plan["disk_bytes"])
        self.assertEqual(plan["disk_bytes"] > 0, used)

    def random_job(self, seed):
        dice = random.Random(seed)
        task = ("ppo", "sft", "grpo", "reward")[seed % 4]
        rollout = task in ("ppo", "grpo")
        arguments = RECIPES[task] + ["trainer.total_training_steps=3", "trainer.save_freq=-1", "data.val_files=[]",
                                     DISK, f"device.dtype={dice.choice(['float32', 'float32', 'bfloat16'])}",
                                     f"trainer.seed={seed}",
                                     f"actor_rollout_ref.model.activation_checkpointing={dice.choice(['none', 'selective', 'full', 'auto', 'auto'])}"]
        deep = dice.random() < 0.7
        actor = {"sft": "deep" if deep else "model", "reward": "out/deep-actor/latest/actor" if deep else "out/sft/latest/actor"}
        path = actor.get(task, "out/deep-actor/latest/actor" if deep else "out/sft/latest/actor")
        arguments.append(f"actor_rollout_ref.model.path={path}")
        if rollout:
            arguments += [f"actor_rollout_ref.actor.ppo_epochs={dice.choice([1, 2])}",
                          f"actor_rollout_ref.actor.ppo_mini_batch_size={dice.choice([2, 4, 8])}",
                          f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={dice.choice([1, 2])}"]
        if task == "ppo":
            arguments += [f"critic.ppo_mini_batch_size={dice.choice([4, 8])}", "critic.ppo_micro_batch_size_per_gpu=2"]
            if deep:
                arguments.append("critic.model.path=out/deep-reward/latest/reward")
        if "device.dtype=bfloat16" in arguments:
            for key in ("gradient_dtype", "master_dtype"):
                if dice.random() < 0.5:
                    arguments.append(f"actor_rollout_ref.actor.optim.{key}=bfloat16")
        if dice.random() < 0.25 and task != "sft":
            arguments.append(f"actor_rollout_ref.model.lora_rank={dice.choice([2, 8])}")
        return task, dice, arguments

    def test_random_jobs_under_random_ceilings_are_equal_bit_by_bit(self):
        first, count = map(int, os.environ.get("NEAP_MODE_SEEDS", "1:8" if SLOW else "1:4").split(":"))
        streamed = behind = 0
        for seed in range(first, first + count):
            task, dice, arguments = self.random_job(seed)
            waits = False
            with self.subTest(seed=seed, task=task, arguments=arguments):
                calm = self.train(f"modes-{seed}-all", arguments + ["memory.offload=none", "device.memory=1GiB"])
                least = {mode: self.least(arguments, mode) for mode in ("none", "phase_split", "cpu", "nvme", "auto")}
                self.assertEqual(least["auto"], min(least.values()))
                self.assertEqual(least["nvme"], least["cpu"])
                for mode in ("auto", "phase_split", "cpu", "nvme"):
                    capacity = least[mode] + (0 if mode == "auto" else dice.randrange(0, 12))
                    run = self.train(f"modes-{seed}-{mode}",
                                     arguments + [f"memory.optimizer_offload={mode}", f"device.memory={capacity}MiB"])
                    self.assert_equal_runs(task, calm, run)
                    self.assert_as_planned(run, capacity)
                    self.assert_disk_as_planned(run, used=mode == "nvme")
                    plan = json.loads((self.home / run / "plan.json").read_text())
                    streamed += sum(part["kind"] == "states" for tag in plan["tags"] for part in tag.get("offloaded", [])) > 2
                    copied_behind = sum(m["overlapped"] for phase in plan["phases"] for m in phase["moves"])
                    behind += copied_behind
                    if copied_behind and (SLOW or not waits):
                        waits = True
                        waiting = self.train(f"modes-{seed}-{mode}-waiting", arguments + [
                            f"memory.optimizer_offload={mode}", f"device.memory={capacity}MiB", "memory.overlap=false"])
                        self.assert_equal_runs(task, calm, waiting)
                        self.assert_as_planned(waiting, capacity)
        if count >= 8:
            self.assertGreater(streamed, 3, "no job streamed its states")
            self.assertGreater(behind, 3, "no job copied behind a phase")

    def test_killed_in_an_update_resumes_exactly(self):
        """kill -9 while parts of the states come and go, soon after a backward was recorded."""
        for mode in ("cpu", "nvme") if SLOW else ("nvme",):  # which come through the host, too
            with self.subTest(mode):
                self.kill_in_updates(mode)

    def kill_in_updates(self, mode):
        scratch = self.home / f"scratch-{mode}"
        scratch.mkdir()
        arguments = ["ppo.toml", "actor_rollout_ref.model.path=out/deep-actor/latest/actor",
                     "critic.model.path=out/deep-reward/latest/reward", "trainer.total_training_steps=6",
                     "trainer.save_freq=1", "data.val_files=[]", DISK, f"memory.optimizer_offload={mode}",
                     f"memory.nvme_path={scratch}"]
        arguments.append(f"device.memory={self.least(arguments, mode)}MiB")
        self.train(f"{mode}-calm", arguments)
        killed = self.home / f"out/{mode}-killed"
        dice = random.Random(5)
        landed = 0

        def updates():
            log = killed / "phases.jsonl"
            return log.read_text().count('"backward_') if log.exists() else 0

        for _ in range(4):
            process = self.start("train", *arguments, f"trainer.default_local_dir=out/{mode}-killed")
            before = updates()
            while process.poll() is None and updates() < before + dice.randrange(3, 9):
                time.sleep(0.001)
            time.sleep(dice.random() * 0.02)
            process.kill()
            _, errors = process.communicate()
            landed += process.returncode == -signal.SIGKILL
            self.assertIn(process.returncode, (0, -signal.SIGKILL), errors)
            self.assertEqual(list(scratch.iterdir()), [])
        self.assertGreater(landed, 2)
        self.train(f"{mode}-killed", arguments)
        self.assert_equal_runs("ppo", f"out/{mode}-calm", f"out/{mode}-killed")

    def test_a_checkpoint_goes_on_under_another_mode(self):
        arguments = ["sft.toml", "actor_rollout_ref.model.path=deep", "device.dtype=bfloat16", "data.val_files=[]"]
        calm = self.train("other-calm", arguments + ["trainer.total_training_steps=4"])
        for mode, steps in (("cpu", 1), ("none", 2), ("nvme", 3), ("cpu", 4)):
            self.train("other-mixed", arguments + [DISK, f"memory.optimizer_offload={mode}", f"trainer.total_training_steps={steps}"])
        self.assert_equal_runs("sft", calm, "out/other-mixed")

    def test_states_that_the_plan_narrows_stay_narrow(self):
        """memory.allow with bf16_states: taken where nothing else fits, kept by a resumed run that has room."""
        arguments = ["sft.toml", "actor_rollout_ref.model.path=deep", "data.val_files=[]", "memory.optimizer_offload=none"]
        exact = self.least(arguments + ["memory.allow=[]"], "none")
        narrow = ['memory.allow=["bf16_states"]']
        capacity = self.least(arguments + narrow, "none")
        self.assertLess(capacity, exact)
        chosen = "actor_rollout_ref.actor.optim.state_dtype=bfloat16"

        def run(folder, steps, size, more):
            result = self.neap("train", *arguments, *more, f"trainer.total_training_steps={steps}", f"device.memory={size}",
                               f"trainer.default_local_dir=out/{folder}")
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads((self.home / "out" / folder / "plan.json").read_text())["overrides"]

        self.assertEqual(run("narrow", 2, f"{capacity}MiB", narrow), [chosen])
        self.assertEqual(run("narrow", 4, "1GiB", narrow), [])  # the checkpoint decides
        self.assertEqual(run("narrow-calm", 4, "1GiB", [chosen]), [])
        self.assert_equal_runs("sft", "out/narrow-calm", "out/narrow")
        # Where float32 states fit, and in a checkpoint that has them, nothing is narrowed.
        self.assertEqual(run("wide", 2, "1GiB", narrow), [])
        result = self.neap("train", *arguments, *narrow, "trainer.total_training_steps=4", f"device.memory={capacity}MiB",
                           "trainer.default_local_dir=out/wide")
        self.assert_fails(result, 3, "does not fit")

    def test_host_memory_that_ends_is_an_error_before_the_run(self):
        arguments = ["sft.toml", "actor_rollout_ref.model.path=deep", "memory.optimizer_offload=cpu"]
        result = self.neap("train", *arguments, "memory.host_budget=1MiB", "trainer.default_local_dir=out/no-host")
        self.assert_fails(result, 3, "host budget of 1 MiB")

    def test_states_go_to_disk_where_the_host_has_no_room(self):
        """Weights and gradients take the host's memory; what is left is less than the states."""
        arguments = ["sft.toml", "actor_rollout_ref.model.path=deep", "data.val_files=[]", "trainer.total_training_steps=3"]
        arguments.append(f"device.memory={self.least(arguments, 'cpu')}MiB")
        calm = self.train("roomy", arguments)
        streamed = json.loads((self.home / calm / "plan.json").read_text())
        disk = self.train("to-disk-all", arguments + [DISK, "memory.optimizer_offload=nvme"])
        budget = json.loads((self.home / disk / "plan.json").read_text())["host_bytes"]
        self.assertLess(budget, streamed["host_bytes"])
        narrow = arguments + [f"memory.host_budget={budget}B"]
        self.assert_fails(self.neap("train", *narrow, "trainer.default_local_dir=out/refused"), 3, "host budget")
        run = self.train("to-disk", narrow + [DISK])
        plan = json.loads((self.home / run / "plan.json").read_text())
        self.assertEqual(plan["optimizer_offload"], {"actor": "nvme"})
        self.assertLessEqual(plan["host_bytes"], budget)
        self.assert_equal_runs("sft", calm, run)
        self.assert_disk_as_planned(run, used=True)

    def test_a_full_disk_is_told_once_and_before_the_run(self):
        arguments = ["sft.toml", "actor_rollout_ref.model.path=deep", DISK, "memory.optimizer_offload=nvme"]
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, 256 << 10))

        process = self.start("train", *arguments, "trainer.default_local_dir=out/full", preexec_fn=limit)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, errors)
        self.assertRegex(errors, "File too large.*disk storage for actor.optimizer")
        self.assertEqual(errors.count("error"), 1, errors)


if __name__ == "__main__":
    main()
