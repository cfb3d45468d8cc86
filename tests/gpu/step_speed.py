#!/usr/bin/env python3
"""Whole steps of training and of RL: seconds of a step and of its phases, tokens a second, memory, and the kernels that take most of it.

usage: step_speed.py OUT_DIR NAME=PACKAGE_DIR [NAME=PACKAGE_DIR ...] [--case CASE]... [--kernels LIBRARY] [--watch CASE]... [--steps N]
                     [--minutes M] [--rehearse]

Every package runs the same cases in turn. Cases of --watch are run once more with LIBRARY (kernel_times.cpp), which sums up the kernels;
other figures are of the run without it. sft: full training of Qwen2.5 with the recomputation that the plan chooses, and with all layers
recomputed; -fp8: layers in fp8. saves: with a checkpoint of 21.6 GB every four steps. lora: rank 16 on Qwen3, 8 x 2 048 tokens, two samples a micro-batch. ppo: actor and reference OPT-1.3b, critic and reward OPT-350m,
8 x (256 + 256). grpo: LoRA-32 of Qwen2.5-1.5B, two prompts with four samples of 256 + 768 tokens, under 3 165 MiB with two sequences decoded
together, and with room for all. rollout: eight prompts with eight samples of 512 + up to 1 024 tokens: 16 slots, as many tokens in pages
for 64 sequences, and 64 slots; fewer and auto: in 5 GiB, with fewer sequences and with pages that the plan chooses. Their prompts are long
if no other case is asked for.
Writes OUT_DIR/step_speed.jsonl, a line a run, and a table on stdout. Models are made before the first case, in $TMPDIR. After M minutes
(default 9) no further case starts. Exits 1 if a run fails or a phase takes other memory than planned. --rehearse: tiny models on the host.
"""
import concurrent.futures
import json
import os
import pathlib
import sys
import tempfile

import kernel_times
import plan_check
from plan_check import Case
from random_models import MODELS, TINY, make_model

MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
AUTO = [f"{MODEL}.activation_checkpointing=auto", "critic.model.activation_checkpointing=auto"]
CUT = ["data.truncation=right"]
FP8 = "device.linear_dtype=fp8"
LORA = [*AUTO, *CUT, f"{MODEL}.lora_rank=16"]
LORA32 = [f"{MODEL}.activation_checkpointing=auto", f"{MODEL}.lora_rank=32", "data.truncation=left"]
GRPO = Case("qwen2.5-1.5b", "grpo", 2, 256, 768, micro=1, n=4)
SAMPLES = Case("qwen2.5-1.5b", "grpo", 8, 512, 1024, micro=4, n=8)
VARIED = [*LORA32, f"{ROLLOUT}.sample_lengths=true"]
# The job, its reward model, overrides and steps (0: as given).
WORK = {"sft-1.5b": (Case("qwen2.5-1.5b", "sft", 8, 64, 1984), None, [*AUTO, *CUT], 0),
        "sft-1.5b-selective": (Case("qwen2.5-1.5b", "sft", 8, 64, 1984), None, CUT, 0),
        "sft-1.5b-fp8": (Case("qwen2.5-1.5b", "sft", 8, 64, 1984), None, [*AUTO, *CUT, FP8], 0),
        "saves": (Case("qwen2.5-1.5b", "sft", 8, 64, 1984), None, [*AUTO, *CUT, "trainer.save_freq=4", "trainer.max_ckpt_to_keep=1"], 10),
        "sft-7b": (Case("qwen2.5-7b", "sft", 4, 64, 1984), None, [*AUTO, *CUT], 0),
        "sft-7b-recompute": (Case("qwen2.5-7b", "sft", 4, 64, 1984, checkpointing="full"), None, CUT, 0),
        "lora-8b-fp8": (Case("qwen3-8b", "sft", 8, 64, 1984, micro=2), None, [*LORA, FP8], 0),
        **{f"lora-{size}": (Case(f"qwen3-{size}", "sft", 8, 64, 1984, micro=2), None, LORA, 0) for size in ("0.6b", "1.7b", "4b", "8b")},
        "ppo": (Case("opt-1.3b", "ppo", 8, 256, 256), "opt-350m", AUTO, 0),
        "grpo-3gib": (GRPO, None, [*LORA32, f"{ROLLOUT}.batch_size=2", "device.memory=3165MiB"], 3),
        "grpo-3gib-chunks": (GRPO, None, [*LORA32, f"{ROLLOUT}.batch_size=2", f"{ROLLOUT}.max_num_batched_tokens=128", "device.memory=3165MiB"], 3),
        "grpo": (GRPO, None, LORA32, 4),
        "rollout-slots": (SAMPLES, None, [*VARIED, f"{ROLLOUT}.batch_size=16"], 3),
        "rollout-pages": (SAMPLES, None, [*VARIED, f"{ROLLOUT}.batch_size=64", f"{ROLLOUT}.max_total_tokens=24576"], 3),
        "rollout-all": (SAMPLES, None, [*VARIED, f"{ROLLOUT}.batch_size=64"], 3),
        "rollout-fewer": (SAMPLES, None, [*VARIED, f"{ROLLOUT}.batch_size=64", "device.memory=5GiB"], 3),
        "rollout-auto": (SAMPLES, None, [*VARIED, f"{ROLLOUT}.batch_size=64", f"{ROLLOUT}.max_total_tokens=auto", "device.memory=5GiB"], 3)}
