#!/usr/bin/env python3
"""Every way in which N GPUs can train one model: memory of each rank beside its plan, and tokens a second.

    ranks.py OUT_DIR PACKAGE_DIR [--ranks N] [--models NAME ...] [--ways NAME ...] [--rows N] [--steps N] [--minutes M] [--least SHARE]
             [--rehearse [MPIRUN]] [--keys KEY=VALUE ...]

SFT of models with random weights (default qwen2.5-1.5b) on 8 rows (--rows) of 2 048 tokens a GPU, of 7B in micro-batches of 2: one GPU alone, with
padding and packed, then N (default 2) with plain data parallelism, ZeRO-1, -2 and -3, -2 in micro-batches of 2, tensor parallelism over
all, without and with sequence parallelism ("rows"), as many pipeline stages (micro-batches of 2; in two chunks: "interleaved"; backward in
two parts: "zero-bubble"), sequences that all divide (context, packed, with ZeRO-1; with keys and values that pass round: "ring"), and the
way that the plan chooses; of four ranks or more two axes at once, too, and the copy engines beside NCCL; where they are named, slices of
ZeRO-3 on the host and on disk ("zero3-host", "zero3-disk") and stages whose blocks come from the host ("pipeline-host"; with a zero bubble,
"zero-bubble-host"; of four ranks with slices of ZeRO-3, "pipeline2-zero3-host"). A run is ended after N steps (default 6; medians leave out the
first two).
Appends to OUT_DIR/ranks.jsonl a line a run; a table on stdout. After M minutes (default 8) no further run starts. Exits 1 if a run fails, a
rank takes more than 0.3 % more memory than planned, its loss is not that of the first way with several ranks within 2 %, or it has less
than SHARE of the throughput of one GPU alone. Keys behind --keys go to every run.
--rehearse: tiny models on CPU ranks over MPI.
"""
import sys

import plan_check
import random_models
import rank_runs
from rank_runs import efficiency

# Keys of each; {n}: ranks.
PACKED = ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu={tokens}"]
WAYS = {"alone": (1, []), "alone-packed": (1, PACKED), "data": (0, []), "zero1": (0, ["parallel.zero_stage=1"]), "zero2": (0, ["parallel.zero_stage=2"]),
        "zero2-micro": (0, ["parallel.zero_stage=2", "data.micro_batch_size_per_gpu=2"]), "zero3": (0, ["parallel.zero_stage=3"]),
        "tensor": (0, ["parallel.tensor_model_parallel_size={n}"]),
        "rows": (0, ["parallel.tensor_model_parallel_size={n}", "parallel.sequence_parallel=true"]),
        "pipeline": (0, ["parallel.pipeline_model_parallel_size={n}", "data.micro_batch_size_per_gpu=2"]),
        "interleaved": (0, ["parallel.pipeline_model_parallel_size={n}", "parallel.virtual_pipeline_model_parallel_size=2",
                            "data.micro_batch_size_per_gpu=2"]),
        "zero-bubble": (0, ["parallel.pipeline_model_parallel_size={n}", "parallel.pipeline_parallel_schedule=zero_bubble",
                            "data.micro_batch_size_per_gpu=2"]),
        "context": (0, ["parallel.context_parallel_size={n}", "parallel.zero_stage=1", *PACKED]),
        "ring": (0, ["parallel.context_parallel_size={n}", "parallel.cp_comm_type=p2p", "parallel.zero_stage=1", *PACKED]),
        "auto": (0, [f"parallel.{key}=auto" for key in ("zero_stage", "tensor_model_parallel_size", "pipeline_model_parallel_size")])}
# Two axes.
WAYS |= {f"tensor2-zero{stage}": (0, ["parallel.tensor_model_parallel_size=2", f"parallel.zero_stage={stage}"]) for stage in (0, 1, 3)}
WAYS |= {"rows2-zero3": (0, ["parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true", "parallel.zero_stage=3"]),
         "rows2-pipeline": (0, ["parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true", "parallel.pipeline_model_parallel_size=2",
                                "data.micro_batch_size_per_gpu=2"]),
         "shards2-zero3": (0, ["parallel.zero_shard_size=2", "parallel.zero_stage=3"]),
         "context2-zero1": (0, ["parallel.context_parallel_size=2", "parallel.zero_stage=1", *PACKED])}
WAYS |= {f"pipeline2-zero{stage}": (0, ["parallel.pipeline_model_parallel_size=2", f"parallel.zero_stage={stage}", "data.micro_batch_size_per_gpu=2"])
         for stage in (1, 2, 3)}
WAYS |= {f"zero-bubble2-zero{stage}": (0, [*WAYS[f"pipeline2-zero{stage}"][1], "parallel.pipeline_parallel_schedule=zero_bubble"]) for stage in (1, 2, 3)}
# Slices of weights, gradients and states on the host, or on disk: under a ceiling of 1.5B's size, in micro-batches of 1.
SMALL = ["parallel.zero_stage=3", "data.micro_batch_size_per_gpu=1", "actor_rollout_ref.model.activation_checkpointing=auto", "device.memory={small}"]
WAYS |= {"zero3-host": (0, SMALL),
         "pipeline-host": (0, ["parallel.pipeline_model_parallel_size={n}", "data.micro_batch_size_per_gpu=2",
                               "actor_rollout_ref.model.activation_checkpointing=auto", "device.memory={small}"]),
         "zero-bubble-host": (0, ["parallel.pipeline_model_parallel_size={n}", "parallel.pipeline_parallel_schedule=zero_bubble", *SMALL[1:3],
                                  "device.memory={middle}"]),
         "pipeline2-zero3-host": (0, ["parallel.pipeline_model_parallel_size=2", *SMALL[:3], "device.memory={middle}"]),
         "zero3-disk": (0, [*SMALL, 'memory.allow=["recompute","offload","offload_optimizer","offload_weights","nvme"]', "memory.host_budget={small}"])}
