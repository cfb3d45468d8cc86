#!/usr/bin/env python3
"""DPO whose reference runs once, before the first step: the same training in less memory. usage: FILE NEAP REVIEWS"""
import json
import os
import shutil
import signal
import struct
import time

from train_process_test import REWARD, TrainCase, head, main, read_lines
import train_process_test

DPO = REWARD.replace('"reward"', '"dpo"').replace("out/reward", "out/dpo").replace(
    "test_freq = -1\nsave_freq = -1\ntotal_training_steps = 3", "total_training_steps = 8\nsave_freq = 3\ntest_freq = 4")
ONCE = "dpo.precompute_ref_log_probs=true"
FILE = "reference_log_probs.safetensors"
# Equal but for the order of rows in kernels.
NEAR = 1e-6
# Not a multiple of a batch.
HELD_OUT = 13


def pairs_of(path):
    """Log-probabilities in the file, a row a pair."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8:8 + size])["log_probs"]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    assert entry["shape"] == [len(values) // 2, 2], entry
    return list(zip(values[::2], values[1::2]))


class Precompute(TrainCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home()
        head(train_process_test.REVIEWS / "pairs_val.jsonl", cls.home / "pairs_val.jsonl", HELD_OUT)
        (cls.home / "dpo.toml").write_text(DPO)
        for words in (["sft.toml"], ["sft.toml", "trainer.seed=2", "trainer.default_local_dir=out/other"]):
            result = cls.neap("train", *words, "trainer.total_training_steps=3")
            assert result.returncode == 0, result.stderr

    def train(self, name, *overrides):
        result = self.neap("train", "dpo.toml", f"trainer.default_local_dir=out/{name}", *overrides)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def records(self, name):
        return read_lines(self.home / "out" / name / "phases.jsonl")

    def assert_near(self, one, other):
        self.assertEqual(len(one), len(other))
        for a, b in zip(one, other):
            self.assertEqual(a.keys(), b.keys())
            for key, value in a.items():
                if isinstance(value, float):
                    self.assertLessEqual(abs(value - b[key]), NEAR * max(1, abs(value)), (key, value, b[key]))

    def assert_planned_is_measured(self, name):
        plan = json.loads((self.home / "out" / name / "plan.json").read_text())
        planned = {phase["name"]: phase for phase in plan["phases"]}
        for record in self.records(name):
            phase = planned[record["phase"]]
            self.assertEqual(record["persistent"], phase["persistent"], record)
            self.assertEqual(record["temporary_reserved"], phase["temporary"], record)
        self.assertEqual(max(r["peak"] for r in self.records(name)), plan["peak"])
        return plan

    def test_losses_are_the_same_and_the_reference_is_in_no_step(self):
        cases = {"plain": [], "lora": ["actor_rollout_ref.model.lora_rank=4"],
                 "other": ["actor_rollout_ref.ref.model.path=out/other/latest/actor", "dpo.loss_type=ipo"],
                 "packed": ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=256"]}
        for name, words in cases.items():
            with self.subTest(name):
                self.train(f"{name}-each", *words)
                self.train(f"{name}-once", *words, ONCE)
                self.assert_near(self.metrics(f"out/{name}-once"), self.metrics(f"out/{name}-each"))
                self.assert_near(self.validations(f"out/{name}-once"), self.validations(f"out/{name}-each"))
                self.assertEqual(len(pairs_of(self.home / "out" / f"{name}-once" / FILE)), 48 + HELD_OUT)
                once = [r for r in self.records(f"{name}-once") if r["phase"] == "ref_logp"]
                self.assertEqual({r["step"] for r in once}, {0})
                self.assertTrue(all(r["as_planned"] for r in once), once)
                if name != "packed":  # micro-batches are not full
                    plan = self.assert_planned_is_measured(f"{name}-once")
                    cells = {tag["tag"]: tag["cells"] for tag in plan["tags"]}
                    self.assertEqual(cells.pop("reference.weights"), ["drop", "drop", "need"])
                    self.assertEqual({row[-1] for row in cells.values()}, {"absent"})

    def test_the_plan_has_the_saving(self):
        def plan(*words):
            result = self.neap("plan", "dpo.toml", "device.memory=0B", *words, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout)
        each, once = plan(), plan(ONCE)
        reference = next(tag["bytes"] for tag in each["tags"] if tag["tag"] == "reference.weights")
        self.assertEqual(each["peak"] - once["peak"], reference)
        self.assertEqual(each["peak_without_offload"] - once["peak_without_offload"], reference)
        self.assertLess(once["seconds"], each["seconds"], "of a step")
        text = self.neap("plan", "dpo.toml", ONCE).stdout
        self.assertIn("ref_logp (once)", text)
        self.assertIn("Once, before the first step: ref_logp; then reference.weights are freed", text)
        # Under a ceiling the reference is not copied to the host and back.
        least = each["alternatives"]["min_capacity"]
        each, once = plan(f"device.memory={least}B"), plan(ONCE, f"device.memory={least}B")
        self.assertGreater(each["copied_per_step"], once["copied_per_step"])
        self.assertGreater(each["host_bytes"], once["host_bytes"])
        self.train("tight", ONCE, f"device.memory={least}B")
        self.train("free", ONCE, "device.memory=0B")
        self.assertEqual(self.metrics("out/tight"), self.metrics("out/free"))
        self.assert_planned_is_measured("tight")

    def test_killed_in_training(self):
        (self.home / "killed.toml").write_text(DPO.replace("total_training_steps = 8", "total_training_steps = 60")
                                               + "[dpo]\nprecompute_ref_log_probs = true\n")
        result = self.kill_and_resume("killed", [7, 25], 1)
        self.assertIn(f"{FILE} has the reference's log-probabilities of 61 of 61 pairs", result.stderr)
        first = self.records("killed-killed-1")[0]
        self.assertEqual((first["phase"], first["step"]), ("ref_logp", 0))
        self.assertEqual({r["step"] for r in self.records("killed-killed-1") if r["phase"] == "ref_logp"}, {0})

    def test_killed_before_the_first_step(self):
        rows = (self.home / "pairs.jsonl").read_text().splitlines(keepends=True)
        (self.home / "many.jsonl").write_text("".join(rows * 30))
        words = ('data.train_files=["many.jsonl"]', ONCE, "trainer.total_training_steps=2")
        self.train("calm", *words)
        whole = self.home / "out/calm" / FILE
        self.assertEqual(len(pairs_of(whole)), 30 * 48 + HELD_OUT)
        self.assert_planned_is_measured("calm")
        part = self.home / "out/cut" / FILE
        process = self.start("train", "dpo.toml", "trainer.default_local_dir=out/cut", *words)
        deadline = time.monotonic() + 240
        while process.poll() is None and not part.exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        process.kill()
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        done = len(pairs_of(part))
        self.assertLess(done, 30 * 48)
        self.assertEqual(pairs_of(part), pairs_of(whole)[:done])
        result = self.train("cut", *words)
        self.assertIn(f"has the reference's log-probabilities of {done} of {30 * 48 + HELD_OUT} pairs", result.stderr)
        self.assertEqual(part.read_bytes(), whole.read_bytes())
        self.assertEqual(self.metrics("out/cut"), self.metrics("out/calm"))
        for file in ("model.safetensors", "optimizer.safetensors"):
            one, other = ((self.home / "out" / run / "latest/actor" / file).read_bytes() for run in ("cut", "calm"))
            self.assertTrue(one == other, file)

    def test_rows_that_cannot_be_read_end_the_run_and_lose_no_numbers(self):
        rows = (self.home / "pairs.jsonl").read_text().splitlines(keepends=True)
        (self.home / "unread.jsonl").write_text("".join(rows * 30))
        words = ('data.train_files=["unread.jsonl"]', ONCE, "trainer.total_training_steps=2", "data.rows_in_memory=0B",
                 "data.cache_dir=unread")
        part = self.home / "out/unread" / FILE
        process = self.start("train", "dpo.toml", "trainer.default_local_dir=out/unread", *words)
        deadline = time.monotonic() + 240
        while process.poll() is None and not part.exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        for file in (self.home / "unread").glob("*.rows"):
            os.truncate(file, 100)
        _, err = process.communicate()
        self.assertEqual(process.returncode, 1, err)
        self.assertIn(".rows cannot be read", err)
        done = len(pairs_of(part))
        self.assertLess(0, done)
        result = self.train("unread", *words)
        self.assertIn(f"has the reference's log-probabilities of {done} of {30 * 48 + HELD_OUT} pairs", result.stderr)

    def test_a_file_of_something_else_is_made_anew(self):
        few = (ONCE, "trainer.total_training_steps=1", "trainer.resume_mode=disable")
        self.train("anew", *few)
        file = self.home / "out/anew" / FILE
        first = file.read_bytes()

        def again(reason, *overrides):
            kept = file.read_bytes()
            shutil.rmtree(file.parent)
            file.parent.mkdir()
            file.write_bytes(kept)
            result = self.train("anew", *few, *overrides)
            self.assertIn(reason, result.stderr)
        again("has the reference's log-probabilities of 61 of 61 pairs")
        self.assertNotIn("ref_logp", [r["phase"] for r in self.records("anew")])
        again("is of other rows, another reference or another type", "actor_rollout_ref.ref.model.path=out/other/latest/actor")
        self.assertNotEqual(file.read_bytes(), first)
        again("is of other rows", 'data.val_files=["pairs.jsonl"]')
        self.assertEqual(len(pairs_of(file)), 48 + 48)
        for broken in (first[:-3], b"", b"\xff" * 100):
            file.write_bytes(broken)
            again("the reference's log-probabilities are computed anew")
            self.assertEqual(file.read_bytes(), first)
        # A number that is there twice as often.
        header, = struct.unpack("<Q", first[:8])
        grown = json.loads(first[8:8 + header])
        grown["log_probs"] |= {"shape": [122, 2], "data_offsets": [0, 976]}
        text = json.dumps(grown).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + first[8 + header:] * 2)
        again("the reference's log-probabilities are computed anew")
        self.assertEqual(file.read_bytes(), first)

    def test_errors_name_what_is_wrong(self):
        (self.home / "out/blocked" / FILE).mkdir(parents=True)
        self.assert_fails(self.neap("train", "dpo.toml", ONCE, "trainer.default_local_dir=out/blocked"), 1, FILE)
        self.assert_fails(self.neap("train", "dpo.toml", ONCE, "trainer.default_local_dir=out/none",
                                    "actor_rollout_ref.ref.model.path=model"), 2, "model has no model.safetensors")


if __name__ == "__main__":
    main()
