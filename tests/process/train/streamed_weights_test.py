#!/usr/bin/env python3
"""Models whose blocks rest on the host: the same training in less memory. usage: FILE NEAP REVIEWS

NEAP_TEST_SLOW=1: every job.
"""
import json
import re

from neap_program import SLOW, least_host, without
from train_process_test import MODEL, PPO, REWARD, TrainCase, head, main, read_lines

# Blocks of 1.6 MiB, so that two of them are little beside ten.
WIDE = dict(MODEL, hidden_size=160, intermediate_size=640, num_attention_heads=5, num_key_value_heads=5,
            head_dim=32, num_hidden_layers=10)
# The embedding rests on the host, too.
UNTIED = dict(WIDE, tie_word_embeddings=False)
# Tables of 8 MiB beside blocks of 1 MiB.
TABLES = dict(WIDE, vocab_size=16384, hidden_size=128, intermediate_size=512, num_attention_heads=2, num_key_value_heads=2, head_dim=64)
UNTIED_TABLES = dict(TABLES, tie_word_embeddings=False)
WIDE_ACTOR = "actor_rollout_ref.model.path=out/wide/latest/actor"
LORA = ["actor_rollout_ref.model.lora_rank=4", WIDE_ACTOR]
FP8 = ["device.dtype=bfloat16", "device.linear_dtype=fp8"]
STEPS = ["trainer.total_training_steps=3", "trainer.save_freq=2", "trainer.test_freq=2"]
FOUR_MICRO_BATCHES = ["data.micro_batch_size_per_gpu=2", "data.train_batch_size=8"]
JOBS = {
    "sft": (["sft.toml", *LORA, *STEPS, *FOUR_MICRO_BATCHES], {"actor"}),
    "sft packed recomputed": (["sft.toml", *LORA, *STEPS, "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=128",
                               "actor_rollout_ref.model.activation_checkpointing=full"], {"actor"}),
    "reward": (["reward.toml", *LORA, *STEPS], {"reward"}),
    # Weights, gradients and states.
    "sft full": (["sft.toml", *STEPS, WIDE_ACTOR, *FOUR_MICRO_BATCHES], {"actor"}),
    "sft full adafactor": (["sft.toml", *STEPS, WIDE_ACTOR, "actor_rollout_ref.actor.optim.optimizer=adafactor",
                            "actor_rollout_ref.model.activation_checkpointing=full"], {"actor"}),
    # Two micro-batches: a CPU takes five times as long with fp8.
    "sft full fp8": (["sft.toml", *STEPS, *FP8, WIDE_ACTOR, "data.micro_batch_size_per_gpu=2", "data.train_batch_size=4"], {"actor"}),
    "reward full": (["reward.toml", *STEPS, WIDE_ACTOR], {"reward"}),
    "dpo full": (["dpo.toml", *STEPS, "actor_rollout_ref.model.path=out/untied/latest/actor",
                  "actor_rollout_ref.actor.grad_clip=0.05", "actor_rollout_ref.model.activation_checkpointing=full"],
                 {"actor", "reference"}),
    # Embedding and head come in turns.
    "sft full tables": (["sft.toml", *STEPS, "actor_rollout_ref.model.path=out/tables/latest/actor", *FOUR_MICRO_BATCHES], {"actor"}),
    "dpo full tables": (["dpo.toml", *STEPS, "actor_rollout_ref.model.path=out/untied_tables/latest/actor",
                         "actor_rollout_ref.actor.grad_clip=0.05", "actor_rollout_ref.model.activation_checkpointing=full"],
                        {"actor", "reference"}),
    "sft tables": (["sft.toml", *LORA, *STEPS, "actor_rollout_ref.model.path=out/tables/latest/actor"], {"actor"}),
    "reward full tables": (["reward.toml", *STEPS, "actor_rollout_ref.model.path=out/tables/latest/actor"], {"reward"}),
    # The reference is the actor's base.
    "dpo": (["dpo.toml", *LORA, *STEPS, "actor_rollout_ref.model.path=out/untied/latest/actor"], {"actor"}),
    "ppo": (["ppo.toml", "actor_rollout_ref.model.path=out/sft/latest/actor", "critic.model.path=out/judge/latest/reward",
             "reward_model.model.path=out/judge/latest/reward", "critic.model.lora_rank=4", "trainer.total_training_steps=3",
             "trainer.save_freq=2"], {"critic", "reward"}),
    # The actor's blocks come together for its rollout.
    "grpo full": (["grpo.toml", WIDE_ACTOR, *STEPS, "data.val_files=[]"], {"actor", "reference"}),
    "grpo fp8": (["grpo.toml", *LORA, *STEPS, *FP8, "data.val_files=[]", "actor_rollout_ref.model.path=out/untied/latest/actor"], {"actor"}),
    "grpo": (["grpo.toml", *LORA, *STEPS, "data.val_files=[]", "actor_rollout_ref.model.path=out/untied/latest/actor"], {"actor"}),
    "ppo all": (["ppo.toml", WIDE_ACTOR, "critic.model.path=out/judge/latest/reward", "reward_model.model.path=out/judge/latest/reward",
                 *STEPS], {"actor", "reference", "critic", "reward"}),
}