# What goes behind computation, by NCCL or by copies between GPUs (p2p) where the other one is usual.
WAYS |= {f"{way}-{transport}": (0, [*WAYS[way][1], f"parallel.transport={transport}"])
         for way in ("data", "zero1", "zero2", "zero3", "tensor2-zero3") for transport in ("nccl", "p2p")}
USUAL = {2: [way for way in WAYS if not way.endswith("-p2p") and not way.startswith(("tensor2", "rows2", "pipeline2", "context2", "shards2", "zero-bubble2"))
             and not way.endswith(("-host", "-disk"))],
         4: [way for way in WAYS if not way.endswith(("-nccl", "-host", "-disk")) and way not in ("zero2-p2p", "zero2-micro")]}
MICRO = {"qwen2.5-7b": 2}  # rows of a micro-batch, where 8 at once do not fit
SAME_LOSS = 0.02  # of bfloat16 after some steps


def alone(result):
    return result["case"].startswith("alone")


def share_of(result, one):
    return result["tokens_a_second_a_rank"] / one["tokens_a_second_a_rank"]


def wrong_in(result, first, one):
    out = rank_runs.over_plan((f"rank {r}", rank["percent"]) for r, rank in enumerate(result["ranks"]))
    if first and not alone(result):
        far = max(abs(a / b - 1) for a, b in zip(result["loss"], first["loss"]))
        out += [f"losses differ by {far:.2%} from those of {first['case']}"] if far > SAME_LOSS else []
    if ARGS.least and not ARGS.rehearse and not alone(result):
        out += [f"{share_of(result, one):.3f} of the throughput of one GPU, goal {ARGS.least}" if one else "nothing to compare with: one GPU alone failed"] \
            if not one or share_of(result, one) < ARGS.least else []
    return out


def show(result, one):
    ranks = result["ranks"]
    share = f"{share_of(result, one):.3f}" if one else "-"
    print(f"   {result['seconds_a_step']:.4f} s a step, planned {ranks[0]['planned_seconds']:.4f}; {result['tokens_a_second_a_rank']:.0f} tokens/s "
          f"a GPU, {share} of one alone; GiB planned "
          + ", ".join(f"{r['planned_peak'] / 2**30:.2f} ({r['percent']:+.3f} %)" for r in ranks), flush=True)


def measure(neap, job, folder, ranks, keys, case, way, port):
    result = efficiency.measure(neap, job, folder, ranks, keys, {}, port)
    return result | {"case": way, "tokens_a_second_a_rank": case.tokens / result["seconds_a_step"]}


def runs(work):
    sizes = {"small": "8MiB", "middle": "16MiB"} if ARGS.rehearse else {"small": "4GiB", "middle": "7GiB"}
    for model in ARGS.models:
        case = plan_check.Case(model, "sft", ARGS.rows, *((32, 32) if ARGS.rehearse else (64, 1984)), micro=0 if ARGS.rehearse else MICRO.get(model, 0))
        # Two chunks of two stages; texts that are cut, so that all rows are full.
        rank_runs.make_inputs(work, case, {"num_hidden_layers": 4}, prompt_words=80, response_words=1500, rehearsed_words=60)
        job, results = rank_runs.job_of(work, case), {}
        for way in ARGS.ways:
            ranks = WAYS[way][0] or ARGS.ranks
            keys = rank_runs.keys_of("data.truncation=right", *(key.format(n=ranks, tokens=case.micro * (case.prompt + case.response), **sizes)
                                                                for key in WAYS[way][1]))
            folder = work / f"run-{way}"

            def first():
                return next((result for result in results.values() if not alone(result)), None)

            def keep(result):
                results[result["case"]] = result
                show(result, results.get("alone"))

            yield rank_runs.Run(f"{model}, {way} on {ranks}", {"model": model, "rows_a_rank": ARGS.rows, "ranks_used": ranks}, folder,
                                lambda neap, port: measure(neap, job, folder, ranks, keys, case, way, port),
                                lambda result: wrong_in(result, first(), results.get("alone")), keep)


def arguments():
    parser = rank_runs.parser_of(__doc__, ranks=2, steps=6, minutes=8)
    parser.add_argument("--models", nargs="+", default=["qwen2.5-1.5b"], choices=list(random_models.MODELS))
    parser.add_argument("--ways", nargs="+", default=[], choices=list(WAYS))
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--least", type=float, default=0, help="share of one GPU's throughput")
    arguments = parser.parse_args()
    arguments.ways = arguments.ways or USUAL[2 if arguments.ranks < 4 else 4]
    return arguments


if __name__ == "__main__":
    ARGS = arguments()
    sys.exit(rank_runs.run_all("ranks", ARGS, runs, 29701))