USUAL = ["sft-1.5b", "sft-7b-recompute", "lora-0.6b", "lora-1.7b", "lora-4b", "lora-8b", "ppo", "grpo-3gib", "grpo"]


def models_of(cases):
    return sorted({model for name in cases for model in (WORK[name][0].model, WORK[name][1]) if model})


def make(job):
    folder, name, tokenizer, tiny = job
    config = MODELS[name]
    make_model(folder, {**config, **{key: value for key, value in tiny.items() if key in config}}, tokenizer)


def make_models(work, cases, reviews):
    with concurrent.futures.ProcessPoolExecutor(max_workers=min(8, os.cpu_count())) as pool:
        list(pool.map(make, [(work / name, name, reviews / "model", TINY if ARGS.rehearse else {}) for name in models_of(cases)]))


def overrides_of(name, work):
    case, reward, overrides, _ = WORK[name]
    out = [key for key in overrides if case.task == "ppo" or not key.startswith("critic.")]
    if reward:
        out.append(f"reward_model.model.path={work / reward}")
        out.append(f"critic.model.path={work / reward}")
    if ARGS.rehearse:
        out = [key for key in out if "device.memory" not in key and "max_num_batched_tokens" not in key]
        out += ["device.kind=cpu", "device.memory=1GiB", *(["device.dtype=bfloat16"] if FP8 in out else [])]
    return out


def measure(case, neap, job, folder, overrides):
    """A run as users run it. Phases have the seconds that the plan expects of them."""
    times = []
    command, metrics = plan_check.run_job(neap, job, folder, overrides, ARGS.steps, ARGS.seconds, times)
    plan, phases = plan_check.compare(folder, metrics)
    planned = {phase["name"]: phase["seconds"] for phase in plan["phases"]}
    step = plan_check.median(metrics, "timing_s/step")
    kept = ("phase", "planned", "measured", "percent", "seconds", "move_seconds", "stream_seconds", "moved", "planned_moved", "times")
    return {"command": command, "capacity": plan["capacity"], "planned_peak": plan["peak"], "measured_peak": max(p["measured"] for p in phases),
            "planned_seconds": plan["seconds"], "seconds_a_step": step, "tokens_a_second": case.tokens / step, "seconds_to_rows": times,
            "steps": [m["timing_s/step"] for m in metrics], "saves": [m["timing_s/save_checkpoint"] for m in metrics if "timing_s/save_checkpoint" in m], "decodes_in_graphs": plan["decodes_in_graphs"],
            "phases": [{**{key: p[key] for key in kept}, "planned_seconds": planned[p["phase"]]} for p in phases],
            "seconds": {key.removeprefix("timing_s/"): plan_check.median(metrics, key) for key in metrics[-1] if key.startswith("timing_s/")},
            "loss": [m.get("train/loss", m.get("actor/pg_loss")) for m in metrics],
            "log_prob_difference": [m[key] for m in metrics for key in m if key.startswith("training/rollout")]}


