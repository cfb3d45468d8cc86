#!/usr/bin/env python3
"""What two runs of `neap train` with the same seed have in common, with and without trainer.deterministic, and what that
costs. usage: determinism.py PACKAGE_DIR OUT_DIR [--rehearse] [--ranks N]

Supervised training of a model with the layers of Qwen2.5-1.5B, and PPO of examples/reviews, each twice in both ways.
Writes OUT_DIR/determinism.jsonl. --rehearse: small and on the host, to try the script. --ranks: a process on each of N GPUs.
"""
import hashlib
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PACKAGE, OUT = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
REHEARSE = "--rehearse" in sys.argv[3:]
RANKS = int(sys.argv[sys.argv.index("--ranks") + 1]) if "--ranks" in sys.argv else 1
NEAP = PACKAGE / "bin" / "neap"
UNSTEADY = ("timing_s/", "perf/", "memory/", "time")
SHAPE = {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 8,
         "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
         "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": 0, "pad_token_id": 1}
SFT = """
task = "sft"
[data]
train_files = ["long.jsonl"]
train_batch_size = 16
use_dynamic_bsz = false
micro_batch_size_per_gpu = 8
max_prompt_length = 64
max_response_length = 960
[actor_rollout_ref.model]
path = "model"
[actor_rollout_ref.actor.optim]
lr = 1e-5
[trainer]
total_training_steps = 100000
"""
HOST = ("device.kind=cpu", "device.memory=2GiB") if REHEARSE else ()


