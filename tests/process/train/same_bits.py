#!/usr/bin/env python3
"""Whether two programs train to the same bits, for changes that must not change any.

usage: same_bits.py BEFORE AFTER REVIEWS [AFTER_OVERRIDE...]

Trains tiny models by every task with both: padded and packed, with adapters, tied and untied tables, sequential and parallel
residuals, several micro-batches in a mini-batch and several epochs. Compares every metric but seconds and bytes, and the hash of
every tensor file. As a test it runs one program with its updates in one phase and divided.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

LLAMA = {"model_type": "llama", "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": True,
         "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "torch_dtype": "float32"}
MODELS = {
    "tied": LLAMA,
    "untied": dict(LLAMA, tie_word_embeddings=False),
    "parallel": {"model_type": "gpt_neox", "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "max_position_embeddings": 128, "use_parallel_residual": True, "rotary_pct": 0.5,
                 "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "torch_dtype": "float32"},
}
BASE = ["device.kind=cpu", "device.memory=2GiB", "data.train_batch_size=12", "data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=4",
        "data.max_prompt_length=24", "data.max_response_length=16", "data.truncation=right", "trainer.total_training_steps=2",
        "trainer.save_freq=2", "trainer.test_freq=2", "actor_rollout_ref.actor.optim.lr=1e-3", "actor_rollout_ref.model.path=MODEL",
        'trainer.logger=["jsonl"]', "trainer.default_local_dir=out"]
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
RL = ['data.train_files=["prompts_train.jsonl"]', 'data.val_files=[]', f"{ACTOR}ppo_mini_batch_size=6",
      f"{ACTOR}use_dynamic_bsz=false", f"{ACTOR}ppo_micro_batch_size_per_gpu=3", f"{ACTOR}ppo_epochs=2", f"{ROLLOUT}log_prob_micro_batch_size_per_gpu=5",
      f"{ACTOR}entropy_coeff=0.01", "reward_model.model.path=judge"]
PPO = ["task=ppo", "critic.ppo_mini_batch_size=6", "critic.ppo_micro_batch_size_per_gpu=3", "critic.ppo_epochs=2",
       "critic.model.path=judge", "critic.optim.lr=1e-3", "algorithm.use_kl_in_reward=true", *RL]
GRPO = ["task=grpo", f"{ROLLOUT}n=2", f"{ACTOR}use_kl_loss=true", f"{ROLLOUT}batch_size=5", *RL]
SFT = ["task=sft", 'data.train_files=["sft_train.jsonl"]', 'data.val_files=["few.jsonl"]']
PAIRS = ['data.train_files=["pairs_train.jsonl"]', 'data.val_files=["few_pairs.jsonl"]']
PACKED = ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=96"]
RL_PACKED = [f"{ACTOR}use_dynamic_bsz=true", f"{ACTOR}ppo_max_token_len_per_gpu=90", f"{ROLLOUT}sample_lengths=true"]
LORA = ["actor_rollout_ref.model.lora_rank=4"]
JOBS = {
    "sft": ("tied", SFT),
    "sft packed untied": ("untied", [*SFT, *PACKED]),
    "sft lora": ("tied", [*SFT, *LORA]),
    "sft parallel recomputed": ("parallel", [*SFT, "actor_rollout_ref.model.enable_gradient_checkpointing=true"]),
    "sft adafactor": ("untied", [*SFT, f"{ACTOR}optim.optimizer=adafactor"]),
    "sft bfloat16": ("tied", [*SFT, "device.dtype=bfloat16"]),
    "sft fp8": ("untied", [*SFT, "device.dtype=bfloat16", "device.linear_dtype=fp8"]),
    "reward": ("tied", ["task=reward", *PAIRS]),
    "reward packed": ("parallel", ["task=reward", *PAIRS, *PACKED]),
    "dpo": ("untied", ["task=dpo", *PAIRS]),
    "dpo lora packed": ("tied", ["task=dpo", *PAIRS, *PACKED, *LORA]),
    "ppo": ("tied", PPO),
    "ppo packed": ("parallel", [*PPO, *RL_PACKED, "critic.ppo_max_token_len_per_gpu=90"]),
    "grpo": ("parallel", GRPO),
    "grpo lora packed": ("tied", [*GRPO, *LORA, *RL_PACKED]),
    "grpo remax": ("untied", [*GRPO, "algorithm.adv_estimator=remax", f"{ROLLOUT}calculate_log_probs=true",
                              "algorithm.rollout_correction.rollout_is=token"]),
}


def prepare(home, reviews):
    for file in pathlib.Path(reviews).glob("*.jsonl"):
        shutil.copy(file, home)
    for few, name in (("few", "sft_val"), ("few_pairs", "pairs_val")):
        lines = (home / f"{name}.jsonl").read_text().splitlines(keepends=True)
        (home / f"{few}.jsonl").write_text("".join(lines[:8]))
    for name, config in MODELS.items():
        (home / name).mkdir()
        (home / name / "config.json").write_text(json.dumps(config))
        shutil.copy(pathlib.Path(reviews) / "model" / "tokenizer.json", home / name)


def train(program, home, name, words):
    """The run's folder."""
    job = home / name.replace(" ", "_")
    job.mkdir()
    for path in home.iterdir():
        if path.suffix == ".jsonl" or (path / "config.json").exists():
            (job / path.name).symlink_to(path)
    (job / "job.toml").write_text("")
    environment = {**os.environ, "NEAP_PROGRESS": "off", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([program, "train", "job.toml", *words], cwd=job, env=environment, capture_output=True, text=True,
                          check=False, timeout=600)
    if done.returncode:
        sys.exit(f"{name}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return job / "out"


def bits(folder):
    """Metrics and hashes of what a run leaves."""
    out = {}
    for number, line in enumerate((folder / "metrics.jsonl").read_text().splitlines()):
        for key, value in json.loads(line).items():
            if not key.startswith(("timing", "perf", "memory", "time")) and "second" not in key:
                out[f"row {number} {key}"] = value
    for file in sorted(folder.rglob("*.safetensors")):
        if "latest" not in file.parts:
            out[str(file.relative_to(folder))] = hashlib.sha256(file.read_bytes()).hexdigest()
    assert any(name.endswith(".safetensors") for name in out), f"{folder} has no tensors"
    return out


def all_bits(program, reviews, more=()):
    with tempfile.TemporaryDirectory(prefix="neap-bits-") as folder:
        home = pathlib.Path(folder)
        prepare(home, reviews)
        one_step = ["trainer.total_training_steps=1", "trainer.save_freq=1"]

        def run(name, model, *words):
            return train(program, home, name, [*(w.replace("MODEL", model) for w in BASE), *words])

        for model in MODELS:
            start = run(f"start {model}", model, *SFT, *one_step)
            shutil.copytree((start / "latest").resolve() / "actor", home / f"{model}-started")
        judge = run("judge run", "tied", "task=reward", *PAIRS, *one_step)
        shutil.copytree((judge / "latest").resolve() / "reward", home / "judge")

        def one(entry):
            name, (model, words) = entry
            return name, bits(run(name, f"{model}-started", *words, *more))

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return dict(pool.map(one, JOBS.items()))


def main():
    before, after, reviews, *more = sys.argv[1:]
    wanted = json.loads(pathlib.Path(before).read_text()) if before.endswith(".json") else all_bits(before, reviews)
    got = all_bits(after, reviews, more)
    if after != before and os.environ.get("NEAP_KEEP_BITS"):
        pathlib.Path(os.environ["NEAP_KEEP_BITS"]).write_text(json.dumps(got, indent=1))
    different = 0
    for job, values in wanted.items():
        names = sorted(set(values) | set(got[job]))
        wrong = [n for n in names if values.get(n) != got[job].get(n)]
        different += bool(wrong)
        for name in wrong[:8]:
            print(f"{job}: {name} is {got[job].get(name)}, before {values.get(name)}")
        print(f"{job}: {len(names) - len(wrong)} of {len(names)} equal")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