# Their parts are in the others, or in GROUPED.
COVERED = ("reward", "reward full", "sft full adafactor", "sft full tables", "reward full tables", "dpo", "dpo full", "grpo", "grpo full", "grpo fp8")

# Where there is a little more room a block comes once for several micro-batches, if its copies were waited for.
GROUPED = {**{name: JOBS[name][0] for name in ("sft", "sft full", "sft full fp8", "dpo full", "dpo full tables", "ppo")},
           "sft full tables small": [*JOBS["sft full tables"][0], "data.micro_batch_size_per_gpu=1"],
           "reward full small": [*JOBS["reward full"][0], "data.micro_batch_size_per_gpu=1"],
           "dpo full tables packed": [*JOBS["dpo full tables"][0], "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=128"]}


# Trained blocks stay where their states do.
STAY = ["memory.optimizer_offload=none", "actor_rollout_ref.model.activation_checkpointing=full"]
INPUTS = {"sft": ["sft.toml", WIDE_ACTOR, *STEPS, *STAY, "data.micro_batch_size_per_gpu=16"],
          "grpo": ["grpo.toml", WIDE_ACTOR, *STEPS, *STAY, "data.val_files=[]", "data.train_batch_size=16",
                   "actor_rollout_ref.actor.ppo_mini_batch_size=16", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32"]}

DISK = 'memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"]'
# Full training of blocks that take more than huge pages of host memory.
ON_DISK = {"sft": ["sft.toml", *STEPS, "data.micro_batch_size_per_gpu=2"],
           "dpo": ["dpo.toml", *STEPS, "actor_rollout_ref.model.activation_checkpointing=full"],
           "grpo": ["grpo.toml", *STEPS, "data.val_files=[]"]}


class StreamedCase(TrainCase):
    """Runs under the least memory, beside those of which everything is resident."""
    residents = {}

    def least(self, *words):
        """The minimum capacity in MiB."""
        result = self.neap("plan", *words, "device.memory=1MiB")
        self.assertEqual(result.returncode, 3, result.stderr)
        return int(re.search(r"minimum capacity is (\d+) MiB", result.stderr).group(1))

    def least_host(self, *words):
        """The least memory.host_budget in bytes."""
        return least_host(lambda budget: self.neap("plan", *words, f"memory.host_budget={budget}B", "--json"))

    def train(self, name, *words):
        folder = f"out/{name.replace(' ', '_')}"
        result = self.neap("train", *words, f"trainer.default_local_dir={folder}")
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.home / folder

    def resident(self, name, *words):
        """One run for all cases with these words."""
        if words not in self.residents:
            self.residents[words] = self.train(name, *words, "device.memory=2GiB", "memory.offload=none")
        return self.residents[words]

    def assert_equal_runs(self, one, other):
        self.assertEqual(self.metrics(one), self.metrics(other))
        self.assert_equal_files(one, other)

    def assert_equal_files(self, one, other):
        files = sorted(path.relative_to(one) for path in one.rglob("*.safetensors") if "latest" not in path.parts)
        self.assertTrue(files)
        for file in files:
            self.assertTrue((one / file).read_bytes() == (other / file).read_bytes(), file)

    def check_phases(self, folder, plan, capacity):
        """Every phase that runs such a model fetched what the plan says, within the ceiling."""
        phases = {phase["name"]: phase for phase in plan["phases"]}
        fetched = {}
        packed = "packed" in folder.name
        for record in read_lines(folder / "phases.jsonl"):
            self.assertLessEqual(record["peak"], capacity, record)
            self.assertLessEqual(record["peak"], 1.03 * phases[record["phase"]]["peak"] + (2 << 20), record)
            key = record["step"], record["phase"]
            fetched[key] = fetched.get(key, 0) + sum(s["to_device"] for s in record["streamed"])
        self.assertTrue(any(fetched.values()))
        for (step, phase), size in fetched.items():
            planned = phases[phase]["loaded"]
            if not packed and phase != "validate":  # a validation may run the phase again
                self.assertEqual(size, planned * max(1, round(size / max(1, planned))), (step, phase))


class StreamedWeights(StreamedCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home()
        head(cls.reviews / "sft_val.jsonl", cls.home / "sft_val.jsonl", 8)
        cls.add_model("wide", WIDE)
        cls.add_model("untied", UNTIED)
        cls.add_model("tables", TABLES)
        cls.add_model("untied_tables", UNTIED_TABLES)
        (cls.home / "dpo.toml").write_text(REWARD.replace('"reward"', '"dpo"').replace("out/reward", "out/dpo"))
        ppo = PPO.replace("CEILING", "2GiB")
        (cls.home / "ppo.toml").write_text(ppo)
        grpo = re.sub(r"\[critic\][^\[]*", "", ppo.replace('"ppo"', '"grpo"')).replace("out/reward/", "out/judge/")
        (cls.home / "grpo.toml").write_text(grpo.replace("ref.rollout]", "ref.rollout]\nn = 2"))
        once = ["trainer.total_training_steps=1", "data.train_batch_size=2", "data.micro_batch_size_per_gpu=2", "device.memory=2GiB"]
        for words in (["sft.toml", *once], ["sft.toml", "actor_rollout_ref.model.path=wide", "trainer.default_local_dir=out/wide", *once],
                      ["sft.toml", "actor_rollout_ref.model.path=untied", "trainer.default_local_dir=out/untied", *once],
                      ["sft.toml", "actor_rollout_ref.model.path=tables", "trainer.default_local_dir=out/tables", *once],
                      ["sft.toml", "actor_rollout_ref.model.path=untied_tables", "trainer.default_local_dir=out/untied_tables", *once],
                      ["reward.toml", "actor_rollout_ref.model.path=out/wide/latest/actor", "trainer.default_local_dir=out/judge", *once]):
            result = cls.neap("train", *words)
            assert result.returncode == 0, result.stderr

    def test_equal_bits_in_less_memory(self):
        with_inputs = 0
        for name, (words, models) in without(*COVERED, of=JOBS).items():
            with self.subTest(name):
                resident = self.resident(f"{name} resident", *words)
                kept = self.least(*words, 'memory.allow=["recompute", "offload", "offload_optimizer"]')
                least = self.least(*words)
                self.assertLess(least, kept)
                streamed = self.train(f"{name} streamed", *words, f"device.memory={least}MiB")
                self.assert_equal_runs(resident, streamed)
                plan = json.loads((streamed / "plan.json").read_text())
                self.assertEqual(set(plan["offloaded_weights"]), models)
                if "tables" in name:
                    self.assertEqual(set(plan["offloaded_embeddings"]), models)
                # Less is kept on the device between forward and backward.
                self.assertTrue(set(plan["offloaded_layer_inputs"]) <= models)
                with_inputs += bool(plan["offloaded_layer_inputs"])
                self.check_phases(streamed, plan, least << 20)
        self.assertGreater(with_inputs, 4 if SLOW else 0)

    def test_inputs_of_resident_blocks_have_the_same_bits(self):
        for name, words in INPUTS.items():
            with self.subTest(name):
                resident = self.resident(f"{name} inputs resident", *words)
                least = self.least(*words)
                self.assertLess(least, self.least(*words, 'memory.allow=["recompute", "offload", "offload_optimizer"]'))
                run = self.train(f"{name} inputs", *words, f"device.memory={least}MiB")
                self.assert_equal_runs(resident, run)
                plan = json.loads((run / "plan.json").read_text())
                self.assertNotIn("actor", plan["offloaded_weights"])
                self.assertEqual(plan["offloaded_layer_inputs"], ["actor"])
                self.check_phases(run, plan, least << 20)

    def test_groups_of_micro_batches_have_the_same_bits(self):
        for name, words in without("sft full", "dpo full", of=GROUPED).items():
            with self.subTest(name):
                kept = self.least(*words, 'memory.allow=["recompute", "offload", "offload_optimizer"]')
                least = self.least(*words)
                for share in (0.9, 0.75, 0.5, 0.25):
                    capacity = least + int(share * (kept - least))
                    shown = self.neap("plan", *words, f"device.memory={capacity}MiB", "--json")
                    if max(json.loads(shown.stdout)["micro_batches_per_load"].values(), default=1) > 1:
                        break
                resident = self.resident(f"{name} resident", *words)
                grouped = self.train(f"{name} grouped", *words, f"device.memory={capacity}MiB")
                self.assert_equal_runs(resident, grouped)
                plan = json.loads((grouped / "plan.json").read_text())
                self.assertGreater(max(plan["micro_batches_per_load"].values()), 1)
                self.check_phases(grouped, plan, capacity << 20)
                single = json.loads(self.neap("plan", *words, f"device.memory={least}MiB", "--json").stdout)
                self.assertLess(sum(phase["loaded"] for phase in plan["phases"]), sum(phase["loaded"] for phase in single["phases"]))

    def test_blocks_on_disk_have_the_same_bits(self):
        self.add_model("large", dict(WIDE, hidden_size=256, intermediate_size=768, num_hidden_layers=6))
        self.train("large", "sft.toml", "actor_rollout_ref.model.path=large", "trainer.total_training_steps=1", "device.memory=2GiB")
        for name, words in ON_DISK.items():
            with self.subTest(name):
                words = [*words, "actor_rollout_ref.model.path=out/large/latest/actor", DISK]
                resident = self.train(f"{name} not on disk", *words, "device.memory=2GiB", "memory.offload=none")
                ceiling = f"device.memory={self.least(*words) + 8}MiB"
                budget = self.least_host(*words, ceiling)
                scratch = self.home / f"scratch-{name}"
                scratch.mkdir()
                run = self.train(f"{name} on disk", *words, ceiling, f"memory.host_budget={budget}B", f"memory.nvme_path={scratch}")
                self.assertEqual(list(scratch.iterdir()), [])
                self.assert_equal_runs(resident, run)
                plan = json.loads((run / "plan.json").read_text())
                self.assertIn("actor", plan["weights_on_nvme"])
                self.assertEqual(plan["optimizer_offload"], {"actor": "nvme"})
                self.assertEqual(plan["host_bytes"], budget)
                rests = [part for tag in plan["tags"] for part in tag.get("offloaded", []) if part.get("on") == "disk"]
                self.assertEqual(sum(part["bytes"] for part in rests), plan["disk_bytes"])
                self.assertEqual({part["kind"] for part in rests}, {"weights", "gradients", "states"})
                phases = {phase["name"]: phase for phase in plan["phases"]}
                self.check_phases(run, plan, int(ceiling[14:-3]) << 20)
                records = [r for r in read_lines(run / "phases.jsonl") if r["step"] == 1 and r["phase"] != "validate"]
                for key in ("disk_read", "disk_written"):
                    moved = {}
                    for record in records:
                        moved[record["phase"]] = moved.get(record["phase"], 0) + sum(s.get(key, 0) for s in record["streamed"])
                    self.assertEqual(moved, {phase: phases[phase][key] for phase in moved})
                    self.assertGreater(sum(moved.values()), 0)

    def test_a_run_takes_the_host_memory_that_is_planned(self):
        for name in ("sft full tables", "dpo", "ppo all"):
            with self.subTest(name):
                words = [*JOBS[name][0], "trainer.total_training_steps=1"]
                words.append(f"device.memory={self.least(*words)}MiB")
                budget = self.least_host(*words)
                run = self.train(f"{name} in host memory", *words, f"memory.host_budget={budget}B")
                self.assertEqual(json.loads((run / "plan.json").read_text())["host_bytes"], budget)
                refused = self.neap("train", *words, f"memory.host_budget={budget - 1}B", "trainer.default_local_dir=out/refused")
                self.assert_fails(refused, 3, "host budget")
        # Nothing leaves the device: before the first step, either.
        run = self.train("no host memory", *JOBS["dpo full"][0], "trainer.total_training_steps=1", "device.memory=2GiB", "memory.host_budget=1B")
        self.assertEqual(json.loads((run / "plan.json").read_text())["host_bytes"], 0)

    def test_resumes_under_another_capacity(self):
        words, _ = JOBS["sft"]
        whole = self.resident("sft resident", *words)
        least = self.least(*words)
        resumed = self.train("resumed", *words, f"device.memory={least}MiB", f"trainer.resume_mode={whole}/global_step_2")
        self.assertEqual(self.metrics(whole)[2:], self.metrics(resumed)[-1:])
        self.assert_equal_files(whole / "global_step_3", resumed / "global_step_3")

    def test_says_what_is_streamed(self):
        words, _ = JOBS["sft"]
        least = self.least(*words)
        shown = self.neap("plan", *words, f"device.memory={least}MiB")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r"actor\.prefetch: 10 layers, the embedding with inputs, [0-9.]+ MiB in all, offloaded to the CPU; "
                                       r"backward loads [0-9.]+ MiB, writes back [0-9.]+ MiB and waits")
        # Not with a host budget that the blocks are over.
        refused = self.neap("plan", *words, f"device.memory={least}MiB", "memory.host_budget=8MiB")
        self.assertEqual(refused.returncode, 3, refused.stdout)


if __name__ == "__main__":
    main()
