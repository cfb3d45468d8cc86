#!/usr/bin/env python3
"""Counts in docs/dependencies.md of the lines that Neap has in place of a library.

Usage: check_lines.py SOURCE_DIR [--write]
A row of the table names its files as patterns in backquotes, relative to src/; its second column has their lines. Without --write
it fails where a count is more than a tenth off.
"""
import re
import sys
from pathlib import Path

ROW = re.compile(r"^(\| [^|]*`[^|]* \| )([\d ]+)( \|.*)$")
SUFFIXES = {".cpp", ".h", ".js", ".css", ".html", ".py"}


def lines(root, cell):
    files = set()
    for pattern in re.findall(r"`([^`]+)`", cell):
        found = sorted((root / "src").glob(pattern))
        files.update(f for entry in found for f in ([entry] if entry.is_file() else entry.rglob("*")) if f.suffix in SUFFIXES)
    return sum(len(file.read_text().splitlines()) for file in files)


def rounded(count):
    """Two digits, groups of three with a space."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return f"{round(count / unit) * unit:,}".replace(",", " ")


def main():
    root = Path(sys.argv[1])
    page = root / "docs" / "dependencies.md"
    problems, rows, text = [], 0, []
    section = ""
    for line in page.read_text().splitlines():
        section = line if line.startswith("## ") else section
        row = ROW.match(line) if section == "## Written by hand" else None
        if row:
            rows += 1
            count, told = lines(root, row[1]), int(row[2].replace(" ", ""))
            if count == 0 or abs(told - count) > count / 10:
                problems.append(f"{row[1].strip('| ')}: {told} lines in docs/dependencies.md, {count} in src/")
            line = row[1] + rounded(count) + row[3]
        text.append(line)
    if "--write" in sys.argv:
        page.write_text("\n".join(text) + "\n")
        return 0
    if rows == 0:
        problems.append("docs/dependencies.md has no row with a count")
    print("\n".join(problems) or f"{rows} counts of lines are within a tenth")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
