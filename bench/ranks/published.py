#!/usr/bin/env python3
"""Published runs on many GPUs, and what `neap plan --simulate` says of the same job: seconds a step and memory a GPU.

    published.py NEAP [OUT.jsonl] [--only TEXT] [--limit PERCENT]

Every row is a job of NEAP (the program) with the model, the batch, the ranks, the GPUs and the network of the publication. Rates of GPUs
are shares of their data sheets that were measured on one H200 and two H100s (src/plan/rates/gpu_catalog.cpp, src/plan/results/network.cpp); a network is nine
tenths of its ports. Kernels are libtorch's, as in our own rows. Nothing is fitted to a row. Prints ours beside theirs with the error in percent, the median and the worst of each
table; rows whose sharding Neap does not have are listed with the reason. OUT.jsonl gets a line a row. --limit: exits 1 if the
median error of the steps' times, or of model states, is larger.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

GIB = 2**30
PORT_SHARE = 0.9  # of a network port's line rate, in NCCL's rings
# Network ports of a GPU's share, in bit/s; of Selene and Jean Zay not stated in the publications.
SELENE, JEAN_ZAY, NDR = 200e9, 50e9, 400e9

OWN = "ranks-zero3-h100.jsonl"

MEGATRON = "Narayanan et al. 2021, arXiv 2104.04473"
BIGSCIENCE = "BigScience, tr11-176B-ml/chronicles-prequel.md, 2022-02"
ZERO = "Rajbhandari et al. 2020, arXiv 1910.02054, figure 1"


def gpt(layers, hidden, heads, vocab=51200):
    return {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 2048, "vocab_size": vocab}


def parameters(m):
    h = m["n_embd"]
    return m["n_layer"] * (12 * h**2 + 13 * h) + (m["vocab_size"] + m["n_positions"]) * h + 2 * h


def megatron_flops(m, sequences):
    """Of a step with full recomputation, by the formula of the publication."""
    length, layers, h = m["n_positions"], m["n_layer"], m["n_embd"]
    return 96 * sequences * length * layers * h**2 * (1 + length / (6 * h) + m["vocab_size"] / (16 * layers * h))


def row(name, source, model, gpu, ranks, batch, micro, tensor=1, pipe=1, zero=0, seconds=None, tflops=None, memory=None, network=SELENE,
        checkpointing="full", gradients="float32", note="", rows=False, layout=None, chunks=1):
    """tflops: of a GPU, by megatron_flops(). memory: GiB of the fullest GPU."""
    if seconds is None and tflops:
        seconds = megatron_flops(model, batch) / (tflops * 1e12 * ranks)
    return {"name": name, "source": source, "model": model, "gpu": gpu, "ranks": ranks, "batch": batch, "micro": micro, "tensor": tensor,
            "pipe": pipe, "zero": zero, "seconds": seconds, "memory": memory, "network": network, "checkpointing": checkpointing,
            "gradients": gradients, "note": note, "rows": rows, "layout": layout, "chunks": chunks}


# ---- every row of the tables of 2022-02-21 and 02-23 that states layers and hidden size: 1F1B, TP 8, ZeRO-1 unless it says otherwise ----
def bigscience():
    out = []
    # layers, hidden, data, pipe, [(micro, seconds, GB or None)]
    tables = [(72, 14336, 4, 12, [(1, 143.31, 29), (2, 134.02, 37), (4, 123.69, 49), (8, 129.26, 69)]),
              (72, 14336, 8, 6, [(1, 139.82, 38), (2, 131.02, 44), (4, 121.48, 56)]),
              (84, 13824, 4, 12, [(2, 143.89, 39), (4, 133.12, 52)]),
              (84, 13824, 8, 6, [(2, 141.41, 65), (4, 130.31, 56)]),
              (96, 12288, 8, 6, [(2, 136.73, None), (4, 122.96, None)]),
              (84, 13312, 4, 12, [(4, 125.52, None)]),
              (84, 13312, 8, 6, [(2, 135.55, None), (4, 122.93, None)]),
              (78, 13824, 8, 6, [(4, 121.28, None)])]
    for layers, hidden, data, pipe, runs in tables:
        for micro, seconds, memory in runs:
            out.append(row(f"BigScience {layers} x {hidden}, PP {pipe}, DP {data}, micro-batch {micro}", BIGSCIENCE,
                           gpt(layers, hidden, 64, 250880), "a100", 384, 2048, micro, 8, pipe, 1, seconds, None, memory, JEAN_ZAY,
                           gradients="bfloat16"))
    # This table's columns of seconds and TFLOP/s are exchanged in its row of ZeRO-1 (120.29 and 134.02; the same job above has 134.02 s).
    out.append(row("BigScience 72 x 14336, PP 12, DP 4, micro-batch 2, ZeRO-0", BIGSCIENCE, gpt(72, 14336, 64, 250880), "a100", 384, 2048, 2, 8,
                   12, 0, 137.34, None, 72, JEAN_ZAY, gradients="bfloat16"))
    return out


# ---- table 1, entered without the paper at hand: TFLOP/s times GPUs are its totals. The micro-batch is not published. ----
def megatron():
    def chunks_of(layers, pipe):
        """The fewest that divide the blocks of a stage."""
        return next(v for v in range(2, layers // pipe + 1) if layers // pipe % v == 0) if pipe > 1 else 1

    table = [(24, 2304, 24, 1, 1, 32, 512, 137), (30, 3072, 32, 2, 1, 64, 512, 138), (36, 4096, 32, 4, 1, 128, 512, 142),
             (40, 6144, 48, 8, 1, 256, 1024, 135), (48, 8192, 64, 8, 2, 512, 1536, 138), (60, 10240, 80, 8, 4, 1024, 1792, 140),
             (80, 12288, 96, 8, 8, 1536, 2304, 148), (96, 16384, 128, 8, 16, 1920, 2160, 155), (105, 20480, 128, 8, 35, 2520, 2520, 163),
             (128, 25600, 160, 8, 64, 3072, 3072, 163)]
    out = []
    for layers, hidden, heads, tensor, pipe, ranks, batch, tflops in table:
        model = gpt(layers, hidden, heads)
        micro = 4 if pipe == 1 else 1
        out.append(row(f"Megatron {parameters(model) / 1e9:.1f}B on {ranks} A100, TP {tensor}, PP {pipe}", MEGATRON, model, "a100", ranks, batch,
                       micro, tensor, pipe, 0, None, tflops, chunks=chunks_of(layers, pipe),
                       note=f"micro-batch of {micro}{f' and {chunks_of(layers, pipe)} chunks a stage' if pipe > 1 else ''} assumed"))
    model = gpt(96, 12288, 96)
    out.append(row("Megatron 175B on 1 024 A100, TP 8, PP 16", MEGATRON, model, "a100", 1024, 1536, 1, 8, 16, 0, None, 138, chunks=chunks_of(96, 16),
                   note="TP, PP, micro-batch and 2 chunks a stage assumed"))
    return out


# ---- Neap's own on one and two H100s: what kSlowdown (src/plan/rates/device_rates.cpp) is from ----
def own():
    model = {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
             "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": True}
    # That run divided its blocks by parameters.
    placed = {"alone": {}, "data": {}, "zero1": {"zero": 1}, "zero2": {"zero": 2}, "zero3": {"zero": 3}, "tensor": {"tensor": 2},
              "rows": {"tensor": 2, "rows": True}, "pipeline": {"pipe": 2, "layout": [14, 14]}}
    out = []
    results = pathlib.Path(__file__).resolve().parents[1] / "results" / OWN
    for line in map(json.loads, results.read_text().splitlines()):
        if line.get("case") not in placed:
            continue
        ranks = line["ranks_used"]
        out.append(row(f"Neap, Qwen2.5-1.5B, {line['case']} on {ranks} H100", f"bench/results/{OWN}", model, "h100", ranks, 8 * ranks,
                       2 if line["case"] == "pipeline" else 8, seconds=line["seconds_a_step"],
                       memory=max(r["planned_gib"] * (1 + r["percent"] / 100) for r in line["ranks"]), checkpointing="selective",
                       **placed[line["case"]]))
    return out


# ---- model states alone, 16-bit gradients ----
STATES = [("ZeRO 7.5B on 64 GPUs, stage 0", ZERO, 0, 64, "bfloat16", 120e9), ("ZeRO 7.5B on 64 GPUs, stage 1", ZERO, 1, 64, "bfloat16", 31.4e9),
          ("ZeRO 7.5B on 64 GPUs, stage 2", ZERO, 2, 64, "bfloat16", 16.6e9),
          ("ZeRO 7.5B on 64 GPUs, stage 3", ZERO, 3, 64, "bfloat16", 1.9e9)]
STATES += [(f"Megatron's distributed optimizer, 6 + 12 / {d} bytes a parameter", "Megatron Core", 1, d, "float32",
            (6 + 12 / d) * parameters(gpt(36, 4096, 32))) for d in (2, 8, 64)]

NOT_SIMULATED = [
    ("torchtitan Llama-3 70B on 256 H100: 829 to 876 tokens/s a GPU", "weights sharded over ranks (FSDP) together with tensor parallelism"),
    ("torchtitan Llama-3 405B on 512 H100: 100 and 128 tokens/s a GPU", "float8, FSDP with tensor and pipeline parallelism"),
    ("torchtitan Llama-3 8B, 8 to 128 H100: 5 762 to 5 605 tokens/s a GPU", "recomputation by operation and compiled kernels, of which no micro-batch is published here"),
    ("Llama 3 405B: 430, 400 and 380 TFLOP/s", "8 192 and 16 384 ranks, FSDP with pipeline parallelism"),
    ("Megatron Core 175B on 96 to 4 608 H100: MFU of 47 to 42 %", "TP, PP, chunks and micro-batches are not published"),
    ("llmq on 1 to 8 H100: 58.8k to 457k tokens/s (1.5B)", "kernels of its own, 8-bit states; its sharding is not in the table"),
    ("FSDP2 + transformers on 4 H200: efficiency of 0.96 to 0.98", "measured of another program; no run of ours on that machine"),
]


def simulate(neap, work, r, extra=()):
    folder = work / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(r["model"]))
    length, prompt = 2048, 1 if "n_positions" in r["model"] else 64
    keys = ["task=sft", f"actor_rollout_ref.model.path={folder}", f"actor_rollout_ref.model.activation_checkpointing={r['checkpointing']}",
            f"actor_rollout_ref.actor.optim.gradient_dtype={r['gradients']}", "data.use_dynamic_bsz=false", f"data.train_batch_size={r['batch']}",
            f"data.micro_batch_size_per_gpu={r['micro']}", f"data.max_prompt_length={prompt}", f"data.max_response_length={length - prompt}",
            "memory.offload=none", "memory.optimizer_offload=none", "device.kernels=libtorch", f"parallel.tensor_model_parallel_size={r['tensor']}",
            f"parallel.zero_stage={r['zero']}", f"parallel.sequence_parallel={str(r['rows']).lower()}", f"parallel.inter_node_bandwidth={PORT_SHARE * r['network'] / 8:.0f}B"]
    if r["pipe"] > 1:
        keys.append(f"parallel.pipeline_model_parallel_size={r['pipe']}")
        layers = r["model"].get("n_layer")
        parts = r["pipe"] * r["chunks"]
        keys.append(f"parallel.virtual_pipeline_model_parallel_size={r['chunks']}")
        layout = r["layout"] or ([layers // parts] * parts if layers and layers % parts == 0 else None)
        if layout:
            keys.append(f"parallel.pipeline_model_parallel_layout=[{', '.join(map(str, layout))}]")
    job = work / "job.toml"
    job.write_text("")
    command = [neap, "plan", str(job), *keys, *extra, "--ranks", str(r["ranks"]), "--gpu", r["gpu"], "--simulate", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: over the GPU's memory
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def off(ours, theirs):
    return 100 * (ours / theirs - 1)


def summary(what, errors):
    if errors:
        worst = max(errors, key=lambda e: abs(e[0]))
        median = statistics.median(abs(e) for e, _ in errors)
        print(f"   {what}: {len(errors)} rows, median error {median:.1f} %, worst {worst[0]:+.1f} % ({worst[1]})")
        return median
    return 0


def main():
    results, limited = [], []

    def keep(**line):
        results.append(line)
        return line

    with tempfile.TemporaryDirectory(prefix="neap-published-") as temporary:
        work = pathlib.Path(temporary)
        rows = [r for r in bigscience() + megatron() + own() if ARGS.only in r["name"]]
        titles = {"step": "Seconds a step and GiB a GPU",
                  "own": "Neap's own training phases on one and two H100s (the rates among ranks are from them)"}
        for kind, title in titles.items():
            print(f"\n{title}")
            print(f"   {'':<62} {'theirs':>8} {'ours':>8} {'%':>6} | {'GiB':>6} {'ours':>6} {'%':>6} | bubble, collectives and transfers")
            seconds, memory, longer = [], [], {}
            for r in rows:
                if kind != ("own" if r["source"].startswith("bench/") else "step"):
                    continue
                s = simulate(ARGS.neap, work, r)
                error, ours = off(s["step_seconds"], r["seconds"]), s["peak"] / GIB
                seconds.append((error, r["name"]))
                of_memory = off(ours, r["memory"]) if r["memory"] else None
                if of_memory is not None:
                    memory.append((of_memory, r["name"]))
                waits = {k: v / s["step_seconds"] for k, v in s["seconds"].items() if k not in ("compute", "copies")}
                shares = ", ".join(f"{k} {100 * v:.0f} %" for k, v in waits.items())
                theirs = (f"{r['memory']:6.0f}", f"{of_memory:+6.1f}") if r["memory"] else (" " * 6, " " * 6)
                print(f"   {r['name']:<62} {r['seconds']:8.2f} {s['step_seconds']:8.2f} {error:+6.1f} | {theirs[0]} {ours:6.1f} {theirs[1]} | {shares}")
                if kind == "own" and r["ranks"] > 1:
                    waits_for_others = sum(v for k, v in s["seconds"].items() if k in ("data", "tensor", "pipe"))
                    longer.setdefault("tensor" if r["tensor"] > 1 else "others", []).append((r["seconds"] - waits_for_others) / (s["step_seconds"] - waits_for_others))
                keep(kind=kind, name=r["name"], source=r["source"], note=r["note"],
                     published_seconds=r["seconds"], seconds=s["step_seconds"], seconds_percent=error, published_gib=r["memory"], gib=ours,
                     gib_percent=of_memory, shares=waits)
            median = summary("step time", seconds)
            limited += [median] if kind == "step" else []
            summary("memory", memory)
            for name, times in longer.items():
                print(f"   operations on several GPUs, {name}: {', '.join(f'{x:.3f}' for x in times)} times as long as simulated; median "
                      f"{statistics.median(times):.3f}: what their slowdown (src/plan/rates/device_rates.cpp) would have to be multiplied by")
        print("\nModel states of a GPU, GB")
        states = []
        for name, source, zero, data, gradients, theirs in STATES:
            if ARGS.only not in name:
                continue
            r = row(name, source, gpt(36, 4096, 32), "h200", data, data, 1, zero=zero, gradients=gradients)
            tags = simulate(ARGS.neap, work, r, ["trainer.total_training_steps=1"])["stages"][0]["tags"]
            ours = sum(tags[f"actor.{kind}"] for kind in ("weights", "grads", "optimizer"))
            error = off(ours, theirs)
            states.append((error, name))
            print(f"   {name:<62} {theirs / 1e9:8.2f} {ours / 1e9:8.2f} {error:+6.1f}")
            keep(kind="states", name=name, source=source, published_bytes=theirs, bytes=ours, bytes_percent=error)
        limited.append(summary("states", states))
    print("\nNot simulated")
    for name, why in NOT_SIMULATED:
        print(f"   {name}: {why}")
        keep(kind="not simulated", name=name, lacks=why)
    if ARGS.out:
        ARGS.out.write_text("".join(json.dumps(line) + "\n" for line in [{"command": "bench/ranks/published.py NEAP OUT.jsonl"}, *results]))
    if max(limited) > ARGS.limit:
        sys.exit(f"A median error is over {ARGS.limit:g} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap")
    parser.add_argument("out", nargs="?", type=pathlib.Path)
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--limit", type=float, default=float("inf"), help="percent")
    ARGS = parser.parse_args()
    main()
