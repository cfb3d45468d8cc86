#!/usr/bin/env python3
"""GRPO with responses of different lengths, packed and padded in turn: time and peak memory of each phase, planned beside measured.

usage: packed.py OUT_DIR PACKAGE_DIR [--steps N] [--tolerance PERCENT] [--minutes M] [--rehearse]

Qwen2.5-1.5B's shape with random weights, 32 prompts x 8 samples, up to 1 024 new tokens, with a reference and a reward model. Lengths
are drawn (rollout.sample_lengths): the same ones in all runs. Padded: micro-batches of 8 sequences; packed: of as many tokens as these
have with their padding. Then packed with four times the budget and all blocks recomputed. Writes OUT_DIR/packed.jsonl, a line a run,
and a table on stdout. Exits 1 where a run fails, a phase takes more than planned or is further from its plan than the tolerance
(default 1 %), or the losses of the first step differ by more than 2 %. --rehearse: tiny models on the host.
"""
import json
import pathlib
import random
import sys
import tempfile

import plan_check
from plan_check import Case
import random_models

CASE = Case("qwen2.5-1.5b", "grpo", 32, 512, 1024, micro=8, n=8)
TINY = Case("qwen2.5-1.5b", "grpo", 8, 32, 64, micro=4, n=4)


def runs_of(case):
    """Overrides of each run."""
    budget = case.micro * (case.prompt + case.response)
    actor = "actor_rollout_ref.actor"
    packed = [f"{actor}.use_dynamic_bsz=true", f"{actor}.ppo_max_token_len_per_gpu={budget}"]
    larger = [packed[0], f"{actor}.ppo_max_token_len_per_gpu={4 * budget}", "actor_rollout_ref.model.activation_checkpointing=full"]
    return {"padded": [], "packed": packed, "packed, 4 x budget, recomputed": larger}


def make_prompts(file, case, reviews):
    """Prompts of a sixteenth of the longest to all of it, about."""
    rows = [json.loads(line) for line in open(reviews / "sft_train.jsonl")]
    words = " ".join(row["response"] for row in rows[:400]).split()
    draw = random.Random(1)
    with open(file, "w") as out:
        for i in range(2 * case.rows):
            count = max(2, int(case.prompt / 2 * 16 ** -draw.random()))
            out.write(json.dumps({"prompt": " ".join(words[i:i + count])}) + "\n")


def wrong_in(result):
    """A phase takes no more than planned. Not much less either, but for tiny models, whose logits depend on the prompts' lengths."""
    most = plan_check.ARGS.tolerance
    least = -100 if plan_check.ARGS.rehearse else -most
    return [f"{p['phase']} is {p['percent']:+.2f} % off its plan" for p in result["phases"] if not least <= p["percent"] <= most]


def main():
    args = plan_check.ARGS
    package = pathlib.Path(args.package).resolve()
    neap, reviews = package / "bin" / "neap", package / "examples" / "reviews"
    case = TINY if args.rehearse else CASE
    known, runs, results = plan_check.environment(neap), plan_check.Runs("packed"), {}
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        plan_check.make_case_model(work, case.model, reviews, random_models.TINY)
        make_prompts(work / "grpo.jsonl", case, reviews)
        job = work / "job.toml"
        job.write_text(case.toml(work))
        common = ["actor_rollout_ref.rollout.sample_lengths=true", "data.truncation=left"]
        if args.rehearse:
            common += ["device.kind=cpu", "device.memory=1GiB"]
        for name, overrides in runs_of(case).items():
            if not runs.may_start(name):
                continue
            folder = work / f"run{runs.count}"
            results[name] = runs.run(name, {"case": name, "environment": known}, folder,
                                     lambda: plan_check.measure(case, neap, job, folder, [*common, *overrides]), wrong_in)
            if results[name]:
                plan_check.show(results[name])
    done = {name: result for name, result in results.items() if result}
    if "padded" in done:
        for name, result in done.items():
            ratio = {p["phase"]: q["seconds"] / p["seconds"] for p, q in zip(result["phases"], done["padded"]["phases"])}
            print(f"{name}: padded takes " + ", ".join(f"{phase} x {value:.2f}" for phase, value in ratio.items()))
            losses = [done[key]["loss"][0] for key in ("padded", name)]
            if abs(losses[1] - losses[0]) > 0.02 * abs(losses[0]) + 1e-4:
                runs.failures.append(f"{name}: the first step's loss is {losses[1]}, padded {losses[0]}")
    return runs.end()


def arguments():
    parser = plan_check.common_arguments(__doc__, [], steps=3)
    parser.add_argument("package", metavar="PACKAGE_DIR")
    parser.set_defaults(tolerance=1.0)
    return parser.parse_args()


if __name__ == "__main__":
    plan_check.ARGS = arguments()
    sys.exit(main())
