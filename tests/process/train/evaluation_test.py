#!/usr/bin/env python3
"""Validation, the best checkpoint and `neap eval` as processes. usage: FILE NEAP"""
import json
import math
import pathlib
import re
import shutil
import statistics

import neap_program
from additions_case import main, SMALL, TrainedCase
from neap_program import read_lines

SAMPLED = ["actor_rollout_ref.rollout.val_kwargs.n=4", "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
           "actor_rollout_ref.rollout.val_kwargs.temperature=1.3", "actor_rollout_ref.rollout.val_kwargs.top_p=0.95"]
CHECKPOINT = "out/sft/latest/actor"


def pass_at_k(n, right, k):
    return 1 - math.comb(n - right, k) / math.comb(n, k)


class EvaluationCase(TrainedCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rows = read_lines(cls.home / "prompts_val.jsonl") + read_lines(cls.home / "prompts_train.jsonl")[:13]
        for i, row in enumerate(rows):
            row["data_source"] = "even" if i % 2 == 0 else "odd"
        cls.write("held_out.jsonl", rows)

    def eval(self, *words, expect=0):
        result = self.neap("eval", *words)
        self.assertEqual(result.returncode, expect, result.stderr)
        return result

    def report(self, *words):
        return json.loads(self.eval(*words, "--json").stdout)

    def test_the_end_of_a_training_and_eval_of_its_checkpoint_agree(self):
        keys = [*SMALL, *SAMPLED, "trainer.total_training_steps=2"]
        result = self.neap("train", "grpo.toml", *keys, "data.val_files=held_out.jsonl", "trainer.default_local_dir=out/agree")
        self.assertEqual(result.returncode, 0, result.stderr)
        validation = {k: v for k, v in read_lines(self.home / "out/agree/validation.jsonl")[-1].items() if k.startswith("val")}
        report = self.report("out/agree", "held_out.jsonl", "--config", "grpo.toml", "--output", "rows.jsonl", *keys)
        self.assertEqual(report["metrics"], validation)
        self.assertEqual(report["rewards"], "numeric")
        # What the rows say, in plain Python.
        rows = read_lines(self.home / "rows.jsonl")
        self.assertEqual(len(rows), 21)
        for source in ("even", "odd"):
            mine = [row for row in rows if row["data_source"] == source]
            right = [sum(r["acc"] == 1 for r in row["responses"]) for row in mine]
            for k in (1, 2, 4):
                self.assertAlmostEqual(validation[f"val-core/{source}/acc/pass@{k}"],
                                       statistics.fmean(pass_at_k(4, c, k) for c in right), places=12)
            self.assertAlmostEqual(validation[f"val-core/{source}/acc/mean@4"], statistics.fmean(c / 4 for c in right), places=12)
            self.assertAlmostEqual(validation[f"val-aux/{source}/reward/best@4/mean"],
                                   statistics.fmean(max(r["score"] for r in row["responses"]) for row in mine), places=6)
        self.assertEqual(len({r["text"] for row in rows for r in row["responses"]}) > 21, True, "samples differ")
        self.assertAlmostEqual(validation["val/score/mean"],
                               statistics.fmean(r["score"] for row in rows for r in row["responses"]), places=6)
        self.assertEqual(rows[0]["prompt"], read_lines(self.home / "held_out.jsonl")[0]["prompt"])
        self.assertLessEqual(report["measured_peak"], report["planned_peak"])

    def test_validation_is_greedy_unless_told_otherwise(self):
        greedy = self.report(CHECKPOINT, "held_out.jsonl", "--output", "greedy.jsonl")
        self.assertEqual(greedy["sampling"]["do_sample"], False)
        cold = [*SAMPLED[1:2], "actor_rollout_ref.rollout.val_kwargs.temperature=0"]
        self.assertEqual(self.report(CHECKPOINT, "held_out.jsonl", *cold)["metrics"], greedy["metrics"])
        self.assertEqual([key for key in greedy["metrics"] if "@" in key],
                         ["val-aux/even/reward/mean@1", "val-aux/odd/reward/mean@1", "val-core/even/acc/mean@1",
                          "val-core/odd/acc/mean@1", "val/acc/mean@1"])
        # As `neap generate` continues the same prompts.
        for row in read_lines(self.home / "greedy.jsonl")[:4]:
            result = self.neap("generate", CHECKPOINT, "--prompt", row["prompt"][0]["content"], "--temperature", "0",
                               "--max-new-tokens", str(greedy_length(self.home)), "--json")
            self.assertEqual(json.loads(result.stdout)["text"].replace("<|end|>", ""), row["responses"][0]["text"])

    def test_parts_and_batches_do_not_change_the_responses(self):
        texts = []
        # A part is eight batches: here of 8 responses, 2 of the 21 prompts, in 10 parts and a bit.
        for name, batch in (("whole", 64), ("parts", 1)):
            self.eval(CHECKPOINT, "held_out.jsonl", *SAMPLED, f"actor_rollout_ref.rollout.batch_size={batch}", "--output", f"{name}.jsonl")
            texts.append([[r["text"] for r in row["responses"]] for row in read_lines(self.home / f"{name}.jsonl")])
        self.assertEqual(*texts)

    def test_the_table_names_every_source(self):
        table = self.eval(CHECKPOINT, "held_out.jsonl").stdout
        for part in ("greedy", "acc/mean@1", "even", "odd", "all", "planned peak", "val/truncated_ratio"):
            self.assertIn(part, table)
        # The source to the left, numbers to the right of their columns.
        rows = [re.match(r"(source|even|odd|all)( +\w+)", line) for line in table.splitlines()]
        widths = {(match[1].ljust(6), len(match[0])) for match in rows if match}
        self.assertEqual({name for name, _ in widths}, {"source", "even  ", "odd   ", "all   "}, table)
        self.assertEqual(len({width for _, width in widths}), 1, table)
        self.assertNotIn("pass@", table)

    def test_rows_say_how_they_are_scored(self):
        def rewards(rows, *words, expect=0):
            self.write("rows_of_test.jsonl", rows)
            return self.eval(CHECKPOINT, "rows_of_test.jsonl", *words, expect=expect)
        self.assertIn('rule "numeric"', rewards([{"prompt": "11+11=", "answer": "22"}]).stderr)
        self.assertIn('rule "symbolic"', rewards([{"prompt": "11+11=", "answer": "22"}, {"prompt": "1+1=", "answer": "x+y"}]).stderr)
        missing = rewards([{"prompt": "11+11=", "answer": "22"}, {"prompt": "1+1="}], expect=2)
        self.assertIn("rows_of_test.jsonl:2", missing.stderr)
        self.assertIn("reward.functions", missing.stderr)
        model = {"style": "model", "ground_truth": "1"}
        self.assertIn('style is "model"', rewards([{"prompt": "1+1=", "reward_model": model}], expect=2).stderr)
        pattern = ["reward.functions.0.kind=regex", "reward.functions.0.pattern=."]
        self.assertIn("scored by regex", rewards([{"prompt": "1+1="}], *pattern).stdout)
        self.assertIn("rows_of_test.jsonl:1", rewards([{"text": "1+1="}], expect=2).stderr)

    def test_slips(self):
        def fails(code, part, *words):
            self.assertIn(part, self.eval(*words, expect=code).stderr)
        fails(2, "gone is not a model", "gone", "held_out.jsonl")
        fails(2, "gone.jsonl is not a file", CHECKPOINT, "gone.jsonl")
        fails(2, "are all the same", CHECKPOINT, "held_out.jsonl", SAMPLED[0])
        fails(2, "unknown key", CHECKPOINT, "held_out.jsonl", "val.n=3")
        fails(2, "positions", CHECKPOINT, "held_out.jsonl", "data.max_response_length=1000")
        fails(2, "data.max_prompt_length is 3", CHECKPOINT, "held_out.jsonl", "data.max_prompt_length=3")
        fails(3, "minimum capacity", CHECKPOINT, "held_out.jsonl", "device.memory=1MiB")
        fails(2, "Cannot create no/such/folder.jsonl", CHECKPOINT, "held_out.jsonl", "--output", "no/such/folder.jsonl")
        for override, instead in (('data.val_files=["other.jsonl"]', "as DATA"), ("data.train_files=other.jsonl", "as DATA"),
                                  ("task=ppo", "one task"), ("actor_rollout_ref.model.path=model", "as CHECKPOINT"),
                                  ("actor_rollout_ref.model.lora_adapter_path=adapter", "--adapter")):
            result = self.eval(CHECKPOINT, "held_out.jsonl", override, expect=2)
            self.assertIn(f'"{override}" on the command line has no effect on neap eval', result.stderr)
            self.assertIn(instead, result.stderr)
        fails(2, '"held_out.jsonl" on the command line is not of the form key.path=value; neap eval takes one DATA file',
              CHECKPOINT, "held_out.jsonl", "held_out.jsonl")
        result = self.neap("train", "grpo.toml", "task=eval")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("neap eval CHECKPOINT DATA", result.stderr)

    def test_a_failing_program_leaves_no_file(self):
        (self.home / "fail.py").write_text("import sys; sys.exit('no judge today')\n")
        program = ["reward.functions.0.kind=program", 'reward.functions.0.command=["python3", "fail.py"]', "reward.functions.0.retries=0"]
        result = self.eval(CHECKPOINT, "held_out.jsonl", *program, "--output", "failed.jsonl", expect=1)
        self.assertIn("no judge today", result.stderr)
        self.assertFalse(list(self.home.glob("failed.jsonl*")))

    def test_the_temporary_name_of_the_responses_cannot_be_foreseen(self):
        # exec keeps the process's number.
        script = 'mkdir -p "$1.tmp-$$/full" && exec "$0" eval "$2" held_out.jsonl --output "$1"'
        result = neap_program.run("sh", "-c", script, self.path, "unforeseen.jsonl", CHECKPOINT, cwd=self.home)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(read_lines(self.home / "unforeseen.jsonl")), 21)

    def test_the_plan_counts_what_validation_samples_with(self):
        # Sorting is the most of a rollout where the vocabulary is large.
        (self.home / "wide").mkdir()
        config = json.loads((self.home / "model/config.json").read_text())
        (self.home / "wide/config.json").write_text(json.dumps(dict(config, vocab_size=50000)))
        def transient(*words):
            result = self.neap("plan", "grpo.toml", "--json", "device.kind=cpu", "device.memory=8GiB", "actor_rollout_ref.model.path=wide", *words)
            self.assertEqual(result.returncode, 0, result.stderr)
            return next(p["temporary_allocated"] for p in json.loads(result.stdout)["phases"] if p["name"] == "generate")
        plain = transient(*SAMPLED[:3])
        sorted_ = transient(*SAMPLED)
        self.assertGreater(sorted_, plain)
        self.assertEqual(transient(*SAMPLED, "data.val_files=[]"), plain)
        self.assertEqual(transient(*SAMPLED, "actor_rollout_ref.rollout.top_p=0.9"), sorted_)

    # ---- the best checkpoint ----

    def sft(self, out, *words, expect=0):
        result = self.neap("train", "sft.toml", "device.kind=cpu", f"trainer.default_local_dir=out/{out}", "data.val_files=sft_train.jsonl",
                           "trainer.test_freq=1", "trainer.best_metric=val/loss", *words)
        self.assertEqual(result.returncode, expect, result.stderr)
        return result

    def checkpoints(self, out):
        return sorted(p.name for p in (self.home / "out" / out).glob("global_step_*"))

    def test_the_best_checkpoint_stays_through_rotation_and_resume(self):
        # The loss falls: with "max" the first step is the best.
        keep = ["trainer.best_mode=max", "trainer.max_ckpt_to_keep=1"]
        begun = self.sft("best", *keep, "trainer.total_training_steps=2")
        self.assertRegex(begun.stderr, r"Step 1 has the best checkpoint so far: val/loss [0-9.]+; before the first step it was [0-9.]+")
        self.assertEqual(self.checkpoints("best"), ["global_step_1", "global_step_2"])
        result = self.sft("best", *keep, "trainer.total_training_steps=4")
        self.assertEqual(self.checkpoints("best"), ["global_step_1", "global_step_4"])
        link = self.home / "out/best/best"
        self.assertEqual(link.readlink(), pathlib.Path("global_step_1"))
        first = read_lines(self.home / "out/best/validation.jsonl")[1]["val/loss"]
        self.assertIn(f"val/loss {first:.4g} at step 1", result.stdout)
        # The validation before the first step was better, after a resume as well.
        start = read_lines(self.home / "out/best/validation.jsonl")[0]["val/loss"]
        self.assertGreater(start, first)
        self.assertIn(f"start          val/loss {start:.4g} before the first step: better than every checkpoint", result.stdout)
        self.assertNotIn("best checkpoint so far", result.stderr)
        self.eval("out/best/best", "held_out.jsonl")
        # "min": each step is better, and only the newest stays.
        self.sft("falling", "trainer.max_ckpt_to_keep=1", "trainer.best_mode=min", "trainer.total_training_steps=3")
        self.assertEqual(self.checkpoints("falling"), ["global_step_3"])
        self.assertEqual((self.home / "out/falling/best").readlink(), pathlib.Path("global_step_3"))

    def test_a_resumed_run_finds_the_best_again(self):
        keep = ["trainer.best_mode=max", "trainer.max_ckpt_to_keep=1"]
        self.sft("found", *keep, "trainer.total_training_steps=2")
        (self.home / "out/found/best").unlink()  # as a kill between a checkpoint and its links
        self.sft("found", *keep, "trainer.total_training_steps=3")
        self.assertEqual((self.home / "out/found/best").readlink(), pathlib.Path("global_step_1"))
        shutil.rmtree(self.home / "out/found/global_step_1")
        result = self.sft("found", *keep, "trainer.total_training_steps=4")
        self.assertIn("global_step_1, the best checkpoint so far, is not there any more", result.stderr)
        self.assertEqual((self.home / "out/found/best").readlink(), pathlib.Path("global_step_4"))

    def test_slips_of_the_best(self):
        missing = self.sft("slip", "trainer.best_metric=val/score", expect=2)
        self.assertIn('trainer.best_metric is "val/score"; validation gives val/loss, val/mean_token_accuracy, val/perplexity', missing.stderr)
        self.assertFalse((self.home / "out/slip/global_step_1").exists())
        self.assertIn("data.val_files is empty", self.sft("slip", "data.val_files=[]", expect=2).stderr)
        self.assertIn("best_mode", self.sft("slip", "trainer.best_mode=best", expect=2).stderr)

    # ---- stopping at a value ----

    def losses(self, out):
        return [line["val/loss"] for line in read_lines(self.home / "out" / out / "validation.jsonl")]

    def test_training_stops_where_a_metric_reaches_its_value(self):
        steps = ["trainer.best_mode=min", "trainer.total_training_steps=6"]
        self.assertNotIn("stopped", self.sft("whole", *steps).stdout)
        whole = self.losses("whole")
        self.assertEqual(sorted(whole, reverse=True), whole, "the loss falls")

        def stopping(value, *words):
            return self.sft("halted", *steps, "trainer.stop_metric=val/loss", "trainer.stop_mode=min", f"trainer.stop_value={value!r}", *words)
        first = (whole[2] + whole[3]) / 2
        result = stopping(first)
        self.assertIn(f"stopped        val/loss {whole[3]:.4g} at step 3", result.stdout)
        self.assertEqual((self.home / "out/halted/latest").readlink(), pathlib.Path("global_step_3"))
        self.assertEqual(self.losses("halted"), whole[:4])
        # The same command again trains nothing; a value that is as good does not, either.
        for value in (first, whole[3]):
            again = stopping(value)
            self.assertIn(f"is done: val/loss {whole[3]:.4g} at step 3", again.stderr)
            self.assertEqual(self.losses("halted"), whole[:4])
        # Another value goes on from there, to exactly that value; none, to the last step.
        self.assertIn("at step 5", stopping(whole[5]).stdout)
        self.assertEqual(self.losses("halted"), whole[:6])
        self.assertNotIn("stopped", self.sft("halted", *steps).stdout)
        self.assertEqual(self.losses("halted"), whole)
        # A value that is never reached, and one that is before the first step.
        self.assertNotIn("stopped", self.sft("never", *steps, "trainer.stop_metric=val/loss", "trainer.stop_value=99").stdout)
        self.assertIn("at step 1", self.sft("early", *steps, "trainer.stop_metric=val/loss", "trainer.stop_value=0").stdout)

    def test_slips_of_stopping(self):
        stop = ["trainer.stop_metric=val/loss", "trainer.stop_value=1"]
        missing = self.sft("slip2", "trainer.stop_metric=val/score", stop[1], expect=2)
        self.assertIn('trainer.stop_metric is "val/score"; validation gives val/loss, val/mean_token_accuracy, val/perplexity', missing.stderr)
        self.assertFalse((self.home / "out/slip2/global_step_1").exists())
        for words, part in (([*stop, "data.val_files=[]", "trainer.best_metric="], "stop_metric is set, but data.val_files is empty"),
                            ([*stop, "trainer.test_freq=-1"], "trainer.test_freq is -1"), (stop[:1], "without trainer.stop_value"), (stop[1:], "trainer.stop_metric is \"\""),
                            ([*stop, "trainer.stop_mode=less"], "stop_mode")):
            self.assertIn(part, self.sft("slip2", *words, expect=2).stderr)
        self.eval(CHECKPOINT, "held_out.jsonl", *stop)  # has no use for them


def greedy_length(home):
    config = json.loads((home / CHECKPOINT / "config.json").read_text())
    longest = max(len(row["prompt"][0]["content"]) for row in read_lines(home / "held_out.jsonl"))
    return min(1024, config["max_position_embeddings"] - longest)


if __name__ == "__main__":
    main()
