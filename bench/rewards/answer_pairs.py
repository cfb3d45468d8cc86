#!/usr/bin/env python3
"""How often a rule decides wrongly: labeled pairs of a ground truth and a response, scored by `neap reward`.

usage: answer_pairs.py PAIRS.jsonl[.gz] [--neap NEAP] [--kind symbolic] [--show N]

A row has `truth`, `response` and `label` (1: the response's answer is the truth). Prints which share of the equal pairs the rule
rejects and of the unequal ones it accepts, the seconds, and N pairs of each. `--kind numeric` leaves out rows whose truth is no number,
which the rule refuses. The project ships no such file; its own pairs are in tests/unit/reward.
"""
import argparse
import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile


def read(path):
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        return [json.loads(line) for line in file]


def scored(neap, kind, rows):
    """The rows that the rule takes with their scores, and the seconds of all."""
    rows = list(rows)
    with tempfile.TemporaryDirectory() as folder:
        responses = pathlib.Path(folder) / "responses.jsonl"
        while rows:
            responses.write_text("".join(json.dumps({"ground_truth": r["truth"], "response": r["response"]}) + "\n" for r in rows))
            done = subprocess.run([neap, "reward", responses, f"reward.functions.0.kind={kind}", "--json"], capture_output=True, text=True,
                                  check=False)
            if done.returncode == 0:
                result = json.loads(done.stdout)
                return list(zip(rows, (r["reward"] for r in result["responses"]), strict=True)), result["summary"][0]["seconds"]
            refused = re.search(r"responses\.jsonl:(\d+)", done.stderr)
            if not refused or "is not a number" not in done.stderr:
                sys.exit(f"neap reward: exit {done.returncode}: {done.stderr[-600:]}")
            del rows[int(refused[1]) - 1]
    sys.exit("The rule takes none of these rows")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs")
    parser.add_argument("--neap", default="neap")
    parser.add_argument("--kind", default="symbolic", choices=["symbolic", "numeric", "exact"])
    parser.add_argument("--show", type=int, default=0)
    args = parser.parse_args()
    pairs, seconds = scored(args.neap, args.kind, read(args.pairs))
    for label, wrong, what in ((1, 0.0, "equal pairs rejected"), (0, 1.0, "unequal pairs accepted")):
        of = [(row, score) for row, score in pairs if row["label"] == label]
        found = [row for row, score in of if score == wrong]
        print(f"{args.kind}: {len(found)} of {len(of)} {what}: {100 * len(found) / max(1, len(of)):.2f} %")
        for row in found[: args.show]:
            print(f"    {row['truth']!r}  <->  {row.get('ans', row['response'])!r}")
    print(f"{1e6 * seconds / len(pairs):.1f} us a pair")


if __name__ == "__main__":
    main()
