#!/usr/bin/env python3
"""The table of docs/symbolic-answers.md is what `neap reward` says of tests/golden/symbolic/pairs.txt, in both orders.

Usage: check_symbolic.py NEAP SOURCE_DIR [--write]
A line of pairs.txt that is not indented is a row's name; each line below it has answers, separated by two spaces, that are all
equal or all different.
"""
import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = re.compile(r"(<!-- pairs: .*?-->\n)(.*?)(<!-- end -->)", re.S)


def rows(file):
    """Name and groups of answers."""
    found = []
    for line in file.read_text().splitlines():
        if line.startswith("  "):
            found[-1][1].append(line.strip().split("  "))
        else:
            found.append((line, []))
    return found


def scores(neap, pairs):
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.jsonl"
        data.write_text("".join(json.dumps({"prompt": "", "answer": truth, "response": f"\\boxed{{{answer}}}"}) + "\n" for answer, truth in pairs))
        done = subprocess.run([neap, "reward", data, "--json", "reward.functions.0.kind=symbolic"], capture_output=True, text=True, check=True)
    found = [response["reward"] for response in json.loads(done.stdout)["responses"]]
    if len(found) != len(pairs):
        raise SystemExit(f"{len(pairs)} pairs, {len(found)} scores")
    return dict(zip(pairs, found))


def main():
    page = Path(sys.argv[2]) / "docs" / "symbolic-answers.md"
    table = rows(Path(sys.argv[2]) / "tests" / "golden" / "symbolic" / "pairs.txt")
    pairs = [pair for _, groups in table for group in groups for pair in itertools.permutations(group, 2)]
    score, mixed = scores(sys.argv[1], list(dict.fromkeys(pairs))), []
    lines = ["| | equal | not equal |", "|---|---|---|"]
    for name, groups in table:
        cells = {1.0: [], 0.0: []}
        for group in groups:
            said = {score[pair] for pair in itertools.permutations(group, 2)}
            if len(said) != 1:
                mixed.append(f"neither all equal nor all different: {'  '.join(group)}")
            cells[max(said)].append(", ".join(f"`{answer}`" for answer in group))
        lines.append(f"| {name} | {'; '.join(cells[1.0])} | {'; '.join(cells[0.0])} |")
    text = page.read_text()
    new = TABLE.sub(lambda m: m[1] + "\n".join(lines) + "\n" + m[3], text)
    if "--write" in sys.argv and not mixed:
        page.write_text(new)
    elif new != text:
        mixed.append("docs/symbolic-answers.md does not have the table that neap makes of pairs.txt: run check_symbolic.py with --write")
    print("\n".join(mixed) or f"{len(pairs)} pairs are as the page says")
    return int(bool(mixed) or len(pairs) < 100 or not TABLE.search(text))


if __name__ == "__main__":
    sys.exit(main())
