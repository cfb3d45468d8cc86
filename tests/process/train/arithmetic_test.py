#!/usr/bin/env python3
"""examples/arithmetic. usage: FILE NEAP ARITHMETIC [SEED...]

A few steps of both stages; with seeds all of them, as the README runs them: GRPO with a rule reward has to learn additions
that it has never seen, whatever the seed.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import neap_program

FEW = {"sft": ["trainer.total_training_steps=3"],
       "grpo": ["trainer.total_training_steps=2", "trainer.test_freq=1", "data.train_batch_size=8", "actor_rollout_ref.rollout.n=4",
                "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32"]}


def run(neap, base, *words):
    return neap_program.output_of(neap, *words, cwd=base, timeout=3600)


def run_example(neap, base, seed=None):
    """Shares of right answers at each validation of GRPO, and what neap eval says of the best checkpoint."""
    words = {stage: few if seed is None else [f"trainer.seed={seed}"] for stage, few in FEW.items()}
    ended = run(neap, base, "train", "examples/arithmetic/sft.toml", *words["sft"])
    assert ("stopped        val/loss" in ended) == (seed is not None), ended
    run(neap, base, "train", "examples/arithmetic/grpo.toml", *words["grpo"])
    lines = (base / "output/arithmetic/grpo/validation.jsonl").read_text().splitlines()
    report = json.loads(run(neap, base, "eval", "output/arithmetic/grpo/best", "examples/arithmetic/prompts_val.jsonl", "--config",
                            "examples/arithmetic/grpo.toml", "--json"))
    return [json.loads(line)["val/acc/mean@1"] for line in lines], report


def main():
    neap, source = sys.argv[1], pathlib.Path(sys.argv[2])
    subprocess.run([sys.executable, source / "make_data.py", "--check"], check=True)
    for seed in map(int, sys.argv[3:]) if len(sys.argv) > 3 else [None]:
        with tempfile.TemporaryDirectory(prefix="neap-arithmetic-") as base:
            shutil.copytree(source, pathlib.Path(base) / "examples" / "arithmetic")
            shares, report = run_example(neap, pathlib.Path(base), seed)
        print(f"seed {seed}: right answers on held-out additions:", ", ".join(f"{100 * share:.1f} %" for share in shares))
        print("the best checkpoint:", ", ".join(f"{s['source']} {100 * s['figures']['acc/mean@1']:.1f} %" for s in report["sources"]))
        assert {s["source"] for s in report["sources"]} == {"additions", "additions_with_carry"}
        assert report["all"]["figures"]["acc/mean@1"] == max(shares[1:]), (report["all"], shares)
        if seed is not None:
            assert shares[0] < 0.30 and shares[-1] > 0.90, shares
    return 0


if __name__ == "__main__":
    sys.exit(main())
