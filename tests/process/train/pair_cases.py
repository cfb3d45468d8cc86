"""Cases of algorithms_test.py: tasks whose rows are pairs of responses."""
import re

from neap_program import read_lines

DPO = """
task = "dpo"
[device]
kind = "cpu"
memory = "MEMORY"
[data]
train_files = ["bandit_pairs.jsonl"]
val_files = ["bandit_pairs.jsonl"]
train_batch_size = 16
use_dynamic_bsz = false
micro_batch_size_per_gpu = 8
max_prompt_length = 24
max_response_length = 3
[actor_rollout_ref.model]
path = "start"
activation_checkpointing = "selective"
[actor_rollout_ref.actor]
optim.lr = 1e-2
[trainer]
total_training_steps = 12
save_freq = 4
default_local_dir = "out/dpo"
logger = ["jsonl"]
"""
# A token of each half of the vocabulary, by its text.
GOOD, BAD = " the", " rotten"
DPO_LOSSES = {"sigmoid": [], "cdpo": ["dpo.label_smoothing=0.1"], "sigmoid_norm": ["dpo.loss_type=sigmoid_norm"],
              "ipo": ["dpo.loss_type=ipo"], "ipo_sum": ["dpo.loss_type=ipo_sum"], "hinge": ["dpo.loss_type=hinge"],
              "robust": ["dpo.loss_type=robust", "dpo.label_smoothing=0.1"]}


class PairCases:
    """`home`, `neap`, `train` and the assertions are the test's."""

    def test_dpo_prefers_what_is_chosen(self):
        for name, overrides in DPO_LOSSES.items():
            with self.subTest(name):
                rows = self.train(f"dpo-{name}", "dpo.toml", overrides)
                self.assertLess(rows[-1]["train/loss"], rows[0]["train/loss"])
                self.assertAlmostEqual(rows[0]["rewards/margins"], 0.0, places=5, msg="the policy is the reference")
                self.assertGreater(rows[-1]["rewards/margins"], 0.05)
                self.assertAlmostEqual(rows[-1]["rewards/margins"], rows[-1]["rewards/chosen"] - rows[-1]["rewards/rejected"],
                                       places=6)
                before, after = self.validations(f"out/dpo-{name}")
                self.assertLess(after["val/loss"], before["val/loss"])
                self.assertEqual(after["val/rewards/accuracies"], 1.0)
                self.assertGreater(after["val/logps/chosen"] - after["val/logps/rejected"],
                                   before["val/logps/chosen"] - before["val/logps/rejected"])

    def test_dpo_under_a_ceiling_and_killed_in_the_middle_is_the_same(self):
        free = self.train("dpo-free", "dpo.toml", [])
        refusal = self.neap("train", "dpo.toml", "device.memory=2MiB", "trainer.default_local_dir=out/dpo-tight")
        self.assertEqual(refusal.returncode, 3, refusal.stderr)
        least = int(re.search(r"minimum capacity is (\d+) MiB", refusal.stderr).group(1))
        tight = self.train("dpo-tight", "dpo.toml", [f"device.memory={least}MiB"])
        self.assertEqual(tight, free)
        for record in read_lines(self.home / "out/dpo-tight/phases.jsonl"):
            self.assertLessEqual(record["peak"], least << 20, record)
        long = DPO.replace("MEMORY", f"{least}MiB").replace("total_training_steps = 12", "total_training_steps = 200")
        (self.home / "dpo-kill.toml").write_text(long)
        self.kill_and_resume("dpo-kill", [60, 120], 1)

    def test_dpo_takes_the_adapters_base_or_another_folder_as_reference(self):
        adapted = self.train("dpo-lora", "dpo.toml", ["actor_rollout_ref.model.lora_rank=4"])
        self.assertNotIn("reference.weights", (self.home / "out/dpo-lora/plan.json").read_text())
        self.assertAlmostEqual(adapted[0]["rewards/margins"], 0.0, places=5)
        self.assertGreater(adapted[-1]["rewards/margins"], 0.0)
        self.train("dpo-other", "dpo.toml", ["trainer.total_training_steps=3"])
        self.train("dpo-away", "dpo.toml", ["actor_rollout_ref.ref.model.path=out/dpo-other/latest/actor",
                                            "trainer.total_training_steps=1"])
        self.assertLess(self.metrics("out/dpo-away")[0]["rewards/margins"], 0.0)

    def test_rows_of_pairs(self):
        def run(name, rows, *overrides, steps=1):
            self.write(f"{name}.jsonl", rows)
            return self.neap("train", "dpo.toml", f'data.train_files=["{name}.jsonl"]', "data.val_files=[]", "data.train_batch_size=3",
                             "data.micro_batch_size_per_gpu=3", f"trainer.total_training_steps={steps}", "data.shuffle=false",
                             f"trainer.default_local_dir=out/{name}", *overrides)

        explicit = [{"prompt": "We ate", "chosen": GOOD, "rejected": BAD}] * 3
        # The prompt stands in both responses, as text or as messages.
        texts = [{"chosen": "We ate" + GOOD, "rejected": "We ate" + BAD}] * 3
        ask = {"role": "user", "content": "We ate"}
        chats = [{"chosen": [ask, {"role": "assistant", "content": GOOD}],
                  "rejected": [ask, {"role": "assistant", "content": BAD}]}] * 3
        with_text = [dict(chats[0], prompt="We ate")] * 3
        for name, rows in (("explicit", explicit), ("texts", texts), ("chats", chats), ("with-text", with_text)):
            result = run(name, rows)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.metrics(f"out/{name}"), self.metrics("out/explicit"), name)
        # A ranking of three is three pairs: one step of three.
        result = run("ranked", [{"prompt": "We ate", "ranking": [GOOD, " at", BAD]}], "trainer.total_training_steps=0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.metrics("out/ranked")), 1)
        for rows, part in (([{"prompt": "We ate", "chosen": GOOD}], 'field "rejected" is missing'),
                           ([{"prompt": "We ate", "ranking": [GOOD]}], "at least 2 responses"),
                           ([{"chosen": "Yes", "rejected": "no"}], "the responses start differently"),
                           ([{"prompt": "We ate", "chosen": GOOD, "rejected": BAD, "margin": "x"}], "is not a number"),
                           ([{"prompt": "We ate", "chosen": 3, "rejected": BAD}], "a response is text")):
            result = run("broken", rows)
            self.assert_fails(result, 2, part, "broken.jsonl:1")

    def test_reward_models_keep_a_margin_and_stay_centred(self):
        prompts = [row["prompt"] for row in read_lines(self.home / "prompts.jsonl")]
        def run(name, margin, *overrides):
            self.write("margins.jsonl", [{"prompt": p, "chosen": GOOD, "rejected": BAD, "margin": margin} for p in prompts])
            return self.train(name, "dpo.toml", ["task=reward", 'data.train_files=["margins.jsonl"]', "data.val_files=[]",
                                                 "trainer.total_training_steps=20", *overrides])[-1]
        plain, wide = run("margin-0", 0.0), run("margin-5", 5.0)
        self.assertGreater(wide["train/margin"], plain["train/margin"])
        self.assertGreater(wide["train/loss"], plain["train/loss"])
        centred = run("centred", 0.0, "reward_model.center_rewards_coefficient=10.0")
        self.assertNotEqual(centred["train/loss"], plain["train/loss"])
