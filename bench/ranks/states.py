#!/usr/bin/env python3
"""What each of several CPU ranks keeps of a model that is trained, by ZeRO's stage: planned and measured.

    states.py NEAP [--mpirun MPIRUN] [--ranks 1 2 3 4] [--out RESULTS.jsonl]

Two steps of SFT of a decoder of 58 million parameters (random weights) in bfloat16 with float32 gradients, masters and moments on rows of
examples/reviews. A line for each number of ranks and stage: bytes of the tags as planned, and of each rank what was resident and the
peak in the training phase, measured, beside the plan's. The losses and the checkpoint have to be stage 0's on as many ranks. Bits are the
same because a mini-batch is one micro-batch.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data"))
from small_model import REVIEWS, environment  # noqa: E402

MODEL = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 256,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0,
         "eos_token_id": 0, "pad_token_id": 1}
ROWS = 24
JOB = f"""
task = "sft"
[device]
kind = "host"
memory = "3GiB"
dtype = "bfloat16"
[memory]
residency = "all"
[data]
use_dynamic_bsz = false
train_files = ["rows.jsonl"]
train_batch_size = {ROWS}
max_prompt_length = 24
max_response_length = 40
[actor_rollout_ref.model]
activation_checkpointing = "selective"
path = "model"
[trainer]
total_training_steps = 2
save_freq = 2
test_freq = -1
"""
TAGS = ("weights", "buffers", "grads", "unit_grads", "optimizer")


def read(path):
    return json.loads(path.read_text())


def measure(neap, mpirun, home, ranks, stage):
    out = home / f"out-{ranks}-{stage}"
    command = [neap, "train", "job.toml", f"trainer.default_local_dir={out}", f"data.micro_batch_size_per_gpu={ROWS // ranks}",
               f"parallel.zero_stage={stage}"]
    if ranks > 1:
        command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *command]
    subprocess.run(command, cwd=home, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    measured = []
    for rank in range(ranks):
        folder = out if rank == 0 else out / "ranks" / str(rank)
        (planned,) = [p for p in read(folder / "plan.json")["phases"] if p["name"] == "train"]
        rows = [json.loads(line) for line in (folder / "phases.jsonl").read_text().splitlines()]
        rows = [row for row in rows if row["phase"] == "train"]
        measured.append({"persistent": max(row["persistent"] for row in rows), "peak": max(row["peak"] for row in rows)})
    plan = read(out / "plan.json")
    tags = {tag["tag"].split(".")[1]: tag["bytes"] for tag in plan["tags"]}
    digest = hashlib.sha256()
    for file in ("model.safetensors", "optimizer.safetensors"):
        digest.update((out / "global_step_2" / "actor" / file).read_bytes())
    losses = [json.loads(line)["train/loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    return {"ranks": ranks, "stage": stage, "tags": {tag: tags.get(tag, 0) for tag in TAGS},
            "planned": {"persistent": planned["persistent"], "peak": planned["peak"]}, "measured": measured,
            "as_planned": all(m["persistent"] == planned["persistent"] and m["peak"] == planned["peak"] for m in measured),
            "losses": losses, "checkpoint": digest.hexdigest()[:16]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--out")
    arguments = parser.parse_args()
    neap = str(pathlib.Path(arguments.neap).resolve())
    right = True
    with tempfile.TemporaryDirectory(prefix="neap-ranks-") as folder:
        home = pathlib.Path(folder)
        (home / "model").mkdir()
        (home / "model" / "config.json").write_text(json.dumps(MODEL))
        shutil.copy(REVIEWS / "model" / "tokenizer.json", home / "model")
        lines = (REVIEWS / "sft_train.jsonl").read_text().splitlines(keepends=True)
        (home / "rows.jsonl").write_text("".join(lines[:4 * ROWS]))
        (home / "job.toml").write_text(JOB)
        for ranks in arguments.ranks:
            whole = None
            for stage in (0, 1, 2, 3) if ranks > 1 else (0,):
                result = measure(neap, arguments.mpirun, home, ranks, stage)
                whole = whole or result
                result["same_bits"] = all(result[key] == whole[key] for key in ("losses", "checkpoint"))
                right = right and result["same_bits"] and result["as_planned"]
                result["environment"] = environment(neap, " ".join(["states.py", "NEAP", *sys.argv[2:]]))
                print(json.dumps(result), flush=True)
                if arguments.out:
                    with open(arguments.out, "a") as file:
                        file.write(json.dumps(result) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
