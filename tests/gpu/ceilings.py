#!/usr/bin/env python3
"""Step times under falling ceilings: what the plan chooses, planned beside measured bytes and seconds.

usage: ceilings.py OUT_DIR PACKAGE_DIR [--case NAME]... [--ceiling GIB ...] [--steps N] [--minutes M] [--deterministic] [--rehearse]

paper: actor and reference OPT-1.3b, critic and reward OPT-350m, 8 x (256 + 256), under 36, 28, 22 and 16 GiB.
curve: four models of OPT-1.3b, 8 x (256 + 256), at six ceilings from all resident to the minimum capacity; those under which something
moves also with memory.overlap=false. Every move is printed with the seconds of its copies and those that the run waited for.
least: streams under the minimum capacity that the plan finds for the paper's workload.
qwen7b: full training of Qwen2.5-7B, 4 x 2 048, recomputation: all resident, with bfloat16 states under 79 GiB, then under 79 and 56 GiB
(about 115 GiB of host memory). optimizers: Qwen2.5-1.5B, 8 x 1 024, with every kind of optimizer, all resident and under a ceiling.
lora: rank 16 on Qwen2.5-7B, 2 x 2 048, and on 38 blocks of Qwen2.5-32B, 1 x 2 048: all resident, then with streamed weights at the least
capacity. lora32b: all 64 blocks (64 GiB of host memory; a disk of 66 GB). lora4b, lora8b: rank 16 on Qwen3-4B, 1 x 2 048 (lora4b-files: frozen
weights from the host, and read from their files), and on Llama-3.1-8B, 2 x 2 048; full8b: full training of the latter, 8 x 1 024
(135 GiB of host memory), also under 6 GiB. full3b: full training of Llama-3.2-3B, 2 x 4 096, in micro-batches of one, full3b-one in one: all resident, then with
streamed weights, gradients and states at the minimum capacity (54 GiB of host memory). grpo: full GRPO of Llama-3.2-3B with a reference and a
reward model, 4 x 4 x 768, two responses at a time; grpo7b: the same of Qwen2.5-7B with LoRA; grpo7b-full: full, 16 x 1 536 (128 GiB of host memory); grpo14b: LoRA-32 of
Qwen2.5-14B, 8 samples of 32k, of which 256 are generated; ppo: PPO of four models of Qwen2.5-1.5B, 16 x 1 280; full6b: full training of 24 of Llama-3.1-8B's 32 blocks, 8 x 1 024 (106 GiB of host memory),
under 8 and 6 GiB, too; full3b-groups and full1b-groups: of tied Llama-3.2-3B and Qwen2.5-1.5B, 8 of 1 x 2 048, all resident and streamed
in groups; each at the minimum capacity and at 1.3 times it. disk: Qwen2.5-1.5B, 8 x 1 024, its optimizer states in memory and on disk. These are run only when they are named.
Writes OUT_DIR/ceilings.jsonl, a line a run, and a table on stdout. After M minutes (default 9) no further run starts. Exits 1
where a run fails, a phase is more than 0.2 % off its plan, moves are not the plan's, or, with --deterministic, losses differ from
those of the largest ceiling (without it two runs on a GPU may differ). --ceiling: only these of a case, as its list has them
(0: the minimum capacity, 1.3: as many times it). --rehearse: tiny models on the host.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import plan_check
from plan_check import Case
from random_models import MODELS

SMALL = {"vocab_size": 1024, "hidden_size": 256, "ffn_dim": 1024, "num_hidden_layers": 4, "num_attention_heads": 4,
         "word_embed_proj_dim": 256}  # of a rehearsal: states of a few windows
SMALL_QWEN = {"vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
              "num_key_value_heads": 2}
NARROW = ['memory.allow=["recompute","offload","offload_optimizer","bf16_states"]']
WITH_DISK = 'memory.allow=["recompute","offload","offload_optimizer","nvme"]'
FROM_FILES = 'memory.allow=["recompute","offload","offload_optimizer","offload_weights","nvme"]'
WAITING = ["memory.overlap=false"]
PPO = Case("opt-1.3b", "ppo", 8, 256, 256)
QWEN7B = Case("qwen2.5-7b", "sft", 4, 64, 1984, checkpointing="full")
QWEN15 = Case("qwen2.5-1.5b", "sft", 8, 64, 960)
OPTIMIZERS = {"adamw": [], "adamw, bfloat16 states": ["state_dtype=bfloat16"], "adafactor": ["optimizer=adafactor"], "sm3": ["optimizer=sm3"],
              "sgd": ["optimizer=sgd", "momentum=0.9"]}
KINDS = [[f"actor_rollout_ref.actor.optim.{setting}" for setting in settings] for settings in OPTIMIZERS.values()]
LORA = ["actor_rollout_ref.model.lora_rank=16", "actor_rollout_ref.model.activation_checkpointing=auto"]
AUTO = ["actor_rollout_ref.model.activation_checkpointing=auto"]
ROLLOUT = [*AUTO, "critic.model.activation_checkpointing=auto", "actor_rollout_ref.rollout.batch_size=2"]
LORA32 = [*ROLLOUT, "actor_rollout_ref.model.lora_rank=32", "data.truncation=left"]
TIMES = 1.3  # the minimum capacity
# The job, its reward model, and ceilings in GiB (0: the least; TIMES: as many times the least) with overrides.
WORK = {"paper": (PPO, "opt-350m", [(36, []), (28, []), (22, []), (16, [])]),
        "curve": (PPO, "opt-1.3b", [(56, []), *[(ceiling, extra) for ceiling in (44, 34, 26, 20, 0) for extra in ([], WAITING)]]),
        "least": (PPO, "opt-350m", [(0, [])]),
        "qwen7b": (QWEN7B, None, [(138, []), (79, NARROW), (79, []), (56, [])]),
        "lora": (Case("qwen2.5-7b", "sft", 2, 64, 1984, micro=1), None, [(60, LORA), (8, LORA), (0, LORA)]),
        "lora20b": (Case("qwen2.5-20b", "sft", 1, 64, 1984), None, [(100, LORA), (0, LORA)]),
        "lora32b": (Case("qwen2.5-32b", "sft", 1, 64, 1984), None, [(TIMES, LORA), (0, LORA)]),
        "lora4b": (Case("qwen3-4b", "sft", 1, 64, 1984), None, [(TIMES, LORA), (0, LORA)]),
        "lora4b-files": (Case("qwen3-4b", "sft", 1, 64, 1984), None,
                         [(TIMES, LORA), (TIMES, [*LORA, "memory.host_budget=2GiB", FROM_FILES])]),
        "lora8b": (Case("llama-3.1-8b", "sft", 2, 64, 1984, micro=1), None, [(TIMES, LORA), (0, LORA)]),
        "full8b": (Case("llama-3.1-8b", "sft", 8, 64, 960, micro=1), None, [(TIMES, AUTO), (6, AUTO), (0, AUTO)]),
        "full3b": (Case("llama-3.2-3b", "sft", 2, 64, 4032, micro=1), None, [(75, AUTO), (TIMES, AUTO), (0, AUTO)]),
        "full3b-one": (Case("llama-3.2-3b", "sft", 2, 64, 4032), None, [(75, AUTO), (0, AUTO)]),
        "grpo": (Case("llama-3.2-3b", "grpo", 4, 256, 512, micro=1, n=4), None, [(120, ROLLOUT), (TIMES, ROLLOUT), (0, ROLLOUT)]),
        "grpo7b": (Case("qwen2.5-7b", "grpo", 4, 256, 512, micro=1, n=4), None, [(100, [*LORA, *ROLLOUT]), (0, [*LORA, *ROLLOUT])]),
        "grpo7b-full": (Case("qwen2.5-7b", "grpo", 4, 256, 1280, micro=1, n=4), None, [(0, ROLLOUT), (TIMES, ROLLOUT)]),
        "grpo14b": (Case("qwen2.5-14b", "grpo", 2, 32512, 256, micro=1, n=4), None, [(0, LORA32), (TIMES, LORA32)]),
        "ppo": (Case("qwen2.5-1.5b", "ppo", 16, 256, 1024, micro=1), "qwen2.5-1.5b", [(0, ROLLOUT), (TIMES, ROLLOUT), (120, ROLLOUT)]),
        "full6b": (Case("llama-3.1-6b", "sft", 8, 64, 960, micro=1), None, [(8, AUTO), (6, AUTO), (TIMES, AUTO), (0, AUTO)]),
        "full3b-groups": (Case("llama-3.2-3b", "sft", 8, 64, 1984, micro=1), None, [(75, AUTO), (8, AUTO), (5, AUTO), (0, AUTO)]),
        "full1b-groups": (Case("qwen2.5-1.5b", "sft", 8, 64, 1984, micro=1), None, [(60, AUTO), (6, AUTO), (4, AUTO), (0, AUTO)]),
        "disk": (QWEN15, None, [(60, AUTO), (60, [*AUTO, "memory.optimizer_offload=nvme", WITH_DISK])]),
        "optimizers": (QWEN15, None, [(ceiling, kind) for kind in KINDS for ceiling in (60, 0)])}
USUAL = ["paper", "curve", "least"]


def least_capacity(neap, job, overrides):
    """0 stands for it: what the plan says it needs, in MiB, rounded up."""
    done = subprocess.run([neap, "plan", job, *overrides, "device.memory=1MiB"], capture_output=True, text=True)
    found = re.search(r"minimum capacity is ([\d.]+) (MiB|GiB)", done.stderr)
    if not found:
        raise RuntimeError(f"no minimum capacity in: {done.stderr[-400:]}")
    return int(float(found[1]) * (1024 if found[2] == "GiB" else 1) + 11)


def wrong_in(result, first):
    out = plan_check.off_plan(result)
    if result["whole_cycle"]:  # without val_files a step leaves out the phase "validate", and moves are others
        out += [f"{p['phase']} did not move as planned" for p in result["phases"] if not p["as_planned"]]
    if (ARGS.deterministic or ARGS.rehearse) and first and result["overrides"] == first["overrides"] and result["loss"] != first["loss"]:
        out.append(f"losses {result['loss']} where the largest ceiling has {first['loss']}")
    return out


def show(name, results):
    gib = 2.0**30
    print(f"\n{name}\n{'ceiling GiB':>12}{'planned':>9}{'measured':>10}{'step s':>9}{'planned':>9}{'of it %':>9}{'moves s':>9}{'planned':>9}"
          f"{'streamed s':>11}{'GB/s':>7}  overlap  updates, micro-batches together")
    for r in results:
        moves = sum(p["move_seconds"] + p["stream_seconds"] for p in r["phases"])
        print(f"{r['capacity'] / gib:>12.2f}{r['planned_peak'] / gib:>9.2f}{r['measured_peak'] / gib:>10.2f}"
              f"{r['seconds_a_step']:>9.3f}{r['planned_seconds']:>9.3f}{100 * r['planned_seconds'] / r['seconds_a_step']:>9.1f}"
              f"{moves:>9.3f}{r['planned_move_seconds']:>9.3f}"
              f"{sum(p['stream_seconds'] for p in r['phases']):>11.3f}{r['copied_per_step'] / max(moves, 1e-9) / 1e9:>7.1f}"
              f"  {'yes' if r['overlap'] else 'no':<7}  {r['optimizer_offload']} {r['together']}", flush=True)


def show_moves(results):
    """Copies and waiting of every move; the share of its copies that a move behind a phase is waited for."""
    print(f"\n{'ceiling GiB':>12}  {'phase':<16}{'when':<12}{'move':<8}{'tag':<20}{'GiB':>7}{'copy s':>9}{'exposed s':>11}{'share':>7}")
    for r in results:
        for p in r["phases"]:
            for m in p["moves"]:
                share = f"{100 * m['exposed_seconds'] / m['copy_seconds']:.0f} %" if m["copy_seconds"] else "-"
                print(f"{r['capacity'] / 2.0**30:>12.2f}  {p['phase']:<16}{'overlapped' if m['overlapped'] else 'before':<12}{m['kind']:<8}{m['tag']:<20}"
                      f"{m['copied'] / 2.0**30:>7.2f}{m['copy_seconds']:>9.4f}{m['exposed_seconds']:>11.4f}{share:>7}")
        both = [(m["copy_seconds"], m["exposed_seconds"]) for p in r["phases"] for m in p["moves"] if m["overlapped"]]
        if both:
            copied, visible = map(sum, zip(*both))
            print(f"{r['capacity'] / 2.0**30:>12.2f}  behind phases in all: copies {copied:.4f} s, visible {visible:.4f} s, "
                  f"{100 * visible / max(copied, 1e-9):.1f} %", flush=True)


def measure(neap, job, folder, overrides):
    plan, metrics, result = plan_check.planned_and_measured(neap, job, folder, overrides)
    return result | {"offloaded_weights": plan["offloaded_weights"], "together": plan.get("micro_batches_per_load", {}),
                     "inputs": plan.get("offloaded_layer_inputs", []), "tables": plan.get("offloaded_embeddings", []),
                     "wait_seconds": sum(p["wait_seconds"] for p in plan["phases"]), "whole_cycle": len(result["phases"]) == len(plan["phases"]), "optimizer_offload": plan["optimizer_offload"],
                     "overrides": plan["overrides"], "planned_seconds": plan["seconds"], "throughput_from": plan["throughput_from"],
                     "planned_move_seconds": plan["move_seconds"], "planned_copy_seconds": plan["copy_seconds"],
                     "host_bytes": plan["host_bytes"], "disk_bytes": plan["disk_bytes"],
                     "overlap": "memory.overlap=false" not in overrides, "copied_per_step": plan["copied_per_step"],
                     "loss": [m[key] for key in ("train/loss", "actor/pg_loss", "critic/vf_loss") for m in metrics if key in m]}


def device_memory(neap, job, ceiling, largest, overrides):
    """The setting for a ceiling in GiB; 0 is the least, and a rehearsal has the same shares of what its tiny job keeps."""
    if ceiling not in (0, TIMES) and not ARGS.rehearse:
        return f"device.memory={ceiling}GiB"
    least = least_capacity(neap, job, overrides)
    if ceiling in (0, TIMES):
        return f"device.memory={int(least * (ceiling or 1))}MiB"
    everything = plan_check.plan_of(neap, job, overrides)["peak_without_offload"] >> 20
    return f"device.memory={least + (everything - least) * ceiling // largest}MiB"


def main():
    neap = ARGS.package.resolve() / "bin" / "neap"
    reviews = ARGS.package.resolve() / "examples" / "reviews"
    known, tables, runs = plan_check.environment(neap), {}, plan_check.Runs("ceilings")
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        cases = ARGS.case or USUAL
        for name in cases:
            case, reward, ceilings = WORK[name]
            plan_check.make_data(work, reviews, case.prompt if case.prompt > 1024 else 0)
            tiny = SMALL if MODELS[case.model]["model_type"] == "opt" else SMALL_QWEN
            plan_check.make_only_model(work, case.model, reviews, tiny)
            if reward and reward != case.model:
                plan_check.make_case_model(work, reward, reviews, tiny)
            job = work / f"{name}.toml"
            job.write_text((plan_check.rehearsed(case) if ARGS.rehearse else case).toml(work))
            base = ["device.kind=cpu" if ARGS.rehearse else "device.kind=cuda"]
            base += [f"reward_model.model.path={work / reward}"] if reward else []
            base += ["trainer.deterministic=true"] if ARGS.deterministic else []
            results = tables.setdefault(name, [])
            largest = {}  # of the same settings
            for at, (ceiling, extra) in enumerate(ceilings):
                if ARGS.ceiling and ceiling not in ARGS.ceiling:
                    continue
                waits = extra == WAITING  # the same job, so the same losses
                run_name, folder = f"{name} {ceiling or 'least'}{' ' + WAITING[0] if waits else ''}", work / f"{name}-{at}"
                settings = () if waits else tuple(extra)
                if not runs.may_start(run_name):
                    continue

                def measured():
                    memory = device_memory(neap, job, ceiling, ceilings[0][0], [*base, *extra])
                    return measure(neap, job, folder, [*base, *extra, memory])

                result = runs.run(run_name, {"case": name, "environment": known}, folder, measured,
                                  lambda r: wrong_in(r, largest.get(settings)))
                if result:
                    largest.setdefault(settings, result)
                    results.append(result)
    for name, results in tables.items():
        show(name, results)
        show_moves(results)
    return runs.end()


def arguments():
    parser = plan_check.common_arguments(__doc__, list(WORK), steps=4)
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--ceiling", nargs="+", type=float)
    parser.add_argument("--deterministic", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    ARGS = plan_check.ARGS = arguments()
    sys.exit(main())
