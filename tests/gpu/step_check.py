#!/usr/bin/env python3
"""Training steps of real sizes with random weights: planned beside measured memory, and seconds a step.

usage: step_check.py OUT_DIR NAME=PACKAGE_DIR [NAME=PACKAGE_DIR ...]

Every package (scripts/package) runs the same jobs in turn: supervised training in the shapes of Qwen2.5-1.5B (8 x 2048,
with and without recomputation) and OPT-1.3b (8 x 1024), six steps each. Prints the phase table of each run and keeps the
last lines of its metrics in OUT_DIR/CASE-NAME.jsonl. Exits 1 if a run fails.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

QWEN = {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": 0, "pad_token_id": 1}
OPT = {"model_type": "opt", "vocab_size": 50272, "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24,
       "num_attention_heads": 32, "max_position_embeddings": 2048, "word_embed_proj_dim": 2048, "do_layer_norm_before": True,
       "activation_function": "relu", "tie_word_embeddings": True, "eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 2}
CONFIG = """task = "sft"
[data]
train_files = ["{data}"]
train_batch_size = 8
micro_batch_size_per_gpu = 8
max_prompt_length = 64
max_response_length = {response}
[actor_rollout_ref.model]
path = "{model}"
enable_gradient_checkpointing = {recompute}
[actor_rollout_ref.actor.optim]
lr = 1e-5
[trainer]
total_training_steps = 6
logger = ["jsonl"]
"""
CASES = {"qwen1.5b": (QWEN, 1984, "false"), "qwen1.5b-recompute": (QWEN, 1984, "true"), "opt1.3b": (OPT, 960, "false")}


def make_model(folder, config, tokenizer):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for file in tokenizer.iterdir():
        if file.name != "config.json" and file.suffix != ".safetensors":
            shutil.copy(file, folder)


def make_data(file, reviews):
    rows = [json.loads(line) for line in open(reviews / "sft_train.jsonl")]
    words = " ".join(row["response"] for row in rows[:400]).split()
    with open(file, "w") as out:
        for i in range(64):
            out.write(json.dumps({"prompt": rows[i]["prompt"], "response": " ".join(words[i:i + 450])}) + "\n")


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    packages = dict(argument.split("=", 1) for argument in sys.argv[2:])
    reviews = pathlib.Path(next(iter(packages.values()))) / "examples" / "reviews"
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        make_data(work / "long.jsonl", reviews)
        for case, (config, response, recompute) in CASES.items():
            make_model(work / case, config, reviews / "model")
            job = work / f"{case}.toml"
            job.write_text(CONFIG.format(data=work / "long.jsonl", response=response, model=work / case, recompute=recompute))
            for name, package in packages.items():
                run = work / f"{case}-{name}"
                start = time.time()
                done = subprocess.run([f"{package}/bin/neap", "train", job, f"trainer.default_local_dir={run}"],
                                      capture_output=True, text=True, timeout=300)
                print(f"== {case} {name}: exit {done.returncode}, {time.time() - start:.1f} s", flush=True)
                failures += done.returncode != 0
                lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
                print("\n".join(line for line in lines[-12:] if line))
                if (run / "metrics.jsonl").exists():
                    shutil.copy(run / "metrics.jsonl", out / f"{case}-{name}.jsonl")
                shutil.rmtree(run, ignore_errors=True)
    print(f"step_check: {len(CASES) * len(packages) - failures} passed, {failures} failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
