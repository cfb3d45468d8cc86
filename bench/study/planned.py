#!/usr/bin/env python3
"""Neap's plans of the study's rows: the 22 of the paper's tables 1 and 2, with LoRA of rank 128, on 4 ranks of an RTX 3090 or an A100.

    planned.py NEAP > bench/results/study-planned.jsonl
    planned.py NEAP --check [SET ...]     exits 1 if the file has other plans of these sets, or of all
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "bench" / "results" / "study-planned.jsonl"
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
sys.dont_write_bytecode = True
import ceilings  # noqa: E402
import random_models  # noqa: E402

JOB = """task = "ppo"
[device]
kind = "{device}"
[data]
train_batch_size = {batch}
max_prompt_length = {prompt}
max_response_length = {response}
[actor_rollout_ref]
model = {{path = "{actor}", lora_rank = {lora}, activation_checkpointing = "none"}}
actor = {{ppo_mini_batch_size = {batch}, ppo_micro_batch_size_per_gpu = {rows}, use_dynamic_bsz = false}}
[critic]
model = {{path = "{critic}", lora_rank = {lora}, activation_checkpointing = "none"}}
ppo_mini_batch_size = {batch}
ppo_micro_batch_size_per_gpu = {rows}
[reward_model.model]
path = "{critic}"
[algorithm]
use_kl_in_reward = true
"""
CHECKPOINTING = ('actor_rollout_ref.model.activation_checkpointing="full"', 'critic.model.activation_checkpointing="full"')
KEPT_THERE = 'memory.offload="none"'
# A strategy's keys; None: the least capacity that the plan of these keys names.
STRATEGIES = {
    "none": (KEPT_THERE,), "zero1": (KEPT_THERE, "parallel.zero_stage=1"), "zero2": (KEPT_THERE, "parallel.zero_stage=2"),
    "zero3": (KEPT_THERE, "parallel.zero_stage=3"), "zero3-offload": ("parallel.zero_stage=3", None), "checkpointing": (KEPT_THERE, *CHECKPOINTING),
    "all": ("parallel.zero_stage=3", *CHECKPOINTING, None),
}
OPT, LLAMA2 = random_models.MODELS["opt-1.3b"], {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False}
GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
MODELS = {
    "opt-1.3b": OPT, "opt-350m": random_models.MODELS["opt-350m"], "llama-2-7b": LLAMA2,
    "opt-6.7b": OPT | {"hidden_size": 4096, "ffn_dim": 16384, "num_hidden_layers": 32, "num_attention_heads": 32, "word_embed_proj_dim": 4096},
    "gpt2-xl": GPT2 | {"n_embd": 1600, "n_layer": 48, "n_head": 25}, "gpt2-medium": GPT2 | {"n_embd": 1024, "n_layer": 24, "n_head": 16},
}
# A model's sizes by the names of its architecture.
SMALL = {"opt": {"hidden_size": 256, "word_embed_proj_dim": 256, "ffn_dim": 1024, "num_hidden_layers": 4, "num_attention_heads": 4},
         "gpt2": {"n_embd": 256, "n_layer": 4, "n_head": 4},
         "llama": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4}}
TOKENS = {"vocab_size": 1024, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
CHAT = {"rows": 2, "prompt": 256, "response": 256, "gpu": "rtx3090"}
# ColossalChat's examples/train_prompts.py pads prompts to 96 tokens and generates up to 128.
COLOSSAL = {"rows": 32, "prompt": 96, "response": 32, "gpu": "rtx3090"}
A100 = COLOSSAL | {"gpu": "a100"}
# The paper's rows: framework and model, sizes, actor and reference, critic and reward model, strategies. Its table 2 names one model a row.
SETS = {
    "deepspeed-opt": (CHAT, "opt-1.3b", "opt-350m", tuple(STRATEGIES)),
    "colossal-opt": (COLOSSAL, "opt-1.3b", "opt-350m", ("none", "zero3", "zero3-offload", "checkpointing")),
    "colossal-gpt2": (COLOSSAL, "gpt2-xl", "gpt2-medium", ("none", "zero3", "zero3-offload", "checkpointing", "all")),
    "a100-opt-1.3b": (A100, "opt-1.3b", "opt-350m", ("none", "zero3")),
    "a100-opt-6.7b": (A100, "opt-6.7b", "opt-6.7b", ("none", "zero3")),
    "a100-llama-2-7b": (A100, "llama-2-7b", "llama-2-7b", ("none", "zero3")),
}
RANKS = 4


def small(config):
    """The model's architecture at a size for CPUs."""
    return config | SMALL[config["model_type"]] | TOKENS


def plan(neap, folder, gpu, words):
    done = subprocess.run([neap, "plan", "job.toml", "--json", "--ranks", str(RANKS), "--gpu", gpu, *words], cwd=folder, capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: it does not fit
        raise SystemExit(f"{words}: exit {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout)


def figures(found):
    """The arena reserves what tensors need; only temporary tensors are in a caching allocator."""
    peak = max(found["phases"], key=lambda phase: phase["peak"])
    return {"reserved": found["peak"], "allocated": max(phase["persistent"] + phase["temporary_allocated"] for phase in found["phases"]),
            "fragmentation": peak["temporary"] - peak["temporary_allocated"], "phase": peak["name"], "host_bytes": found["host_bytes"],
            "phases": {phase["name"]: {"reserved": phase["peak"], "allocated": phase["persistent"] + phase["temporary_allocated"]}
                       for phase in found["phases"]}}


def job(folder, sizes, actor, critic, ranks, configs=MODELS, lora=128, device="cuda"):
    """Writes a row's configuration, and models' where they are not there."""
    (folder / "job.toml").write_text(JOB.format(batch=sizes["rows"] * ranks, actor=actor, critic=critic, lora=lora, device=device,
                                                **{key: sizes[key] for key in ("rows", "prompt", "response")}))
    for name in {actor, critic}:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(configs[name]))


def planned_set(neap, group):
    sizes, actor, critic, strategies = SETS[group]
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        job(folder, sizes, actor, critic, RANKS)
        for strategy in strategies:
            keys = STRATEGIES[strategy]
            words = [key for key in keys if key]
            found = plan(neap, folder, sizes["gpu"], words)
            if None in keys:
                words += ["--capacity", f"{found['alternatives']['min_capacity']}B"]
                found = plan(neap, folder, sizes["gpu"], words)
            yield {"set": group, "strategy": strategy, "keys": [key for key in keys if key], "ranks": found["ranks"], "device": found["device"],
                   "fits": found["fits"], **figures(found)}


def plans(neap, groups):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [json.dumps(line) for lines in pool.map(lambda group: list(planned_set(neap, group)), groups) for line in lines]


def main():
    check, groups = sys.argv[2:3] == ["--check"], sys.argv[3:] or list(SETS)
    found = plans(str(pathlib.Path(sys.argv[1]).resolve()), groups)
    if not check:
        print("\n".join(found))
        return 0
    differs = found != [line for line in KEPT.read_text().splitlines() if json.loads(line)["set"] in groups]
    if differs:
        print(f"{KEPT.relative_to(ROOT)} has other plans; bench/study/planned.py NEAP > {KEPT.relative_to(ROOT)}, then bench/study/page.py --write")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
