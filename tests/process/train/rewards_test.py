#!/usr/bin/env python3
"""`neap train` with reward functions instead of a reward model. usage: FILE NEAP"""
import json
import re
import signal
import time

import neap_program
from additions_case import main, SMALL, steady, TrainedCase
from neap_program import read_lines


class RewardsCase(TrainedCase):
    def grpo(self, out, *words, expect=0):
        result = self.neap("train", "grpo.toml", *SMALL, f"trainer.default_local_dir=out/{out}", *words)
        self.assertEqual(result.returncode, expect, result.stderr)
        return result

    def metrics(self, out):
        return read_lines(self.home / "out" / out / "metrics.jsonl")

    def test_rules_score_without_a_reward_model(self):
        result = self.grpo("rules", "reward.functions.1.kind=length", "reward.functions.1.buffer_length=2",
                           "reward.functions.1.weight=0.5")
        self.assertNotIn("reward.weights", result.stdout)
        for line in self.metrics("rules"):
            self.assertAlmostEqual(line["critic/score/mean"],
                                   line["rewards/numeric/mean"] + 0.5 * line["rewards/length/mean"], places=6)
            self.assertEqual(line["rewards/numeric/mean"], line["rewards/numeric/acc"])
            self.assertGreaterEqual(line["rewards/numeric/answered"], line["rewards/numeric/acc"])
            self.assertNotIn("memory/rewards/peak_gb", line)
        validation = read_lines(self.home / "out" / "rules" / "validation.jsonl")
        self.assertIn("val/rewards/numeric/acc", validation[-1])

    def test_a_function_of_weight_0_only_measures(self):
        (self.home / "size.py").write_text("def compute_score(solution_str):\n    return float(len(solution_str))\n")
        self.grpo("alone")
        self.grpo("measured", "reward.functions.1.kind=python", "reward.functions.1.name=length_of", "reward.functions.1.path=size.py",
                  "reward.functions.1.weight=0")
        for file in ("metrics.jsonl", "validation.jsonl"):
            rows = [steady(read_lines(self.home / "out" / out / file)) for out in ("alone", "measured")]
            for alone, measured in zip(*rows, strict=True):
                of_function = {key for key in measured if "rewards/length_of" in key}
                self.assertGreater(max(measured[key] for key in of_function), 1)
                for row in (alone, measured):
                    row.pop("samples", None)
                self.assertEqual(alone, {key: value for key, value in measured.items() if key not in of_function})

    def test_a_resumed_run_repeats(self):
        self.grpo("whole")
        self.grpo("resumed", "trainer.total_training_steps=2")
        self.grpo("resumed")
        self.assertEqual(steady(self.metrics("whole")), steady(self.metrics("resumed")))

    def test_trl_rows_with_columns(self):
        rows = [json.loads(line) for line in (self.home / "prompts_train.jsonl").read_text().splitlines()]
        (self.home / "trl.jsonl").write_text("".join(
            json.dumps({"prompt": row["prompt"][0]["content"], "answer": f"a + b\n#### {row['reward_model']['ground_truth']}"}) + "\n"
            for row in rows))
        self.grpo("verl", "data.val_files=[]")
        self.grpo("trl", "data.train_files=trl.jsonl", "data.val_files=[]")
        self.assertEqual(steady(self.metrics("verl")), steady(self.metrics("trl")))

    def test_rows_without_what_a_function_needs_are_named(self):
        (self.home / "broken.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n' * 8 + '{"prompt": "1+2="}\n')
        result = self.grpo("broken", "data.train_files=broken.jsonl", expect=2)
        self.assertIn("broken.jsonl:9: the row has no right answer", result.stderr)
        self.assertIn('reward function "numeric"', result.stderr)
        self.assertFalse((self.home / "out" / "broken" / "metrics.jsonl").exists())
        result = self.grpo("sources", "reward.functions.0.data_sources=gsm8k", expect=2)
        self.assertIn('scores rows of data_source "arithmetic"', result.stderr)
        result = self.grpo("pattern", "reward.functions.0.kind=regex", "reward.functions.0.pattern=(", expect=2)
        self.assertIn('The pattern "(" does not compile', result.stderr)

    JUDGE = ("import json, os, sys, time\n"
             "step = 0\n"
             "for line in sys.stdin:\n"
             "    items, step = json.loads(line)['items'], step + 1\n"
             "    if step > int(sys.argv[1]) and not os.path.exists('mended'):\n"
             "        print('the judge is asleep', file=sys.stderr, flush=True)\n"
             "        time.sleep(100)\n"
             "    right = [i['response'].endswith(i['ground_truth']) for i in items]\n"
             "    print(json.dumps({'scores': [{'score': float(r), 'acc': r} for r in right]}), flush=True)\n")

    def program(self, patience, *more):
        (self.home / "judge.py").write_text(self.JUDGE)
        return ["reward.functions.0.kind=program", "reward.functions.0.name=judge", f'reward.functions.0.command=["python3", "judge.py", "{patience}"]',
                "reward.functions.0.log=acc", "reward.functions.0.timeout=5", "reward.functions.0.retries=0", "data.val_files=[]", *more]

    def test_a_program_that_hangs_ends_the_run_behind_a_checkpoint(self):
        failed = self.grpo("program", *self.program(2), expect=1)
        messages = [line for line in failed.stderr.splitlines() if line.startswith("neap: ") and "Stopped after 2 of 4 steps" in line]
        self.assertEqual(len(messages), 1, failed.stderr)
        self.assertIn("gave no answer in 5 s", failed.stderr)
        self.assertIn("the judge is asleep", failed.stderr)
        self.assertIn("The steps are saved in out/program/global_step_2", failed.stderr)
        (self.home / "mended").touch()
        self.grpo("program", *self.program(2))
        self.grpo("undisturbed", *self.program(2))
        (self.home / "mended").unlink()
        self.assertEqual(steady(self.metrics("undisturbed")), steady(self.metrics("program")))
        self.assertEqual(self.metrics("program")[0]["rewards/judge/mean"], self.metrics("program")[0]["rewards/judge/acc"])

    def test_a_number_that_no_reply_has_is_one_warning(self):
        result = self.grpo("missing", *self.program(9, "reward.functions.0.log=['acc', 'length']", "trainer.total_training_steps=2"))
        warnings = re.findall(".*no reply.*", result.stderr)
        self.assertEqual(len(warnings), 1, result.stderr)
        self.assertIn('Reward "judge": no reply to the first batch has a number "length"', warnings[0])
        self.assertNotIn("rewards/judge/length", self.metrics("missing")[-1])

    def test_a_program_that_hangs_can_be_passed_over(self):
        result = self.grpo("default", *self.program(2, "reward.functions.0.on_failure=default", "reward.functions.0.default_score=-1",
                                                    "reward.functions.0.timeout=2", "trainer.total_training_steps=3"))
        self.assertIn('Reward "judge": 32 of 32 responses get default_score -1', result.stderr)
        self.assertEqual(self.metrics("default")[2]["rewards/judge/mean"], -1)

    def test_a_python_function(self):
        (self.home / "score.py").write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
                                            "    print('scoring')\n    return {'score': solution_str.endswith(ground_truth), 'acc': 1}\n")
        self.grpo("python", "reward.functions.0.kind=python", "reward.functions.0.path=score.py", "reward.functions.0.log=acc",
                  "data.val_files=[]", "trainer.total_training_steps=2")
        self.assertEqual([line["rewards/python/acc"] for line in self.metrics("python")], [1, 1])
        (self.home / "score.py").write_text("def compute_score(solution_str, **more):\n    return 1 / 0\n")
        result = self.grpo("raises", "reward.functions.0.kind=python", "reward.functions.0.path=score.py", "reward.functions.0.retries=0",
                           "data.val_files=[]", expect=1)
        self.assertRegex(result.stderr, r"score.py:2 in compute_score, return 1 / 0: ZeroDivisionError.*the row is row \d+ of \S+\.jsonl: ")

    def test_a_response_that_a_stop_text_ends_is_not_truncated(self):
        (self.home / "cut.py").write_text("import json, sys\nfor line in sys.stdin:\n    items = json.loads(line)['items']\n"
                                          "    print(json.dumps([float(i['truncated']) for i in items]), flush=True)\n")
        words = ["reward.functions.0.kind=program", 'reward.functions.0.command=["python3", "cut.py"]',
                 f"actor_rollout_ref.rollout.stop={json.dumps(list('0123456789'))}"]
        self.grpo("stopped", *words, "trainer.total_training_steps=1", "trainer.rollout_freq=1", "data.val_files=[]")
        lines = read_lines(self.home / "out/stopped/rollouts.jsonl")
        ended = [line for line in lines if line["response"][-1:].isdigit()]
        self.assertGreater(len(ended), len(lines) / 2)
        for line in lines:
            self.assertEqual(line["rewards"]["program"], line["truncated"], line)
        self.assertFalse([line for line in ended if line["truncated"]])
        self.assertEqual(sum(line["truncated"] for line in lines) / len(lines), self.metrics("stopped")[0]["response_length/truncated_ratio"])
        result = self.neap("eval", "out/sft/latest/actor", "prompts_val.jsonl", "--config", "grpo.toml", "--output", "rows.jsonl", *SMALL, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        responses = [each for row in read_lines(self.home / "rows.jsonl") for each in row["responses"] if each["text"][-1:].isdigit()]
        self.assertTrue(responses)
        self.assertFalse([each for each in responses if each["truncated"]])

    def test_a_judge_that_raises_costs_only_the_response(self):
        (self.home / "odd.py").write_text("def compute_score(solution_str, extra_info, data_source, ground_truth):\n"
                                          "    if int(ground_truth) % 2: raise KeyError(ground_truth)\n    return 1\n")
        words = ["reward.functions.0.kind=python", "reward.functions.0.path=odd.py", "data.val_files=[]", "trainer.total_training_steps=1"]
        result = self.grpo("odd", *words, "reward.functions.0.on_failure=default", "reward.functions.0.default_score=-1", "trainer.rollout_freq=1")
        lines = read_lines(self.home / "out/odd/rollouts.jsonl")
        odd = [line for line in lines if int(line["ground_truth"]) % 2]
        self.assertTrue(0 < len(odd) < len(lines))
        for line in lines:
            self.assertEqual(line["score"], -1 if line in odd else 1)
        self.assertRegex(result.stderr, rf'"python": {len(odd)} of 32 responses get default_score -1: .*KeyError: .*the row is ')
        self.assertNotIn("attempt", result.stderr)

    def test_an_interrupt_ends_the_waiting_for_a_judge_that_hangs(self):
        patient = self.program(1, "reward.functions.0.timeout=100")
        out = self.home / "out" / "hangs"
        process = neap_program.start(self.path, "train", "grpo.toml", *SMALL, "trainer.default_local_dir=out/hangs", *patient, cwd=self.home,
                                     env=neap_program.environment())
        neap_program.wait_for(process, lambda: neap_program.logged_steps(out) == 1)
        time.sleep(1)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        done = neap_program.outcome(process, 120)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("Interrupted after step 1 of 4", done.stderr)
        self.assertLess(time.monotonic() - start, 30)
        self.assertTrue((out / "global_step_1").is_dir())

    def test_ppo_without_a_reward_model(self):
        result = self.neap("train", "grpo.toml", *SMALL, "task=ppo", "actor_rollout_ref.rollout.n=1",
                           "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "critic.ppo_micro_batch_size_per_gpu=8",
                           "critic.model.path=out/sft/latest/actor", "critic.model.init_head=true",
                           "critic.ppo_mini_batch_size=8", "trainer.default_local_dir=out/ppo")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("rewards/numeric/mean", self.metrics("ppo")[-1])


if __name__ == "__main__":
    main()