def watched(neap, job, folder, overrides):
    """The same run once more, with the library."""
    times = pathlib.Path(f"{folder}.times")
    os.environ |= {"CUDA_INJECTION64_PATH": str(ARGS.kernels.resolve()), "NEAP_KERNEL_TIMES": str(times)}
    try:
        _, metrics = plan_check.run_job(neap, job, folder, overrides, ARGS.steps, ARGS.seconds)
    finally:
        del os.environ["CUDA_INJECTION64_PATH"]
    return {"watched_steps": [m["timing_s/step"] for m in metrics], **kernel_times.watched(times)}


def show(name, r):
    gib = 2.0**30
    graphs = ", graphs" if r["decodes_in_graphs"] else ""
    print(f"{name}: {r['seconds_a_step']:.4f} s a step (planned {r['planned_seconds']:.4f}), {r['tokens_a_second']:.0f} tokens/s, "
          f"{r['measured_peak'] / gib:.3f} GiB (planned {r['planned_peak'] / gib:.3f}){graphs}; rows after {r['seconds_to_rows'][:2]} s")
    print("   " + ", ".join(f"{p['phase']} {p['seconds']:.4f} ({p['planned_seconds']:.4f}) {p['percent']:+.2f} %" for p in r["phases"]))
    if r["saves"]:
        print(f"   training waited for saves {[round(s, 2) for s in r['saves']]} s; steps {[round(s, 3) for s in r['steps']]}")
    if "kernels" in r:
        print(f"   watched steps {[round(s, 4) for s in r['watched_steps']]}")
        for kernel, count, mean in r["gaps"] + r["kernels"][:24]:
            print(f"      {count:>8} x {mean:9.1f} us = {count * mean / 1e3:9.1f} ms  {kernel[:100]}")
    sys.stdout.flush()


def main():
    packages = {name: pathlib.Path(folder).resolve() for name, folder in (p.split("=", 1) for p in ARGS.packages)}
    reviews = next(iter(packages.values())) / "examples" / "reviews"
    known = {name: plan_check.environment(package / "bin" / "neap") for name, package in packages.items()}
    runs, cases, steps = plan_check.Runs("step_speed"), ARGS.case or USUAL, ARGS.steps
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        long_prompts = all(WORK[name][0] is SAMPLES for name in cases)
        plan_check.make_data(work, reviews, 700 if long_prompts else 0, response_words=2400)
        make_models(work, cases, reviews)
        print(f"models made at {runs.seconds():.0f} s", flush=True)
        for name in cases:
            if not runs.may_start(name):
                continue
            case = plan_check.rehearsed(WORK[name][0]) if ARGS.rehearse else WORK[name][0]
            ARGS.steps = WORK[name][3] or steps
            job = work / f"{name}.toml"
            job.write_text(case.toml(work))
            for package_name, package in packages.items():
                neap, folder = package / "bin" / "neap", work / f"{name}-{package_name}"

                def measured():
                    overrides = overrides_of(name, work)
                    result = measure(case, neap, job, folder, overrides)
                    if name in (ARGS.watch or ()) and ARGS.kernels:
                        result |= watched(neap, job, folder.with_name(folder.name + "-watched"), overrides)
                    return result

                result = runs.run(f"{name} {package_name}", {"case": name, "package": package_name, "environment": known[package_name]}, folder,
                                  measured, plan_check.off_plan)
                if result:
                    show(f"{name} {package_name}", result)
    return runs.end()


if __name__ == "__main__":
    parser = plan_check.common_arguments(__doc__, list(WORK), steps=7)
    parser.add_argument("packages", nargs="+", metavar="NAME=PACKAGE_DIR")
    parser.add_argument("--kernels", type=pathlib.Path)
    parser.add_argument("--watch", action="append", choices=list(WORK))
    ARGS = plan_check.ARGS = parser.parse_args()
    sys.exit(main())
