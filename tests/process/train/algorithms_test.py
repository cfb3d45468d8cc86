#!/usr/bin/env python3
"""Every algorithm of docs/algorithms.md improves its own objective on a bandit: `neap train` as a process. usage: FILE NEAP REVIEWS

The reward model is written here: its score is 1 where the last token's id is below half of the vocabulary, else 0. A policy
that starts at random gets a half.
"""
import json
import math
import shutil
import statistics
import struct

from train_process_test import TrainCase, main, read_lines
import train_process_test

ACTOR = {"model_type": "llama", "vocab_size": 1024, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": True,
         "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
JUDGE = dict(ACTOR, hidden_size=8, head_dim=4)
RL = """
task = "grpo"
[device]
kind = "host"
[data]
train_files = ["prompts.jsonl"]
train_batch_size = 16
max_prompt_length = 24
max_response_length = 2
[actor_rollout_ref.model]
path = "bandit"
[actor_rollout_ref.actor]
ppo_mini_batch_size = 8
ppo_micro_batch_size_per_gpu = 16
optim.lr = 3e-2
[actor_rollout_ref.rollout]
n = 4
log_prob_micro_batch_size_per_gpu = 64
[critic]
ppo_mini_batch_size = 8
ppo_micro_batch_size_per_gpu = 16
optim.lr = 3e-2
[reward_model.model]
path = "judge"
[trainer]
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
}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


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


class Algorithms(TrainCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home()
        for name, config in (("bandit", ACTOR), ("judge", JUDGE)):
            (cls.home / name).mkdir()
            (cls.home / name / "config.json").write_text(json.dumps(config))
            shutil.copy(train_process_test.REVIEWS / "model" / "tokenizer.json", cls.home / name)
        write_safetensors(cls.home / "judge" / "model.safetensors", judge())
        (cls.home / "bandit.toml").write_text(RL)

    def train(self, name, file, overrides):
        folder = f"out/{name}"
        result = self.neap("train", file, f"trainer.default_local_dir={folder}", *overrides)
        self.assertEqual(result.returncode, 0, f"{overrides}\n{result.stderr}")
        return self.metrics(folder)

    def test_rewards_rise(self):
        for name, overrides in ALGORITHMS.items():
            with self.subTest(name):
                rows = self.train(name, "bandit.toml", overrides)
                scores = [row["critic/score/mean"] for row in rows]
                before, after = statistics.fmean(scores[:3]), statistics.fmean(scores[-3:])
                self.assertLess(abs(before - 0.5), 0.2, scores)
                self.assertGreater(after, 0.9, scores)

    def test_remax_takes_a_greedy_response_to_each_prompt(self):
        rows = self.train("remax-plan", "bandit.toml", ["algorithm.adv_estimator=remax", "trainer.total_training_steps=2"])
        self.assertIn("critic/baselines/mean", rows[0])
        phases = [record["phase"] for record in read_lines(self.home / "out/remax-plan/phases.jsonl") if record["step"] == 1]
        self.assertEqual(phases, ["generate", "generate_baseline", "actor_logp", "rewards", "baseline_rewards", "train_actor"])
        plan = json.loads((self.home / "out/remax-plan/plan.json").read_text())
        planned = {p["name"]: p["peak"] for p in plan["phases"]}
        for record in read_lines(self.home / "out/remax-plan/phases.jsonl"):
            self.assertLessEqual(record["peak"], planned[record["phase"]] * 1.03 + (2 << 20), record)


if __name__ == "__main__":
    main()
