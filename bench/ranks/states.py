#!/usr/bin/env python3
"""What each of several ranks keeps of a model that is trained, by ZeRO's stage: planned and measured bytes a parameter.

    states.py NEAP [--gpu] [--mpirun MPIRUN] [--ranks 1 2 4 8] [--out RESULTS.jsonl]

Two steps of SFT of a decoder with random weights, on rows of examples/reviews, in bfloat16 with bfloat16 gradients and float32 masters and
moments: 2 + 2 + 12 bytes a parameter, as ZeRO's table has for 1 billion. On CPU ranks over MPI it has 58 million parameters, with --gpu 1 billion
(examples/plan/models/gpt-1b; about 16 GB of the disk for a checkpoint, one at a time). A line for each number of ranks and stage: of each rank, bytes of its tags by its plan.json, and the most that each held by its memory.ntrace; what was resident and the peak in the training
phase. The losses and the checkpoint have to be stage 0's on as many ranks. Bits are the same because a mini-batch is one micro-batch.
scripts/measurements makes a table of docs/formulas.md of the results.
"""
import argparse
import hashlib
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data"))
from small_model import REVIEWS, environment  # noqa: E402


# Blocks of one size, which divide by 8, and a small table: ranks have equal parts, as those of a large model.
MODEL = {"model_type": "llama", "vocab_size": 1024, "hidden_size": 384, "intermediate_size": 1056, "num_hidden_layers": 32,
         "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 64, "max_position_embeddings": 256,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0,
         "eos_token_id": 0, "pad_token_id": 1}
ROWS = 8
RANKS = [1, 2, 4, 8]
JOB = f"""
task = "sft"
[device]
kind = "cpu"
memory = "3GiB"
dtype = "bfloat16"
[memory]
offload = "none"
[data]
use_dynamic_bsz = false
train_files = ["rows.jsonl"]
train_batch_size = {ROWS}
max_prompt_length = 24
max_response_length = 40
[actor_rollout_ref.model]
path = "model"
[actor_rollout_ref.actor.optim]
gradient_dtype = "bfloat16"
[trainer]
total_training_steps = 2
save_freq = 2
test_freq = -1
"""
STATES = ("weights", "grads", "optimizer")
# Slots of the units that a pass is at: gathered weights, and gradients before they are added up.
SLOTS = ("prefetch", "unit_grads")


def billion():
    """With ids of the tokenizer of examples/reviews."""
    return {**read(REVIEWS.parent / "plan" / "models" / "gpt-1b" / "config.json"), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}


def read(path):
    return json.loads(path.read_text())


def of_actor(tags):
    """Bytes by the tag's last word."""
    named = {name.split(".")[1]: size for name, size in tags if name.startswith("actor.")}
    return {name: named.get(name, 0) for name in STATES + SLOTS}


