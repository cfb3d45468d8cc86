#!/usr/bin/env python3
"""`neap train` as a process: whole runs, kills, interrupts, slips of the user. usage: FILE NEAP REVIEWS

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
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

import neap_program
from neap_program import read_lines

NEAP, REVIEWS = "neap", pathlib.Path(".")

SFT = """
task = "sft"
[device]
kind = "host"
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
kind = "host"
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
kind = "host"
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
        cls.ceiling = int(re.search(r"least capacity is (\d+) MiB", refusal.stderr).group(1))
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
        self.assertEqual(self.validations(killed)[-1], self.validations(calm)[-1])
        names = {p.name for p in (self.home / killed).iterdir()}
        self.assertFalse([n for n in names if ".tmp" in n], names)
        return result


class Train(TrainCase):
    def test_kill_and_resume_sft(self):
        for threads in (None, 2):
            with self.subTest(threads=threads):
                self.kill_and_resume("sft", [1, 4, 6], threads)

    def test_kill_and_resume_ppo(self):
        for threads in (None, 2):
            with self.subTest(threads=threads):
                self.kill_and_resume("ppo", [1, 3, 4], threads)

    def test_two_runs_are_equal_with_several_threads(self):
        # Batches in which threads that add to one row of the embedding meet.
        sizes = ("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16",
                 "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "critic.ppo_mini_batch_size=16",
                 "critic.ppo_micro_batch_size_per_gpu=8", "device.memory=256MiB", "trainer.total_training_steps=3")
        for threads in (None, 2):
            with self.subTest(threads=threads):
                runs = []
                for name in ("a", "b"):
                    folder = f"out/threads-{threads}-{name}"
                    result = self.neap("train", "ppo.toml", *sizes, f"trainer.default_local_dir={folder}",
                                       threads=threads)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    runs.append(folder)
                self.assertEqual(*map(self.metrics, runs))
                for file in ("actor/model.safetensors", "actor/optimizer.safetensors", "critic/model.safetensors"):
                    self.assertEqual(*((self.home / run / "latest" / file).read_bytes() for run in runs), file)

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

    def test_same_seed_same_run_other_seed_other_run(self):
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            result = self.neap("train", "sft.toml", f"trainer.seed={seed}",
                               f"trainer.default_local_dir=out/seed-{name}", "trainer.total_training_steps=2")
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.metrics("out/seed-a"), self.metrics("out/seed-b"))
        self.assertNotEqual(self.metrics("out/seed-a"), self.metrics("out/seed-c"))

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

    def test_everything_resident_does_not_fit_under_the_ceiling(self):
        result = self.neap("train", "ppo.toml", "memory.residency=all",
                           "trainer.default_local_dir=out/all")
        self.assert_fails(result, 3, f"of {self.ceiling} MiB is free", "held by", "actor.optimizer")
        self.assertIn("over the capacity", result.stdout)
        small = self.neap("train", "ppo.toml", f"device.memory={self.ceiling - 2}MiB",
                          "trainer.default_local_dir=out/all")
        self.assertEqual(small.returncode, 3, small.stderr)

    def test_memory_lines_and_table(self):
        result = self.neap("train", "ppo.toml", "trainer.default_local_dir=out/lines",
                           "trainer.total_training_steps=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        for part in ("generate", "update_actor", "val/score", "val/kl_per_response"):
            self.assertIn(part, result.stdout)
        phases = read_lines(self.home / "out/lines/phases.jsonl")
        plan = json.loads((self.home / "out/lines/plan.json").read_text())
        peak = max(phase["peak"] for phase in phases)
        self.assertLessEqual(peak, self.ceiling << 20)
        self.assertLess(abs(peak / plan["peak"] - 1), 0.03, (peak, plan["peak"]))

    def test_lora_takes_its_frozen_base_as_reference(self):
        rank = ("actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4")
        result = self.neap("train", "ppo.toml", *rank, "trainer.default_local_dir=out/lora", "device.memory=64MiB",
                           "trainer.total_training_steps=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        kl = [row["actor/reward_kl_penalty"] for row in self.metrics("out/lora")]
        self.assertAlmostEqual(kl[0], 0, places=4)  # an adapter starts as nothing
        self.assertNotEqual(kl[2], 0)
        on = self.neap("train", "ppo.toml", *rank, "trainer.default_local_dir=out/lora", "device.memory=64MiB",
                       "trainer.total_training_steps=4")
        self.assertEqual(on.returncode, 0, on.stderr)

    def test_what_lora_learned_goes_on_into_the_next_stage(self):
        out = "out/sft_lora"
        result = self.neap("train", "sft.toml", "actor_rollout_ref.model.path=out/sft/latest/actor",
                           "actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.actor.optim.lr=0.02",
                           f"trainer.default_local_dir={out}", "trainer.total_training_steps=4")
        self.assertEqual(result.returncode, 0, result.stderr)
        learned = read_lines(self.home / out / "validation.jsonl")
        self.assertGreater(abs(learned[-1]["val/loss"] - learned[0]["val/loss"]), 0.01, learned)
        result = self.neap("train", "sft.toml", f"actor_rollout_ref.model.path={out}/latest/actor",
                           "trainer.default_local_dir=out/after_lora", "trainer.total_training_steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        start = read_lines(self.home / "out/after_lora/validation.jsonl")[0]
        self.assertAlmostEqual(start["val/loss"], learned[-1]["val/loss"], places=3)
        texts = [self.neap("generate", f"{folder}/latest/actor", "--prompt", "Last night we ate", "--temperature", "0",
                           "--max-new-tokens", "16").stdout for folder in ("out/sft", out)]
        self.assertNotEqual(*texts)

    def test_grpo(self):
        text = PPO.replace('task = "ppo"', 'task = "grpo"').replace("CEILING", "64MiB")
        text = re.sub(r"\[critic\].*?(?=\[reward_model\])", "", text, flags=re.S)
        text = text.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2")
        (self.home / "grpo.toml").write_text(text)
        result = self.neap("train", "grpo.toml", "trainer.default_local_dir=out/grpo",
                           "trainer.total_training_steps=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("critic/vf_loss", self.metrics("out/grpo")[0])

    def test_conversations_train_on_every_turn_of_the_assistant(self):
        shutil.copytree(self.home / "model", self.home / "chat_model")
        template = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                    "{% if add_generation_prompt %}assistant: {% endif %}")
        (self.home / "chat_model" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        user, other = ({"role": "user", "content": text} for text in ("Good?", "Was it any good, then?"))
        answer = {"role": "assistant", "content": "Yes."}

        def trained_tokens(name, messages, model="chat_model", **more):
            (self.home / f"{name}.jsonl").write_text((json.dumps({"messages": messages, **more}) + "\n") * 16)
            result = self.neap("train", "sft.toml", f"data.train_files=['{name}.jsonl']", "data.val_files=[]",
                               "data.prompt_key=messages", f"actor_rollout_ref.model.path={model}",
                               "data.max_response_length=64", "trainer.total_training_steps=1",
                               f"trainer.default_local_dir=out/{name}")
            return result if result.returncode else self.metrics(f"out/{name}")[0]["perf/total_num_tokens"]

        once = trained_tokens("once", [user, answer])
        self.assertGreater(once, 16)
        self.assertEqual(trained_tokens("other", [other, answer]), once)
        self.assertEqual(trained_tokens("twice", [user, answer, other, answer]), 2 * once)
        apart = trained_tokens("apart", [user], response="Yes.")  # and the token that ends a text
        self.assertEqual(trained_tokens("message", [other], response=[answer]), apart)
        self.assert_fails(trained_tokens("roles", [user], response=[other]), 2, "roles.jsonl:1", "message of the assistant")
        self.assert_fails(trained_tokens("plain", [user, answer], model="model"), 2, "plain.jsonl:1", "chat template")
        self.assert_fails(trained_tokens("silent", [user, user]), 2, "silent.jsonl:1", "no turn of the assistant")

    def test_slips_in_data_and_configuration(self):
        (self.home / "bad.jsonl").write_text('{"prompt": "a", "response": "b"}\n{"prompt": "a", \n')
        out = "trainer.default_local_dir=out/slips"
        self.assert_fails(self.neap("train", "sft.toml", "data.train_files=['bad.jsonl']", out), 2, "bad.jsonl:2")
        self.assert_fails(self.neap("train", "sft.toml", "data.train_files=['gone.jsonl']", out), 2, "gone.jsonl")
        self.assert_fails(self.neap("train", "sft.toml", "data.prompt_key=text", out), 2, '"text" is missing')
        self.assert_fails(self.neap("train", "sft.toml", "data.max_response_length=8", out), 2, "tokens")
        self.assert_fails(self.neap("train", "sft.toml", "trainer.lr=1", out), 2, "unknown key")
        self.assert_fails(self.neap("train", "gone.toml"), 2, "gone.toml")
        self.assert_fails(self.neap("train", "ppo.toml", "actor_rollout_ref.model.path=model", out), 2, "weights")
        self.assertFalse((self.home / "out/slips/metrics.jsonl").exists())

    def test_scalar_head_that_is_missing_is_refused(self):
        ppo = ("train", "ppo.toml", "device.memory=64MiB", "trainer.total_training_steps=1")
        language = "out/sft/latest/actor"
        reward = self.neap(*ppo, f"reward_model.model.path={language}", "trainer.default_local_dir=out/no-head")
        self.assert_fails(reward, 2, "score.weight", "reward model")
        critic = (*ppo, f"critic.model.path={language}", "trainer.default_local_dir=out/no-value-head")
        self.assert_fails(self.neap(*critic), 2, "score.weight", "critic.model.init_head")
        asked = self.neap(*critic, "critic.model.init_head=true")
        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.assertIn("the critic model's starts at zero", asked.stderr)
        self.assertEqual(self.metrics("out/no-value-head")[0]["critic/values/max"], 0)

    def test_critic_with_adapters_starts_with_the_reward_models_head(self):
        values = []
        for name, rank in (("full", 0), ("lora", 4)):
            result = self.neap("train", "ppo.toml", f"critic.model.lora_rank={rank}", "device.memory=64MiB",
                               f"trainer.default_local_dir=out/head-{name}", "trainer.total_training_steps=1")
            self.assertEqual(result.returncode, 0, result.stderr)
            values.append(self.metrics(f"out/head-{name}")[0]["critic/values/mean"])
        self.assertNotEqual(values[0], 0)
        self.assertAlmostEqual(*values, places=5)

    def test_tensors_without_a_place_are_reported(self):
        result = self.neap("train", "sft.toml", "actor_rollout_ref.model.path=out/reward/latest/reward",
                           "trainer.default_local_dir=out/unused", "trainer.total_training_steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, "1 tensors are not used by the actor model: score.weight")

    def changed_tokenizer(self, name):
        """The reward model with two tokens' ids swapped."""
        folder = self.home / name
        shutil.copytree(self.home / "out/reward/latest/reward", folder)
        file = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = file["model"]["vocab"]
        a, b = (token for token, id in vocabulary.items() if id in (500, 501))
        vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
        (folder / "tokenizer.json").write_text(json.dumps(file))
        return name

    def test_another_tokenizer_is_refused(self):
        other = self.changed_tokenizer("other-tokenizer")
        ppo = ("train", "ppo.toml", "device.memory=64MiB", "trainer.total_training_steps=1")
        for key in ("reward_model", "critic", "actor_rollout_ref.ref"):
            with self.subTest(key=key):
                folder = "out/sft/latest/actor" if key.endswith("ref") else "out/reward/latest/reward"
                result = self.neap(*ppo, f"{key}.model.path={folder}", f"{key}.model.tokenizer_path={other}",
                                   "trainer.default_local_dir=out/tokenizer")
                self.assert_fails(result, 1, "gives other ids", "id 500", f"{key}.model.tokenizer_path")
        result = self.neap(*ppo, f"reward_model.model.path={other}", "trainer.default_local_dir=out/tokenizer")
        self.assert_fails(result, 1, "gives other ids")
        named = self.neap(*ppo, f"reward_model.model.path={other}", "critic.model.path=out/reward/latest/reward",
                          "reward_model.model.tokenizer_path=model", "trainer.default_local_dir=out/tokenizer")
        self.assertEqual(named.returncode, 0, named.stderr)

    def test_every_end_token_ends_a_text(self):
        actor = self.home / "ends"
        shutil.copytree(self.home / "out/sft/latest/actor", actor)
        def generate(folder):
            result = self.neap("generate", folder, "--prompt", "Last night we ate", "--temperature", "0",
                               "--max-new-tokens", "12", "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout)
        tokens = generate("ends")["tokens"]
        config = {"eos_token_id": [0, tokens[3]], "temperature": 0.7}
        (actor / "generation_config.json").write_text(json.dumps(config))
        early = generate("ends")
        self.assertEqual((early["tokens"], early["finish_reason"]), (tokens[:tokens.index(tokens[3]) + 1], "stop"))
        result = self.neap("train", "sft.toml", "actor_rollout_ref.model.path=ends", "trainer.total_training_steps=1",
                           "trainer.default_local_dir=out/ends")
        self.assertEqual(result.returncode, 0, result.stderr)
        exported = self.home / "out/ends/latest/actor/generation_config.json"
        self.assertEqual(json.loads(exported.read_text()), config)

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
        head(REVIEWS / "sft_train.jsonl", self.home / "other.jsonl", 95)
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

    def running(self, name, *overrides):
        """A long run after its second step, and its folder."""
        out = self.home / "out" / name
        process = self.start("train", "sft.toml", f"trainer.default_local_dir=out/{name}", "trainer.total_training_steps=2000",
                             "trainer.save_freq=-1", *overrides)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(out) >= 2)
        return process, out

    def test_a_run_follows_a_folder_that_is_moved(self):
        process, out = self.running("to-move")
        moved = out.rename(self.home / "out/moved-away")
        steps = neap_program.logged_steps(moved)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(moved) > steps + 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        self.assertRegex(err, f"out/to-move was moved to {re.escape(str(moved.resolve()))} .*trainer.default_local_dir=")
        self.assertFalse(out.exists())
        steps = neap_program.logged_steps(moved)
        self.assertTrue((moved / f"global_step_{steps}").is_dir())
        on = self.neap("train", "sft.toml", "trainer.default_local_dir=out/moved-away", f"trainer.total_training_steps={steps + 1}")
        self.assertEqual(on.returncode, 0, on.stderr)

    def test_a_run_whose_folder_is_removed_saves_and_says_so(self):
        process, out = self.running("to-remove")
        process.send_signal(signal.SIGSTOP)
        shutil.rmtree(out)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        self.assertRegex(err, "out/to-remove was removed while the run worked in it.*saved in .*out/to-remove/global_step_")
        self.assertTrue((out / "latest/trainer.json").exists())

    def test_a_folder_made_anew_is_not_written_in(self):
        process, out = self.running("anew")
        process.send_signal(signal.SIGSTOP)
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
            process.send_signal(signal.SIGSTOP)
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
        for wrong in ([], 3, {**right, "config": "none"}, {**right, "rows": "many"}, {**right, "task": 1}):
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

    @unittest.skipUnless(neap_program.HAS_NAMESPACES, "no mount namespaces for this user")
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

    def test_generate(self):
        for path in ("out/sft", "out/sft/latest", "out/sft/latest/actor"):
            result = self.neap("generate", path, "--prompt", "Last night we ate at the old inn.",
                               "--max-new-tokens", "8", "--seed", "3")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("Last night we ate at the old inn.", result.stdout)
        self.assertNotEqual(self.neap("generate", "out/nothing").returncode, 0)


def main():
    global NEAP, REVIEWS
    NEAP, REVIEWS = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])


if __name__ == "__main__":
    main()
