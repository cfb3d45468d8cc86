#!/usr/bin/env python3
"""docs/cli.md is what `neap --help` and each command's --help print, in lines of at most 110 characters.

Usage: check_cli.py SOURCE_DIR NEAP_BINARY [--write]
"""
import difflib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

WIDTH = 110
COLUMN = 34  # of an option's description, from src/cli/command.cpp
COMMAND = re.compile(r"^  (\w+) {2,}(\S.*)$")
# Where a command is explained.
PAGES = {"train": "training.md", "plan": "memory-model.md", "replay": "replay.md", "report": "report.md", "run": "hook.md",
         "generate": "generation.md", "eval": "evaluation.md", "reward": "rewards.md", "merge": "models.md#adapters",
         "bench": "measurements/README.md#your-machine", "doctor": "troubleshooting.md"}
HEAD = """# Commands

<!-- Written by `tests/docs/check_cli.py . build/full/bin/neap --write`; a test compares. Change the texts in src/cli instead. -->
"""


def help_of(binary, *command):
    done = subprocess.run([binary, *command, "--help"], capture_output=True, text=True, check=True, timeout=60)
    return re.sub(r"\n{3,}", "\n\n", done.stdout).strip().splitlines()


def wrapped(line):
    if len(line) <= WIDTH:
        return [line]
    described = not line[:COLUMN].strip() or re.match(r"^ {2}\S.* {2,}\S", line[:COLUMN + 1])
    indent = COLUMN if described else len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def block(lines):
    return "\n".join(["```text", *(part for line in lines for part in wrapped(line)), "```", ""])


def page(binary):
    top = help_of(binary)
    at = top.index("Subcommands:")
    commands = [match.groups() for match in map(COMMAND.match, top[at:]) if match]
    footer = top[max(i for i, line in enumerate(top) if line == "") + 1:]
    text = [HEAD, block([*top[:at], *footer]), "| command | |\n| --- | --- |"]
    text += [f"| [`neap {name}`](#neap-{name}) | {summary} |" for name, summary in commands]
    for name, summary in commands:
        lines = help_of(binary, name)
        lines = lines[lines[0] == summary:]  # the table has it
        if lines[-len(footer):] == footer:  # printed once, above
            lines = "\n".join(lines[:-len(footer)]).rstrip().splitlines()
        text += [f"\n## neap {name}", f"[Explained here]({PAGES[name]})\n", block(lines).rstrip()]
    return "\n".join(text) + "\n"


def main():
    file = Path(sys.argv[1]) / "docs" / "cli.md"
    new = page(sys.argv[2])
    if "--write" in sys.argv:
        file.write_text(new)
        return 0
    old = file.read_text()
    if old != new:
        print("".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "docs/cli.md", "neap --help")))
        print(f"docs/cli.md differs from the help texts; write it with {Path(__file__).name} SOURCE_DIR NEAP_BINARY --write")
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main())
