#!/usr/bin/env python3
"""src/plan names no operation of a transformer: it runs the phases of src/step over operations that count.

usage: check_plan.py SOURCE_DIR

Refused in code (comments and strings are not looked at): a call of an operation of CountingOps (not of `empty`, which makes memory that no pass asks
for, nor of what WorkMeter has: loops, clocks and other queues); and a function of the passes below the phases (src/step but the files below).
"""
import re
import sys
from pathlib import Path

ALLOWED = {"empty"}
OPEN_TO_PLAN = {"phases.h", "training.h", "runner.h", "optimizer.h", "bind.h", "gradient_norm.h", "shape.h", "counting_ops.h", "cuda_scratch.h", "operations.h", "weights.h", "update_parts.h", "trained_unit.h"}
# Of step/pipeline/phases.h's vocabulary and of any name.
COMMON = {"find_slot", "count", "size", "visit", "add"}
PHASES = {"run_generation"}  # a whole phase, in a file of passes


def code(text):
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\])*"', '""', text)


def operations(root):
    body = ""
    for name in ("Base", "Ops"):
        header = code((root / f"src/step/counting/counting_{name.lower()}.h").read_text())
        body += header[header.index(f"class Counting{name}"):]
    names = re.findall(r"(?:Tensor|void|double|Heads<Tensor>|Sorted<Tensor>|NormResult<Tensor>|AttentionContext<Tensor>) (\w+)\(", body)
    return set(names) - ALLOWED


def passes(root):
    names = set()
    for file in (root / "src/step").rglob("*.h"):
        if file.name not in OPEN_TO_PLAN:
            names |= set(re.findall(r"^(?:[\w:<>]+(?: ?[*&])? )+(\w+)\(Ops& ", code(file.read_text()), re.M))
    return names - COMMON - PHASES


def problems(text, calls, functions):
    for number, line in enumerate(code(text).splitlines(), 1):
        for name in re.findall(r"\bops_?(?:\.|->)(\w+)\(", line):
            if name in calls:
                yield number, f"calls the operation {name}"
        for name in re.findall(r"\bstep::(\w+)\(", line):
            if name in functions:
                yield number, f"calls step::{name}, which is below the phases"


def self_test(calls, functions):
    bad = "x = ops.softmax_last(y);\n(void)ops_.attention(h);\nstep::block_forward(ops, a, w, x);\nstep::embed(ops, w, t, p);\n"
    good = "// ops.norm(x)\nops.empty({1}, d);\nstep::log_prob_phase(ops_, w, s);\nstep::run_generation(ops, w, c, s);\n"
    assert [n for n, _ in problems(bad, calls, functions)] == [1, 2, 3, 4], list(problems(bad, calls, functions))
    assert not list(problems(good, calls, functions))


def main():
    root = Path(sys.argv[1])
    calls, functions = operations(root), passes(root)
    self_test(calls, functions)
    found = 0
    for file in sorted((root / "src/plan").rglob("*.[hc]*")):
        for number, what in problems(file.read_text(), calls, functions):
            print(f"{file.relative_to(root)}:{number}: {what}")
            found += 1
    print(f"src/plan: {found} of {len(calls)} operations and {len(functions)} passes named")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
