#!/usr/bin/env python3
"""`neap bench` as a user meets it: rows with limits, a table, refusals that say what would do.

Usage: bench_test.py NEAP_BINARY
"""
import json
import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
import neap_program  # noqa: E402

NEAP = sys.argv[1]
problems = []


def run(*words):
    return neap_program.run(NEAP, "bench", *words, timeout=100)


def check(what, holds, seen=""):
    if not holds:
        problems.append(f"{what}: {seen}")


with tempfile.TemporaryDirectory() as folder:
    done = run("--quick", "--device", "cpu", "--size", "64MiB", "--cycles", "2", "--json", "--disk-folder", folder)
    check("exit code", done.returncode == 0, done.stderr)
    out = json.loads(done.stdout)
    check("schema", out["schema"] == 1, out.get("schema"))
    check("nothing left out", out["left_out"] == [], out["left_out"])
    check("size", out["environment"]["size"] == 64 << 20, out["environment"])
    rows = {(row["case"], row["what"]): row for row in out["rows"]}
    for case in ("host_memory", "link", "lookup", "region", "discard_kept", "discard_released", "discard_many",
                 "hand_over", "backup", "exchange", "disk", "cache", "replay"):
        check("a row of each case", any(key[0] == case for key in rows), case)
    check("hand-over to a second process", ("hand_over", "to another process") in rows, sorted(rows))
    for key, row in rows.items():
        check("a positive median within its spread", 0 < row["low"] <= row["median"] <= row["high"], (key, row))
        if "limit" in row:
            ratio = row["median"] / row["limit"]["median"]
            wanted = ratio if row["better"] == "more" else 1 / ratio
            check("the share of the limit", abs(row["reached"] - wanted) < 1e-6 * wanted, (key, row))
            check("a limit with a name", row["limit"]["from"], key)
    check("the folder is left empty", os.listdir(folder) == [], os.listdir(folder))

done = run("--device", "cpu", "--quick", "--size", "64MiB", "--cycles", "1", "--filter", "lookup")
check("a table", done.returncode == 0 and "binary search" in done.stdout and "%" in done.stdout, done.stdout + done.stderr)

# GB/s: the more the better.
shares = [tuple(map(float, numbers)) for numbers in re.findall(r" ([\d.]+) +([\d.]+) GB/s +(\d+) %", run("--device", "cpu", "--quick", "--size", "64MiB",
                                                                                                "--cycles", "1", "--filter", "backup").stdout)]
check("shares in the table", len(shares) > 1, shares)
for limit, measured, percent in shares:
    # The table prints two decimals of the rates and none of the share.
    low, high = (100 * (measured + sign * 0.005) / (limit - sign * 0.005) for sign in (-1, 1))
    check("the share of the limit in the table", low - 0.51 < percent < high + 0.51, (limit, measured, percent))

done = run("--device", "cpu", "--filter", "nonsense")
check("an unknown measurement is usage", done.returncode == 2 and "discard_kept" in done.stderr, done.stderr)
done = run("--device", "teapot")
check("an unknown device is usage", done.returncode == 2 and "teapot" in done.stderr, done.stderr)
done = run("--device", "cpu", "--size", "900TiB")
check("too large is refused", done.returncode == 3 and "choose" in done.stderr, (done.returncode, done.stderr))
check("the limit is explained", "a quarter" in done.stderr and "available" in done.stderr, done.stderr)
hint = re.search(r"--size (\d+)(\S+) or less", done.stderr)
check("the hint can be pasted", hint is not None, done.stderr)
if hint:
    less = f"{int(hint[1]) * 7 // 8}{hint[2]}"  # other programs may have taken memory meanwhile
    done = run("--device", "cpu", "--quick", "--cycles", "1", "--filter", "lookup", "--size", less)
    check("the hint works", done.returncode == 0, done.stderr)
done = run("--device", "cpu", "--cycles", "0", "--filter", "lookup")
check("no cycles is usage", done.returncode == 2 and "--cycles" in done.stderr, done.stderr)
done = run("--device", "cpu", "--size", "64MiB", "--filter", "disk", "--disk-folder", "/proc/nowhere")
check("no folder", done.returncode == 1 and "/proc/nowhere" in done.stderr, (done.returncode, done.stderr))

for problem in problems:
    print(problem)
sys.exit(1 if problems else 0)
