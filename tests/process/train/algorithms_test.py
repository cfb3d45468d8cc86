#!/usr/bin/env python3
"""Every algorithm of docs/algorithms.md improves its own objective on a bandit: `neap train` as a process. usage: FILE NEAP REVIEWS

The reward model is written here: its score is 1 where the last token's id is below half of the vocabulary, else 0. A policy
that starts at random gets a half. NEAP_TEST_SLOW=1: each algorithm alone.
"""
import json
import math
import shutil
import signal
import statistics

from neap_program import SLOW, write_safetensors
from pair_cases import BAD, DPO, GOOD, PairCases
from train_process_test import TrainCase, main, read_lines

ACTOR = {"model_type": "llama", "vocab_size": 1024, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": True,
         "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
JUDGE = dict(ACTOR, hidden_size=8, head_dim=4)
RL = """
task = "grpo"
[device]
kind = "cpu"
[data]
train_files = ["prompts.jsonl"]
train_batch_size = 16
max_prompt_length = 24
max_response_length = 2
[actor_rollout_ref.model]
path = "bandit"
activation_checkpointing = "selective"
[actor_rollout_ref.actor]
use_dynamic_bsz = false
ppo_mini_batch_size = 8
ppo_micro_batch_size_per_gpu = 16
optim.lr = 3e-2
[actor_rollout_ref.rollout]
n = 4
log_prob_micro_batch_size_per_gpu = 64
[critic]
model.activation_checkpointing = "selective"
ppo_mini_batch_size = 8
ppo_micro_batch_size_per_gpu = 16
optim.lr = 3e-2
[reward_model.model]
path = "judge"
[trainer]
save_freq = -1
total_training_steps = 30
default_local_dir = "out/bandit"
logger = ["jsonl"]
"""
ESTIMATORS = ["grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "opo", "gpg"]
# What differs from GRPO with PPO's clip.
ALGORITHMS = {
    **{name: [f"algorithm.adv_estimator={name}"] for name in ESTIMATORS},
    "ppo": ["task=ppo"],
    "dr_grpo": ["algorithm.norm_adv_by_std_in_grpo=false", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
                "actor_rollout_ref.actor.loss_scale_factor=4"],
    "clip_higher": ["actor_rollout_ref.actor.clip_ratio_high=0.28", "actor_rollout_ref.actor.clip_ratio_c=10"],
    "gspo": ["actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "actor_rollout_ref.actor.clip_ratio=0.05"],
    "cispo": ["actor_rollout_ref.actor.policy_loss.loss_mode=cispo", "actor_rollout_ref.actor.clip_ratio_low=10"],
    "gpg_loss": ["actor_rollout_ref.actor.policy_loss.loss_mode=gpg"],
    "dro": ["actor_rollout_ref.actor.policy_loss.loss_mode=dro", "actor_rollout_ref.actor.policy_loss.dro_beta=0.1"],
    "sapo": ["actor_rollout_ref.actor.policy_loss.loss_mode=sapo"],
    "geo_mean": ["actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean", "actor_rollout_ref.actor.clip_ratio=0.4"],
    # With bounds at which tokens are drawn at all.
    "clip_cov": ["actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov", "actor_rollout_ref.actor.policy_loss.clip_cov_lb=0.01",
                 "actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.1"],
    "kl_cov": ["actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov", "actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.1"],
    "bypass": ["algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.rollout_rs=token_k2",
               "algorithm.rollout_correction.rollout_rs_threshold=2.0"],
    "bypass reinforce": ["algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.loss_type=reinforce",
                         "algorithm.rollout_correction.rollout_is=sequence"],
    "truncated importance sampling": ["algorithm.rollout_correction.rollout_is=token"],
}
# In one run, because either is wrong where the score does not rise.
TOGETHER = (("rloo", "gspo"), ("reinforce_plus_plus", "cispo"), ("reinforce_plus_plus_baseline", "dro"), ("remax", "sapo"), ("opo", "geo_mean"),
            ("gpg", "gpg_loss"), ("truncated importance sampling", "kl_cov"), ("bypass", "clip_higher"))


def algorithms():
    if SLOW:
        return ALGORITHMS
    alone = ALGORITHMS.keys() - {name for pair in TOGETHER for name in pair}
    return {name: ALGORITHMS[name] for name in sorted(alone)} | {" with ".join(pair): ALGORITHMS[pair[0]] + ALGORITHMS[pair[1]] for pair in TOGETHER}


def judge():
    """Embeddings of length 1 whose first coordinate is half the score; the layer adds nothing."""
    width, vocabulary, between, heads = JUDGE["hidden_size"], JUDGE["vocab_size"], JUDGE["intermediate_size"], 8
    table = []
    for token in range(vocabulary):
        first = 0.5 if token < vocabulary // 2 else 0.0
        table += [first, math.sqrt(1 - first * first)] + [0.0] * (width - 2)
    layer = "model.layers.0."
    shapes = {"self_attn.q_proj": [heads, width], "self_attn.k_proj": [4, width], "self_attn.v_proj": [4, width],
              "self_attn.o_proj": [width, heads], "mlp.gate_proj": [between, width], "mlp.up_proj": [between, width],
              "mlp.down_proj": [width, between]}
    tensors = {f"{layer}{name}.weight": (shape, [0.0] * (shape[0] * shape[1])) for name, shape in shapes.items()}
    for name in (f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm"):
        tensors[f"{name}.weight"] = ([width], [1.0] * width)
    tensors["model.embed_tokens.weight"] = ([vocabulary, width], table)
    tensors["score.weight"] = ([1, width], [2 / math.sqrt(width)] + [0.0] * (width - 1))
    return tensors


class Algorithms(PairCases, TrainCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home()
        cls.add_model("bandit", ACTOR)
        cls.add_model("judge", JUDGE)
        write_safetensors(cls.home / "judge" / "model.safetensors", judge())
        (cls.home / "bandit.toml").write_text(RL)
        prompts = [row["prompt"] for row in read_lines(cls.home / "prompts.jsonl")]
        cls.write("bandit_pairs.jsonl", [{"prompt": p, "chosen": GOOD, "rejected": BAD} for p in prompts])
        cls.write("start.jsonl", [{"prompt": p, "response": GOOD if i % 2 else BAD} for i, p in enumerate(prompts)])
        (cls.home / "dpo.toml").write_text(DPO.replace("MEMORY", "0 B"))
        # A policy that writes either.
        result = cls.neap("train", "dpo.toml", "task=sft", 'data.train_files=["start.jsonl"]', "data.val_files=[]",
                          "actor_rollout_ref.model.path=bandit", "trainer.default_local_dir=out/start")
        assert result.returncode == 0, result.stderr
        shutil.copytree(cls.home / "out/start/latest/actor", cls.home / "start")

    @classmethod
    def write(cls, name, rows):
        (cls.home / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def train(self, name, file, overrides):
        folder = f"out/{name}"
        result = self.neap("train", file, f"trainer.default_local_dir={folder}", *overrides)
        self.assertEqual(result.returncode, 0, f"{overrides}\n{result.stderr}")
        return self.metrics(folder)

    def test_rewards_rise(self):
        for name, overrides in algorithms().items():
            with self.subTest(name):
                rows = self.train(name, "bandit.toml", overrides)
                scores = [row["critic/score/mean"] for row in rows]
                before, after = statistics.fmean(scores[:3]), statistics.fmean(scores[-3:])
                self.assertLess(abs(before - 0.5), 0.2, scores)
                self.assertGreater(after, 0.9, scores)

    def test_one_update_needs_no_old_log_probabilities(self):
        one = ["actor_rollout_ref.actor.ppo_mini_batch_size=16", "trainer.total_training_steps=3"]
        forced = "actor_rollout_ref.rollout.calculate_log_probs=true"  # the divergence from the rollout reads them
        for name, keys in {"plain": [], "entropy": ["actor_rollout_ref.actor.entropy_coeff=0.01"],
                           "gspo": ["actor_rollout_ref.actor.policy_loss.loss_mode=gspo"]}.items():
            with self.subTest(name):
                without, with_pass = self.train(f"once-{name}", "bandit.toml", one + keys), self.train(
                    f"once-{name}-pass", "bandit.toml", [*one, *keys, forced])
                phases = [{record["phase"] for record in read_lines(self.home / f"out/{run}/phases.jsonl")}
                          for run in (f"once-{name}", f"once-{name}-pass")]
                self.assertEqual(phases[1] - phases[0], {"actor_logp"})
                for mine, its in zip(without, with_pass):
                    self.assertEqual(mine["actor/ppo_kl"], 0.0)
                    self.assertGreater(mine["actor/entropy"], 1.0)
                    for number in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/score/mean"):
                        self.assertAlmostEqual(mine[number], its[number], delta=1e-5 * max(1, abs(its[number])), msg=number)

    def test_dynamic_sampling_fills_the_batch(self):
        dapo = ["algorithm.filter_groups.enable=true", "trainer.total_training_steps=6", "trainer.save_freq=3",
                "actor_rollout_ref.rollout.n=2"]
        rows = self.train("filter", "bandit.toml", dapo)
        # Half of the pairs of responses have the same score: it takes two batches, more or fewer.
        self.assertGreater(statistics.fmean(row["train/num_gen_batches"] for row in rows), 1.2)
        for row in rows:
            self.assertEqual(row["critic/score/mean"], rows[0]["critic/score/mean"], "one of two in every pair")
            self.assertNotEqual(row["actor/pg_loss"], 0.0)
        phases = [record["phase"] for record in read_lines(self.home / "out/filter/phases.jsonl") if record["step"] == 1]
        batches = int(rows[0]["train/num_gen_batches"])
        self.assertEqual(phases, ["generate", "rewards"] * batches + ["actor_logp", "train_actor"])
        # The place in the data is part of the checkpoint.
        shutil.copytree(self.home / "out/filter", self.home / "out/filter-resumed", symlinks=True)
        shutil.rmtree(self.home / "out/filter-resumed/global_step_6")
        latest = self.home / "out/filter-resumed/latest"
        latest.unlink()
        latest.symlink_to("global_step_3")
        (self.home / "out/filter-resumed/latest_checkpointed_iteration.txt").write_text("3")
        self.assertEqual(self.train("filter-resumed", "bandit.toml", dapo), rows)
        result = self.neap("train", "bandit.toml", "trainer.default_local_dir=out/filter-limit", *dapo,
                           "actor_rollout_ref.rollout.temperature=0", "algorithm.filter_groups.max_num_gen_batches=2")
        self.assert_fails(result, 1, "Stopped after 0 of 6 steps", "After 2 batches only 0 of 16 prompts")

    def test_dynamic_sampling_that_finds_nothing_can_be_interrupted(self):
        arguments = ("train", "bandit.toml", "trainer.default_local_dir=out/filter-endless", "algorithm.filter_groups.enable=true",
                     "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.rollout.temperature=0", "trainer.total_training_steps=6")
        process = self.start(*arguments)
        lines = []
        while not any("4 batches of prompts generated: 0 of 16 prompts" in line for line in lines):
            lines.append(process.stderr.readline())
            self.assertTrue(lines[-1], "".join(lines))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("Interrupted after step 0 of 6", err)
        self.assertTrue((self.home / "out/filter-endless/global_step_0").is_dir())

    def test_dynamic_sampling_compares_other_numbers(self):
        dapo = ["algorithm.filter_groups.enable=true", "trainer.total_training_steps=2", "actor_rollout_ref.rollout.n=2"]
        plain = self.train("filter-plain", "bandit.toml", dapo)
        same = self.train("filter-final", "bandit.toml", [*dapo, "algorithm.filter_groups.metric=seq_final_reward"])
        self.assertEqual(same, plain, "without a KL it is the score")
        kl = ["algorithm.use_kl_in_reward=true", "actor_rollout_ref.ref.model.path=start"]
        priced = self.train("filter-kl", "bandit.toml", [*dapo, *kl, "algorithm.filter_groups.metric=seq_final_reward"])
        # Two responses with the same score have another KL: every prompt counts.
        self.assertEqual([row["train/num_gen_batches"] for row in priced], [1.0, 1.0])
        phases = [record["phase"] for record in read_lines(self.home / "out/filter-kl/phases.jsonl") if record["step"] == 1]
        self.assertEqual(phases, ["generate", "rewards", "actor_logp", "ref_logp", "train_actor"])
        # The KL of a deterministic policy's equal responses is equal, too.
        result = self.neap("train", "bandit.toml", "trainer.default_local_dir=out/filter-kl-limit", *dapo, *kl,
                           "algorithm.filter_groups.metric=seq_final_reward", "actor_rollout_ref.rollout.temperature=0",
                           "algorithm.filter_groups.max_num_gen_batches=3")
        self.assert_fails(result, 1, "After 3 batches only 0 of 16 prompts")
        self.assert_fails(self.neap("train", "bandit.toml", *dapo, "algorithm.filter_groups.metric=acc"), 2, "[[reward.functions]]")

    def test_dapo_improves_held_out_prompts(self):
        self.train("dapo", "bandit.toml", ["actor_rollout_ref.actor.clip_ratio_high=0.28", "actor_rollout_ref.actor.clip_ratio_c=10",
                                           "algorithm.filter_groups.enable=true", "trainer.total_training_steps=10",
                                           'data.val_files=["prompts.jsonl"]',
                                           "actor_rollout_ref.rollout.val_kwargs.do_sample=true"])
        before, after = self.validations("out/dapo")
        self.assertGreater(after["val/score/mean"], before["val/score/mean"] + 0.15)

    def test_truncated_answers(self):
        one = ["trainer.total_training_steps=1", "actor_rollout_ref.actor.ppo_mini_batch_size=16"]
        plain = self.train("cut-plain", "bandit.toml", one)[0]
        share = plain["response_length/truncated_ratio"]
        self.assertTrue(0 < share <= 1, share)
        # Nearly all responses are cut at two tokens. Those that are not: nothing else is trained on.
        masked = self.train("cut-masked", "bandit.toml", [*one, "algorithm.mask_truncated_completions=true"])[0]
        self.assertEqual(masked["critic/score/mean"], plain["critic/score/mean"], "their scores count")
        self.assertNotEqual(masked["actor/grad_norm"], plain["actor/grad_norm"])
        if share == 1:
            self.assertEqual(masked["actor/grad_norm"], 0.0)
        late = self.train("cut-late", "bandit.toml", [*one, "algorithm.missing_eos_penalty=2.0"])[0]
        self.assertAlmostEqual(late["critic/score/mean"], plain["critic/score/mean"] - 2 * share, places=5)
        fixed = self.train("cut-fixed", "bandit.toml", [*one, "algorithm.stop_properly_penalty_coef=-1.0"])[0]
        self.assertLess(fixed["critic/score/mean"], plain["critic/score/mean"])

    def test_the_rollouts_log_probs_are_the_trainers(self):
        sampled = ["actor_rollout_ref.rollout.temperature=0.7", "actor_rollout_ref.rollout.top_k=40",
                   "actor_rollout_ref.rollout.top_p=0.9", "actor_rollout_ref.rollout.calculate_log_probs=true",
                   "data.max_response_length=8", "trainer.total_training_steps=2"]
        rows = self.train("log-probs", "bandit.toml", [*sampled, "actor_rollout_ref.model.path=start"])
        for row in rows:
            self.assertLess(abs(row["rollout_corr/kl"]), 1e-5)
            self.assertLess(row["rollout_corr/k3_kl"], 1e-9)
            self.assertGreater(row["rollout_corr/training_ppl"], 1.0)
            self.assertNotIn("rollout_corr/rollout_is_mean", row)
        weighed = self.train("weighed", "bandit.toml",
                             [*sampled, "actor_rollout_ref.model.path=start", "algorithm.rollout_correction.rollout_is=sequence",
                              "algorithm.rollout_correction.rollout_rs=seq_mean_k1,token_k2",
                              "algorithm.rollout_correction.rollout_rs_threshold=1.01"])
        self.assertAlmostEqual(weighed[0]["rollout_corr/rollout_is_mean"], 1.0, places=4)
        self.assertAlmostEqual(weighed[0]["rollout_corr/rollout_rs_masked_fraction"], 0.0, places=6)
        self.assertAlmostEqual(weighed[1]["actor/grad_norm"], rows[1]["actor/grad_norm"], places=3)
        for keys, part in ((["rollout_rs=seq_k1", "rollout_rs_threshold=2.0"], "seq_k1"),
                           (["rollout_rs=token_k1"], "needs one threshold"), (["rollout_is=token", "rollout_is_threshold=3_2"], "3_2")):
            result = self.neap("train", "bandit.toml", *(f"algorithm.rollout_correction.{key}" for key in keys))
            self.assert_fails(result, 2, part)

    def test_remax_takes_a_greedy_response_to_each_prompt(self):
        rows = self.train("remax-plan", "bandit.toml", ["algorithm.adv_estimator=remax", "trainer.total_training_steps=2"])
        self.assertIn("critic/baselines/mean", rows[0])
        phases = [record["phase"] for record in read_lines(self.home / "out/remax-plan/phases.jsonl") if record["step"] == 1]
        self.assertEqual(phases, ["generate", "generate_baseline", "actor_logp", "rewards", "baseline_rewards", "train_actor"])
        plan = json.loads((self.home / "out/remax-plan/plan.json").read_text())
        planned = {p["name"]: p["peak"] for p in plan["phases"]}
        for record in read_lines(self.home / "out/remax-plan/phases.jsonl"):
            self.assertLessEqual(record["peak"], planned[record["phase"]] * 1.03 + (2 << 20), record)

    def test_remax_penalizes_truncated_greedy_responses_as_samples(self):
        one = ["algorithm.adv_estimator=remax", "trainer.total_training_steps=1"]
        plain, late = (self.train(f"remax-{penalty}", "bandit.toml", [*one, f"algorithm.missing_eos_penalty={penalty}"])[0]
                       for penalty in ("0.0", "2.0"))
        cut = (plain["critic/baselines/mean"] - late["critic/baselines/mean"]) / 2  # the share of those that are cut
        self.assertTrue(0.5 < cut <= 1, "nearly all responses are cut at two tokens")
        self.assertAlmostEqual(cut * 16, round(cut * 16), places=4)

    def test_remax_with_dynamic_sampling_takes_the_baselines_of_what_is_left(self):
        remax = ["algorithm.adv_estimator=remax", "trainer.total_training_steps=4", "actor_rollout_ref.rollout.n=2"]
        dapo = [*remax, "algorithm.filter_groups.enable=true"]
        rows = self.train("remax-dapo", "bandit.toml", dapo)
        self.assertGreater(max(row["train/num_gen_batches"] for row in rows), 1)
        plan = json.loads((self.home / "out/remax-dapo/plan.json").read_text())
        planned = {p["name"]: p["peak"] for p in plan["phases"]}
        records = read_lines(self.home / "out/remax-dapo/phases.jsonl")
        for record in records:
            self.assertLessEqual(record["peak"], planned[record["phase"]], record)
        for row in rows:
            self.assertEqual([r["phase"] for r in records if r["step"] == row["step"]],
                             ["generate", "rewards"] * int(row["train/num_gen_batches"])
                             + ["generate_baseline", "actor_logp", "baseline_rewards", "train_actor"])
        # Where every prompt is left it is what it is without the filter.
        kl = ["algorithm.use_kl_in_reward=true", "actor_rollout_ref.ref.model.path=start"]
        priced = self.train("remax-kl", "bandit.toml", [*dapo, *kl, "algorithm.filter_groups.metric=seq_final_reward"])
        self.assertEqual({row.pop("train/num_gen_batches") for row in priced}, {1.0})
        self.assertEqual(priced, self.train("remax-all", "bandit.toml", [*remax, *kl]))


if __name__ == "__main__":
    main()
