#!/usr/bin/env python3
"""`neap train` on data as it comes: packed, as Parquet, large, weighted, too long, broken. usage: FILE NEAP

Parquet is tested where the python3 on PATH has pyarrow.
"""
import gzip
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import neap_program
from neap_program import read_lines

NEAP = "neap"
HERE = pathlib.Path(__file__).resolve().parent
ROWS_PROGRAM = HERE.parents[2] / "src" / "data" / "parquet_rows.py"
UNSTEADY = ("timing_s/", "perf/", "memory/")
SFT = ["sft.toml", "data.train_batch_size=32", "data.micro_batch_size_per_gpu=16", "trainer.total_training_steps=3"]
GRPO = ["grpo.toml", "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32", "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32", "trainer.total_training_steps=2"]
DPO = ["sft.toml", "task=dpo", "data.train_files=pairs.jsonl", "data.train_batch_size=16", "data.micro_batch_size_per_gpu=8",
       "trainer.total_training_steps=2", "actor_rollout_ref.model.path=out/start/latest/actor"]
# Tools are named by a digit, which the tokenizer has.
TEMPLATE = ("{% for tool in tools or [] %}{{ tool.function.name }}+{% endfor %}"
            "{% for message in messages %}{{ message.content }}{% endfor %}")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "73"]
HAS_PYARROW = subprocess.run(["python3", "-c", "import pyarrow.parquet"], capture_output=True, check=False).returncode == 0

BROKEN_ROWS = [(b'{"prompt": "1+1=", "response": 2}', "is number"), (b'["1+1=", "2"]', "is array"), (b'{"prompt": "1+1=", ', "not valid JSON"),
               (b'{"prompt": "1+1=", "response": "\xff"}', "\\xff"), (b'{"prompt": "1+1=", "response": null}', "is missing"),
               (b'{"prompt": "1+1=", "response": ""}', "the text is empty"), (b'{"response": "2"}', "is missing")]


def has_zstd():
    return shutil.which("zstd") is not None


class DataCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="neap-data-"))
        cls.home = cls.base / "home"
        neap_program.make_additions(cls.home)
        cls.rows = read_lines(cls.home / "sft_train.jsonl")
        cls.write("pairs.jsonl", [{"prompt": row["prompt"], "chosen": row["response"], "rejected": row["response"][:-1]}
                                  for row in cls.rows[:200]])
        result = cls.neap("train", *SFT, "trainer.default_local_dir=out/start")
        assert result.returncode == 0, result.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    @classmethod
    def environment(cls, **more):
        return neap_program.environment(XDG_CACHE_HOME=str(cls.base / "cache"), OMP_NUM_THREADS="2", **more)

    @classmethod
    def neap(cls, *words, **more):
        return neap_program.run(NEAP, *words, "device.kind=host", "device.memory=256MiB", cwd=cls.home, env=cls.environment(**more))

    @classmethod
    def write(cls, name, rows):
        (cls.home / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def train(self, out, *words, expect=0, **more):
        result = self.neap("train", *words, f"trainer.default_local_dir=out/{out}", **more)
        self.assertEqual(result.returncode, expect, result.stderr)
        return result

    @classmethod
    def chat_model(cls):
        """The overrides that train a model with a chat template."""
        if not (cls.home / "chat").exists():
            shutil.copytree(cls.home / "out/start/latest/actor", cls.home / "chat")
            (cls.home / "chat/tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        return ["actor_rollout_ref.model.path=chat", "data.max_prompt_length=16", "data.val_files=[]"]

    @staticmethod
    def with_tools(row, tools):
        text = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][0]["content"]
        return {**row, "prompt": [{"role": "user", "content": text}], "tools": tools}

    @staticmethod
    def with_text(row):
        text = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][0]["content"]
        return {**row, "prompt": f"7+3+{text}", "tools": "a text prompt has no template: nothing reads this"}

    def metrics(self, out):
        return [{k: v for k, v in line.items() if not k.startswith(UNSTEADY)}
                for line in read_lines(self.home / "out" / out / "metrics.jsonl")]

    def assert_same(self, out, other="start"):
        self.assertEqual(self.metrics(out), self.metrics(other), out)

    def cached(self):
        folder = self.base / "cache" / "neap" / "data"
        return sorted(path for path in folder.glob("*.rows")) if folder.exists() else []


