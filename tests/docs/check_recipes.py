#!/usr/bin/env python3
"""The recipes of CONTRIBUTING.md ("To add ...") name files that exist. usage: check_recipes.py SOURCE_DIR

Every path in backticks that begins with src/ or tests/ has to be there (a word in capitals stands for any name), every
recipe has numbered steps and a line "Checked by" with a test, and identifiers in backticks occur in a file of the recipe.
"""
import re
import sys
from pathlib import Path

SECTION = re.compile(r"^### To add (.+)$", re.M)
CODE = re.compile(r"`([^`]+)`")


def exists(root, path):
    pattern = re.sub(r"\b[A-Z][A-Z_]+\b", "*", path)
    return any(root.glob(pattern)) if "*" in pattern else (root / path).exists()


def check(root, name, text):
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", text, flags=re.S | re.M)
    words = CODE.findall(text)
    paths = [w for w in words if re.match(r"(src|tests)/", w)]
    yield from (f"{name}: {p} is not there" for p in paths if not exists(root, p))
    steps = re.findall(r"^(\d)\. ", text, re.M)
    if steps != [str(i + 1) for i in range(len(steps))] or not 2 <= len(steps) <= 4:
        yield f"{name}: its steps are numbered {steps}"
    checked = text.partition("\nChecked by ")[2]
    if not re.search(r"`tests/[\w/]+\.(cpp|py)`", checked):
        yield f"{name}: no test checks it"
    known = "".join((root / p).read_text() for p in paths if (root / p).is_file())
    known += "".join(f.read_text() for p in paths if (root / p).is_dir() for f in (root / p).rglob("*") if f.suffix in (".h", ".cpp"))
    for word in words:
        if re.fullmatch(r"[A-Za-z]\w*", word) and word not in ("model_type",) and not re.search(rf"\b{word}\b", known):
            yield f"{name}: {word} is in none of its files"


def main():
    root = Path(sys.argv[1])
    text = (root / "CONTRIBUTING.md").read_text()
    found = [(m[1], m.end()) for m in SECTION.finditer(text)]
    ends = [re.compile(r"^##", re.M).search(text, start).start() for _, start in found]
    problems = [p for (name, start), end in zip(found, ends) for p in check(root, name, text[start:end])]
    if [name for name, _ in found] != ["an architecture", "an optimizer", "an algorithm", "an operation"]:
        problems.append(f"the recipes are {[name for name, _ in found]}")
    print("\n".join(problems) or f"{len(found)} recipes are right")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
