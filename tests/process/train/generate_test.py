#!/usr/bin/env python3
"""`neap generate`, and the same sampling in a rollout. usage: FILE NEAP REVIEWS"""
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import neap_program
import resident
from generate_settings import PROMPT, SettingsCases, steady

TEMPLATE = ("{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant> {% endif %}")
WORDS = ("soup", "room", "bed", "host", "bread", "view", "price")


def outcome_of(process):
    return neap_program.outcome(process, timeout=60)


class Generate(SettingsCases, unittest.TestCase):
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
        result = cls.neap("train", "sft.toml", "device.kind=cpu")
        assert result.returncode == 0, result.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    @classmethod
    def neap(cls, *words, cwd=None):
        return resident.neap(NEAP, *words, cwd=cwd or cls.base)

    def rows(self, *words, folder="out"):
        result = self.neap("generate", folder, "--json", "--max-new-tokens", 12, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def chat_model(self, name, template):
        shutil.copytree(self.base / "out/latest/actor", self.base / name)
        (self.base / name / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        return name

    def test_samples_of_a_prompt(self):
        prompts = ("--prompt", PROMPT, "--prompt", "The soup was", "--temperature", 1)
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
        self.assertEqual((whole["finish_reason"], early["finish_reason"]), ("length", "stop"))
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
        self.chat_model("chat", TEMPLATE)
        messages = [{"role": "user", "content": "Good?"}]
        (self.base / "prompts.jsonl").write_text(json.dumps({"prompt": messages}) + "\n\n" + json.dumps({"prompt": PROMPT}) + "\n")
        rows = self.rows("--input", "prompts.jsonl", folder="chat")
        self.assertEqual([r["prompt"] for r in rows], [messages, PROMPT])
        tools = [{"type": "function", "function": {"name": "look"}}]
        (self.base / "tools.jsonl").write_text(json.dumps({"prompt": messages, "tools": tools}) + "\n")
        offered = self.rows("--input", "tools.jsonl", folder="chat")
        written = self.rows("--prompt", f"[{json.dumps(tools[0])}]\n<user> Good?\n<assistant> ", folder="chat")
        self.assertEqual(offered[0]["tokens"], written[0]["tokens"])
        self.assertNotEqual(offered[0]["tokens"], rows[0]["tokens"])
        said = self.rows("--prompt", "Good?", "--chat", folder="chat")
        self.assertEqual(said[0]["tokens"], rows[0]["tokens"])
        plain = self.rows("--prompt", "<user> Good?\n<assistant> ", folder="chat")
        self.assertEqual(plain[0]["tokens"], rows[0]["tokens"])
        result = self.neap("generate", "out", "--prompt", "Good?", "--chat")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("has no chat template", result.stderr)

    def test_errors_name_the_line(self):
        for words, told in ((("--input", "nothing.jsonl"), "nothing.jsonl"), ((), "--input"),
                            (("--input", "broken.jsonl"), "broken.jsonl:2"), (("--prompt", ""), "--prompt 1: the prompt has no tokens"),
                            (("--input", "large.jsonl"), "large.jsonl:2"), (("--input", "empty.jsonl"), "--input")):
            (self.base / "large.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n" + json.dumps({"prompt": "word " * 4000}) + "\n")
            (self.base / "empty.jsonl").write_text("")
            (self.base / "broken.jsonl").write_text('{"prompt": "a"}\n{"question": "b"}\n')
            result = self.neap("generate", "out", *words)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(told, result.stderr)

    def test_wrong_rows_and_numbers_are_exit_code_2(self):
        wrong = ((b'{"prompt": 3}\n', "is number"), (b'["a"]\n', "is array"), (b'{"prompt": \n', "not valid JSON"), (b'{"prompt": null}\n', "is null"),
                 (b'{"prompt": "caf\xe9"}\n', "caf\\xe9"), (b'{"prompt": ""}\n', "has no tokens"))
        for row, told in wrong:
            (self.base / "wrong.jsonl").write_bytes(b'{"prompt": "a"}\n' + row)
            result = self.neap("generate", "out", "--input", "wrong.jsonl")
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("wrong.jsonl:2", result.stderr)
            self.assertIn(told, result.stderr)
        for name, content, told in (("array.json", b'[{"prompt": "a"}]', "jq -c '.[]' array.json"), ("cut.gz", gzip.compress(b"a" * 999)[:-9], "cut short"),
                                    ("utf16.jsonl", '{"prompt": "a"}\n'.encode("utf-16"), "is UTF-16")):
            (self.base / name).write_bytes(content)
            result = self.neap("generate", "out", "--input", name)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(told, result.stderr)
        for words in (("--seed", -1), ("--skip", -1), ("--seed", 1.5), ("--batch-size", -1)):
            result = self.neap("generate", "out", "--prompt", PROMPT, *words)
            self.assertEqual(result.returncode, 2, words)
            self.assertIn(words[0], result.stderr)
        self.assertIn("--seed: -1 is less than 0", self.neap("generate", "out", "--prompt", PROMPT, "--seed", -1).stderr)
        self.assertEqual(self.neap("generate", "out", "--input", ".").returncode, 2, "a folder")

    def test_empty_lines_of_standard_input_are_counted(self):
        def generate(text):
            return subprocess.run([NEAP, "generate", "out", "--stdin", "--json", "--max-new-tokens", "4"], cwd=self.base, input=text, text=True,
                                  capture_output=True, check=False, env=neap_program.environment())
        result = generate(f"{PROMPT}\n\nThe soup was\n\n")
        self.assertEqual([json.loads(line)["prompt"] for line in result.stdout.splitlines()], [PROMPT, "The soup was"])
        self.assertIn("2 empty lines of standard input were skipped", result.stderr)
        self.assertNotIn("empty lines", generate(f"{PROMPT}\n").stderr)
        result = generate("\n\n")
        self.assertEqual(result.returncode, 2)
        self.assertIn("all lines of standard input are empty", result.stderr)

    def write_prompts(self, name, rows, words):
        """Rows of different texts of so many words."""
        with open(self.base / name, "w") as file:
            for i in range(rows):
                file.write(json.dumps({"prompt": " ".join(f"{WORDS[(i * 7 + k * k) % len(WORDS)]}{i % 10}" for k in range(words))}) + "\n")

    def test_prompts_in_chunks(self):
        self.write_prompts("long.jsonl", 5, 40)
        words = ("--input", "long.jsonl", "--n", 2, "--temperature", 0)
        whole = self.rows(*words)
        for budget in (7, 64):
            for got, want in zip(self.rows(*words, "--max-num-batched-tokens", budget), whole, strict=True):
                self.assertEqual(steady(got), steady(want))
                for a, b in zip(got["log_probs"], want["log_probs"]):
                    self.assertAlmostEqual(a, b, 4)

    def peak_of(self, *words, folder):
        """Output rows, and the most memory that the process had, in MiB."""
        process = neap_program.start(NEAP, "generate", folder, "--json", *words, cwd=self.base)
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        with process.stdout:
            rows = [json.loads(line) for line in process.stdout]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        reader.join()
        process.stderr.close()
        self.assertEqual(process.returncode, 0)
        return rows, usage.ru_maxrss / 1024

    def test_a_file_of_any_size_takes_the_memory_of_a_part(self):
        # 4000 rows of 9 KB: 36 MB of text, of which a part has a quarter.
        self.write_prompts("many.jsonl", 4000, 1500)
        (self.base / "few.jsonl").write_text("".join((self.base / "many.jsonl").read_text().splitlines(keepends=True)[:1024]))
        short = ("--max-new-tokens", 1, "--chat")  # of each the message's head
        chat = self.chat_model("only the end", "{{ messages[-1].content[-12:] }}")
        few, less = self.peak_of("--input", "few.jsonl", *short, folder=chat)
        many, more = self.peak_of("--input", "many.jsonl", *short, folder=chat)
        self.assertEqual(many[:1024], few)
        self.assertEqual(len(many), 4000)
        prompts = [json.loads(line)["prompt"] for line in (self.base / "many.jsonl").read_text().splitlines()]
        self.assertEqual([row["prompt"][0]["content"] for row in many], prompts)
        self.assertLess(more - less, 12)

    def start_long(self, name):
        """A process that writes thousands of lines to a file; returns when some are there."""
        with open(self.base / name, "w") as file:
            process = subprocess.Popen([NEAP, "generate", "out", "--json", *map(str, self.LONG)], cwd=self.base, stdout=file,
                                       stderr=subprocess.PIPE, env=neap_program.environment())
        end = time.monotonic() + 120
        while (self.base / name).stat().st_size < 20000:
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        return process

    LONG = ("--input", "rows.jsonl", "--max-new-tokens", 3, "--n", 2)

    def test_positions_that_depend_on_the_length_do_not_depend_on_neighbours(self):
        shutil.copytree(self.base / "out/latest/actor", self.base / "dynamic")
        config = json.loads((self.base / "dynamic/config.json").read_text())
        config.update(max_position_embeddings=24, rope_scaling={"rope_type": "dynamic", "factor": 4.0})
        (self.base / "dynamic/config.json").write_text(json.dumps(config))
        texts = ("The", PROMPT, " ".join([PROMPT] * 3), "The soup", " ".join([PROMPT] * 2))
        rows = [{"prompt": text} for text in texts]
        (self.base / "lengths.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        together = self.rows("--input", "lengths.jsonl", "--temperature", 0, folder="dynamic")
        self.assertEqual([row["prompt"] for row in together], list(texts))
        for row in together:
            alone = self.rows("--prompt", row["prompt"], "--temperature", 0, folder="dynamic")[0]
            self.assertEqual(steady(alone), steady(row))
            for a, b in zip(alone["log_probs"], row["log_probs"]):
                self.assertAlmostEqual(a, b, delta=1e-4)

    def test_what_an_interrupted_process_leaves_can_be_continued(self):
        self.write_prompts("rows.jsonl", 1500, 3)
        whole = self.neap("generate", "out", "--json", *self.LONG)
        self.assertEqual(whole.returncode, 0, whole.stderr)
        lines = whole.stdout.splitlines()
        self.assertEqual(len(lines), 3000)
        for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
            process = self.start_long("cut.jsonl")
            process.send_signal(number)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, -number)
            text = (self.base / "cut.jsonl").read_text()
            self.assertTrue(text.endswith("\n"))
            done = len(text.splitlines())
            self.assertLess(done, 3000)
            self.assertEqual(text.splitlines(), lines[:done])
        rest = self.neap("generate", "out", "--json", *self.LONG, "--skip", done - 1).stdout.splitlines()
        self.assertEqual([steady(json.loads(line)) for line in rest], [steady(json.loads(line)) for line in lines[done - 1:]])
        self.assertEqual(self.neap("generate", "out", *self.LONG, "--skip", 3000).stdout, "")

    def test_output_that_nobody_takes(self):
        self.write_prompts("rows.jsonl", 1500, 3)
        process = neap_program.start(NEAP, "generate", "out", "--json", *self.LONG, cwd=self.base)
        process.stdout.readline()
        process.stdout.close()
        self.assertNotEqual(process.wait(timeout=60), 0)
        process.stderr.close()
        with open("/dev/full", "w") as full:
            for words in (("generate", "out", "--prompt", PROMPT), ("plan", "sft.toml"), ("plan", "--reference")):
                result = subprocess.run([NEAP, *words], cwd=self.base, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                                        env=neap_program.environment())
                self.assertEqual(result.returncode, 1, words)
                self.assertIn("standard output", result.stderr)

    def test_texts_that_were_cut_are_counted(self):
        result = self.neap("generate", "out", "--prompt", PROMPT, "--n", 3, "--max-new-tokens", 1)
        self.assertIn("3 texts were cut at their longest length; --max-new-tokens sets it", result.stderr)
        self.assertIn("The 3 texts of a prompt are the same", result.stderr)

    def test_pages_without_room_for_a_text_are_refused(self):
        for tokens, held in ((10, 0), (70, 64)):
            result = self.neap("generate", "out", "--prompt", PROMPT, "--n", 4, "--max-new-tokens", 80, "--max-total-tokens", tokens)
            self.assertNotEqual(result.returncode, 0)
            self.assertRegex(result.stderr, f"--max-total-tokens {tokens} holds {held} tokens in whole pages of 64, less than a text of .*; set at least 128")

    def test_prompts_and_texts_are_marked(self):
        words = ("--prompt", PROMPT, "--prompt", "The soup was", "--n", 2, "--temperature", 1)
        texts = [(row["text"], len(row["tokens"]), ", cut" * (row["finish_reason"] == "length")) for row in self.rows(*words)]
        shown = "".join(f"=== prompt {p + 1}\n{prompt}\n" + "".join(
            f"--- text {k + 1} of 2: {texts[2 * p + k][1]} tokens{texts[2 * p + k][2]}\n{texts[2 * p + k][0]}\n" for k in range(2))
            for p, prompt in enumerate((PROMPT, "The soup was")))
        self.assertEqual(self.neap("generate", "out", *words, "--max-new-tokens", 12).stdout, shown)
        rest = self.neap("generate", "out", *words, "--max-new-tokens", 12, "--skip", 3).stdout
        self.assertEqual(rest, f"=== prompt 2\nThe soup was\n--- text 2 of 2: {texts[3][1]} tokens{texts[3][2]}\n{texts[3][0]}\n")

    def start_chat(self, *words):
        return neap_program.start(NEAP, "generate", *words, "--chat", "--temperature", 0, cwd=self.base, stdin=subprocess.PIPE, bufsize=0)

    def test_a_conversation(self):
        folder = self.chat_model("talks", TEMPLATE)
        words = ("--temperature", 0)
        first = self.rows("--prompt", "Good?", "--chat", *words, folder=folder)[0]["text"]
        second = self.rows("--prompt", f"<user> Good?\n<assistant> {first}\n<user> The bed?\n<assistant> ", *words, folder=folder)[0]["text"]
        process = self.start_chat(folder, "--max-new-tokens", 12)
        out, err = process.communicate("Good?\n\nThe bed?\n", timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(out, f"assistant> {first}\nassistant> {second}\n")
        self.assertIn("Settings: max_new_tokens 12 (options); do_sample false (default)", err)
        for more in (("--json",), ("--n", 2), ("--skip", 1)):
            result = outcome_of(self.start_chat(folder, *more))
            self.assertEqual(result.returncode, 2)
            self.assertIn("--chat without a prompt is a conversation", result.stderr)
        result = outcome_of(self.start_chat("out"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("has no chat template", result.stderr)

    def test_ctrl_c_stops_a_reply_and_not_the_conversation(self):
        folder = self.chat_model("endless", TEMPLATE)
        config = json.loads((self.base / folder / "config.json").read_text())
        (self.base / folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 100000}))
        process = self.start_chat(folder, "--max-new-tokens", 40000)
        for message in ("Good?", "The bed?"):
            process.stdin.write(message + "\n")
            text = ""
            while not re.search("assistant> .{20}", text, re.DOTALL):
                text += os.read(process.stdout.fileno(), 4096).decode()
            process.send_signal(signal.SIGINT)
            told = next(line for line in iter(process.stderr.readline, "") if "Settings" not in line)
            self.assertIn("The reply was stopped", told)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)

    def test_bytes_that_are_no_text(self):
        result = subprocess.run([NEAP, "generate", "out", "--json", "--prompt", b"caf\xff"], cwd=self.base, capture_output=True, check=False,
                                env=neap_program.environment())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["prompt"], "caf\ufffd")

    def test_a_rollout_samples_so(self):
        home = self.base / "additions"
        neap_program.make_additions(home)
        result = self.neap("train", "sft.toml", "device.kind=cpu", "trainer.total_training_steps=2", cwd=home)
        self.assertEqual(result.returncode, 0, result.stderr)
        rollout = "actor_rollout_ref.rollout."
        result = self.neap(
            "train", "grpo.toml", "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32", f"{rollout}n=4", f"{rollout}log_prob_micro_batch_size_per_gpu=32",
            f"{rollout}min_p=0.01", f"{rollout}presence_penalty=0.5", f"{rollout}repetition_penalty=1.1", f"{rollout}stop=['7']",
            f"{rollout}calculate_log_probs=true", "trainer.total_training_steps=2", "device.kind=cpu", "device.memory=256MiB",
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