def steps_of(folder):
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def environments():
    """Of each rank, as a launcher sets them."""
    base = dict(os.environ, NEAP_PROGRESS="off")
    if RANKS == 1:
        return [base]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return [dict(base, RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(RANKS),
                 MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(RANKS)]


def train(work, config, folder, steps, *overrides):
    """Runs until `steps` are logged. A run that would go on is killed: its checkpoint is not wanted."""
    with (OUT / f"{folder.name}.err").open("w") as err:
        processes = [subprocess.Popen([str(NEAP), "train", config, f"trainer.default_local_dir={folder}", *overrides, *HOST],
                                      cwd=work, stdout=subprocess.DEVNULL, stderr=err, env=environment)
                     for environment in environments()]
        deadline = time.monotonic() + 120
        while all(p.poll() is None for p in processes) and len(steps_of(folder)) < steps and time.monotonic() < deadline:
            time.sleep(0.1)
        if config == "long.toml":
            for process in processes:
                process.kill()
        codes = [process.wait(timeout=120) for process in processes]
    rows = steps_of(folder)[:steps]
    if len(rows) < steps:
        raise RuntimeError(f"{folder.name}: exit {codes} after {len(rows)} of {steps} steps: "
                           + (OUT / f"{folder.name}.err").read_text()[-400:])
    return rows


def digest(folder):
    files = sorted(folder.glob("latest/*/*.safetensors"))
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def compare(first, second):
    """Steps and metrics that are equal bit by bit."""
    different = {}
    for step, (a, b) in enumerate(zip(first, second), 1):
        for key in a:
            if not key.startswith(UNSTEADY) and a[key] != b.get(key):
                different.setdefault(key, step)
    return {"steps": len(first), "equal": not different, "first_step_that_differs": different}


def seconds(runs, key):
    return statistics.median(row[key] for rows in runs for row in rows[2:] if key in row)


def measure(work, name, config, steps, *overrides):
    results, timings = {}, {}
    for deterministic in (False, True):
        runs, digests = [], []
        for turn in "ab":
            folder = work / f"{name}-{'deterministic' if deterministic else 'default'}-{turn}"
            runs.append(train(work, config, folder, steps, *overrides,
                              f"trainer.deterministic={str(deterministic).lower()}"))
            digests.append(digest(folder))
            shutil.rmtree(folder)
        result = compare(*runs)
        if digests[0]:
            result["weights_equal"] = digests[0] == digests[1]
        timings[deterministic] = {k: seconds(runs, k) for k in runs[0][0] if k.startswith("timing_s/")}
        results["deterministic" if deterministic else "default"] = result
    cost = {k: round(100 * (timings[True][k] / v - 1), 2) for k, v in timings[False].items() if v > 0}
    return {**results, "seconds": {k: round(v, 4) for k, v in timings[False].items()}, "cost_percent": cost}


def prepare(work):
    shutil.copytree(PACKAGE / "examples" / "reviews", work / "reviews")
    (work / "model").mkdir()
    shape = dict(SHAPE, hidden_size=192, intermediate_size=256, num_hidden_layers=2, vocab_size=1024) if REHEARSE else SHAPE
    (work / "model" / "config.json").write_text(json.dumps(shape))
    shutil.copy(work / "reviews" / "model" / "tokenizer.json", work / "model")
    words = " ".join(json.loads(line)["response"] for line in (work / "reviews" / "sft_train.jsonl").read_text().splitlines())
    words = words.split()
    with (work / "long.jsonl").open("w") as file:
        for i in range(64):
            start = 97 * i % (len(words) - 400)
            file.write(json.dumps({"prompt": " ".join(words[start:start + 10]),
                                   "response": " ".join(words[start + 10:start + 330])}) + "\n")
    text = SFT.replace("960", "704") if REHEARSE else SFT
    (work / "long.toml").write_text(text)
    for stage, steps in (("sft", 60), ("reward", 20)):
        subprocess.run([str(NEAP), "train", f"reviews/{stage}.toml", f"trainer.total_training_steps={2 if REHEARSE else steps}",
                        f"trainer.default_local_dir={work}/{stage}", f"actor_rollout_ref.model.path={work}/"
                        + ("sft/latest/actor" if stage == "reward" else "reviews/model"), "trainer.val_samples=0",
                        "data.val_files=[]", *HOST],
                       cwd=work, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, NEAP_PROGRESS="off"))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    failures = 0
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                         text=True).stdout.strip() if shutil.which("nvidia-smi") else "host"
    version = subprocess.run([str(NEAP), "--version"], capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder, (OUT / "determinism.jsonl").open("w") as file:
        work = pathlib.Path(folder)
        doctor = json.loads(subprocess.run([str(NEAP), "doctor", "--json"], capture_output=True, text=True).stdout)
        kernels = doctor.get("trainer", {}).get("attention", {})
        failures += not kernels or any(k == "cudnn" for use, k in kernels.items() if not use.startswith("training"))
        file.write(json.dumps({"suite": "determinism", "case": "kernels", "gpu": gpu, "version": version, **kernels}) + "\n")
        print(kernels, flush=True)
        prepare(work)
        steps = 3 if REHEARSE else 10
        models = [f"actor_rollout_ref.model.path={work}/sft/latest/actor", f"critic.model.path={work}/reward/latest/reward",
                  f"reward_model.model.path={work}/reward/latest/reward", "data.val_files=[]", "trainer.save_freq=-1",
                  f"trainer.total_training_steps={steps}", "device.memory=2GiB",
                  *(f"{model}.ppo_micro_batch_size_per_gpu={16 // RANKS}" for model in ("actor_rollout_ref.actor", "critic"))]
        for name, config, more in (("sft", "long.toml", []), ("ppo", "reviews/ppo.toml", models),
                                   ("ppo_float32", "reviews/ppo.toml", [*models, "device.dtype=float32"])):
            row = {"suite": "determinism", "case": name, "gpu": gpu, "version": version, "ranks": RANKS}
            try:
                row |= measure(work, name, config, steps, *more)
                failures += not (row["deterministic"]["equal"] and row["deterministic"].get("weights_equal", True))
            except (RuntimeError, subprocess.SubprocessError) as error:
                row["error"] = str(error)
                failures += 1
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(json.dumps(row, indent=1), flush=True)
    print(f"determinism: {4 - failures} passed, {failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
