#!/usr/bin/env python3
"""Step times under falling ceilings: what the plan chooses, planned beside measured bytes and seconds.

usage: ceilings.py OUT_DIR PACKAGE_DIR [--case paper|curve|least|qwen7b ...] [--steps N] [--minutes M] [--deterministic] [--rehearse]

paper: actor and reference OPT-1.3b, critic and reward OPT-350m, 8 x (256 + 256), under 36, 28, 22 and 16 GiB.
curve: four models of OPT-1.3b, 8 x (256 + 256), at six ceilings from all resident to the least capacity.
least: streams under the least capacity that the plan finds for the paper's workload.
qwen7b: full training of Qwen2.5-7B, 4 x 2 048, recomputation: all resident, with bfloat16 states under 79 GiB, then under 79 and 56 GiB
(about 115 GiB of host memory). It is run only when it is named.
Writes OUT_DIR/ceilings.jsonl, a line a run, and a table on stdout. After M minutes (default 9) no further run starts. Exits 1
where a run fails, a phase is more than 0.2 % off its plan, moves are not the plan's, or, with --deterministic, losses differ from
those of the largest ceiling (without it two runs on a GPU may differ). --rehearse: tiny models on the host.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import plan_check
from plan_check import Case, MODELS

OPT_350M = {**MODELS["opt-1.3b"], "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
            "word_embed_proj_dim": 1024}  # without the narrow embedding of the published model
SMALL = {"vocab_size": 1024, "hidden_size": 256, "ffn_dim": 1024, "num_hidden_layers": 4, "num_attention_heads": 4,
         "word_embed_proj_dim": 256}  # of a rehearsal: states of a few windows
SMALL_QWEN = {"vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
              "num_key_value_heads": 2}
NARROW = ['memory.allow=["recompute","move","stream","bf16_states"]']
PPO = Case("opt-1.3b", "ppo", 8, 256, 256)
QWEN7B = Case("qwen2.5-7b", "sft", 4, 64, 1984, checkpointing="full")
# The job, its reward model, and ceilings in GiB (0: the least) with overrides.
WORK = {"paper": (PPO, "opt-350m", [(36, []), (28, []), (22, []), (16, [])]),
        "curve": (PPO, "opt-1.3b", [(56, []), (44, []), (34, []), (26, []), (20, []), (0, [])]),
        "least": (PPO, "opt-350m", [(0, [])]),
        "qwen7b": (QWEN7B, None, [(138, []), (79, NARROW), (79, []), (56, [])])}
USUAL = ["paper", "curve", "least"]


def least_capacity(neap, job, overrides):
    """0 stands for it: what the plan says it needs, in MiB, rounded up."""
    done = subprocess.run([neap, "plan", job, *overrides, "device.memory=1MiB"], capture_output=True, text=True)
    found = re.search(r"least capacity is ([\d.]+) (MiB|GiB)", done.stderr)
    if not found:
        raise RuntimeError(f"no least capacity in: {done.stderr[-400:]}")
    return int(float(found[1]) * (1024 if found[2] == "GiB" else 1) + 11)


def wrong_in(result, first):
    out = [f"{p['phase']} is {p['percent']:+.2f} % off its plan" for p in result["phases"] if abs(p["percent"]) > ARGS.tolerance]
    if result["whole_cycle"]:  # without val_files a step leaves out the phase "validate", and moves are others
        out += [f"{p['phase']} did not move as planned" for p in result["phases"] if not p["as_planned"]]
    if (ARGS.deterministic or ARGS.rehearse) and first and result["overrides"] == first["overrides"] and result["loss"] != first["loss"]:
        out.append(f"losses {result['loss']} where the largest ceiling has {first['loss']}")
    return out


def show(name, results):
    gib = 2.0**30
    print(f"\n{name}\n{'ceiling GiB':>12}{'planned':>9}{'measured':>10}{'step s':>9}{'moves s':>9}{'planned':>9}{'streamed s':>11}"
          f"{'GB/s':>7}  updates")
    for r in results:
        moves = sum(p["move_seconds"] + p["stream_seconds"] for p in r["phases"])
        print(f"{r['capacity'] / gib:>12.2f}{r['planned_peak'] / gib:>9.2f}{r['measured_peak'] / gib:>10.2f}"
              f"{r['seconds_a_step']:>9.3f}{moves:>9.3f}{r['planned_move_seconds']:>9.3f}"
              f"{sum(p['stream_seconds'] for p in r['phases']):>11.3f}{r['moved_per_step'] / max(moves, 1e-9) / 1e9:>7.1f}"
              f"  {r['updates']}", flush=True)


def run(neap, job, folder, overrides, case):
    command, metrics = plan_check.run_job(neap, job, folder, overrides, ARGS.steps, 240)
    plan, phases = plan_check.compare(folder, metrics)
    return {"command": command, "capacity": plan["capacity"], "all_resident": plan["all_resident"], "planned_peak": plan["peak"],
            "measured_peak": max(p["measured"] for p in phases), "phases": phases, "whole_cycle": len(phases) == len(plan["phases"]),
            "updates": plan["updates"], "overrides": plan["overrides"], "planned_seconds": plan["seconds"], "rates_from": plan["rates_from"],
            "seconds_a_step": plan_check.median(metrics, "timing_s/step"), "planned_move_seconds": plan["move_seconds"],
            "moved_per_step": plan["moved_per_step"],
            "loss": [m[key] for key in ("train/loss", "actor/pg_loss", "critic/vf_loss") for m in metrics if key in m]}


def main():
    start = time.monotonic()
    neap = ARGS.package.resolve() / "bin" / "neap"
    reviews = ARGS.package.resolve() / "examples" / "reviews"
    ARGS.out.mkdir(parents=True, exist_ok=True)
    MODELS["opt-350m"] = OPT_350M
    known, failures, tables = plan_check.environment(neap), [], {}
    with tempfile.TemporaryDirectory() as temporary, open(ARGS.out / "ceilings.jsonl", "a") as log:
        work = pathlib.Path(temporary)
        plan_check.make_data(work, reviews)
        cases = ARGS.case or USUAL
        for name in sorted({model for case in cases for model in (WORK[case][0].model, WORK[case][1]) if model}):
            config = MODELS[name]
            if ARGS.rehearse:
                config = {**config, **(SMALL_QWEN if config["model_type"] == "qwen2" else SMALL)}
            plan_check.make_model(work / name, config, reviews / "model")
        for name in cases:
            case, reward, ceilings = WORK[name]
            if ARGS.rehearse:
                case = plan_check.rehearsed(case)
            job = work / f"{name}.toml"
            job.write_text(case.toml(work))
            base = ([f"reward_model.model.path={work / reward}"] if reward else []) + (["device.kind=host"] if ARGS.rehearse else ["device.kind=cuda"])
            base += ["trainer.deterministic=true"] if ARGS.deterministic else []
            results = tables.setdefault(name, [])
            for at, (ceiling, extra) in enumerate(ceilings):
                if time.monotonic() - start > 60 * ARGS.minutes:
                    failures.append(f"{name} {ceiling}: did not start in time")
                    continue
                line = {"suite": "ceilings", "case": name, "rehearsal": ARGS.rehearse,
                        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "environment": known}
                folder = work / f"{name}-{at}"
                try:
                    size = f"{ceiling}GiB"
                    if ARGS.rehearse and ceiling:
                        everything = plan_check.plan_of(neap, job, base)["all_resident"] >> 20
                        least = least_capacity(neap, job, base)
                        size = f"{least + (everything - least) * ceiling // ceilings[0][0]}MiB"
                    if not ceiling:
                        size = f"{least_capacity(neap, job, base)}MiB"
                    print(f"== {name} under {size} at {time.monotonic() - start:.0f} s", flush=True)
                    line |= run(neap, job, folder, [*base, *extra, f"device.memory={size}"], case)
                    line["wrong"] = wrong_in(line, results[0] if results else None)
                    results.append(line)
                except (RuntimeError, OSError, ValueError, KeyError) as error:
                    line["wrong"] = [f"{type(error).__name__}: {error}"]
                for what in line["wrong"]:
                    print(f"   {what}", flush=True)
                    failures.append(f"{name} {ceiling}: {what}")
                log.write(json.dumps(line) + "\n")
                log.flush()
                shutil.rmtree(folder, ignore_errors=True)
    for name, results in tables.items():
        show(name, results)
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"ceilings: {len(failures)} failures, {time.monotonic() - start:.0f} s")
    return bool(failures)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--case", action="append", choices=list(WORK))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=0.2)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    ARGS = plan_check.ARGS = arguments()
    sys.exit(main())
