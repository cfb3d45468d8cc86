#!/usr/bin/env python3
"""What `neap train` shows while it trains, and what of it a killed and a resumed run keep. usage: FILE NEAP"""
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios

import neap_program
from additions_case import BATCH, main, TrainedCase
from neap_program import read_lines


class Shows(TrainedCase):
    def grpo(self, out, *words, expect=0):
        result = self.neap("train", "grpo.toml", *BATCH, f"trainer.default_local_dir=out/{out}", *words)
        self.assertEqual(result.returncode, expect, result.stderr)
        return result

    def rollouts(self, out):
        return read_lines(self.home / "out" / out / "rollouts.jsonl")

    def test_responses_with_their_scores(self):
        result = self.grpo("texts", "trainer.total_training_steps=4", "trainer.rollout_freq=2", "trainer.rollout_samples=2")
        lines = self.rollouts("texts")
        self.assertEqual([line["step"] for line in lines], [1] * 32 + [2] * 32 + [4] * 32)
        metrics = read_lines(self.home / "out/texts/metrics.jsonl")
        for step in (1, 2, 4):
            mine = [line for line in lines if line["step"] == step]
            self.assertAlmostEqual(sum(line["score"] for line in mine) / 32, metrics[step - 1]["critic/score/mean"], places=5)
            self.assertAlmostEqual(sum(line["tokens"] for line in mine) / 32, metrics[step - 1]["response_length/mean"], places=5)
            groups = [{line["score"] for line in mine[i:i + 4]} for i in range(0, 32, 4)]
            self.assertAlmostEqual(sum(len(group) == 1 for group in groups) / 8, metrics[step - 1]["frac_reward_zero_std"], places=6)
        for line in lines:
            a, b = line["prompt"].rstrip("=").split("+")
            self.assertTrue(a.isdigit() and b.isdigit(), line)
            self.assertIn("ground_truth", line)
            self.assertEqual(line["verdict"], "right" if line["rewards"]["numeric/acc"] == 1 else "wrong")
        self.assertIn("neap: 2 of the 32 responses of step 4; all are in out/texts/rollouts.jsonl\n  score ", result.stderr)
        page = (self.home / "out/texts/report.html").read_text()
        self.assertIn("<figcaption>Reward</figcaption><svg", page)
        self.assertIn("Step 4: 32 responses", page)
        self.assertLess(max(map(len, result.stderr.split("all are in out/texts/rollouts.jsonl\n")[1].splitlines()[:6])), 81)

    def test_responses_with_their_token_ids(self):
        self.grpo("ids", "trainer.total_training_steps=1", "trainer.rollout_token_ids=true")
        tokenizer = json.loads((self.home / "model/tokenizer.json").read_text())
        letters = {i: letter for letter, i in tokenizer["model"]["vocab"].items()}
        for line in self.rollouts("ids"):
            self.assertEqual("".join(letters[i] for i in line["prompt_ids"]), line["prompt"])
            self.assertEqual(len(line["response_ids"]), line["tokens"])
            text = "".join(letters[i] for i in line["response_ids"] if not letters[i].startswith("<"))
            self.assertEqual(text, line["response"])
            self.assertEqual(letters[line["response_ids"][-1]] == "<|end|>", not line["truncated"])

    def on_a_terminal(self, *words):
        """What a run writes to stderr where that is a terminal of 100 columns."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        process = neap_program.start(self.path, *words, cwd=self.home, stdout=subprocess.DEVNULL, stderr=slave,
                                     env=neap_program.environment(NEAP_PROGRESS="on"))
        os.close(slave)
        text = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the program has ended
                break
            text += part
        os.close(master)
        self.assertEqual(process.wait(), 0, text.decode())
        return text.decode()

    def test_phases_of_a_step(self):
        text = self.on_a_terminal(
            "train", "grpo.toml", *BATCH, "trainer.default_local_dir=out/phases", "trainer.total_training_steps=6",
            "actor_rollout_ref.actor.use_dynamic_bsz=false", "data.train_batch_size=32", "actor_rollout_ref.actor.ppo_mini_batch_size=8",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
            "trainer.rollout_freq=-1", "trainer.test_freq=-1")
        parts = re.findall(r"/6 steps.*?  (validation: )?(\w+) (\d+)/(\d+) (\S+?)\x1b", text)
        totals = {(stage, name, unit): int(total) for stage, name, _, total, unit in parts}
        expected = {("", "generate", "responses"): 128, ("", "actor_logp", "micro-batches"): 32, ("", "train_actor", "micro-batches"): 32}
        for key, total in totals.items():
            if not key[0]:
                self.assertEqual(total, expected.get(key), key)
        self.assertIn(("", "train_actor", "micro-batches"), totals, text)
        for stage, name, done, total, _ in parts:
            self.assertLessEqual(int(done), int(total), name)
        self.assertGreater(len({done for _, name, done, _, _ in parts if name == "train_actor"}), 1, "it moves")
        self.assertIn("6/6 steps", text)

    def test_lines_fit_a_terminal(self):
        result = self.grpo("narrow", "trainer.total_training_steps=2", "trainer.rollout_freq=-1", "actor_rollout_ref.actor.use_kl_loss=true")
        lines = [line for line in result.stderr.splitlines() if line.startswith(("neap: step ", "neap: validation at ", "  val/"))]
        steps = [line for line in lines if line.startswith("neap: step ")]
        self.assertEqual(len(steps), 2)
        self.assertGreater(len(lines), 4)
        for line in lines:
            self.assertLess(len(line), 81, line)
        for word in ("score ", "length ", "entropy ", " s"):
            self.assertIn(word, steps[1])

    def test_validation_shows_other_prompts_each_time(self):
        self.grpo("samples", "trainer.total_training_steps=3", "trainer.test_freq=1", "trainer.val_samples=4", "trainer.rollout_freq=-1")
        rows = read_lines(self.home / "out/samples/validation.jsonl")
        prompts = [[sample["prompt"] for sample in row["samples"]] for row in rows]
        for shown in prompts:
            self.assertEqual(len(shown), 4)
        self.assertEqual(len({tuple(shown[:2]) for shown in prompts}), 1)
        self.assertGreater(len({tuple(shown[2:]) for shown in prompts}), 1)
        self.assertIn(rows[0]["samples"][0]["verdict"], ("right", "wrong"))
        self.assertIn("score", rows[0]["samples"][0])
        self.assertFalse((self.home / "out/samples/rollouts.jsonl").stat().st_size)
        events = b"".join(path.read_bytes() for path in (self.home / "out/samples/tensorboard").iterdir())
        self.assertEqual(events.count(b"val/score/mean"), 4)

    def test_responses_that_no_memory_keeps_end_with_a_checkpoint(self):
        """4.8 MB of responses a step, of which 16 MiB are kept while the disk is full."""
        rows = neap_program.read_lines(self.home / "prompts_train.jsonl")
        for row in rows:
            row["reward_model"]["ground_truth"] += "x" * 150_000
        self.write("long.jsonl", rows)
        log = self.home / "out/kept/rollouts.jsonl"
        log.parent.mkdir(parents=True)
        log.symlink_to("/dev/full")
        words = ("data.train_files=long.jsonl", 'reward.functions.0.kind="exact"', "trainer.rollout_freq=1", "trainer.rollout_samples=0",
                 "trainer.total_training_steps=30")
        result = self.grpo("kept", *words, expect=1)
        (error,) = [line for line in result.stderr.splitlines() if "error:" in line]
        self.assertRegex(error, r"Stopped after 4 of 30 steps: Cannot write .*rollouts.jsonl: No space left on device. "
                         r"The steps are saved in \S*global_step_4; the same command resumes from there")
        log.unlink()
        again = self.grpo("kept", *words[:-1], "trainer.total_training_steps=6")
        self.assertRegex(again.stderr, "Resuming from .*global_step_4")
        self.assertEqual([row["step"] for row in neap_program.read_lines(log)][::32], [5, 6])

    def test_a_killed_run_that_resumes_has_every_response_once(self):
        words = ["trainer.total_training_steps=6", "trainer.rollout_freq=1", "trainer.save_freq=2"]
        self.grpo("whole", *words)
        process = neap_program.start(self.path, "train", "grpo.toml", *BATCH, *words, "trainer.default_local_dir=out/killed", cwd=self.home)
        path = self.home / "out/killed/rollouts.jsonl"
        neap_program.wait_for(process, lambda: path.exists() and path.read_text().count("\n") >= 3 * 32)
        process.send_signal(signal.SIGKILL)
        neap_program.outcome(process)
        with path.open("a") as file:
            file.write('{"step":5,"pro')
        self.grpo("killed", *words)
        self.assertEqual(self.rollouts("killed"), self.rollouts("whole"))

    def test_a_reward_that_is_always_the_same_is_one_warning(self):
        words = ["reward.functions.0.kind=regex", "reward.functions.0.pattern=.*", "trainer.rollout_freq=-1"]
        result = self.grpo("equal", "trainer.total_training_steps=7", "trainer.save_freq=7", *words)
        self.assertEqual(result.stderr.count("have the same score"), 1, result.stderr)
        self.assertIn("5 steps in a row: All responses of a step have the same score", result.stderr)
        rows = read_lines(self.home / "out/equal/warnings.jsonl")
        self.assertEqual([(row["step"], row["sign"]) for row in rows], [(5, "equal_scores")])
        self.assertIn("Step 5: 5 steps in a row", (self.home / "out/equal/report.html").read_text())
        again = self.grpo("equal", "trainer.total_training_steps=14", *words)
        self.assertNotIn("have the same score", again.stderr)

    def test_formulas_beside_what_a_run_measured(self):
        words = ["trainer.total_training_steps=1", "trainer.rollout_freq=-1", "actor_rollout_ref.actor.use_kl_loss=true"]
        self.grpo("measured", *words)
        shown = self.neap("plan", "--formulas", "grpo.toml", *BATCH, *words, "--run", "out/measured", "--json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        lines = {line["id"]: line for section in json.loads(shown.stdout)["sections"] for line in section["lines"]}
        tags = {tag["tag"]: tag["bytes"] for tag in json.loads((self.home / "out/measured/plan.json").read_text())["tags"]}
        phases = read_lines(self.home / "out/measured/phases.jsonl")
        for line, tag in (("actor.weights", "actor.weights"), ("reference.weights", "reference.weights"), ("actor.gradients", "actor.grads"),
                          ("actor.optimizer", "actor.optimizer"), ("rollout.kv", "rollout.kv"), ("rank.kv", "rollout.kv")):
            self.assertEqual(lines[line]["measured"], {"value": tags[tag], "source": f"memory.ntrace: {tag}"}, line)
        self.assertEqual(lines["actor.transient"]["measured"]["value"],
                         max(row["temporary_reserved"] for row in phases if row["phase"] == "train_actor"))
        self.assertIsNone(lines["actor.activations"]["measured"])
        text = self.neap("plan", "--formulas", "grpo.toml", *BATCH, *words, "--run", "out/measured").stdout
        self.assertIn("measured: by a run", text)
        other = self.neap("plan", "--formulas", "sft.toml", "device.kind=cpu", "--run", "out/measured")
        self.assertEqual(other.returncode, 2, other.stdout)
        self.assertIn("is a run of the task grpo, and the job's is sft", other.stderr)

    def test_a_run_without_a_trace(self):
        self.grpo("untraced", "trainer.total_training_steps=1", "trainer.trace_max_size=0B")
        folder = self.home / "out/untraced"
        self.assertFalse([path.name for path in folder.iterdir() if "ntrace" in path.name])
        self.assertIn("<svg", (folder / "report.html").read_text())
        shown = self.neap("report", "out/untraced", "--json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertTrue(json.loads(shown.stdout)["phases"])
        self.assertIn("has no memory.ntrace", self.neap("report", "out/untraced", "--svg", "x.svg").stderr)

    def test_metrics_go_to_wandb_and_mlflow(self):
        # Stand-ins for the packages, which write what they are given.
        packages = self.home / "packages"
        packages.mkdir()
        (packages / "wandb.py").write_text(
            "import json\nclass Run:\n    id, url, dir = 'r1', None, 'here'\n"
            "    def log(self, metrics, step): open('wandb.log', 'a').write(json.dumps([step, metrics]) + '\\n')\n"
            "    def finish(self): open('wandb.log', 'a').write('\"finished\"\\n')\n"
            "def init(**options): return Run()\n")
        (packages / "mlflow.py").write_text("raise ImportError('mlflow is broken here')\n")
        result = neap_program.run(self.path, "train", "grpo.toml", *BATCH, "trainer.default_local_dir=out/tracked",
                                  'trainer.logger=["console", "jsonl", "wandb", "mlflow"]', "trainer.total_training_steps=2", cwd=self.home,
                                  env=neap_program.environment(PYTHONPATH=str(packages)))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("W&B run here", result.stderr)
        self.assertEqual(len(re.findall("warning: .*mlflow", result.stderr)), 1, result.stderr)
        logged = [json.loads(line) for line in next(self.home.rglob("wandb.log")).read_text().splitlines()]
        self.assertEqual(logged[-1], "finished")
        written = {row["step"]: row for row in read_lines(self.home / "out/tracked/metrics.jsonl")}
        for step in (1, 2):
            shown = {key: value for at, metrics in logged[:-1] if at == step for key, value in metrics.items()}
            self.assertEqual(shown["actor/pg_loss"], written[step]["actor/pg_loss"])

    def test_sft_marks_what_it_would_not_have_written(self):
        result = self.neap("train", "sft.toml", "device.kind=cpu", "data.val_files=['sft_train.jsonl']", "trainer.total_training_steps=40",
                           "trainer.default_local_dir=out/marked")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = [(row["prompt"], row["response"]) for row in read_lines(self.home / "sft_train.jsonl")]
        scores = []
        for line in read_lines(self.home / "out/marked/validation.jsonl"):
            self.assertEqual(len(line["samples"]), 4)
            for sample in line["samples"]:
                text = sample["response"]
                self.assertIn((sample["prompt"], text.replace("«", "").replace("»", "")), rows)
                wrong = sum(len(part.split("»")[0]) for part in text.split("«")[1:])
                # The last token, which ends the text, has no characters.
                self.assertAlmostEqual(sample["score"], 1 - wrong / sample["tokens"], delta=1.01 / sample["tokens"])
            scores.append(sum(sample["score"] for sample in line["samples"]))
        self.assertLess(scores[0], scores[-1])
        self.assertIn("Texts at step 40:", result.stdout)

    def test_lengths_of_the_data_before_training(self):
        self.assertRegex(self.sft_run.stderr, r"(?m)^  prompt: \d+ texts, the longest has \d+ tokens; none is over the limit of \d+$")
        self.assertRegex(self.sft_run.stderr, r"(?m)^  +\d+ to \d+ +\d+  ")
        for row in read_lines(self.home / "out/sft/metrics.jsonl"):
            self.assertTrue(0 <= row["train/mean_token_accuracy"] <= 1)


if __name__ == "__main__":
    main()
