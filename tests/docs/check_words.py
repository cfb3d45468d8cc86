#!/usr/bin/env python3
"""Docs are short and plain: words of a page and of all pages, words of sentences and of table cells, phrases that stop readers.

Usage: check_words.py SOURCE_DIR [--write | --show]
What is generated (between marks, or a page that says "Written by") does not count as words by hand; its cells do count.
Pages that do not hold a limit yet stand in words.json with their present figures, which may only fall: --write lowers them, and
never raises one. --show prints the figures of every page.
"""
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

LIMITS = {"words": 1700, "long_sentences": 0, "mean_sentence": 16, "longest_cell": 40, "phrases": 0}
TOTAL = 25000
LONG_SENTENCE = 30
PAGES = re.compile(r"(README|CHANGELOG|CONTRIBUTING)\.md|docs/.*\.md|examples/\w+/README\.md")
PHRASES = re.compile(r"(?m)(?:^|(?<=[.:!?] )|(?<=- ))(?:Of|What|Those) (?!\S+\?)|\bis no (?!longer|more)|\bbesides?\b|, too\b|\bby itself\b"
                     r"|\bfor ever\b|\bin vain\b|\bgoes with\b|\bbut for\b|\b(?i:no|some|every)body\b|\bfor good\b|\blie apart\b"
                     r"|\b(?:once|twice|seconds?|bytes|ms) a (?:process|machine|card|rank|step|parameter|token|file)\b(?=[.,;:)]| and |$)")
GENERATED = re.compile(r"<!-- (\w+): .*?(?:--write|NEAP_UPDATE_GOLDEN).*?-->\n(.*?)<!-- (?:end|/\1) -->", re.S)
FENCE = re.compile(r"^ *```.*?^ *```[ \t]*$", re.S | re.M)
COMMENT = re.compile(r"<!--.*?-->", re.S)
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) +")
SENTENCE_END = re.compile(r"(?<=[.!?])[)*\"”]*\s+(?=[A-Z`*\[(\"0-9])|:\s*$")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|etc)\.")
NUMBER_GROUP = re.compile(r"(?<=\d) (?=\d{3}\b)")


def is_generated(text):
    return "<!-- Written by " in text[:400]


def by_hand(text):
    return "" if is_generated(text) else COMMENT.sub("", GENERATED.sub("", text))


def cells(text):
    for line in FENCE.sub("", text).splitlines():
        if line.lstrip().startswith("|"):
            yield from line.strip().strip("|").replace("\\|", "/").split("|")


def plain(text):
    """What is read: links without targets, code as one word, numbers as one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "`code`", text)
    return NUMBER_GROUP.sub("", ABBREVIATION.sub(r"\1", text)).replace("**", "")


def paragraphs(text):
    current = []
    for line in [*FENCE.sub("", text).splitlines(), ""]:
        alone = not line.strip() or line.lstrip().startswith(("|", "#", "!["))
        if (alone or ITEM.match(line)) and current:
            yield " ".join(current)
            current = []
        if not alone:
            current.append(ITEM.sub("", line).strip())


def words(text):
    return sum(any(c.isalnum() for c in word) for word in text.split())


def sentences(text):
    for paragraph in paragraphs(text):
        for sentence in SENTENCE_END.split(plain(paragraph)):
            if words(sentence):
                yield sentence


def figures(text):
    hand = by_hand(text)
    counts = [words(s) for s in sentences(hand)]
    prose = "\n".join([*paragraphs(hand), *(cell.strip() for cell in cells(text))])
    return {"words": len(hand.split()), "long_sentences": sum(count > LONG_SENTENCE for count in counts),
            "mean_sentence": round(statistics.mean(counts), 1) if counts else 0,
            "longest_cell": max((words(plain(cell)) for cell in cells(text)), default=0), "phrases": len(PHRASES.findall(prose))}


def pages(root):
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=False).stdout.split()
    names = names or [str(p.relative_to(root)) for p in root.rglob("*.md")]
    return {name: (root / name).read_text() for name in sorted(names) if PAGES.fullmatch(name) and (root / name).exists()}


def show(name, text, what):
    """The places of a page that exceed a limit."""
    if what == "long_sentences":
        yield from (s for s in sentences(by_hand(text)) if words(s) > LONG_SENTENCE)
    if what == "longest_cell":
        yield from (cell.strip() for cell in cells(text) if words(plain(cell)) > LIMITS[what])
    if what == "phrases":
        prose = "\n".join([*paragraphs(by_hand(text)), *(cell.strip() for cell in cells(text))])
        yield from (prose[max(0, m.start() - 20):m.end() + 30].replace("\n", " ") for m in PHRASES.finditer(prose))


def main():
    root = Path(sys.argv[1])
    file = root / "tests" / "docs" / "words.json"
    known = json.loads(file.read_text()) if file.exists() else {"total": None, "pages": {}}
    found = {name: figures(text) for name, text in pages(root).items()}
    texts = pages(root)
    total = sum(page["words"] for page in found.values())
    if "--show" in sys.argv:
        for name, page in found.items():
            print(f"{name:44}" + "".join(f"{key[:8]:>9} {value:<6}" for key, value in page.items()))
            for what, limit in LIMITS.items():
                if "-v" in sys.argv and page[what] > limit:
                    print("".join(f"    {what}: {place}\n" for place in show(name, texts[name], what)), end="")
        print(f"{total} words by hand")
        return 0
    if "--write" in sys.argv:
        above = {name: {key: min(value, known["pages"].get(name, {}).get(key, value)) for key, value in page.items() if value > LIMITS[key]}
                 for name, page in found.items()}
        new = {"total": max(TOTAL, min(total, known["total"] or total)), "pages": {name: page for name, page in above.items() if page}}
        file.write_text(json.dumps(new, indent=1) + "\n")
        return 0
    problems = []
    for name, page in found.items():
        for key, value in page.items():
            limit = known["pages"].get(name, {}).get(key, LIMITS[key])
            if value > limit:
                problems.append(f"{name}: {key} {value}, at most {limit}")
                problems += [f"    {place}" for place in show(name, texts[name], key)]
    if total > known["total"]:
        problems.append(f"all pages have {total} words by hand, at most {known['total']}")
    print("\n".join(problems) or f"{len(found)} pages: {total} words by hand, {len(known['pages'])} pages above a limit that all will hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
