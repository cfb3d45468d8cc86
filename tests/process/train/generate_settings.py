"""Cases of generate_test.py: which settings a text is sampled with, and who decides them."""
import json
import re
import shutil

PROMPT = "Last night we ate at the old inn."


def steady(row):
    """What does not depend on the shapes of batches."""
    return {key: value for key, value in row.items() if key != "log_probs"}


class SettingsCases:
    """`base`, `neap` and the assertions are the test's."""

    def with_settings(self, name, **settings):
        """A copy of the checkpoint with this generation_config.json."""
        shutil.copytree(self.base / "out/latest/actor", self.base / name)
        (self.base / name / "generation_config.json").write_text(json.dumps(settings))
        return name

    def test_settings_of_the_checkpoint(self):
        words = ("generate", "--json", "--prompt", PROMPT, "--n", 4)
        def tokens(folder, *more):
            result = self.neap(*words, *more, folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("Settings", result.stderr)
            return [json.loads(line)["tokens"] for line in result.stdout.splitlines()]
        folder = self.with_settings("sampled", do_sample=True, temperature=0.5, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.2,
                                    max_new_tokens=7)
        flags = {"--temperature": 0.5, "--top-k": 5, "--top-p": 0.9, "--min-p": 0.01, "--repetition-penalty": 1.2, "--max-new-tokens": 7}
        sampled = tokens(folder)
        self.assertEqual(sampled, tokens("out", *(word for flag in flags.items() for word in flag)))
        self.assertEqual([len(row) for row in sampled], [7] * 4)
        self.assertGreater(len(set(map(tuple, sampled))), 1)
        for flag, other in (("--temperature", 5), ("--top-k", 0), ("--top-p", 0.1), ("--min-p", 0.9), ("--repetition-penalty", 50)):
            changed = {**flags, flag: other}
            self.assertEqual(tokens(folder, flag, other), tokens("out", *(word for pair in changed.items() for word in pair)), flag)
        # Without do_sample the likeliest token, with it 50 of them.
        greedy = self.neap("generate", "out", "--json", "--prompt", PROMPT, "--temperature", 0, "--max-new-tokens", 7)
        quiet = self.with_settings("quiet", temperature=0.5, max_new_tokens=7)
        self.assertEqual(self.neap("generate", quiet, "--json", "--prompt", PROMPT).stdout, greedy.stdout)
        plain = self.with_settings("plain", do_sample=True, max_new_tokens=7)
        self.assertEqual(tokens(plain), tokens("out", "--temperature", 1, "--top-k", 50, "--max-new-tokens", 7))

    def test_settings_are_told(self):
        def told(folder, *more):
            result = self.neap("generate", folder, "--prompt", PROMPT, *more)
            self.assertEqual(result.returncode, 0, result.stderr)
            return re.search("neap: Settings: (.*)", result.stderr).group(1)
        self.assertEqual(told("out"), "do_sample false, max_new_tokens 64 (default)")
        folder = self.with_settings("told", do_sample=True, temperature=0.5, top_p=0.9, max_new_tokens=7, num_beams=4)
        self.assertEqual(told(folder, "--top-p", 0.8),
                         "do_sample true, temperature 0.5, max_new_tokens 7 (generation_config.json); top_p 0.8 (options); top_k 50 (default)")
        self.assertEqual(told(folder, "--temperature", 0, "--max-new-tokens", 3), "do_sample false, max_new_tokens 3 (options)")
        self.assertIn("not supported, and ignored: num_beams", self.neap("generate", folder, "--prompt", PROMPT).stderr)

    def test_wrong_settings_name_the_file_and_the_key(self):
        for i, (key, value) in enumerate({"temperature": "hot", "top_p": 2, "top_k": 0.5, "max_new_tokens": -1, "eos_token_id": "x"}.items()):
            folder = self.with_settings(f"wrong-{i}", **{"do_sample": True, key: value})
            result = self.neap("generate", folder, "--prompt", PROMPT)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"{folder}/generation_config.json: {key} ", result.stderr)

    def test_a_longest_length_counts_the_prompt(self):
        counts = [int(re.search(r"the prompt has (\d+) tokens", self.neap("generate", "out", "--prompt", text, "--max-new-tokens", 9999).stderr)[1])
                  for text in ("The", PROMPT)]
        folder = self.with_settings("length", max_length=24)
        result = self.neap("generate", folder, "--json", "--prompt", "The", "--prompt", PROMPT)
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([len(row["tokens"]) for row in rows], [24 - count for count in counts])
        self.assertEqual([row["finish_reason"] for row in rows], ["length"] * 2)
        alone = [json.loads(self.neap("generate", folder, "--json", "--prompt", row["prompt"]).stdout) for row in rows]
        self.assertEqual([steady(row) for row in alone], [steady(row) for row in rows])
        result = self.neap("generate", folder, "--prompt", " ".join([PROMPT] * 4))
        self.assertEqual(result.returncode, 2)
        self.assertIn("max_length in generation_config.json is 24", result.stderr)
        # The default stops at the model's last position.
        long = " ".join([PROMPT] * 9)
        row = json.loads(self.neap("generate", "out", "--json", "--prompt", long).stdout)
        self.assertLess(len(row["tokens"]), 64)
