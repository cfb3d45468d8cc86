#!/usr/bin/env python3
"""Docs are true: runs the commands that they show, and checks their links.

In every Markdown file, each line of a ```console block that begins with "$ " is run by bash in a scratch folder that holds the
examples and test data. It must exit 0, or with N where the line ends in "# exits N". Training commands run for one step, and the
examples' files of rows have their first lines only.
A job whose keys have no effect is a problem, too. Commands elsewhere are not run, but have subcommands and options that exist.
Every line of an ```output block is one that the command before it printed; "..." stands for others.
A block with a title (```toml title="first/job.toml") is a file that a reader copies: it is written before the page's commands.
Usage: check_docs.py SOURCE_DIR NEAP_BINARY [--list]
"""
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?')
ITEM = re.compile(r"(- |\d+\. |\|)")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)]*))?\)")
INLINE = re.compile(r"`(neap [^`]+)`")
NO_EFFECT = re.compile(r"neap: warning: .* ha(s|ve) no effect")
SHORT_TRAINING = " trainer.total_training_steps=1"
ROWS = 64


def pages(root: Path) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=False).stdout.split()
    return [root / n for n in names] or [p for p in root.rglob("*.md") if "build" not in p.parts]


def blocks(page: Path):
    """Language, title, number of the first line, and lines of each fenced block."""
    inside = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line.strip())
        if fence and inside is None:
            inside = (fence.group(1), fence.group(2), number + 1, [])
        elif fence:
            yield inside
            inside = None
        elif inside is not None:
            inside[3].append(line)


def commands(page: Path):
    for language, _, first, lines in blocks(page):
        for number, line in enumerate(lines, first):
            if language == "console" and line.startswith("$ "):
                text, _, note = line[2:].partition("  # exits ")
                yield number, text, int(note) if note else 0


def impossible_commands(page: Path, help_of):
    """Lines with `neap ...`, also within a text, whose subcommand, option or first argument does not exist."""
    found = [(number, line.removeprefix("$ ")) for _, _, first, lines in blocks(page) for number, line in enumerate(lines, first)]
    found += [(number, code) for number, line in enumerate(page.read_text().splitlines(), 1) for code in INLINE.findall(line)]
    for number, text in found:
        words = re.split(r"\s#|[;|>]", text)[0].split()
        if len(words) < 2 or words[0] != "neap" or not re.fullmatch(r"[a-z]+", words[1]):
            continue
        known = help_of(words[1])
        if not known:
            yield number, f"there is no command `neap {words[1]}`"
        arguments = words[2:words.index("--")] if "--" in words else words[2:]
        missing = [word for word in arguments if re.match(r"--[a-z]", word)
                   and not re.search(rf"(?<![\w-]){re.escape(word.split('=')[0])}(?![\w-])", known)]
        missing += [word for word in arguments[:1] if word[0] != "-" and "Positionals:" not in known]
        yield from ((number, f"`neap {words[1]}` has no {word}") for word in missing)


def invented_output(page: Path, printed: dict[int, str]):
    """Lines of ```output blocks that the command before them did not print; `printed` is by the commands' lines."""
    for language, _, first, lines in blocks(page):
        if language != "output":
            continue
        command = max((number for number in printed if number < first), default=None)
        known = printed[command].splitlines() if command is not None else []
        yield from ((number, line) for number, line in enumerate(lines, first) if line not in known and line != "...")


def write_files(page: Path, folder: Path):
    for _, title, _, lines in blocks(page):
        if title:
            (folder / title).parent.mkdir(parents=True, exist_ok=True)
            (folder / title).write_text("\n".join(lines) + "\n")


def anchors(page: Path):
    """Of its headings, as the site and GitHub make them: GitHub keeps a hyphen for each space."""
    inside = False
    for line in page.read_text().splitlines():
        inside ^= line.lstrip().startswith("```")
        if line.startswith("#") and not inside:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip())
            kept = re.sub(r"[^\w\s-]", "", text).strip().lower()
            yield from (re.sub(r"[-\s]+", "-", kept), kept.replace(" ", "-"))


def broken_links(root: Path, page: Path):
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for target, anchor in LINK.findall(line):
            file = page.parent / target if target else page
            if re.match(r"^[a-z]+:", target):
                continue
            if not file.exists():
                yield f"{page.relative_to(root)}:{number}: link to {target}, which is not there"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                yield f"{page.relative_to(root)}:{number}: link to {target}#{anchor}: the page has no such heading"


def joined_lists(root: Path, page: Path):
    """Lists and tables directly below a paragraph, which the site shows as its text."""
    inside, before = False, ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        inside ^= line.lstrip().startswith("```")
        text_before = before.strip() and not ITEM.match(before.lstrip()) and not before.startswith(("#", "<!--", "  "))
        if not inside and ITEM.match(line) and text_before:
            yield f"{page.relative_to(root)}:{number}: a list or table needs an empty line before it"
        before = line


def main() -> int:
    root, binary = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    problems, ran = [], 0

    @functools.cache
    def help_of(command):
        return subprocess.run([binary, command, "--help"], capture_output=True, text=True, check=False).stdout

    with tempfile.TemporaryDirectory() as folder:
        # A copy: runs write beside their configuration files.
        shutil.copytree(root / "examples", Path(folder) / "examples")
        for rows in (Path(folder) / "examples").rglob("*.jsonl"):
            rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:ROWS]))
        (Path(folder) / "tests").symlink_to(root / "tests")
        (Path(folder) / "bin").mkdir()
        (Path(folder) / "bin" / "neap").symlink_to(binary)
        environment = dict(os.environ, PATH=f"{folder}/bin:{os.environ['PATH']}", NEAP_PROGRESS="off")
        for page in pages(root):
            problems += broken_links(root, page)
            problems += joined_lists(root, page)
            problems += [f"{page.relative_to(root)}:{number}: {text}" for number, text in impossible_commands(page, help_of)]
            write_files(page, Path(folder))
            printed = {}
            for number, text, expected in commands(page):
                where = f"{page.relative_to(root)}:{number}"
                if "--list" in sys.argv:
                    print(f"{where}: {text}")
                    continue
                if text.startswith("neap train ") and expected == 0:
                    text += SHORT_TRAINING
                try:
                    done = subprocess.run(["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
                                          check=False)
                except subprocess.TimeoutExpired:
                    problems.append(f"{where}: `{text}` took over 300 s")
                    continue
                ran += 1
                printed[number] = done.stdout
                if done.returncode != expected:
                    problems.append(f"{where}: `{text}` exited {done.returncode}, not {expected}:\n    "
                                    + "\n    ".join(done.stderr.strip().splitlines()[-4:]))
                problems += [f"{where}: {line}" for line in done.stderr.splitlines()
                             if NO_EFFECT.search(line) and "trainer.total_training_steps is 1" not in line]  # SHORT_TRAINING's
            if "--list" not in sys.argv:
                problems += [f"{page.relative_to(root)}:{number}: no command prints `{line}`"
                             for number, line in invented_output(page, printed)]
    for problem in problems:
        print(problem)
    if ran == 0 and "--list" not in sys.argv:
        problems.append("no command was run: the docs show none")
    print(f"docs: {ran} commands run, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
