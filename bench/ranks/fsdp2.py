#!/usr/bin/env python3
"""FSDP2 with transformers on the work of tests/gpu/ranks.py: seconds a step and memory of each rank.

    fsdp2.py OUT_DIR [--models NAME ...] [--ranks N ...] [--recompute no yes] [--steps N] [--rehearse]

Random weights in float32, computed in bfloat16 (MixedPrecisionPolicy, gradients reduced in float32), every block a group of
fully_shard, scaled dot product attention, fused AdamW, gradients clipped: 8 rows of 2 048 tokens a rank, as fast as torch
makes it without compiling. Each number of ranks (default 1 and 2) is run with every setting of --recompute (all blocks
checkpointed or none); what does not fit is reported. Appends to OUT_DIR/fsdp2.jsonl a line a run: medians leave out the
first two steps. Needs torch and transformers. --rehearse: a tiny model on CPU ranks over gloo.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import random_models  # noqa: E402

WARM, ROWS, LENGTH = 2, 8, 2048


def train():
    """One rank; prints its numbers."""
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    rank, cuda = int(os.environ["RANK"]), not ARGS.rehearse
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    shape = dict(random_models.MODELS[ARGS.models[0]])
    if ARGS.rehearse:
        shape |= {key: value for key, value in random_models.TINY.items() if key in shape}
    config = transformers.AutoConfig.for_model(**shape)
    config.use_cache = False
    with device:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    if ARGS.recompute == ["yes"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    rows, length = (2, 32) if ARGS.rehearse else (ROWS, LENGTH)
    seconds, losses = [], []
    for step in range(ARGS.steps):
        tokens = torch.randint(config.vocab_size, (rows, length), device=device)
        if cuda:
            torch.cuda.synchronize()
        dist.barrier()
        start = time.monotonic()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # waits for the device
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - start)
    memory = torch.cuda.memory_stats() if cuda else {}
    print(json.dumps({"steps": seconds, "seconds_a_step": statistics.median(seconds[WARM:]), "loss": losses,
                      "allocated_peak": memory.get("allocated_bytes.all.peak"), "reserved_peak": memory.get("reserved_bytes.all.peak"),
                      "torch": torch.__version__, "transformers": transformers.__version__,
                      "gpu": torch.cuda.get_device_name() if cuda else None}), flush=True)
    dist.destroy_process_group()


def run(model, ranks, recompute, port):
    command = [sys.executable, __file__, str(ARGS.out), "--rank", "--models", model, "--recompute", recompute, "--steps", str(ARGS.steps)]
    command += ["--rehearse"] if ARGS.rehearse else []
    known = dict(os.environ, WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
    processes = [subprocess.Popen(command, env=dict(known, RANK=str(r), LOCAL_RANK=str(r)), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                 for r in range(ranks)]
    done = []
    for process in processes:
        try:
            done.append(process.communicate(timeout=150))
        except subprocess.TimeoutExpired:
            process.kill()
            done.append(process.communicate())
    result = {"suite": "fsdp2", "model": model, "ranks_used": ranks, "recompute": recompute == "yes"}
    if any(process.returncode for process in processes):
        lines = [line for _, err in done for line in err.splitlines() if "Error" in line]
        return result | {"ok": False, "error": lines[-1][:400] if lines else done[0][1][-400:]}
    numbers = [json.loads(out.splitlines()[-1]) for out, _ in done]
    step = max(n["seconds_a_step"] for n in numbers)
    return result | {"ok": True, "seconds_a_step": step, "tokens_a_second_a_rank": ROWS * LENGTH / step, "ranks": numbers}


def main():
    ARGS.out.mkdir(parents=True, exist_ok=True)
    failed, port = 0, 29900
    for model in ARGS.models:
        for ranks in ARGS.ranks:
            for recompute in ARGS.recompute:
                port += 1
                result = run(model, ranks, recompute, port)
                failed += not result["ok"] and "OutOfMemory" not in result["error"]
                with open(ARGS.out / "fsdp2.jsonl", "a") as out:
                    out.write(json.dumps(result) + "\n")
                name = f"{model} on {ranks}{', recomputed' if recompute == 'yes' else ''}"
                if not result["ok"]:
                    print(f"{name}: {result['error']}", flush=True)
                    continue
                peaks = ", ".join(f"{(n[key] or 0) / 2**30:.2f}" for n in result["ranks"] for key in ("allocated_peak", "reserved_peak"))
                print(f"{name}: {result['seconds_a_step']:.4f} s a step, {result['tokens_a_second_a_rank']:.0f} tokens/s a GPU; "
                      f"GiB allocated and reserved of each rank {peaks}", flush=True)
    return failed > 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", default=["qwen2.5-1.5b"], choices=list(random_models.MODELS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--recompute", nargs="+", choices=["no", "yes"], default=["no"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    ARGS = arguments()
    sys.exit(train() if ARGS.rank else main())
