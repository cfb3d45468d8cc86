#!/usr/bin/env python3
"""Comments read at once: no sentence over the docs' length, none of the phrases that the docs must not have.

Usage: check_comments.py SOURCE_DIR [--write | --show [FOLDER]]
The limit of a sentence and the phrases are those of check_words.py. Folders that break a rule stand in comments.json with their
present numbers, which may only fall: --write lowers them, and never raises one. --show prints each place.
"""
import inspect
import io
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

from check_words import LONG_SENTENCE, PHRASES, paragraphs, sentences, words

FOLDERS = ("include", "python")  # and each folder of src
C_LIKE = {".h", ".cpp", ".c", ".cu", ".cuh", ".js", ".css"}
C_TOKEN = re.compile(r"""
    (?P<line>//[^\n]*) | (?P<block>/\*.*?\*/)
  | \b(?:u8|u|U|L)?R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"
  | "(?:\\.|[^"\\\n])*" | (?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*' | `(?:\\.|[^`\\])*`
  | \b\d[\w']*
""", re.S | re.X)
MARK = re.compile(r"^(?:///?<?|#!?|/\*+<?|\*(?!/))[ ]?|\s*\*/$")
LABEL = re.compile(r"^\S+(?: \S+)? {2,}\S")  # "Threads   any", "Exit codes   0 done"
LINE_MARK = re.compile(r"///?|#")
DIRECTIVE = re.compile(r"^\s*(?:NOLINT|clang-format|IWYU|type:|noqa|SPDX|eslint|!/usr)")


class Comment(NamedTuple):
    line: int  # of its first line, from 1
    column: int
    is_alone: bool  # nothing but spaces before it
    lines: tuple  # as they stand in the file, marks included


def c_comments(text):
    """One entry per line comment, one per block comment."""
    line, counted = 1, 0
    for token in C_TOKEN.finditer(text):
        if token["line"] or token["block"]:
            line, counted = line + text.count("\n", counted, token.start()), token.start()
            start = text.rfind("\n", 0, token.start()) + 1
            yield Comment(line, token.start() - start, not text[start:token.start()].strip(), tuple(token[0].split("\n")))


def python_comments(text):
    """Comments, and strings that stand as statements (docstrings)."""
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type == tokenize.COMMENT or is_docstring:
            yield Comment(token.start[0], token.start[1], not token.line[:token.start[1]].strip(), tuple(token.string.split("\n")))
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            previous = token.type


def line_mark(comment):
    match = LINE_MARK.match(comment.lines[0])
    return match and match[0]


def comments(name, text):
    """Comments of a file. Line comments with one mark that follow each other in one column are one comment."""
    found = []
    for comment in python_comments(text) if name.endswith(".py") else c_comments(text):
        last = found[-1] if found else None
        if last and comment.is_alone and comment.column == last.column and comment.line == last.line + len(last.lines) \
                and line_mark(comment) and line_mark(comment) == line_mark(last):
            found[-1] = last._replace(lines=last.lines + comment.lines)
        else:
            found.append(comment)
    return found


def prose(comment):
    """A comment without its marks, directives to tools, and tables or code, which are indented below a blank line or a colon."""
    if comment.lines[0].lstrip("rR").startswith(('"""', "'''")):
        lines = inspect.cleandoc("\n".join(comment.lines).lstrip("rR").strip("\"'")).split("\n")
    else:
        lines = [MARK.sub("", MARK.sub("", line.strip())) for line in comment.lines]
    kept, before, is_table = [], "", False
    for line in lines:
        is_table = line.startswith("  ") and (is_table or not before.strip() or before.endswith(":"))
        if not is_table and not DIRECTIVE.match(line):
            kept += ["", line] if LABEL.match(line) else [line]
        before = line
    return "\n".join(kept)


def violations(name, text):
    """(line, rule, place) of each."""
    for comment in comments(name, text):
        read = prose(comment)
        for sentence in sentences(read):
            if words(sentence) > LONG_SENTENCE:
                yield comment.line, "long_sentences", sentence
        joined = "\n".join(paragraphs(read))
        for match in PHRASES.finditer(joined):
            yield comment.line, "phrases", joined[max(0, match.start() - 20):match.end() + 30].replace("\n", " ")


def files(root):
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "src", *FOLDERS], cwd=root, capture_output=True, text=True,
                           check=False).stdout.split()
    names = names or [str(p.relative_to(root)) for top in ("src", *FOLDERS) for p in (root / top).rglob("*") if p.is_file()]
    return [name for name in sorted(names) if (root / name).exists() and Path(name).suffix in C_LIKE | {".py"}]


def folder(name):
    parts = Path(name).parts
    return "/".join(parts[:2]) if parts[0] == "src" else parts[0]


def main(arguments):
    root = Path(arguments[0])
    file = root / "tests" / "docs" / "comments.json"
    known = json.loads(file.read_text()) if file.exists() else None
    found, places = {}, []
    for name in files(root):
        counts = found.setdefault(folder(name), {"long_sentences": 0, "phrases": 0})
        for line, rule, place in violations(name, (root / name).read_text()):
            counts[rule] += 1
            places.append((folder(name), rule, f"{name}:{line}: {rule}: {place}"))
    if "--show" in arguments:
        wanted = arguments[arguments.index("--show") + 1:]
        print("\n".join(place for where, _, place in places if not wanted or where in wanted))
        return 0
    if "--write" in arguments:
        lower = {where: {rule: min(count, (known or {}).get(where, {}).get(rule, count if known is None else 0)) for rule, count in counts.items()}
                 for where, counts in found.items()}
        file.write_text(json.dumps({where: counts for where, counts in lower.items() if any(counts.values())}, indent=1) + "\n")
        return 0
    problems = []
    for where, counts in found.items():
        for rule, count in counts.items():
            limit = (known or {}).get(where, {}).get(rule, 0)
            if count > limit:
                problems.append(f"{where}: {count} {rule} in comments, at most {limit}")
                problems += [f"    {place}" for its, its_rule, place in places if (its, its_rule) == (where, rule)]
    if not found:
        problems.append("no file was found")
    left = sum(sum(counts.values()) for counts in found.values())
    print("\n".join(problems) or f"comments of {len(found)} folders: {left} places are left to shorten")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
