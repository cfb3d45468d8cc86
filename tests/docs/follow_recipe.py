#!/usr/bin/env python3
"""Follows a recipe of CONTRIBUTING.md: inserts its code into copies of the files that it names, compiles and runs.

Usage: follow_recipe.py SOURCE_DIR RECIPE PROGRAM.cpp COMPILE_COMMAND... -- LIBRARY...
A step is a comment `<!-- recipe NAME: FILE after|before "LINE" -->` and the block of code behind it; LINE is part of one line of
FILE. COMPILE_COMMAND is the compiler with its flags. Changed sources are compiled before the libraries that hold the old ones.
Without its last step the program must not compile: what is left out does not pass in silence.
"""
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

STEP = re.compile(r'<!-- recipe (\w+): (\S+) (after|before) "([^\n]*)" -->\n((?: *)```cpp\n.*?\n *```)', re.DOTALL)


def steps(page: str, recipe: str):
    for name, file, where, anchor, block in STEP.findall(page):
        if name == recipe:
            lines = textwrap.dedent(block).split("\n")[1:-1]
            yield file, where, anchor, lines


def insert(path: Path, where: str, anchor: str, code: list[str]) -> None:
    lines = path.read_text().split("\n")
    places = [i for i, line in enumerate(lines) if anchor in line]
    if len(places) != 1:
        sys.exit(f"{path}: {len(places)} lines have {anchor!r}; the recipe needs one")
    at = places[0] + (where == "after")
    path.write_text("\n".join(lines[:at] + code + lines[at:]))


def build(root: Path, program: Path, compile_command: list[str], libraries: list[str], todo) -> subprocess.CompletedProcess:
    """Applies `todo` to a copy of src/ and compiles; runs the program when that works."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        # The module's other headers are found in the tree.
        for file in {file for file, *_ in todo}:
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, work / file)
        for file, where, anchor, code in todo:
            insert(work / file, where, anchor, code)
        sources = sorted(str(work / file) for file in {file for file, *_ in todo} if file.endswith(".cpp"))
        command = [*compile_command[:1], "-I", str(work / "src"), *compile_command[1:], str(program), *sources, *libraries,
                   "-o", str(work / "program")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done
        return subprocess.run([work / "program"], capture_output=True, text=True, check=False)


def main() -> int:
    root, recipe, program = Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]).resolve()
    split = sys.argv.index("--")
    command, libraries = sys.argv[4:split], sys.argv[split + 1:]
    todo = list(steps((root / "CONTRIBUTING.md").read_text(), recipe))
    if not todo:
        sys.exit(f"CONTRIBUTING.md has no recipe {recipe!r}")
    done = build(root, program, command, libraries, todo)
    print(done.stdout + done.stderr[-4000:])
    if done.returncode:
        print(f"the recipe {recipe!r} of {len(todo)} steps does not work")
        return 1
    if build(root, program, command, libraries, todo[:-1]).returncode == 0:
        print(f"the recipe {recipe!r} works without its last step")
        return 1
    print(f"followed {len(todo)} steps of {recipe!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
