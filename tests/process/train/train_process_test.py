#!/usr/bin/env python3
"""`neap train` as a process: kills, interrupts, a full disk. usage: FILE NEAP REVIEWS

Everything runs on a tiny model with the example's texts, in a folder of its own.
"""
import fcntl
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

import neap_program
import resident
from neap_program import read_lines

NEAP, REVIEWS = "neap", pathlib.Path(".")

SFT = """
task = "sft"
[device]
kind = "cpu"
memory = "256MiB"
[data]
use_dynamic_bsz = false
train_files = ["sft.jsonl"]
val_files = ["sft_val.jsonl"]
train_batch_size = 16
micro_batch_size_per_gpu = 8
max_prompt_length = 24
max_response_length = 40
[actor_rollout_ref.model]
activation_checkpointing = "selective"
path = "model"
[actor_rollout_ref.actor.optim]
lr = 1e-3
[trainer]
test_freq = -1
total_training_steps = 8
save_freq = 3
default_local_dir = "out/sft"
"""
REWARD = """
task = "reward"
[device]
kind = "cpu"
memory = "256MiB"
[data]
use_dynamic_bsz = false
train_files = ["pairs.jsonl"]
val_files = ["pairs_val.jsonl"]
train_batch_size = 8
micro_batch_size_per_gpu = 4
max_prompt_length = 24
max_response_length = 40
[actor_rollout_ref.model]
activation_checkpointing = "selective"
path = "out/sft/latest/actor"
[trainer]
test_freq = -1
save_freq = -1
total_training_steps = 3
default_local_dir = "out/reward"
"""
PPO = """
task = "ppo"
[device]
kind = "cpu"
memory = "CEILING"
[data]
train_files = ["prompts.jsonl"]
val_files = ["prompts_val.jsonl"]
train_batch_size = 8
max_prompt_length = 24
max_response_length = 16
[actor_rollout_ref.model]
activation_checkpointing = "selective"
path = "out/sft/latest/actor"
[actor_rollout_ref.actor]
use_dynamic_bsz = false
ppo_mini_batch_size = 4
ppo_micro_batch_size_per_gpu = 4
optim.lr = 1e-3
[actor_rollout_ref.rollout]
log_prob_micro_batch_size_per_gpu = 4
val_kwargs.do_sample = true
[critic]
model.activation_checkpointing = "selective"
model.path = "out/reward/latest/reward"
ppo_mini_batch_size = 4
ppo_micro_batch_size_per_gpu = 4
[reward_model]
model.path = "out/reward/latest/reward"
[algorithm]
use_kl_in_reward = true
kl_ctrl.type = "adaptive"
kl_ctrl.kl_coef = 0.05
[trainer]
test_freq = -1
total_training_steps = 6
save_freq = 2
default_local_dir = "out/ppo"
"""
MODEL = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1,
}
# Layers of 1 MiB and a table as large.
WIDE = dict(MODEL, num_hidden_layers=6, intermediate_size=512)
# All else a run must repeat bit by bit. What moved before a step depends on whether a validation came before it, how even
# ranks are on their number.
UNSTEADY = ("timing_s/", "perf/time", "perf/throughput", "perf/cpu_memory", "perf/max_memory", "memory/", "global_seqlen/")


def grpo_of(ppo):
    """The same job for GRPO, which has no critic."""
    return re.sub(r"\[critic\].*?(?=\[reward_model\])", "", ppo.replace('task = "ppo"', 'task = "grpo"'), flags=re.S)


def head(source, target, rows):
    lines = source.read_text().splitlines(keepends=True)[:rows]
    target.write_text("".join(lines))


