#!/usr/bin/env python3
"""examples/preferences: SFT, DPO, and neap eval with its judge. usage: FILE NEAP EXAMPLES [--full]

A few steps; with --full all of them, as the READMEs run them, and the PPO of examples/reviews from the same start: both have to move the
judge, which no stage trains on.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import neap_program

FEW = ["trainer.total_training_steps=2", "data.train_batch_size=16"]


class Examples:
    def __init__(self, neap, source, base):
        self.neap, self.base = neap, pathlib.Path(base)
        for name in ("reviews", "preferences"):
            shutil.copytree(source / name, self.base / "examples" / name)

    def run(self, *words):
        return neap_program.output_of(self.neap, *words, cwd=self.base, timeout=3600)

    def train(self, file, *overrides):
        self.run("train", f"examples/{file}", *overrides)

    def judged(self, model):
        """What neap eval reports, and the responses."""
        rows = self.base / "rows.jsonl"
        report = json.loads(self.run("eval", model, "examples/reviews/prompts_val.jsonl", "--config", "examples/preferences/eval.toml",
                                     "--output", str(rows), "--json"))
        assert report["sampling"]["n"] == 4 and report["rows"] == 128, report
        return report, [r for row in neap_program.read_lines(rows) for r in row["responses"]]

    def friendly(self, model):
        share = self.judged(model)[0]["all"]["figures"]["acc/mean@4"]
        print(f"{model}: {100 * share:.1f} % friendly samples", flush=True)
        return share


def few_steps(examples, source):
    examples.train("reviews/sft.toml", *FEW)
    examples.train("preferences/dpo.toml", *FEW)
    before, after = neap_program.read_lines(examples.base / "output/preferences/dpo/validation.jsonl")
    assert before["val/rewards/margins"] == 0 < after["val/rewards/margins"], (before, after)
    _, judged = examples.judged("output/preferences/dpo/best")
    friendly = set(json.loads((source / "reviews/lexicon.json").read_text())["friendly"])
    for response in judged:
        assert response["acc"] in (0, 1), response
        if response["acc"] == 1:
            assert any(word in response["text"].lower() for word in friendly), response
    print(f"{len(judged)} texts judged")


def whole(examples):
    for file in ("reviews/sft.toml", "reviews/reward.toml", "preferences/dpo.toml", "reviews/ppo.toml"):
        examples.train(file)
    start, dpo, ppo = (examples.friendly(f"output/{run}") for run in ("reviews/sft", "preferences/dpo", "reviews/ppo"))
    assert start < 0.5 and dpo > 0.8 and ppo > 0.9, (start, dpo, ppo)
    accuracy = neap_program.read_lines(examples.base / "output/preferences/dpo/validation.jsonl")[-1]["val/rewards/accuracies"]
    assert accuracy > 0.75, accuracy


def once_is_the_same(examples):
    """The reference before the first step instead of in each, on 200 pairs: no multiple of a batch."""
    base = examples.base
    for name in ("each", "once"):
        examples.train("preferences/dpo.toml", *FEW, 'data.train_files=["../reviews/pairs_val.jsonl"]', f"dpo.precompute_ref_log_probs={json.dumps(name == 'once')}",
                       f"trainer.default_local_dir={base}/{name}")
    each, once = (neap_program.read_lines(base / name / "metrics.jsonl") for name in ("each", "once"))
    for a, b in zip(each, once, strict=True):
        assert abs(a["train/loss"] - b["train/loss"]) < 1e-6, (a, b)
    peaks = {name: json.loads((base / name / "plan.json").read_text())["peak"] for name in ("each", "once")}
    assert peaks["once"] < peaks["each"], peaks
    planned = {p["name"]: p["peak"] for p in json.loads((base / "once/plan.json").read_text())["phases"]}
    measured = [(r["phase"], r["peak"]) for r in neap_program.read_lines(base / "once/phases.jsonl")]
    assert set(dict(measured)) == set(planned), measured
    assert all(peak == planned[name] for name, peak in measured), (planned, measured)


def main():
    neap, source = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="neap-preferences-") as base:
        examples = Examples(neap, source, base)
        if "--full" in sys.argv:
            whole(examples)
        else:
            few_steps(examples, source)
            once_is_the_same(examples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
