#!/usr/bin/env python3
"""Training steps of real sizes with random weights: planned beside measured memory, and seconds a step.

usage: checkpointing_check.py [--cases CASE,CASE] [--rounds N] [--steps N] OUT_DIR NAME=PACKAGE_DIR [NAME=PACKAGE_DIR ...]

Every package (scripts/package) runs the same jobs in turn: supervised training in the shapes of Qwen2.5-1.5B (8 x 2048,
with each kind of activation checkpointing) and OPT-1.3b (8 x 1024). Prints the phase table of each run and keeps its metrics
in OUT_DIR/CASE-NAME-ROUND.jsonl; OUT_DIR/checkpointing_check.jsonl has a line for each case: planned and measured transient memory and
the median of the steps' seconds, also relative to the first case of the same model. Exits 1 if a run fails.
"""
import argparse
import json
import pathlib
import shutil
import statistics
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
activation_checkpointing = "{checkpointing}"
[actor_rollout_ref.actor.optim]
lr = 1e-5
[trainer]
total_training_steps = {steps}
logger = ["jsonl"]
"""
CASES = {
    "qwen1.5b": (QWEN, 1984, "none"),
    "qwen1.5b-selective": (QWEN, 1984, "selective"),
    "qwen1.5b-full": (QWEN, 1984, "full"),
    "opt1.3b": (OPT, 960, "none"),
    "opt1.3b-selective": (OPT, 960, "selective"),
}
WARM_UP = 3  # steps whose seconds are not counted


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


def planned(package, job):
    """The training phase as `neap plan` has it."""
    done = subprocess.run([f"{package}/bin/neap", "plan", job, "--json"], capture_output=True, text=True, timeout=60)
    phases = json.loads(done.stdout)["phases"]
    return next(phase for phase in phases if phase["name"].startswith(("train", "backward")))


class Case:
    """One job of one package, over all rounds."""

    def __init__(self, name, package, job):
        self.name, self.package, self.job = name, package, job
        self.phase = planned(package, job)
        self.seconds, self.peaks = [], []

    def run(self, folder, log):
        start = time.time()
        done = subprocess.run([f"{self.package}/bin/neap", "train", self.job, f"trainer.default_local_dir={folder}"],
                              capture_output=True, text=True, timeout=300)
        print(f"== {log.stem}: exit {done.returncode}, {time.time() - start:.1f} s", flush=True)
        lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
        print("\n".join(line for line in lines[-12:] if line), flush=True)
        if (folder / "metrics.jsonl").exists():
            shutil.copy(folder / "metrics.jsonl", log)
            for line in (folder / "metrics.jsonl").read_text().splitlines()[WARM_UP:]:
                metrics = json.loads(line)
                self.seconds.append(metrics["timing_s/update_actor"])
                self.peaks.append(metrics["perf/max_memory_reserved_gb"] * 2**30 - self.phase["persistent"])
        shutil.rmtree(folder, ignore_errors=True)
        return done.returncode == 0

    def result(self, first):
        transient, seconds = max(self.peaks), statistics.median(self.seconds)
        out = {"suite": "checkpointing_check", "case": self.name, "steps": len(self.seconds), "planned_transient": self.phase["transient"],
               "transient": int(transient), "seconds": round(seconds, 4), "seconds_least": round(min(self.seconds), 4)}
        if first is not self:
            out["transient_less_percent"] = round(100 * (1 - transient / max(first.peaks)), 2)
            out["seconds_more_percent"] = round(100 * (seconds / statistics.median(first.seconds) - 1), 2)
        return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("packages", nargs="+")
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    packages = dict(argument.split("=", 1) for argument in options.packages)
    reviews = pathlib.Path(next(iter(packages.values()))) / "examples" / "reviews"
    failures = runs = 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        make_data(work / "long.jsonl", reviews)
        cases = {}
        for case in options.cases.split(","):
            config, response, checkpointing = CASES[case]
            make_model(work / case, config, reviews / "model")
            job = work / f"{case}.toml"
            job.write_text(CONFIG.format(data=work / "long.jsonl", response=response, model=work / case, steps=options.steps,
                                         checkpointing=checkpointing))
            for name, package in packages.items():
                cases[case, name] = Case(f"{case}-{name}", package, job)
        # Rounds in turn: what drifts on a shared machine meets every case.
        for turn in range(options.rounds):
            for case in cases.values():
                failures += not case.run(work / "run", out / f"{case.name}-{turn}.jsonl")
                runs += 1
        with open(out / "checkpointing_check.jsonl", "w") as results:
            for (case, name), at in cases.items():
                first = next(other for (c, n), other in cases.items() if n == name and CASES[c][0] is CASES[case][0])
                if at.seconds and first.seconds:
                    line = json.dumps(at.result(first))
                    print(line)
                    results.write(line + "\n")
    print(f"checkpointing_check: {runs - failures} passed, {failures} failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
