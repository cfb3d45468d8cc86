#!/usr/bin/env python3
"""Checks that a function fits on a screen.

Usage: check_sizes.py SOURCE_DIR [--all]

The size of a C++ function is the number of lines between its braces; lambdas and local classes count in the function that contains them.
Prints each function of more than 65 lines, tests included, and exits 1 if there is any. --all prints every function, the longest first.
"""
import re
import subprocess
import sys
from pathlib import Path

LIMIT = 65
FOLDERS = ["include", "src", "bench", "examples", "tests"]
SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh"}
NO_CODE = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?\*/|R\"(?P<raw>[^(\s]*)\(.*?\)(?P=raw)\"|\"(?:\\.|[^\"\\\n])*\"|\b\d[\w.']*"
    r"|'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")


def blank(source):
    """The text with comments, literals and preprocessor lines as spaces: every offset stays."""
    return NO_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), source)


def skeleton(head):
    """The text before a brace without what parentheses, attributes and template arguments contain: `()` stays of a pair of parentheses."""
    head = re.sub(r"\boperator\s*(?:\(\s*\)|[^\s\w(]+)", " operator ", head)
    head = re.sub(r"\[\[.*?\]\]|\balignas\s*\([^()]*\)", " ", head.replace("->", "  "))
    kept, depth, angles = [], 0, 0
    for c in head:
        if c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
            if depth == 0 and angles == 0:
                kept.append("()")
        elif depth == 0:
            if c == "<":
                angles += 1
            elif c == ">" and angles:
                angles -= 1
                kept.append(">" if angles == 0 else "")
            elif angles == 0:
                kept.append(c)
    return "".join(kept) if depth == 0 else None  # None: the brace stands inside parentheses


def opened_by(head):
    """What a brace after this text opens, outside of every function: "function", "scope" or "value"."""
    plain = skeleton(head)
    if plain is None:
        return "value"
    if "=" in plain:  # a variable: what it is made of may be a lambda
        return "function" if re.search(r"\]\s*(\(\)|$)", plain.split("=", 1)[1]) else "value"
    if "()" not in plain:
        return "scope" if SCOPE.search(plain) else "value"
    after = plain.split("()", 1)[1]
    if re.search(r"(?<!:):(?!:)", after) and re.search(r"[\w>]\s*$", plain):
        return "value"  # a member that a constructor initialises
    return "function"


def functions(source):
    """(line, size, head) of each function of a C++ text."""
    code = blank(source)
    open_braces = []  # (what, offset, head)
    inside = parentheses = begin = 0  # begin: of the text that says what the next brace opens
    for m in re.finditer(r"[{}();]", code):
        c, at = m.group(0), m.start()
        if c == "{":
            what = "inner" if inside else opened_by(code[begin:at])
            open_braces.append((what, at, code[begin:at]))
            if what == "scope":
                begin = at + 1
            else:
                inside += 1
        elif c == "}":
            what, opening, head = open_braces.pop()
            inside -= what != "scope"
            if what == "function":
                yield code.count("\n", 0, opening) + 1, max(0, code.count("\n", opening, at) - 1), " ".join(head.split())
            if what in ("function", "scope"):
                begin = at + 1
        elif not inside:
            parentheses += (c == "(") - (c == ")")
            if c == ";" and parentheses == 0:
                begin = at + 1
    if open_braces:
        raise ValueError("braces do not match")


def sizes(root):
    """(size, file, line, head) of each function that git tracks."""
    tracked = subprocess.run(["git", "ls-files", "--", *FOLDERS], cwd=root, check=True, capture_output=True, text=True)
    for name in tracked.stdout.splitlines():
        if Path(name).suffix in SUFFIXES and (root / name).is_file():
            for line, size, head in functions((root / name).read_text()):
                yield size, name, line, head


def main():
    root = Path(sys.argv[1]).resolve()
    found = sorted(sizes(root), reverse=True)
    if "--all" in sys.argv[2:]:
        for size, name, line, head in found:
            print(f"{size:4} {name}:{line} {head}")
        return 0
    breaches = [f for f in found if f[0] > LIMIT]
    for size, name, line, head in breaches:
        print(f"{name}:{line}: {size} lines, the limit is {LIMIT}: {head}")
    print(f"{len(found)} functions, {len(breaches)} too long")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
