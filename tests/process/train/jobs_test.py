#!/usr/bin/env python3
"""What jobs of `neap train` are of: models, adapters, heads, tokenizers, conversations, slips. usage: FILE NEAP REVIEWS"""
import json
import re
import shutil

from train_process_test import main, PPO, read_lines, TrainCase


class Jobs(TrainCase):
    def test_two_runs_are_equal_with_several_threads(self):
        # Batches in which threads that add to one row of the embedding meet.
        sizes = ("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16",
                 "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "critic.ppo_mini_batch_size=16",
                 "critic.ppo_micro_batch_size_per_gpu=8", "device.memory=256MiB", "trainer.total_training_steps=3")
        for threads in (None, 2):
            with self.subTest(threads=threads):
                runs = []
                for name in ("a", "b"):
                    folder = f"out/threads-{threads}-{name}"
                    result = self.neap("train", "ppo.toml", *sizes, f"trainer.default_local_dir={folder}",
                                       threads=threads)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    runs.append(folder)
                self.assertEqual(*map(self.metrics, runs))
                for file in ("actor/model.safetensors", "actor/optimizer.safetensors", "critic/model.safetensors"):
                    self.assertEqual(*((self.home / run / "latest" / file).read_bytes() for run in runs), file)

    def test_same_seed_same_run_other_seed_other_run(self):
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            result = self.neap("train", "sft.toml", f"trainer.seed={seed}",
                               f"trainer.default_local_dir=out/seed-{name}", "trainer.total_training_steps=2")
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.metrics("out/seed-a"), self.metrics("out/seed-b"))
        self.assertNotEqual(self.metrics("out/seed-a"), self.metrics("out/seed-c"))

    def test_everything_resident_does_not_fit_under_the_ceiling(self):
        result = self.neap("train", "ppo.toml", "memory.offload=none",
                           "trainer.default_local_dir=out/all")
        self.assert_fails(result, 3, f"of {self.ceiling} MiB is free", "held by", "actor.optimizer")
        self.assertIn("over the capacity", result.stdout)
        small = self.neap("train", "ppo.toml", f"device.memory={self.ceiling - 2}MiB",
                          "trainer.default_local_dir=out/all")
        self.assertEqual(small.returncode, 3, small.stderr)

    def test_memory_lines_and_table(self):
        result = self.neap("train", "ppo.toml", "trainer.default_local_dir=out/lines",
                           "trainer.total_training_steps=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        for part in ("generate", "update_actor", "val/score", "val/kl_per_response"):
            self.assertIn(part, result.stdout)
        phases = read_lines(self.home / "out/lines/phases.jsonl")
        plan = json.loads((self.home / "out/lines/plan.json").read_text())
        peak = max(phase["peak"] for phase in phases)
        self.assertLessEqual(peak, self.ceiling << 20)
        self.assertLess(abs(peak / plan["peak"] - 1), 0.03, (peak, plan["peak"]))

    def test_lora_takes_its_frozen_base_as_reference(self):
        rank = ("actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=4")
        result = self.neap("train", "ppo.toml", *rank, "trainer.default_local_dir=out/lora", "device.memory=64MiB",
                           "trainer.total_training_steps=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        kl = [row["actor/reward_kl_penalty"] for row in self.metrics("out/lora")]
        self.assertAlmostEqual(kl[0], 0, places=4)  # an adapter starts as nothing
        self.assertNotEqual(kl[2], 0)
        on = self.neap("train", "ppo.toml", *rank, "trainer.default_local_dir=out/lora", "device.memory=64MiB",
                       "trainer.total_training_steps=4")
        self.assertEqual(on.returncode, 0, on.stderr)

    def test_what_lora_learned_goes_on_into_the_next_stage(self):
        out = "out/sft_lora"
        result = self.neap("train", "sft.toml", "actor_rollout_ref.model.path=out/sft/latest/actor",
                           "actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.actor.optim.lr=0.02",
                           f"trainer.default_local_dir={out}", "trainer.total_training_steps=4")
        self.assertEqual(result.returncode, 0, result.stderr)
        learned = read_lines(self.home / out / "validation.jsonl")
        self.assertGreater(abs(learned[-1]["val/loss"] - learned[0]["val/loss"]), 0.01, learned)
        result = self.neap("train", "sft.toml", f"actor_rollout_ref.model.path={out}/latest/actor",
                           "trainer.default_local_dir=out/after_lora", "trainer.total_training_steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        start = read_lines(self.home / "out/after_lora/validation.jsonl")[0]
        self.assertAlmostEqual(start["val/loss"], learned[-1]["val/loss"], places=3)
        texts = [self.neap("generate", f"{folder}/latest/actor", "--prompt", "Last night we ate", "--temperature", "0",
                           "--max-new-tokens", "16").stdout for folder in ("out/sft", out)]
        self.assertNotEqual(*texts)

    def test_a_changed_kl_coefficient_holds_when_a_run_goes_on(self):
        def coefficient(name, steps, *more):
            result = self.neap("train", "ppo.toml", f"trainer.default_local_dir=out/{name}", "device.memory=64MiB",
                               f"trainer.total_training_steps={steps}", *more)
            self.assertEqual(result.returncode, 0, result.stderr)
            return self.metrics(f"out/{name}")[steps - 1]["actor/reward_kl_penalty_coeff"]
        def resumed(name, *more):
            shutil.copytree(self.home / "out/kl", self.home / "out" / name, symlinks=True)
            return coefficient(name, 3, *more)
        self.assertNotEqual(coefficient("kl", 2), 0.05)
        self.assertEqual(resumed("same-kl"), coefficient("unbroken-kl", 3))
        self.assertEqual(resumed("other-kl", "algorithm.kl_ctrl.kl_coef=0.5"), 0.5)
        self.assertEqual(resumed("fixed-kl", "algorithm.kl_ctrl.type=fixed"), 0.05)
        self.assertEqual(resumed("other-fixed-kl", "algorithm.kl_ctrl.type=fixed", "algorithm.kl_ctrl.kl_coef=0.25"), 0.25)

    def test_grpo(self):
        text = PPO.replace('task = "ppo"', 'task = "grpo"').replace("CEILING", "64MiB")
        text = re.sub(r"\[critic\].*?(?=\[reward_model\])", "", text, flags=re.S)
        text = text.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2")
        (self.home / "grpo.toml").write_text(text)
        result = self.neap("train", "grpo.toml", "trainer.default_local_dir=out/grpo",
                           "trainer.total_training_steps=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("critic/vf_loss", self.metrics("out/grpo")[0])

    def test_conversations_train_on_every_turn_of_the_assistant(self):
        shutil.copytree(self.home / "model", self.home / "chat_model")
        template = ("{% for m in messages %}{{ m.role }}: {{ m.content }} end\n{% endfor %}"
                    "{% if add_generation_prompt %}assistant: {% endif %}")
        (self.home / "chat_model" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        user, other = ({"role": "user", "content": text} for text in ("Good?", "Was it any good, then?"))
        answer = {"role": "assistant", "content": "Yes."}

        def trained_tokens(name, messages, *words, model="chat_model", **more):
            (self.home / f"{name}.jsonl").write_text((json.dumps({"messages": messages, **more}) + "\n") * 16)
            result = self.neap("train", "sft.toml", f"data.train_files=['{name}.jsonl']", "data.val_files=[]",
                               "data.prompt_key=messages", f"actor_rollout_ref.model.path={model}",
                               "data.max_response_length=64", "data.max_prompt_length=32", "trainer.total_training_steps=1",
                               f"trainer.default_local_dir=out/tokens-{name}", *words)
            return result if result.returncode else self.metrics(f"out/tokens-{name}")[0]["perf/total_num_tokens"]

        once = trained_tokens("once", [user, answer])
        self.assertGreater(once, 16)
        self.assertEqual(trained_tokens("other", [other, answer]), once)
        self.assertEqual(trained_tokens("twice", [user, answer, other, answer]), 2 * once)
        self.assertEqual(trained_tokens("apart", [user], response="Yes."), once, "the same conversation in another layout")
        self.assertEqual(trained_tokens("message", [other], response=[answer]), once)
        with_end = trained_tokens("text", "?", response="user: Good? end\nassistant: Yes. end\n")
        self.assertEqual(trained_tokens("all", [user, answer], "data.assistant_only_loss=false"), with_end - 2 * 16,
                         "all but the first token, which nothing predicts, and no end token")
        self.assert_fails(trained_tokens("roles", [user], response=[other]), 2, "roles.jsonl:1", "message of the assistant")
        self.assert_fails(trained_tokens("plain", [user, answer], model="model"), 2, "plain.jsonl:1", "chat template")
        self.assert_fails(trained_tokens("silent", [user, user]), 2, "silent.jsonl:1", "no turn of the assistant")

    def test_slips_in_data_and_configuration(self):
        (self.home / "bad.jsonl").write_text('{"prompt": "a", "response": "b"}\n{"prompt": "a", \n')
        out = "trainer.default_local_dir=out/slips"
        self.assert_fails(self.neap("train", "sft.toml", "data.train_files=['bad.jsonl']", out), 2, "bad.jsonl:2")
        self.assert_fails(self.neap("train", "sft.toml", "data.train_files=['gone.jsonl']", out), 2, "gone.jsonl")
        self.assert_fails(self.neap("train", "sft.toml", "data.prompt_key=text", out), 2, '"text" is missing')
        self.assert_fails(self.neap("train", "sft.toml", "data.max_response_length=8", out), 2, "tokens")
        self.assert_fails(self.neap("train", "sft.toml", "trainer.lr=1", out), 2, "unknown key")
        self.assert_fails(self.neap("train", "gone.toml"), 2, "gone.toml")
        self.assert_fails(self.neap("train", "ppo.toml", "actor_rollout_ref.model.path=model", out), 2, "weights")
        self.assertFalse((self.home / "out/slips/metrics.jsonl").exists())

    def test_scalar_head_that_is_missing_is_refused(self):
        ppo = ("train", "ppo.toml", "device.memory=64MiB", "trainer.total_training_steps=1")
        language = "out/sft/latest/actor"
        reward = self.neap(*ppo, f"reward_model.model.path={language}", "trainer.default_local_dir=out/no-head")
        self.assert_fails(reward, 2, "score.weight", "reward model")
        critic = (*ppo, f"critic.model.path={language}", "trainer.default_local_dir=out/no-value-head")
        self.assert_fails(self.neap(*critic), 2, "score.weight", "critic.model.init_head")
        asked = self.neap(*critic, "critic.model.init_head=true")
        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.assertIn("the critic model's starts at zero", asked.stderr)
        self.assertEqual(self.metrics("out/no-value-head")[0]["critic/values/max"], 0)

    def test_critic_with_adapters_starts_with_the_reward_models_head(self):
        values = []
        for name, rank in (("full", 0), ("lora", 4)):
            result = self.neap("train", "ppo.toml", f"critic.model.lora_rank={rank}", "device.memory=64MiB",
                               f"trainer.default_local_dir=out/head-{name}", "trainer.total_training_steps=1")
            self.assertEqual(result.returncode, 0, result.stderr)
            values.append(self.metrics(f"out/head-{name}")[0]["critic/values/mean"])
        self.assertNotEqual(values[0], 0)
        self.assertAlmostEqual(*values, places=5)

    def test_tensors_without_a_place_are_reported(self):
        result = self.neap("train", "sft.toml", "actor_rollout_ref.model.path=out/reward/latest/reward",
                           "trainer.default_local_dir=out/unused", "trainer.total_training_steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, "1 tensors are not used by the actor model: score.weight")

    def changed_tokenizer(self, name):
        """The reward model with two tokens' ids swapped."""
        folder = self.home / name
        shutil.copytree(self.home / "out/reward/latest/reward", folder)
        file = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = file["model"]["vocab"]
        a, b = (token for token, id in vocabulary.items() if id in (500, 501))
        vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
        (folder / "tokenizer.json").write_text(json.dumps(file))
        return name

    def test_another_tokenizer_is_refused(self):
        other = self.changed_tokenizer("other-tokenizer")
        ppo = ("train", "ppo.toml", "device.memory=64MiB", "trainer.total_training_steps=1")
        for key in ("reward_model", "critic", "actor_rollout_ref.ref"):
            with self.subTest(key=key):
                folder = "out/sft/latest/actor" if key.endswith("ref") else "out/reward/latest/reward"
                result = self.neap(*ppo, f"{key}.model.path={folder}", f"{key}.model.tokenizer_path={other}",
                                   "trainer.default_local_dir=out/tokenizer")
                self.assert_fails(result, 1, "gives other ids", "id 500", f"{key}.model.tokenizer_path")
        result = self.neap(*ppo, f"reward_model.model.path={other}", "trainer.default_local_dir=out/tokenizer")
        self.assert_fails(result, 1, "gives other ids")
        named = self.neap(*ppo, f"reward_model.model.path={other}", "critic.model.path=out/reward/latest/reward",
                          "reward_model.model.tokenizer_path=model", "trainer.default_local_dir=out/tokenizer")
        self.assertEqual(named.returncode, 0, named.stderr)

    def test_every_end_token_ends_a_text(self):
        actor = self.home / "ends"
        shutil.copytree(self.home / "out/sft/latest/actor", actor)
        def generate(folder):
            result = self.neap("generate", folder, "--prompt", "Last night we ate", "--temperature", "0",
                               "--max-new-tokens", "12", "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout)
        tokens = generate("ends")["tokens"]
        config = {"eos_token_id": [0, tokens[3]], "temperature": 0.7}
        (actor / "generation_config.json").write_text(json.dumps(config))
        early = generate("ends")
        self.assertEqual((early["tokens"], early["finish_reason"]), (tokens[:tokens.index(tokens[3]) + 1], "stop"))
        result = self.neap("train", "sft.toml", "actor_rollout_ref.model.path=ends", "trainer.total_training_steps=1",
                           "trainer.default_local_dir=out/ends")
        self.assertEqual(result.returncode, 0, result.stderr)
        exported = self.home / "out/ends/latest/actor/generation_config.json"
        self.assertEqual(json.loads(exported.read_text()), config)

    def test_generate(self):
        for path in ("out/sft", "out/sft/latest", "out/sft/latest/actor"):
            result = self.neap("generate", path, "--prompt", "Last night we ate at the old inn.",
                               "--max-new-tokens", "8", "--seed", "3")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("Last night we ate at the old inn.", result.stdout)
        self.assertNotEqual(self.neap("generate", "out/nothing").returncode, 0)


if __name__ == "__main__":
    main()