class TrainCase(unittest.TestCase):
    """A folder with models that were trained a little, and the program in it."""

    @classmethod
    def setUpClass(cls):
        cls.make_home()
        for stage in ("sft", "reward"):
            result = cls.neap("train", f"{stage}.toml")
            assert result.returncode == 0, result.stderr
        # The tightest ceiling under which the job runs at all.
        (cls.home / "ppo.toml").write_text(PPO.replace("CEILING", "4MiB"))
        refusal = cls.neap("train", "ppo.toml")
        cls.ceiling = int(re.search(r"minimum capacity is (\d+) MiB", refusal.stderr).group(1))
        (cls.home / "ppo.toml").write_text(PPO.replace("CEILING", f"{cls.ceiling}MiB"))

    @classmethod
    def make_home(cls, reviews=None, fewer=0):
        """A folder with an untrained model, data and jobs; `fewer` held-out rows than usual."""
        cls.reviews = reviews or REVIEWS
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="neap-train-"))
        cls.home = cls.base / "home"
        cls.home.mkdir()
        cls.add_model("model", MODEL)
        for name, rows in (("sft", 96), ("pairs", 48), ("prompts", 48)):
            head(cls.reviews / f"{name}_train.jsonl", cls.home / f"{name}.jsonl", rows)
            head(cls.reviews / f"{name}_val.jsonl", cls.home / f"{name}_val.jsonl", rows // 6 - fewer)
        (cls.home / "sft.toml").write_text(SFT)
        (cls.home / "reward.toml").write_text(REWARD)

    @classmethod
    def add_model(cls, name, config):
        """A model's folder: its configuration and the reviews' tokenizer, no weights."""
        (cls.home / name).mkdir()
        (cls.home / name / "config.json").write_text(json.dumps(config))
        shutil.copy(cls.reviews / "model" / "tokenizer.json", cls.home / name)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    @classmethod
    def start(cls, *arguments, threads=1, **options):
        """`threads` of libtorch; None: as many as it takes without any setting."""
        environment = neap_program.environment(without=("OMP_", "MKL_", "ATEN_", "KMP_"))
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        return neap_program.start(NEAP, *arguments, cwd=cls.home, env=environment, **options)

    @classmethod
    def neap(cls, *arguments, **options):
        if resident.PROGRAM and not options:
            return resident.neap(NEAP, *arguments, cwd=cls.home, timeout=300)
        return neap_program.outcome(cls.start(*arguments, **options), timeout=300)

    def metrics(self, folder):
        rows = read_lines(self.home / folder / "metrics.jsonl")
        return [{k: v for k, v in row.items() if not k.startswith(UNSTEADY)} for row in rows]

    def validations(self, folder):
        rows = read_lines(self.home / folder / "validation.jsonl")
        return [{k: v for k, v in row.items() if not k.startswith("timing")} for row in rows]

    def assert_fails(self, result, code, *parts):
        self.assertEqual(result.returncode, code, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def kill_and_resume(self, stage, kills, threads):
        """Kills a run several times, each time in the middle, then compares it with one that was left alone."""
        calm, killed = f"out/{stage}-calm-{threads}", f"out/{stage}-killed-{threads}"
        result = self.neap("train", f"{stage}.toml", f"trainer.default_local_dir={calm}", threads=threads)
        self.assertEqual(result.returncode, 0, result.stderr)
        steps = len(self.metrics(calm))
        log = self.home / killed / "metrics.jsonl"
        for after in kills:
            process = self.start("train", f"{stage}.toml", f"trainer.default_local_dir={killed}", threads=threads)
            deadline = time.monotonic() + 240
            while process.poll() is None and time.monotonic() < deadline:
                if log.exists() and log.read_text().count("\n") >= after:
                    break
                time.sleep(0.002)
            process.kill()
            _, err = process.communicate()
            self.assertEqual(process.returncode, -signal.SIGKILL, f"ended before the kill after step {after}: {err}")
            done = log.read_text().count("\n")
            self.assertGreaterEqual(done, after)
            self.assertLess(done, steps, "nothing was left to resume")
        result = self.neap("train", f"{stage}.toml", f"trainer.default_local_dir={killed}", threads=threads)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, "Resuming from .*global_step_")
        self.assertEqual([row["step"] for row in self.metrics(killed)], list(range(1, steps + 1)))
        self.assertEqual(self.metrics(killed), self.metrics(calm))
        self.assertEqual(self.validations(killed)[-1:], self.validations(calm)[-1:])
        names = {p.name for p in (self.home / killed).iterdir()}
        self.assertFalse([n for n in names if ".tmp" in n], names)
        return result

    def running(self, name, *overrides):
        """A long run after its second step, and its folder."""
        out = self.home / "out" / name
        process = self.start("train", "sft.toml", f"trainer.default_local_dir=out/{name}", "trainer.total_training_steps=2000",
                             "trainer.save_freq=-1", *overrides)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(out) >= 2)
        return process, out


