#!/usr/bin/env python3
"""`neap reward` as a user meets it. usage: FILE NEAP"""
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train"))
import neap_program  # noqa: E402

NEAP = "neap"
JUDGE = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    print("scoring")
    if solution_str == "boom":
        raise KeyError("unit")
    return {"score": float(solution_str == ground_truth), "reason": f"{solution_str} against {ground_truth}"}
"""


class Reward(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.home = pathlib.Path(scratch.name)
        (self.home / "judge.py").write_text(JUDGE)
        self.rows("rows.jsonl", *({"prompt": "6*7=", "answer": "42", "response": text} for text in ("42", "41")))

    def rows(self, name, *rows):
        (self.home / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def neap(self, *words):
        return neap_program.run(NEAP, "reward", *words, cwd=self.home, timeout=60)

    def test_a_function_and_a_rule(self):
        done = self.neap("rows.jsonl", "--function", "judge.py", "reward.functions.1.kind=numeric", "reward.functions.1.weight=0.5")
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("rows.jsonl:1  reward 1.5", "42 against 42", "answer 41; right: 42", "function  scored  mean", "judge          2   0.5"):
            self.assertIn(part, done.stdout)

    def test_json(self):
        self.rows("eval.jsonl", {"row": 0, "prompt": "6*7=", "ground_truth": "42",
                                 "responses": [{"text": "42", "tokens": 3}, {"text": "", "tokens": 0, "truncated": True}]})
        done = self.neap("eval.jsonl", "--json", "--function", "judge.py:compute_score", "reward.functions.1.kind=length",
                         "reward.functions.1.buffer_length=2", "data.max_response_length=4")
        self.assertEqual(done.returncode, 0, done.stderr)
        out = json.loads(done.stdout)
        self.assertEqual([r["response"] for r in out["responses"]], ["42", ""])
        self.assertEqual(out["responses"][0]["functions"]["judge"], {"score": 1.0, "reason": "42 against 42"})
        self.assertEqual(out["responses"][0]["functions"]["length"]["score"], -0.5)
        self.assertEqual([(s["name"], s["scored"]) for s in out["summary"]], [("judge", 2), ("length", 2), ("reward", 2)])

    def test_a_pattern_over_its_limit_names_the_row_or_gives_the_default(self):
        self.rows("slow.jsonl", *({"prompt": "a", "response": text} for text in ("aa", "a" * 5000 + "b")))
        words = ["slow.jsonl", "--json", "reward.functions.0.kind=regex", "reward.functions.0.pattern=^(a|aa)+$"]
        failed = self.neap(*words)
        self.assertEqual(failed.returncode, 2, failed.stdout)
        for part in ("takes over the limit of 5000000 steps", "slow.jsonl:2"):
            self.assertIn(part, failed.stderr)
        done = self.neap(*words, "reward.functions.0.on_failure=default", "reward.functions.0.default_score=-1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 of 2 responses get default_score -1", done.stderr)
        scores = [r["functions"]["regex"]["score"] for r in json.loads(done.stdout)["responses"]]
        self.assertEqual(scores, [1.0, -1.0])

    def test_two_functions_of_a_file(self):
        with (self.home / "judge.py").open("a") as file:
            file.write("def short(completions, **kwargs):\n    return [float(len(c) < 2) for c in completions]\n")
        done = self.neap("rows.jsonl", "--json", "--function", "judge.py", "--function", "judge.py:short")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([s["name"] for s in json.loads(done.stdout)["summary"]], ["judge", "short", "reward"])

    def test_a_job_s_functions(self):
        (self.home / "job.toml").write_text('task = "grpo"\n[[reward.functions]]\nkind = "python"\npath = "judge.py"\n')
        done = self.neap("rows.jsonl", "--config", "job.toml")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("python", done.stdout)

    def test_what_is_wrong(self):
        self.rows("boom.jsonl", {"prompt": "p", "answer": "1", "response": "1"}, {"prompt": "p", "answer": "1", "response": "boom"})
        done = self.neap("boom.jsonl", "--function", "judge.py", "reward.functions.0.retries=0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("judge.py:5 in compute_score, raise KeyError(\"unit\"): KeyError: 'unit'; the row is boom.jsonl:2: {", done.stderr)
        with (self.home / "sparse.py").open("w") as file:
            file.truncate(1 << 40)
        os.mkfifo(self.home / "pipe.py")
        for words, part in ((["rows.jsonl", "--function", "sparse.py"], "sparse.py is over the limit of 16 MiB for the source of a reward function"),
                            (["rows.jsonl", "--function", "pipe.py"], "pipe.py is a pipe, not a file"),
                            (["rows.jsonl", "--function", "/dev/zero"], "/dev/zero is a device, not a file"),
                            (["rows.jsonl"], "No reward function: give --function"),
                            (["rows.jsonl", "--function", "none.py"], "none.py is not a file"),
                            (["rows.jsonl", "--function", "judge.py:other"], "it has compute_score"),
                            (["rows.jsonl", "--function", "judge.py", "--response-key", "text"], 'no response in field "text"'),
                            (["nowhere.jsonl", "--function", "judge.py"], "nowhere.jsonl")):
            done = self.neap(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(part, done.stderr)

    def test_ctrl_c_ends_a_judge_that_hangs(self):
        (self.home / "slow.py").write_text("import os, time\ndef compute_score(solution_str, **more):\n"
                                           "    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(100)\n")
        process = neap_program.start(NEAP, "reward", "rows.jsonl", "--function", "slow.py", cwd=self.home)
        neap_program.wait_for(process, lambda: (self.home / "pid").exists() and (self.home / "pid").read_text(), timeout=30)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        done = neap_program.outcome(process, 30)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("Interrupted", done.stderr)
        self.assertLess(time.monotonic() - start, 25)
        with self.assertRaises(ProcessLookupError):
            os.kill(int((self.home / "pid").read_text()), 0)


if __name__ == "__main__":
    NEAP = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
