#!/usr/bin/env python3
"""examples/preferences in a few steps: SFT, DPO, and neap eval with its judge. usage: FILE NEAP EXAMPLES"""
import json
import pathlib
import shutil
import sys
import tempfile

import neap_program


def main():
    neap, source = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="neap-preferences-") as base:
        for name in ("reviews", "preferences"):
            shutil.copytree(source / name, pathlib.Path(base) / "examples" / name)

        def run(*words):
            return neap_program.output_of(neap, *words, cwd=base)

        run("train", "examples/reviews/sft.toml", "trainer.total_training_steps=2", "data.train_batch_size=16")
        run("train", "examples/preferences/dpo.toml", "trainer.total_training_steps=2", "data.train_batch_size=16")
        validation = pathlib.Path(base) / "output/preferences/dpo/validation.jsonl"
        before, after = (json.loads(line) for line in validation.read_text().splitlines())
        assert before["val/rewards/margins"] == 0 < after["val/rewards/margins"], (before, after)
        rows = pathlib.Path(base) / "rows.jsonl"
        report = json.loads(run("eval", "output/preferences/dpo/best", "examples/reviews/prompts_val.jsonl", "--config",
                                "examples/preferences/eval.toml", "--output", str(rows), "--json"))
        assert report["sampling"]["n"] == 4 and report["rows"] == 128, report
        judged = [r for line in rows.read_text().splitlines() for r in json.loads(line)["responses"]]
        friendly = set(json.loads((source / "reviews/lexicon.json").read_text())["friendly"])
        for response in judged:
            assert response["acc"] in (0, 1), response
            if response["acc"] == 1:
                assert any(word in response["text"].lower() for word in friendly), response
    print(f"{len(judged)} texts judged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