class Train(TrainCase):
    def test_kill_and_resume_sft(self):
        for threads in (None, 2):
            with self.subTest(threads=threads):
                self.kill_and_resume("sft", [1, 4, 6], threads)

    def test_kill_and_resume_ppo(self):
        for threads in (None, 2):
            with self.subTest(threads=threads):
                self.kill_and_resume("ppo", [1, 3, 4], threads)

    def test_interrupt_saves_and_the_same_command_goes_on(self):
        arguments = ("train", "sft.toml", "trainer.default_local_dir=out/stopped",
                     "trainer.total_training_steps=2000")
        process = self.start(*arguments)
        log = self.home / "out/stopped/metrics.jsonl"
        while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= 2):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("Interrupted after step", err)
        steps = len(self.metrics("out/stopped"))
        self.assertTrue((self.home / f"out/stopped/global_step_{steps}").is_dir())
        on = self.neap(*arguments[:-1], f"trainer.total_training_steps={steps + 1}")
        self.assertEqual(on.returncode, 0, on.stderr)

    def test_the_end_of_a_terminal_saves(self):
        """As a dropped connection: a hang-up, twice, and nobody who takes what is printed."""
        here, there = os.openpty()
        output = self.home / "out/dropped"
        process = self.start("train", "sft.toml", "trainer.default_local_dir=out/dropped", "trainer.total_training_steps=2000",
                             stdin=there, stdout=there, stderr=there, start_new_session=True,
                             preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(there)
        reader = threading.Thread(target=self.read_until, args=(here, lambda: neap_program.logged_steps(output) >= 2))
        reader.start()
        reader.join(timeout=120)
        os.close(here)
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.wait(timeout=120), 1)
        steps = neap_program.logged_steps(output)
        self.assertTrue((output / f"global_step_{steps}").is_dir(), list(output.iterdir()))

    @staticmethod
    def read_until(terminal, condition):
        while not condition():
            if select.select([terminal], [], [], 0.01)[0]:
                os.read(terminal, 4096)

    def test_an_interrupt_that_ends_the_reader_of_the_output_saves(self):
        """Ctrl-C in `neap train | tee log` ends tee, too; and a launcher may send the signal once more."""
        output = self.home / "out/piped"
        process = self.start("train", "sft.toml", "trainer.default_local_dir=out/piped", "trainer.total_training_steps=2000",
                             stderr=subprocess.STDOUT)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(output) >= 2)
        process.stdout.close()
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        self.assertEqual(process.wait(timeout=120), 1)
        self.assertTrue((output / f"global_step_{neap_program.logged_steps(output)}").is_dir())

    def test_only_a_sender_that_asks_twice_ends_a_run_without_a_checkpoint(self):
        """A launcher, systemd or Slurm may pass on seconds later what has reached the whole group."""
        def ask(process, number):
            os.kill(process.pid, number)

        def pass_on(process, number):
            subprocess.run([sys.executable, "-c", f"import os; os.kill({process.pid}, {int(number)})"], check=True)

        for name, first, again, number, code in (("passed-on", signal.SIGTERM, pass_on, signal.SIGTERM, 1),
                                                 ("hung-up", signal.SIGHUP, ask, signal.SIGTERM, 1),
                                                 ("asked-twice", signal.SIGTERM, ask, signal.SIGINT, -signal.SIGINT)):
            with self.subTest(name):
                process, out = self.running(name, "data.train_batch_size=96")
                ask(process, first)
                while not (line := process.stderr.readline()).startswith("Stopping after this step"):
                    self.assertTrue(line, "it ended")
                process.send_signal(signal.SIGSTOP)  # so that the step lasts
                time.sleep(1.2)
                again(process, number)
                process.send_signal(signal.SIGCONT)
                _, err = process.communicate(timeout=120)
                self.assertEqual(process.returncode, code, err)
                self.assertEqual((out / f"global_step_{neap_program.logged_steps(out)}").is_dir(), code == 1)

    def test_nohup_goes_on(self):
        output = self.home / "out/nohup"
        process = self.start("train", "sft.toml", "trainer.default_local_dir=out/nohup", "trainer.total_training_steps=12",
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        neap_program.wait_for(process, lambda: neap_program.logged_steps(output) >= 1)
        process.send_signal(signal.SIGHUP)
        self.assertEqual(neap_program.outcome(process, 120).returncode, 0)
        self.assertEqual(neap_program.logged_steps(output), 12)

    def test_a_run_that_was_killed_before_its_first_checkpoint_leaves_no_rows(self):
        out = self.home / "out/early"
        words = ("train", "sft.toml", "trainer.default_local_dir=out/early", "trainer.save_freq=-1")
        for _ in range(2):
            (out / "metrics.jsonl").unlink(missing_ok=True)
            process = self.start(*words, "trainer.total_training_steps=2000")
            neap_program.wait_for(process, lambda: neap_program.logged_steps(out) >= 1)
            process.kill()
            process.communicate()
            (out / "plan.json.tmp-123-0123456789abcdef").write_text("{")
            with open(out / "metrics.jsonl", "a") as log:
                log.write('{"step": 7, "train/l')
        result = self.neap(*words, "trainer.total_training_steps=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"metrics.jsonl:\d+: the last line is incomplete and left out \(20 bytes\)")
        self.assertEqual([row["step"] for row in self.validations("out/early")], [0, 2])
        self.assertEqual([row["step"] for row in self.metrics("out/early")], [1, 2])
        self.assertEqual([path.name for path in out.rglob("*.tmp*")], [])

    @neap_program.needs_namespaces
    def test_full_disk_leaves_the_last_checkpoint(self):
        """The output has a file system of its own, which is full before the first checkpoint and, larger, after some more."""
        command = 'NEAP train sft.toml trainer.default_local_dir=out/full'.replace("NEAP", str(NEAP))
        longer = "trainer.total_training_steps=1000 trainer.save_freq=1"
        script = (f"mkdir -p out/full && mount -t tmpfs -o size=1m tmpfs out/full && {command} 2>full-1; echo $?; ls out/full >full-left; "
                  f"mount -o remount,size=1g out/full && {command} 2>full-2; echo $?; "
                  f"mount -o remount,size=$(($(du -sk out/full | cut -f1) + 1024))k out/full && {command} {longer} 2>full-3; echo $?; "
                  "ls out/full >full-after")
        done = subprocess.run([*neap_program.NAMESPACE, "sh", "-c", script], cwd=self.home, env=neap_program.environment(OMP_NUM_THREADS="1"),
                              capture_output=True, text=True, timeout=300, check=False)
        first, later = ((self.home / f"full-{run}").read_text() for run in (1, 3))
        self.assertEqual([line for line in done.stdout.splitlines() if line.isdigit()], ["1", "0", "1"], first + later)
        for error in (first, later):
            errors = [line for line in error.splitlines() if "error:" in line]
            self.assertEqual([line.count("No space left on device") for line in errors], [1], error)  # the trace may warn, too
        self.assertIn("There is no checkpoint; the same command starts again", first)
        self.assertNotRegex((self.home / "full-left").read_text(), "global_step|tmp")
        self.assertRegex(later, r"The newest checkpoint is \S*global_step_\d+; the same command resumes from there")
        self.assertNotIn("tmp", (self.home / "full-after").read_text())


def main():
    global NEAP, REVIEWS
    NEAP, REVIEWS = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])


if __name__ == "__main__":
    main()
