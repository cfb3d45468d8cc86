#!/usr/bin/env python3
"""`neap generate`, and the same sampling in a rollout. usage: FILE NEAP REVIEWS"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ADDITIONS = pathlib.Path(__file__).resolve().parent / "additions"
TEMPLATE = ("{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant> {% endif %}")
PROMPT = "Last night we ate at the old inn."


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="neap-generate-"))
        rows = (REVIEWS / "sft_train.jsonl").read_text().splitlines()[:64]
        (cls.base / "sft.jsonl").write_text("\n".join(rows) + "\n")
        shutil.copytree(REVIEWS / "model", cls.base / "model")
        (cls.base / "sft.toml").write_text('task = "sft"\n[data]\ntrain_files = ["sft.jsonl"]\ntrain_batch_size = 16\n'
                                           'max_prompt_length = 32\nmax_response_length = 32\n'
                                           '[actor_rollout_ref.model]\npath = "model"\n'
                                           '[trainer]\ntotal_training_steps = 2\ndefault_local_dir = "out"\n')
        result = cls.neap("train", "sft.toml", "device.kind=host")
        assert result.returncode == 0, result.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    @classmethod
    def neap(cls, *words, cwd=None):
        return subprocess.run([NEAP, *map(str, words)], cwd=cwd or cls.base, capture_output=True, text=True, timeout=600, check=False,
                              env=dict(os.environ, NEAP_PROGRESS="off"))

    def rows(self, *words, folder="out"):
        result = self.neap("generate", folder, "--json", "--max-new-tokens", 12, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_samples_of_a_prompt(self):
        prompts = ("--prompt", PROMPT, "--prompt", "The soup was")
        rows = self.rows(*prompts, "--n", 3, "--seed", 5)
        self.assertEqual([(r["prompt"], r["sample"]) for r in rows],
                         [(p, k) for p in (PROMPT, "The soup was") for k in range(3)])
        self.assertEqual(len({tuple(r["tokens"]) for r in rows}), 6)
        for row in rows:
            self.assertEqual(len(row["log_probs"]), len(row["tokens"]))
            self.assertTrue(all(p < 0 for p in row["log_probs"]))
        for other in (self.rows(*prompts, "--n", 3, "--seed", 5, "--batch-size", batch) for batch in (1, 2)):
            self.assertEqual([r["tokens"] for r in other], [r["tokens"] for r in rows])
        self.assertNotEqual(self.rows(*prompts, "--n", 3, "--seed", 6), rows)

    def test_a_stop_ends_the_text(self):
        whole = self.rows("--prompt", PROMPT, "--temperature", 0)[0]
        self.assertEqual(len(whole["tokens"]), 12)
        stop = whole["text"][5:9]
        early = self.rows("--prompt", PROMPT, "--temperature", 0, "--stop", "never there", "--stop", stop)[0]
        self.assertTrue(early["ended"])
        self.assertIn(stop, early["text"])
        self.assertEqual(early["tokens"], whole["tokens"][:len(early["tokens"])])
        self.assertLess(len(early["tokens"]), 12)

    def test_likeliest_tokens_and_penalties(self):
        greedy = self.rows("--prompt", PROMPT, "--temperature", 0)[0]["tokens"]
        self.assertEqual(self.rows("--prompt", PROMPT, "--min-p", 1)[0]["tokens"], greedy)
        for name, value in (("--presence-penalty", 100), ("--frequency-penalty", 100), ("--repetition-penalty", 90)):
            tokens = self.rows("--prompt", PROMPT, "--temperature", 0, name, value)[0]["tokens"]
            self.assertEqual(len(set(tokens)), len(tokens), name)

    def test_conversations(self):
        chat = self.base / "chat"
        shutil.copytree(self.base / "out/latest/actor", chat)
        (chat / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        messages = [{"role": "user", "content": "Good?"}]
        (self.base / "prompts.jsonl").write_text(json.dumps({"prompt": messages}) + "\n\n" + json.dumps({"prompt": PROMPT}) + "\n")
        rows = self.rows("--input", "prompts.jsonl", folder="chat")
        self.assertEqual([r["prompt"] for r in rows], [messages, PROMPT])
        said = self.rows("--prompt", "Good?", "--chat", folder="chat")
        self.assertEqual(said[0]["tokens"], rows[0]["tokens"])
        plain = self.rows("--prompt", "<user> Good?\n<assistant> ", folder="chat")
        self.assertEqual(plain[0]["tokens"], rows[0]["tokens"])
        result = self.neap("generate", "out", "--prompt", "Good?", "--chat")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("has no chat template", result.stderr)

    def test_errors_name_the_line(self):
        for words, told in ((("--input", "nothing.jsonl"), "nothing.jsonl"), ((), "--input"),
                            (("--input", "broken.jsonl"), "broken.jsonl:2")):
            (self.base / "broken.jsonl").write_text('{"prompt": "a"}\n{"question": "b"}\n')
            result = self.neap("generate", "out", *words)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(told, result.stderr)

    def test_a_rollout_samples_so(self):
        home = self.base / "additions"
        shutil.copytree(ADDITIONS, home)
        subprocess.run([sys.executable, ADDITIONS / "make_data.py", home], check=True)
        result = self.neap("train", "sft.toml", "device.kind=host", "trainer.total_training_steps=2", cwd=home)
        self.assertEqual(result.returncode, 0, result.stderr)
        rollout = "actor_rollout_ref.rollout."
        result = self.neap(
            "train", "grpo.toml", "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32", f"{rollout}n=4", f"{rollout}log_prob_micro_batch_size_per_gpu=32",
            f"{rollout}min_p=0.01", f"{rollout}presence_penalty=0.5", f"{rollout}repetition_penalty=1.1", f"{rollout}stop=['7']",
            f"{rollout}calculate_log_probs=true", "trainer.total_training_steps=2", "device.kind=host", "device.memory=256MiB",
            "trainer.default_local_dir=out/sampled", cwd=home)
        self.assertEqual(result.returncode, 0, result.stderr)
        for row in (json.loads(line) for line in (home / "out/sampled/validation.jsonl").read_text().splitlines()):
            for sample in row["samples"]:
                self.assertIn(sample["response"].find("7"), (-1, len(sample["response"]) - 1))
        plan = json.loads((home / "out/sampled/plan.json").read_text())
        peaks = {phase["name"]: phase["peak"] for phase in plan["phases"]}
        for phase in (json.loads(line) for line in (home / "out/sampled/phases.jsonl").read_text().splitlines()):
            self.assertLessEqual(phase["peak"], 1.001 * peaks[phase["phase"]], phase)


if __name__ == "__main__":
    NEAP, REVIEWS = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
