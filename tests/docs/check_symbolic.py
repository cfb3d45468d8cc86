#!/usr/bin/env python3
"""The table of docs/symbolic-answers.md is what `neap reward` says of its pairs, in both orders. usage: check_symbolic.py NEAP PAGE"""
import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile


def pairs(page):
    """Score that the page says, response, ground truth."""
    for line in page.read_text().splitlines():
        if not line.startswith("| ") or line.startswith(("| |", "| ---")):
            continue
        for score, cell in zip((1.0, 0.0), line.split("|")[2:]):
            for group in cell.split(";"):
                for answer, truth in itertools.permutations(re.findall(r"`([^`]*)`", group), 2):
                    yield score, answer, truth


def main():
    neap, some = sys.argv[1], list(pairs(pathlib.Path(sys.argv[2])))
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows.jsonl"
        rows.write_text("".join(json.dumps({"prompt": "", "answer": truth, "response": f"\\boxed{{{answer}}}"}) + "\n"
                                for _, answer, truth in some))
        done = subprocess.run([neap, "reward", rows, "--json", "reward.functions.0.kind=symbolic"], capture_output=True, text=True, check=True)
    scored = [response["reward"] for response in json.loads(done.stdout)["responses"]]
    wrong = [f"{answer} and {truth}: the page says {said}, neap {score}" for (said, answer, truth), score in zip(some, scored) if said != score]
    print("\n".join(wrong) or f"{len(scored)} pairs are as the page says")
    return int(bool(wrong) or len(scored) != len(some) or len(some) < 100)


if __name__ == "__main__":
    sys.exit(main())