def of_rank(neap, folder):
    plan = read(folder / "plan.json")
    (planned,) = [phase for phase in plan["phases"] if phase["name"] == "train"]
    rows = [json.loads(line) for line in (folder / "phases.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["phase"] == "train"]
    report = json.loads(subprocess.run([neap, "report", str(folder), "--json"], check=True, capture_output=True, text=True).stdout)
    return {"planned": {"tags": of_actor((tag["tag"], tag["bytes"]) for tag in plan["tags"]),
                        "persistent": planned["persistent"], "peak": planned["peak"]},
            "measured": {"tags": of_actor((layer["name"], layer["peak"]) for layer in report["layers"] if layer["kind"] == "tag"),
                         "persistent": max(row["persistent"] for row in rows), "peak": max(row["peak"] for row in rows)}}


def parameters(checkpoint):
    with open(checkpoint, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def formula(stage, ranks):
    """Bytes a parameter: the ZeRO paper, figure 1."""
    return 2 / (ranks if stage > 2 else 1) + 2 / (ranks if stage > 1 else 1) + 12 / (ranks if stage > 0 else 1)


def run_on_cpus(command, mpirun, home, ranks):
    if ranks > 1:
        command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *command]
    subprocess.run(command, cwd=home, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.DEVNULL)


def run_on_gpus(command, home, ranks, port):
    """Multicast of NCCL takes rights over the switch that a shared machine may not give."""
    started = []
    for rank in range(ranks):
        of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        started.append(subprocess.Popen([*command, "device.kind=cuda", "device.memory=40GiB", "trainer.deterministic=true"], cwd=home,
                                        stdout=subprocess.DEVNULL,
                                        env={**os.environ, "NCCL_NVLS_ENABLE": "0", **{key: str(word) for key, word in of_rank.items()}}))
    codes = [process.wait() for process in started]
    if any(codes):
        raise RuntimeError(f"exit {codes}")


def digest_of(files):
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            while piece := file.read(1 << 24):
                digest.update(piece)
    return digest.hexdigest()[:16]


def as_planned(rank, exactly):
    """Of a card libtorch's allocator takes whole pages: its peak may be some pages below the plan's."""
    planned, measured = dict(rank["planned"]), dict(rank["measured"])
    peaks = planned.pop("peak"), measured.pop("peak")
    return planned == measured and (peaks[0] == peaks[1] if exactly else 0.997 * peaks[0] <= peaks[1] <= peaks[0])


def measure(neap, run, home, ranks, stage, exactly):
    """`run`: of a command on so many ranks."""
    out = home / f"out-{ranks}-{stage}"
    run([neap, "train", "job.toml", f"trainer.default_local_dir={out}", f"data.micro_batch_size_per_gpu={ROWS // ranks}",
         f"parallel.zero_stage={stage}"], home, ranks)
    of_ranks = [of_rank(neap, out if rank == 0 else out / "ranks" / str(rank)) for rank in range(ranks)]
    count = parameters(out / "global_step_2" / "actor" / "model.safetensors")
    checkpoint = digest_of(out / "global_step_2" / "actor" / file for file in ("model.safetensors", "optimizer.safetensors"))
    losses = [json.loads(line)["train/loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(out)

    def most(which, names):
        return round(max(sum(rank[which]["tags"][name] for name in names) for rank in of_ranks) / count, 3)
    return {"ranks": ranks, "stage": stage, "parameters": count,
            "bytes_a_parameter": {"formula": formula(stage, ranks), "planned": most("planned", STATES), "measured": most("measured", STATES),
                                  "measured_tags": {name: most("measured", [name]) for name in STATES},
                                  "slots_planned": most("planned", SLOTS), "slots_measured": most("measured", SLOTS)},
            "of_ranks": of_ranks, "as_planned": all(as_planned(rank, exactly) for rank in of_ranks),
            "losses": losses, "checkpoint": checkpoint}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    neap = str(pathlib.Path(arguments.neap).resolve())
    ports = iter(range(29850, 29999))

    def run(command, home, ranks):
        return run_on_gpus(command, home, ranks, next(ports)) if arguments.gpu else run_on_cpus(command, arguments.mpirun, home, ranks)

    words = (" --gpu" if arguments.gpu else "") + ("" if arguments.ranks == RANKS else " --ranks " + " ".join(map(str, arguments.ranks)))
    right = True
    with tempfile.TemporaryDirectory(prefix="neap-ranks-") as folder:
        home = pathlib.Path(folder)
        (home / "model").mkdir()
        (home / "model" / "config.json").write_text(json.dumps(billion() if arguments.gpu else MODEL))
        shutil.copy(REVIEWS / "model" / "tokenizer.json", home / "model")
        lines = (REVIEWS / "sft_train.jsonl").read_text().splitlines(keepends=True)
        (home / "rows.jsonl").write_text("".join(lines[:4 * ROWS]))
        (home / "job.toml").write_text(JOB)
        for ranks in arguments.ranks:
            whole = None
            for stage in (0, 1, 2, 3) if ranks > 1 else (0,):
                result = measure(neap, run, home, ranks, stage, exactly=not arguments.gpu)
                whole = whole or result
                result["same_bits"] = all(result[key] == whole[key] for key in ("losses", "checkpoint"))
                right = right and result["same_bits"] and result["as_planned"]
                result["environment"] = environment(neap, "bench/ranks/states.py NEAP" + words)
                print(json.dumps({key: value for key, value in result.items() if key not in ("of_ranks", "environment")}), flush=True)
                if arguments.out:
                    with open(arguments.out, "a") as file:
                        file.write(json.dumps(result) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
