#!/usr/bin/env python3
"""`neap train` on data as it comes: packed, as Parquet, large, weighted, too long. usage: FILE NEAP

Parquet is tested where the python3 on PATH has pyarrow.
"""
import gzip
import json
import os
import random
import subprocess
import unittest

from additions_case import main
from data_case import DataCase, DPO, GRPO, HAS_PYARROW, has_zstd, ROWS_PROGRAM, SFT, TOOLS
from neap_program import read_lines


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
        result = subprocess.run(["python3", "-", path, "1000000 17179869184 1000000000 120"], input=ROWS_PROGRAM.read_text(), capture_output=True, text=True, timeout=60,
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


if __name__ == "__main__":
    main()
