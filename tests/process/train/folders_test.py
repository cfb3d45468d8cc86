#!/usr/bin/env python3
"""Output folders of `neap train`: taken, moved, removed, damaged, of another job. usage: FILE NEAP REVIEWS"""
import json
import os
import re
import resource
import shutil
import signal
import socket
import time
import unittest.mock

import neap_program
from train_process_test import head, main, MODEL, SFT, TrainCase


class Folders(TrainCase):
    def test_second_run_in_a_folder_is_refused(self):
        arguments = ("train", "sft.toml", "trainer.default_local_dir=out/locked", "trainer.total_training_steps=2000")
        first = self.start(*arguments)
        log = self.home / "out/locked/metrics.jsonl"
        try:
            while first.poll() is None and not (log.exists() and log.read_text().count("\n") >= 1):
                time.sleep(0.01)
            self.assert_fails(self.neap(*arguments), 1, f"in use by process {first.pid} on {socket.gethostname()}",
                              "trainer.default_local_dir")
            self.assertIsNone(first.poll())
        finally:
            first.kill()  # the kernel releases the lock
            first.communicate()
        steps = len(self.metrics("out/locked"))
        self.assertEqual([row["step"] for row in self.metrics("out/locked")], list(range(1, steps + 1)))
        after = self.neap(*arguments[:-1], "trainer.total_training_steps=1")
        self.assertEqual(after.returncode, 0, after.stderr)

    def test_second_run_says_that_it_is_done_and_more_steps_go_on(self):
        again = self.neap("train", "reward.toml")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("step 3 of 3: done", again.stderr)
        shutil.copytree(self.home / "out/reward", self.home / "out/reward-more", symlinks=True)
        more = self.neap("train", "reward.toml", "trainer.default_local_dir=out/reward-more",
                         "trainer.total_training_steps=5")
        self.assertEqual(more.returncode, 0, more.stderr)
        self.assertEqual([row["step"] for row in self.metrics("out/reward-more")], [1, 2, 3, 4, 5])

    def test_existing_folder_is_not_written_over(self):
        result = self.neap("train", "reward.toml", "trainer.resume_mode=disable")
        self.assert_fails(result, 2, "out/reward")
        self.assertEqual(len(self.metrics("out/reward")), 3)

    def test_checkpoint_cut_short(self):
        shutil.copytree(self.home / "out/sft", self.home / "out/cut", symlinks=True)
        weights = self.home / "out/cut/latest/actor/model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        result = self.neap("train", "sft.toml", "trainer.default_local_dir=out/cut", "trainer.total_training_steps=9")
        self.assert_fails(result, 2, "actor/model.safetensors has", "add trainer.resume_mode=")

    def test_damage_in_a_checkpoint_is_found_and_the_one_before_resumes(self):
        """A flipped bit in any file; then each of the two checkpoints is damaged."""
        shutil.copytree(self.home / "out/sft", self.home / "out/flipped", symlinks=True)
        newest, before = (self.home / "out/flipped" / f"global_step_{step}" for step in (8, 6))
        again = ("train", "sft.toml", "trainer.default_local_dir=out/flipped", "trainer.total_training_steps=9")

        def flip(file, at):
            data = bytearray(file.read_bytes())
            data[at] ^= 4
            file.write_bytes(data)

        for name, at, why in (("actor/model.safetensors", -5000, "do not match their checksum"), ("actor/optimizer.safetensors", 5000, "checksum"),
                              ("actor/optimizer.safetensors", 60, "header"), ("trainer.json", 50, "trainer.json"),
                              ("actor/config.json", 20, "actor/config.json has other contents")):
            with self.subTest(name=name, at=at):
                flip(newest / name, at)
                result = self.neap(*again)
                self.assert_fails(result, 2, "Cannot resume from", str(newest.name), why, f"trainer.resume_mode={before.resolve()}")
                flip(newest / name, at)
        flip(newest / "actor/model.safetensors", -5000)
        on = self.neap(*again, f"trainer.resume_mode={before.resolve()}", "trainer.total_training_steps=8")
        self.assertEqual(on.returncode, 0, on.stderr)
        self.assertEqual(self.metrics("out/flipped"), self.metrics("out/sft"))
        for step in (6, 8):
            flip(self.home / f"out/flipped/global_step_{step}/trainer.json", 50)
        self.assert_fails(self.neap(*again), 2, "There is no other checkpoint", "trainer.default_local_dir")

    def test_another_job_in_the_folder_of_a_finished_run_is_refused(self):
        shutil.copytree(self.home / "out/sft", self.home / "out/taken", symlinks=True)
        sft = ("train", "sft.toml", "trainer.default_local_dir=out/taken")
        self.assertIn("step 8 of 8: done", self.neap(*sft).stderr)
        self.assertIn("done", self.neap(*sft, "device.memory=200MiB", "trainer.save_freq=2", "trainer.total_training_steps=5").stderr)
        (self.home / "other_model").mkdir(exist_ok=True)
        (self.home / "other_model/config.json").write_text(json.dumps({**MODEL, "rope_theta": 500.0}))
        shutil.copy(self.home / "model/tokenizer.json", self.home / "other_model")
        head(self.reviews / "sft_train.jsonl", self.home / "other.jsonl", 95)
        for words, why in ((["reward.toml"], 'task "sft", not of task "reward"'), (["sft.toml", "actor_rollout_ref.actor.optim.lr=2e-3"], "was 0.001, is 0.002"),
                           (["sft.toml", "actor_rollout_ref.model.path=other_model"], 'was "model", is "other_model"'),
                           (["sft.toml", "data.train_files=other.jsonl"], "data.train_files")):
            with self.subTest(why=why):
                result = self.neap("train", *words, "trainer.default_local_dir=out/taken")
                self.assert_fails(result, 2, why, "trainer.default_local_dir")
        # The same keys, other contents.
        shutil.copy(self.home / "sft.jsonl", self.home / "kept.jsonl")
        shutil.copy(self.home / "model/config.json", self.home / "kept.json")
        for file, kept, text, why in (("sft.jsonl", "kept.jsonl", (self.home / "other.jsonl").read_text(), "data.train_files: the files have other contents"),
                                      ("model/config.json", "kept.json", json.dumps({**MODEL, "rope_theta": 500.0}), "actor_rollout_ref.model.path: the model has other contents")):
            (self.home / file).write_text(text)
            result = self.neap(*sft)
            shutil.copy(self.home / kept, self.home / file)
            self.assert_fails(result, 2, why, "trainer.default_local_dir")
        self.assertIn("done", self.neap(*sft).stderr)

    def test_a_reward_run_knows_the_reward_model_of_a_checkpoint_again(self):
        both = self.home / "both"
        for model in ("actor", "reward"):
            shutil.copytree(self.home / "out/reward/latest/reward", both / model)
        again = ("train", "reward.toml", "actor_rollout_ref.model.path=both", "trainer.default_local_dir=out/rejudged", "trainer.total_training_steps=1")
        self.assertEqual(self.neap(*again).returncode, 0)
        for model, code in (("actor", 0), ("reward", 2)):
            config = json.loads((both / model / "config.json").read_text())
            (both / model / "config.json").write_text(json.dumps({**config, "rope_theta": 500.0}))
            result = self.neap(*again)
            self.assertEqual(result.returncode, code, result.stderr)
        self.assert_fails(result, 2, "actor_rollout_ref.model.path: the model has other contents")

    def test_the_default_folder_has_the_task_in_its_name(self):
        (self.home / "default.toml").write_text(SFT.replace('default_local_dir = "out/sft"\n', ""))
        result = self.neap("train", "default.toml", "trainer.total_training_steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((self.home / "output/sft/global_step_1").is_dir())

    def test_a_checkpoint_in_the_background_is_that_of_a_run_that_waits(self):
        """The model changes while it is written; offloaded states change in place."""
        words = ("train", "sft.toml", "trainer.save_freq=1", "trainer.max_ckpt_to_keep=0", "trainer.total_training_steps=4", "data.val_files=[]")
        cases = {"waits": ("trainer.async_save=false",), "no-room": ("memory.host_budget=1MiB",), "copied": (),
                 "offloaded": ("memory.optimizer_offload=cpu",)}
        saved = {}
        for name, more in cases.items():
            out = self.home / f"out/saved-{name}"
            result = self.neap(*words, f"trainer.default_local_dir=out/saved-{name}", *more)
            self.assertEqual(result.returncode, 0, result.stderr)
            copied = 0 if name in ("waits", "no-room") else 3  # the last one has no step behind it
            self.assertEqual(result.stderr.count("is written in the background"), copied, result.stderr)
            self.assertEqual(result.stderr.count("it goes to the disk in the background"), 4 - copied, result.stderr)
            self.assertEqual(["timing_s/save_checkpoint" in row for row in neap_program.read_lines(out / "metrics.jsonl")],
                             [False, True, True, True])
            saved[name] = {path.relative_to(out): path.read_bytes() for path in out.glob("global_step_*/actor/*.safetensors")}
            self.assertEqual(len(saved[name]), 8)
            self.assertTrue(saved[name] == saved["waits"], name)
        plan = self.neap("plan", "sft.toml", "memory.host_budget=1MiB")
        self.assertRegex(plan.stdout, r"checkpoints +training waits while they are written: a copy needs up to \S+ MiB more host memory")
        self.assertNotIn("training waits", self.neap("plan", "sft.toml").stdout)

    def test_a_run_follows_a_folder_that_is_moved(self):
        process, out = self.running("to-move")
        moved = out.rename(self.home / "out/moved-away")
        steps = neap_program.logged_steps(moved)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(moved) > steps + 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        there = re.escape(str(moved.resolve()))
        self.assertRegex(err, f"out/to-move was moved to {there} .*trainer.default_local_dir=")
        self.assertRegex(err, rf"Interrupted after step .* saved in {there}/global_step_\d+; to resume from there, set trainer.default_local_dir={there}")
        self.assertFalse(out.exists())
        steps = neap_program.logged_steps(moved)
        self.assertTrue((moved / f"global_step_{steps}").is_dir())
        on = self.neap("train", "sft.toml", "trainer.default_local_dir=out/moved-away", f"trainer.total_training_steps={steps + 1}")
        self.assertEqual(on.returncode, 0, on.stderr)

    def test_a_run_whose_folder_is_removed_saves_and_says_so(self):
        process, out = self.running("to-remove")
        neap_program.stop(process)
        shutil.rmtree(out)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        self.assertRegex(err, "out/to-remove was removed while the run worked in it.*saved in .*out/to-remove/global_step_")
        self.assertTrue((out / "latest/trainer.json").exists())

    def test_a_folder_that_is_removed_at_the_end_is_no_mistake_of_the_command(self):
        """The last checkpoint is there already, the report is not."""
        process = self.start("train", "sft.toml", "trainer.default_local_dir=out/at-end", "trainer.total_training_steps=3", "data.val_files=[]")
        pointer = self.home / "out/at-end/latest_checkpointed_iteration.txt"
        neap_program.wait_for(process, pointer.exists)
        neap_program.stop(process)
        shutil.rmtree(self.home / "out/at-end")
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        self.assertRegex(err, "out/at-end was removed while the run worked in it.*saved in out/at-end/global_step_3")

    def test_a_save_that_fails_says_so_where_no_checkpoint_is_whole(self):
        process, out = self.running("none-whole")
        neap_program.stop(process)
        (out / "global_step_1").mkdir()
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        self.assertRegex(err, r"Stopped after \d+ of 2000 steps: Cannot write .*File too large.*global_step_1 is damaged: .*trainer.json.*no whole checkpoint")

    def test_a_lost_or_damaged_pointer_starts_nothing_anew(self):
        words = ("train", "sft.toml", "trainer.default_local_dir=out/pointer", "trainer.save_freq=1", "data.val_files=[]")
        first = self.neap(*words, "trainer.total_training_steps=2")
        self.assertEqual(first.returncode, 0, first.stderr)
        pointer = self.home / "out/pointer/latest_checkpointed_iteration.txt"
        for steps, text in ((3, None), (4, ""), (5, "77"), (6, "../../etc")):
            pointer.unlink() if text is None else pointer.write_text(text)
            again = self.neap(*words, f"trainer.total_training_steps={steps}")
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertRegex(again.stderr, rf"The newest whole checkpoint is \S*global_step_{steps - 1}\.")
            self.assertEqual([row["step"] for row in self.metrics("out/pointer")], list(range(1, steps + 1)))
        pointer.unlink()
        unfinished = shutil.copytree(self.home / "out/pointer", self.home / "out/unfinished", symlinks=True)
        for name in ("trainer.json", "checksums.json"):
            (unfinished / "global_step_6" / name).unlink()
        again = self.neap(*words, "trainer.default_local_dir=out/unfinished", "trainer.total_training_steps=6")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertRegex(again.stderr, r"global_step_6 is damaged: .*trainer.json.*The newest whole checkpoint is \S*global_step_5\.")
        for mode in ("disable", "auto"):
            shutil.copytree(self.home / "out/pointer/global_step_6", self.home / f"out/foreign-{mode}/global_step_6")
            if mode == "auto":  # a checkpoint of a run is no start for another one in its folder
                state = self.home / "out/foreign-auto/global_step_6/trainer.json"
                shutil.copytree(self.home / "out/pointer/global_step_5", self.home / "out/foreign-auto/global_step_5")
                state.write_text(state.read_text().replace('"run": "', '"run": "0'))
                (state.parent / "checksums.json").unlink()
            refused = self.neap(*words[:2], f"trainer.default_local_dir=out/foreign-{mode}", f"trainer.resume_mode={mode}",
                                "trainer.save_freq=1", "data.val_files=[]", "trainer.total_training_steps=9")
            self.assert_fails(refused, 2, "trainer.default_local_dir")
            self.assertTrue((self.home / f"out/foreign-{mode}/global_step_6/trainer.json").exists())

    def test_updates_without_a_finite_gradient_are_skipped_and_end_the_run_with_a_checkpoint(self):
        words = ("train", "sft.toml", "trainer.default_local_dir=out/spoiled", "actor_rollout_ref.actor.optim.lr=1e30", "data.val_files=[]",
                 "trainer.save_freq=-1", "trainer.total_training_steps=100", "actor_rollout_ref.actor.optim.weight_decay=0")
        result = self.neap(*words)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, r"The last 10 updates of a model were skipped.*saved in \S*global_step_\d+")
        rows = self.metrics("out/spoiled")
        skipped = [row for row in rows if row.get("train/skipped_updates")]
        self.assertGreaterEqual(len(skipped), 1)
        self.assertEqual(rows[-1]["train/skipped_updates_in_a_row"] >= 10, True, rows[-1])
        self.assertTrue((self.home / f"out/spoiled/global_step_{rows[-1]['step']}/actor/model.safetensors").exists())

    def test_weights_that_are_not_finite_are_refused(self):
        model = shutil.copytree(self.home / "out/sft/latest/actor", self.home / "not-finite")
        file = model / "model.safetensors"
        data = bytearray(file.read_bytes())
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__", None)
        name = next(name for name in header if "weight" in name and header[name]["dtype"] in ("F32", "BF16"))
        begin = 8 + size + header[name]["data_offsets"][0]
        data[begin:begin + 4] = b"\xff\xff\xff\xff"
        head = json.dumps(header).encode()
        file.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + size:])
        (self.home / "prompt.jsonl").write_text('{"prompt": "a"}\n')
        for words in (("train", "sft.toml", "actor_rollout_ref.model.path=not-finite", "trainer.default_local_dir=out/nan"),
                      ("generate", "not-finite", "--input", "prompt.jsonl")):
            refused = self.neap(*words)
            self.assertNotEqual(refused.returncode, 0, words)
            self.assertIn("has values that are not finite", refused.stderr)

    def test_an_adapter_is_refused_on_another_base(self):
        trained = self.home / "out/sft/latest/actor"
        base = shutil.copytree(trained, self.home / "replaced")
        words = ("data.val_files=[]", "trainer.total_training_steps=1", "trainer.save_freq=-1")
        adapted = self.neap("train", "sft.toml", "actor_rollout_ref.model.path=replaced", "actor_rollout_ref.model.lora_rank=2",
                            "trainer.default_local_dir=out/adapted", *words)
        self.assertEqual(adapted.returncode, 0, adapted.stderr)
        other = self.neap("train", "sft.toml", f"actor_rollout_ref.model.path={trained}", "trainer.default_local_dir=out/other-base", *words)
        self.assertEqual(other.returncode, 0, other.stderr)
        (self.home / "prompt.jsonl").write_text('{"prompt": "a"}\n')
        uses = (("generate", "out/adapted", "--input", "prompt.jsonl", "--max-new-tokens", "1"), ("merge", "out/adapted", "merged"),
                ("eval", "out/adapted", "answers.jsonl", "data.max_response_length=2", "device.kind=cpu", "device.memory=256MiB"),
                ("train", "sft.toml", "actor_rollout_ref.model.path=out/adapted/latest/actor", "trainer.default_local_dir=out/later", *words))
        (self.home / "answers.jsonl").write_text('{"prompt": "a", "ground_truth": "b"}\n')
        for use in uses[0], uses[2]:
            right = self.neap(*use)
            self.assertEqual(right.returncode, 0, right.stderr)
            self.assertNotIn("another base", right.stderr)
        shutil.copy(self.home / "out/other-base/latest/actor/model.safetensors", base)
        for use in uses:
            refused = self.neap(*use)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn("was trained on another base", refused.stderr)
            with unittest.mock.patch.dict(os.environ, {"NEAP_OTHER_BASE": "allow"}):
                allowed = self.neap(*use)
            self.assertEqual(allowed.returncode, 0, allowed.stderr)
            self.assertIn("was trained on another base", allowed.stderr)

    def test_rows_of_logs_outlast_a_file_system_that_takes_none(self):
        process, out = self.running("no-room")
        steps = neap_program.logged_steps(out)
        unlimited = resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        time.sleep(1)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(out) > steps + 20)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertIn("Records are kept in memory and tried again", err)
        rows = [row["step"] for row in self.metrics("out/no-room")]
        self.assertEqual(rows, list(range(1, len(rows) + 1)))

    def test_a_log_that_is_removed_is_made_again(self):
        process, out = self.running("no-log")
        (out / "metrics.jsonl").unlink()
        neap_program.wait_for(process, lambda: neap_program.logged_steps(out) > 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertIn("metrics.jsonl was removed", err)

    def test_a_folder_made_anew_is_not_written_in(self):
        process, out = self.running("anew")
        neap_program.stop(process)
        out.rename(self.home / "out/anew-gone")
        shutil.rmtree(self.home / "out/anew-gone")
        second = self.neap("train", "sft.toml", "trainer.default_local_dir=out/anew", "trainer.total_training_steps=2")
        self.assertEqual(second.returncode, 0, second.stderr)
        rows = self.metrics("out/anew")
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("was removed", err)
        self.assertTrue(list((self.home / "out").glob("anew.rescued-*/latest/trainer.json")))
        self.assertEqual(self.metrics("out/anew"), rows)

    def test_a_second_run_is_refused_where_the_lock_was_removed(self):
        process, out = self.running("unlocked")
        try:
            neap_program.stop(process)
            (out / "train.lock").unlink()
            second = self.neap("train", "sft.toml", "trainer.default_local_dir=out/unlocked")
            self.assert_fails(second, 1, "is in use by", "trainer.default_local_dir")
            process.send_signal(signal.SIGCONT)
            neap_program.wait_for(process, (out / "train.lock").exists)
        finally:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        self.assertIn("train.lock was removed", err)

    def test_state_that_is_not_a_runs_is_refused(self):
        shutil.copytree(self.home / "out/sft", self.home / "out/state", symlinks=True)
        state = self.home / "out/state/latest/trainer.json"
        right = json.loads(state.read_text())
        again = ("train", "sft.toml", "trainer.default_local_dir=out/state", "trainer.total_training_steps=9")
        for wrong in ([], 3, {**right, "config": "none"}, {**right, "rows": "many"}, {**right, "task": 1}, {**right, "ranks": "two"}):
            state.write_text(json.dumps(wrong))
            # The plan reads what the checkpoint chose of a type before anything else does.
            for choice in ((), ("memory.allow=['bf16_states']",)):
                self.assert_fails(self.neap(*again, *choice), 2, "trainer.json is not the state of a training run")
        (self.home / "out/state/latest/checksums.json").unlink()  # what was edited on purpose is accepted
        trace = (self.home / "out/state/memory.ntrace").read_bytes()
        state.write_text(json.dumps({**right, "task": "reward"}))
        self.assert_fails(self.neap(*again), 2, 'is a checkpoint of task "reward", not of task "sft"')
        self.assertEqual(len(self.metrics("out/state")), 8)
        state.write_text(json.dumps(right))
        self.assert_fails(self.neap(*again, "actor_rollout_ref.actor.optim.optimizer=sm3"), 2, "optimizer")
        self.assertEqual((self.home / "out/state/memory.ntrace").read_bytes(), trace)
        self.assertEqual([p.name for p in (self.home / "out/state").glob("memory*")], ["memory.ntrace"])

    def test_a_resumed_run_names_the_keys_that_differ(self):
        shutil.copytree(self.home / "out/sft", self.home / "out/moved", symlinks=True)
        again = ("train", "sft.toml", "trainer.default_local_dir=out/moved", "trainer.total_training_steps=9",
                 f"trainer.resume_mode={os.path.realpath(self.home / 'out/moved/latest')}", "trainer.save_freq=5", "trainer.max_ckpt_to_keep=7",
                 "trainer.max_shard_size=1GB", "trainer.val_samples=0", "trainer.logger=jsonl")
        for override, why in (("actor_rollout_ref.actor.optim.state_dtype=bfloat16", 'optim.state_dtype: was "float32", is "bfloat16"'),
                              ("actor_rollout_ref.model.lora_rank=4", "model.lora_rank: was 0, is 4")):
            result = self.neap(*again, override)
            self.assertNotEqual(result.returncode, 0)
            message = result.stderr.splitlines()[-1]
            self.assertIn("while resuming with other keys than the checkpoint's (", message)
            self.assertIn(why, message)
        result = self.neap(*again)
        self.assertEqual(result.returncode, 0, result.stderr)
        # Where it is and how it is kept is not of the training.
        self.assertEqual(re.findall("Differs from the checkpoint: (.*):", result.stderr), ["trainer.total_training_steps"])


if __name__ == "__main__":
    main()