class Layouts(DataCase):
    def test_packed_split_and_cached_files_train_as_the_plain_one(self):
        text = (self.home / "sft_train.jsonl").read_bytes()
        half = text.index(b"\n", len(text) // 2) + 1
        (self.home / "members.jsonl").write_bytes(gzip.compress(text[:half]) + gzip.compress(text[half:]))
        self.train("gzip", *SFT, "data.train_files=members.jsonl")
        self.assert_same("gzip")
        (self.home / "first.jsonl").write_bytes(text[:half])
        (self.home / "second.jsonl").write_bytes(text[half:])
        self.train("split", *SFT, 'data.train_files=["first.jsonl", "second.jsonl"]')
        self.assert_same("split")
        self.assertEqual(self.cached(), [], "small data leaves no files")
        if has_zstd():
            subprocess.run(["zstd", "-q", self.home / "sft_train.jsonl", "-o", self.home / "rows.zst"], check=True)
            self.train("zstd", *SFT, "data.train_files=rows.zst")
            self.assert_same("zstd")

    def test_rows_on_disk_are_made_once_and_again_when_they_are_damaged(self):
        disk = [*SFT, "data.rows_in_memory=0B", "data.cache_dir=rows"]
        self.train("disk", *disk)
        self.assert_same("disk")
        (made,) = (self.home / "rows").glob("*.rows")
        before = made.stat().st_mtime_ns
        self.train("again", *disk)
        self.assertEqual(made.stat().st_mtime_ns, before)
        self.assert_same("again")
        os.truncate(made, made.stat().st_size // 2)
        self.assertIn("is made anew", self.train("damaged", *disk).stderr)
        self.assert_same("damaged")
        self.train("shorter", *disk, "data.max_response_length=21")
        self.assertEqual(len(list((self.home / "rows").glob("*.rows"))), 2, "another length is another encoding")
        # A resumed run goes on where it was.
        self.train("resumed", *disk, "trainer.total_training_steps=1")
        self.train("resumed", *disk)
        self.assert_same("resumed")
        self.write("more.jsonl", [*self.rows, self.rows[0]])
        result = self.train("resumed", *disk, "trainer.total_training_steps=4", "data.train_files=more.jsonl")
        self.assertIn("have 1501 rows, and had 1500 at the checkpoint", result.stderr)

    def test_a_resumed_run_says_that_its_data_changed(self):
        words = [*SFT, "data.train_files=edited.jsonl", "trainer.save_freq=1"]
        memory = ["data.rows_in_memory=256MiB"]
        disk = ["data.rows_in_memory=0B", "data.cache_dir=edited"]
        said = "have other contents than at the checkpoint"
        self.write("edited.jsonl", self.rows)
        self.assertNotIn(said, self.train("edited", *words, *memory, "trainer.total_training_steps=1").stderr)
        self.assertNotIn(said, self.train("edited", *words, *disk, "trainer.total_training_steps=2").stderr)
        self.write("edited.jsonl", [self.rows[1], self.rows[0], *self.rows[2:]])
        self.assertIn(said, self.train("edited", *words, *disk).stderr)
        self.write("edited.jsonl", self.rows)
        self.assertIn(said, self.train("edited", *words, *memory, "trainer.total_training_steps=4").stderr)
        self.assertNotIn(said, self.train("edited", *words, *disk, "trainer.total_training_steps=5").stderr)

    def test_rows_on_disk_of_the_other_tasks(self):
        for name, recipe in (("grpo", [*GRPO, "actor_rollout_ref.model.path=out/start/latest/actor"]), ("dpo", DPO)):
            self.train(f"{name}-memory", *recipe)
            self.train(f"{name}-disk", *recipe, "data.rows_in_memory=0B")
            self.assert_same(f"{name}-disk", f"{name}-memory")
        self.assertEqual(len(self.cached()), 3, "the user's cache has them: prompts, validation, pairs")

    def test_tools_of_rows_reach_the_template(self):
        chat = self.chat_model()
        jobs = (("sft", SFT, self.rows[:64]), ("dpo", DPO, read_lines(self.home / "pairs.jsonl")[:64]),
                ("grpo", GRPO, read_lines(self.home / "prompts_train.jsonl")))
        for task, recipe, rows in jobs:
            for name, made in (("text", [self.with_text(row) for row in rows]),
                               ("list", [self.with_tools(row, TOOLS) for row in rows]),
                               ("json", [self.with_tools(row, json.dumps(TOOLS)) for row in rows]),
                               ("none", [self.with_tools(row, None) for row in rows])):
                self.write(f"{name}.jsonl", made)
                disk = ["data.rows_in_memory=0B", "data.cache_dir=tools"]
                self.train(f"{task}-{name}", *recipe, *chat, *disk, f"data.train_files={name}.jsonl")
            self.assert_same(f"{task}-list", f"{task}-text")
            self.assert_same(f"{task}-json", f"{task}-text")
            self.assertNotEqual(self.metrics(f"{task}-none"), self.metrics(f"{task}-text"), "tools are part of the encoded row")

    def test_tools_of_a_whole_conversation(self):
        def rows(tools, extra):
            return [{"messages": [{"role": "user", "content": extra + row["prompt"]}, {"role": "assistant", "content": row["response"]}],
                     "tools": tools} for row in self.rows[:64]]

        words = [*SFT, *self.chat_model(), "data.prompt_key=messages"]
        for name, made in (("said", rows(None, "7+3+")), ("tools", rows(TOOLS, ""))):
            self.write(f"{name}.jsonl", made)
            self.train(f"whole-{name}", *words, f"data.train_files={name}.jsonl")
        self.assert_same("whole-tools", "whole-said")

    def test_tools_in_evaluation(self):
        self.chat_model()
        rows = read_lines(self.home / "prompts_val.jsonl")
        responses = {}
        for name, made in (("text", [self.with_text(row) for row in rows]), ("tools", [self.with_tools(row, TOOLS) for row in rows]),
                           ("none", [self.with_tools(row, None) for row in rows])):
            self.write(f"held_{name}.jsonl", made)
            result = self.neap("eval", "chat", f"held_{name}.jsonl", "--output", f"{name}.out")
            self.assertEqual(result.returncode, 0, result.stderr)
            responses[name] = [[response["text"] for response in row["responses"]] for row in read_lines(self.home / f"{name}.out")]
        self.assertEqual(responses["tools"], responses["text"])
        self.assertNotEqual(responses["none"], responses["text"])

    def test_wrong_tools_are_one_error_with_the_row(self):
        for tools, part in ((3, 'field "tools" is number'), (["7"], "a list with other values than objects"),
                            ({"name": "7"}, 'field "tools" is object'), ("7, 3", 'field "tools": not valid JSON'),
                            ('{"name": "7"}', 'field "tools" is text of object')):
            self.write("wrong.jsonl", [self.with_tools(self.rows[0], []), self.with_tools(self.rows[1], tools)])
            result = self.train("wrong", *SFT, *self.chat_model(), "data.train_files=wrong.jsonl", expect=2)
            self.assertIn(part, result.stderr)
            self.assertIn("wrong.jsonl:2", result.stderr)
            self.assertEqual(result.stderr.count("wrong.jsonl"), 1, result.stderr)
        self.write("wrong.jsonl", [self.with_tools(self.rows[0], TOOLS)])
        result = self.train("wrong", *SFT, "data.train_files=wrong.jsonl", "data.val_files=[]", expect=2)
        self.assertIn("the conversation needs a chat template", result.stderr)

    def test_weights(self):
        self.write("few.jsonl", self.rows[:10])
        self.write("many.jsonl", self.rows[10:200])
        files = 'data.train_files=["few.jsonl", "many.jsonl"]'
        for weights, part in (("[0.5]", "1 numbers for the 2 files"), ("[0.5, 0.6]", "add up to 1.1"), ("[1, 0]", "is above 0")):
            result = self.train("wrong", *SFT, files, f"data.train_weights={weights}", expect=2)
            self.assertIn(part, result.stderr)
        weighted = [*SFT, files, "data.train_weights=[0.5, 0.5]", "trainer.total_training_steps=14"]  # more than two epochs
        self.train("weighted", *weighted)
        self.train("halves", *weighted, "trainer.save_freq=5", "trainer.total_training_steps=5")
        self.train("halves", *weighted)
        self.assert_same("halves", "weighted")


@unittest.skipUnless(HAS_PYARROW, "the python3 on PATH has no pyarrow")
class Parquet(DataCase):
    def parquet(self, name, rows, **options):
        (self.home / f"{name}.json").write_text(json.dumps(rows))
        program = ("import json, sys, pyarrow as pa, pyarrow.parquet as pq\n"
                   "rows = json.load(open(sys.argv[1]))\n"
                   "pq.write_table(pa.Table.from_pylist(rows), sys.argv[2], **json.loads(sys.argv[3]))\n")
        subprocess.run(["python3", "-c", program, self.home / f"{name}.json", self.home / f"{name}.parquet", json.dumps(options)], check=True)
        return f"data.train_files={name}.parquet"

    def test_parquet_trains_as_the_same_rows_in_jsonl(self):
        self.train("sft", *SFT, self.parquet("texts", self.rows, row_group_size=100))
        self.assert_same("sft")
        # verl's rows: nested messages, and members that only some rows have.
        prompts = read_lines(self.home / "prompts_train.jsonl")
        prompts[3]["extra_info"]["tools_kwargs"] = {"a": [1, 2]}
        self.write("verl.jsonl", prompts)
        grpo = [*GRPO, "actor_rollout_ref.model.path=out/start/latest/actor", "data.val_files=[]"]
        self.train("verl-jsonl", *grpo, "data.train_files=verl.jsonl")
        self.train("verl-parquet", *grpo, self.parquet("verl", prompts))
        self.assert_same("verl-parquet", "verl-jsonl")
        # Tools, whose parameters have different members.
        tools = [TOOLS[0], {"type": "function", "function": {**TOOLS[1]["function"], "parameters": {"type": "object", "required": ["a"]}}}]
        self.write("tools.jsonl", [self.with_tools(row, tools) for row in self.rows[:64]])
        self.train("tools-jsonl", *SFT, *self.chat_model(), "data.train_files=tools.jsonl")
        self.train("tools-parquet", *SFT, *self.chat_model(), self.parquet("tools", read_lines(self.home / "tools.jsonl")))
        self.assert_same("tools-parquet", "tools-jsonl")
        # TRL's preferences: conversations without a prompt.
        pairs = [{"chosen": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["chosen"]}],
                  "rejected": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["rejected"]}]}
                 for row in read_lines(self.home / "pairs.jsonl")]
        self.write("trl.jsonl", pairs)
        self.train("trl-jsonl", *DPO, "data.train_files=trl.jsonl")
        self.train("trl-parquet", *DPO, self.parquet("trl", pairs))
        self.assert_same("trl-parquet", "trl-jsonl")

    def lines(self, path):
        result = subprocess.run(["python3", "-", path, "1000000"], input=ROWS_PROGRAM.read_text(), capture_output=True, text=True, timeout=60,
                                check=False)
        return result.stdout.splitlines()

    def test_values_become_what_json_has(self):
        program = ("import sys, datetime, decimal, pyarrow as pa, pyarrow.parquet as pq\n"
                   "pq.write_table(pa.table({'t': pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5)]), 'd': pa.array([decimal.Decimal('1.50')]),\n"
                   "  'm': pa.array([[('a', 1), ('b', None)]], pa.map_(pa.string(), pa.int64())), 'n': pa.array([float('nan')]),\n"
                   "  'b': pa.array([b'\\xff']), 'l': pa.array([[1.5, None]]), 's': pa.array([{'x': None, 'y': {'z': True}}]),\n"
                   "  'e': pa.array(['caf\\u00e9\\n']).dictionary_encode()}), sys.argv[1])\n")
        subprocess.run(["python3", "-c", program, self.home / "values.parquet"], check=True)
        lines = self.lines(self.home / "values.parquet")
        self.assertEqual([lines[0], lines[2]], ["#rows 1", "#end"])
        self.assertEqual(json.loads(lines[1]), {"t": "2026-01-02T03:04:05", "d": "1.50", "m": {"a": 1}, "l": [1.5, None], "s": {"y": {"z": True}},
                                                "e": "caf\u00e9\n"})

    def test_cut_and_damaged_files_are_one_error(self):
        self.parquet("good", self.rows, compression="zstd")
        good = (self.home / "good.parquet").read_bytes()
        for size in (4, 12, len(good) // 2, len(good) - 1):
            (self.home / "cut.parquet").write_bytes(good[:size])
            result = self.train("cut", *SFT, "data.train_files=cut.parquet", expect=2)
            self.assertEqual(result.stderr.count("as Parquet after row"), 1, result.stderr)
        draw = random.Random(7)
        for _ in range(25):
            bad = bytearray(good)
            for _ in range(draw.randint(1, 8)):
                bad[draw.randrange(4, len(bad))] = draw.randrange(256)
            (self.home / "bad.parquet").write_bytes(bad)
            lines = self.lines(self.home / "bad.parquet")
            for line in lines:
                self.assertTrue(line.startswith("#") or isinstance(json.loads(line), dict), line)

    def test_without_pyarrow_the_message_says_how_to_get_it(self):
        self.parquet("texts", self.rows[:50])
        hide = self.base / "hide"
        (hide / "pyarrow").mkdir(parents=True, exist_ok=True)
        (hide / "pyarrow" / "__init__.py").write_text("raise ImportError('hidden')\n")
        result = self.train("none", *SFT, "data.train_files=texts.parquet", expect=1, PYTHONPATH=str(hide))
        self.assertIn("pip install pyarrow==", result.stderr)


class Lengths(DataCase):
    LONG = "1" * 40

    def test_overlong_rows_are_errors_or_filtered_or_cut(self):
        long_prompt = [dict(row, prompt=self.LONG) for row in self.rows[:3]]
        long_response = [dict(row, response=self.LONG) for row in self.rows[:2]]
        self.write("long.jsonl", self.rows[:64] + long_prompt + long_response)
        self.write("short.jsonl", self.rows[:64])
        result = self.train("error", *SFT, "data.train_files=long.jsonl", expect=2)
        self.assertIn("long.jsonl:65: the text has 40 tokens; data.max_prompt_length is 6", result.stderr)
        self.assertIn("3 texts of long.jsonl are over it, and the longest has 40 tokens", result.stderr)
        self.assertIn("2 texts of long.jsonl are over it, and the longest has 41 tokens", result.stderr, "one error for both")
        both = ["data.filter_overlong_prompts=true", "data.filter_overlong_responses=true"]
        self.train("short", *SFT, "data.train_files=short.jsonl")
        result = self.train("filtered", *SFT, "data.train_files=long.jsonl", *both)
        self.assertIn("long.jsonl: 3 rows left out, with a prompt over", result.stderr)
        self.assertIn("long.jsonl: 2 rows left out, with a response over", result.stderr)
        self.assert_same("filtered", "short")
        again = self.train("cached", *SFT, "data.train_files=long.jsonl", *both, "data.rows_in_memory=0B")
        self.assertIn("long.jsonl: 3 rows left out", again.stderr)
        self.assertIn("long.jsonl: 3 rows left out", self.train("cached2", *SFT, "data.train_files=long.jsonl", *both,
                                                                "data.rows_in_memory=0B").stderr, "a cache keeps the counts")
        self.assert_same("cached2", "short")
        result = self.train("nothing", *SFT, "data.train_files=long.jsonl", *both, "data.max_prompt_length=1", expect=2)
        self.assertIn("hold no rows", result.stderr)

    def test_texts_are_cut_where_the_configuration_says(self):
        for mode, kept in (("left", "456789"), ("right", "123456"), ("middle", "123789")):
            self.write("cut.jsonl", [{"prompt": "123456789", "response": "1+1=2"}] * 32)
            self.write("kept.jsonl", [{"prompt": kept, "response": "1+1=2"}] * 32)
            result = self.train(f"cut-{mode}", *SFT, "data.train_files=cut.jsonl", f"data.truncation={mode}")
            self.assertIn("cut.jsonl: 32 prompts cut to data.max_prompt_length", result.stderr)
            self.train(f"kept-{mode}", *SFT, "data.train_files=kept.jsonl")
            self.assert_same(f"cut-{mode}", f"kept-{mode}")

    def test_overlong_pairs(self):
        pairs = read_lines(self.home / "pairs.jsonl")
        self.write("long.jsonl", pairs[:32] + [dict(pairs[0], rejected=self.LONG), dict(pairs[0], prompt=self.LONG)])
        self.write("short.jsonl", pairs[:32])
        self.assertIn("long.jsonl:33", self.train("error", *DPO, "data.train_files=long.jsonl", expect=2).stderr)
        result = self.train("pairs", *DPO, "data.train_files=long.jsonl", "data.filter_overlong_prompts=true",
                            "data.filter_overlong_responses=true")
        self.assertIn("long.jsonl: 1 rows left out, with a prompt over", result.stderr)
        self.train("pairs-short", *DPO, "data.train_files=short.jsonl")
        self.assert_same("pairs", "pairs-short")
        result = self.train("pairs-cut", *DPO, "data.train_files=long.jsonl", "data.truncation=right")
        self.assertIn("long.jsonl: 1 responses cut to", result.stderr)

    def test_prompts_of_a_rollout(self):
        rows = read_lines(self.home / "prompts_train.jsonl")
        self.write("long.jsonl", rows[:8] + [dict(rows[8], prompt=self.LONG)])
        self.write("short.jsonl", rows[:8])
        grpo = [*GRPO, "actor_rollout_ref.model.path=out/start/latest/actor", "data.val_files=[]"]
        self.assertIn("long.jsonl:9", self.train("error", *grpo, "data.train_files=long.jsonl", expect=2).stderr)
        self.train("rollout", *grpo, "data.train_files=long.jsonl", "data.filter_overlong_prompts=true")
        self.train("rollout-short", *grpo, "data.train_files=short.jsonl")
        self.assert_same("rollout", "rollout-short")


class Hostile(DataCase):
    def test_whatever_is_wrong_with_a_row_is_exit_code_2(self):
        for row, part in BROKEN_ROWS:
            (self.home / "bad.jsonl").write_bytes(b'{"prompt": "1+1=", "response": "2"}\n' + row + b"\n")
            result = self.train("bad", *SFT, "data.train_files=bad.jsonl", expect=2)
            self.assertIn("bad.jsonl:2", result.stderr)
            self.assertIn(part, result.stderr)
        for text, part in (("[\n{}]".encode(), "jq -c '.[]'"), (json.dumps(self.rows[0]).encode("utf-16"), "is UTF-16")):
            (self.home / "bad.jsonl").write_bytes(text)
            self.assertIn(part, self.train("bad", *SFT, "data.train_files=bad.jsonl", expect=2).stderr)
        self.train("bad", *SFT, "data.train_files=missing.jsonl", expect=2)

    def test_broken_and_hostile_files_are_one_error(self):
        packed = gzip.compress((self.home / "sft_train.jsonl").read_bytes())
        (self.home / "cut.gz").write_bytes(packed[:-20])
        (self.home / "garbage.gz").write_bytes(packed + b"garbage")
        with gzip.open(self.home / "long.gz", "wb", compresslevel=9) as out:
            out.write(b'{"prompt": "1+1=", "response": "2"}\n{"prompt": "')
            for _ in range(64):
                out.write(b"1" * (16 << 20))
        with (self.home / "long.jsonl").open("wb") as out:
            out.write(b'{"prompt": "1+1=", "response": "2"}\n{"prompt": "')
            out.truncate(1 << 30)  # a line of 1 GiB
        broken = [("cut.gz", "cut short"), ("garbage.gz", "is not valid gzip"), ("long.gz", "long.gz:2"), ("long.jsonl", "long.jsonl:2")]
        if has_zstd():
            subprocess.run(["zstd", "-q", self.home / "sft_train.jsonl", "-o", self.home / "cut.zst"], check=True)
            os.truncate(self.home / "cut.zst", (self.home / "cut.zst").stat().st_size // 2)
            broken.append(("cut.zst", "cut short"))
        for name, part in broken:
            result = self.train("hostile", *SFT, f"data.train_files={name}", expect=2)
            self.assertIn(part, result.stderr)
            self.assertEqual(len([line for line in result.stderr.splitlines() if "neap: " in line and name in line]), 1, result.stderr)
            self.assertFalse((self.home / "out" / "hostile" / "metrics.jsonl").exists())

    def test_a_killed_and_a_second_process_share_the_cache(self):
        # Large enough that encoding takes a second or more.
        with (self.home / "large.jsonl").open("w") as out:
            for turn in range(120):
                for row in self.rows:
                    out.write(json.dumps(dict(row, note=f"{turn}")) + "\n")
        disk = [NEAP, "train", *SFT, "device.kind=host", "device.memory=256MiB", "data.train_files=large.jsonl", "data.rows_in_memory=0B",
                "data.cache_dir=shared"]
        start = lambda out: neap_program.start(*disk, f"trainer.default_local_dir=out/{out}", cwd=self.home, env=self.environment())
        killed = start("killed")
        neap_program.wait_for(killed, lambda: list((self.home / "shared").glob("*.rows.tmp-*")))
        killed.kill()
        killed.communicate()
        runs = [start("one"), start("two")]
        for run in runs:
            _, errors = run.communicate(timeout=900)
            self.assertEqual(run.returncode, 0, errors)
        self.assert_same("one", "two")
        self.assertEqual(len(list((self.home / "shared").glob("*.rows"))), 1)
        self.assertEqual(list((self.home / "shared").glob("*.rows.tmp-*")), [])

    def start_with_rows_on_disk(self, out, *words):
        return neap_program.start(NEAP, "train", *SFT, "device.kind=host", "device.memory=256MiB", "data.rows_in_memory=0B",
                                  f"trainer.default_local_dir=out/{out}", *words, cwd=self.home, env=self.environment())

    def logged(self, out):
        return neap_program.logged_steps(self.home / "out" / out)

    def test_a_file_that_changes_while_it_is_read_is_one_error(self):
        with (self.home / "growing.jsonl").open("w") as out:
            for turn in range(120):
                for row in self.rows:
                    out.write(json.dumps(dict(row, note=f"{turn}")) + "\n")
        words = ("growing", "data.train_files=growing.jsonl", "data.cache_dir=growing")
        process = self.start_with_rows_on_disk(*words)
        neap_program.wait_for(process, lambda: list((self.home / "growing").glob("*.rows.tmp-*")))
        with (self.home / "growing.jsonl").open("a") as out:
            out.write('{"prompt": "1+')  # as another program writes it
        result = neap_program.outcome(process)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("growing.jsonl changed while it was read", result.stderr)
        self.assertEqual(list((self.home / "growing").glob("*.rows*")), [])
        self.assertFalse((self.home / "out" / "growing" / "metrics.jsonl").exists())

    LONGER = "trainer.total_training_steps=150"

    def test_a_data_file_that_changes_while_the_run_trains_is_not_read_again(self):
        self.train("whole", *SFT, self.LONGER)
        for name, words in (("memory", ["data.rows_in_memory=256MiB"]), ("disk", ["data.cache_dir=steady"])):
            shutil.copy(self.home / "sft_train.jsonl", self.home / "moving.jsonl")
            process = self.start_with_rows_on_disk(f"moving-{name}", self.LONGER, "data.train_files=moving.jsonl", *words)
            neap_program.wait_for(process, lambda out=f"moving-{name}": self.logged(out) > 0)
            self.write("moving.jsonl", self.rows[:40])
            (self.home / "moving.jsonl").unlink()
            result = neap_program.outcome(process)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assert_same(f"moving-{name}", "whole")

    def test_rows_that_cannot_be_read_lose_no_step(self):
        """The disk of the encoded rows fails while the run trains."""
        self.train("unbroken", *SFT, self.LONGER)
        words = ("broken", self.LONGER, "data.cache_dir=broken")
        process = self.start_with_rows_on_disk(*words)
        neap_program.wait_for(process, lambda: self.logged("broken") > 0)
        (file,) = (self.home / "broken").glob("*.rows")
        os.truncate(file, 100)
        result = neap_program.outcome(process)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, r"Stopped after \d+ of 150 steps: .*\.rows cannot be read. They are saved in ")
        (saved,) = (self.home / "out" / "broken").glob("global_step_*")
        self.assertEqual(int(saved.name.split("_")[-1]), self.logged("broken"), "the step before the failure is there")
        result = neap_program.outcome(self.start_with_rows_on_disk(*words))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("is made anew", result.stderr)
        self.assert_same("broken", "unbroken")

    @unittest.skipUnless(neap_program.HAS_NAMESPACES, "no mount namespaces for this user")
    def test_a_full_file_system_is_one_error_and_can_be_gone_on_from(self):
        """The encoded rows have a file system of 24 KiB; nobody else sees it."""
        self.train("kept", *SFT, "trainer.total_training_steps=1")
        script = ('mkdir -p small && mount -t tmpfs -o size=24k tmpfs small && "$@"; code=$?; ls small >left; mount -o remount,size=1m small && '
                  '"$@" && exit $code')
        result = subprocess.run([*neap_program.NAMESPACE, "sh", "-c", script, "sh", NEAP, "train", *SFT, "device.kind=host", "device.memory=256MiB",
                                 "data.rows_in_memory=0B", "data.cache_dir=small", "trainer.default_local_dir=out/kept"],
                                cwd=self.home, env=self.environment(), capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.count("No space left on device"), 1, result.stderr)
        self.assertIn("data.cache_dir names the folder of encoded rows", result.stderr)
        self.assertNotIn(".rows", (self.home / "left").read_text())
        self.assertIn("Resuming from", result.stderr)
        self.assert_same("kept")

    def test_a_full_disk_is_one_error(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))
        result = neap_program.run(NEAP, "train", *SFT, "device.kind=host", "device.memory=256MiB", "data.rows_in_memory=0B", "data.cache_dir=full",
                             "trainer.default_local_dir=out/full", cwd=self.home, env=self.environment(), preexec_fn=limit)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("data.cache_dir", result.stderr)
        self.assertEqual(list((self.home / "full").glob("*.rows*")), [])


if __name__ == "__main__":
    NEAP = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
