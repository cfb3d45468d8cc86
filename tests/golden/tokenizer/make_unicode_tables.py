#!/usr/bin/env python3
"""Writes src/text/tokenizer/unicode_tables.h: make_unicode_tables.py src/text/tokenizer/unicode_tables.h

Asks Hugging Face's tokenizers (PyPI `tokenizers`) for the class of every code point, because its
engines are of other Unicode versions than PCRE2 and utf8proc. Must run with Python 3.11, whose
unicodedata has the version of PCRE2 10.42 (14.0).
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
SPLIT = "\ue000"  # a private character; in no class below


def removed_by(pre_tokenizer) -> set:
    """The points that a pre-tokenizer removes."""
    found = set()
    for i in range(0, len(POINTS), 4096):
        part = POINTS[i:i + 4096]
        kept = set().union(*(piece for piece, _ in pre_tokenizer.pre_tokenize_str("".join(map(chr, part)))), "")
        found.update(c for c in part if chr(c) not in kept)
    return found


def isolated_by(pre_tokenizer) -> set:
    """The points that a pre-tokenizer makes a piece of their own."""
    found = set()
    for i in range(0, len(POINTS), 2048):
        part = POINTS[i:i + 2048]
        pieces = {p for p, _ in pre_tokenizer.pre_tokenize_str("".join(chr(c) + SPLIT for c in part)) if len(p) == 1}
        found.update(c for c in part if chr(c) in pieces and chr(c) != SPLIT)
    return found


def words() -> set:
    """What the regular expressions of Rust count as \\w."""
    found = set()
    for i in range(0, len(POINTS), 1024):
        for piece, _ in pre_tokenizers.Whitespace().pre_tokenize_str(" ".join("a" + chr(c) for c in POINTS[i:i + 1024])):
            if len(piece) == 2 and piece[0] == "a":
                found.add(ord(piece[1]))
    return found


def ranges(points: set) -> list:
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name: str, comment: str, points: set) -> str:
    rows = ", ".join(f"{{{a:#x}, {b:#x}}}" for a, b in ranges(points))
    return f"/// {comment}\ninline constexpr PointRange {name}[] = {{{rows}}};\n"


def normalized() -> set:
    """The points that a normalization form changes, moves or composes. All others stay and separate what is around them."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    found = set()
    for c in POINTS:
        text = chr(c)
        parts = nfd.normalize_str(text)
        if parts != text:
            found.update(map(ord, parts))
        # A mark is sorted among marks of another class: U+0334 has the lowest, U+0345 the highest.
        moved = nfd.normalize_str("\u0345" + text) != "\u0345" + text or nfd.normalize_str(text + "\u0334") != text + "\u0334"
        if nfkd.normalize_str(text) != text or (parts == text and moved):
            found.add(c)
    return found | {0x334, 0x345}


def category(*names: str) -> set:
    return {c for c in POINTS if unicodedata.category(chr(c)).startswith(names)}


def additions() -> str:
    # Base: a class as PCRE2 10.42 has it. The rest of what Oniguruma has is written out.
    bases = {"L": category("L"), "N": category("N"), "P": category("P"), "S": category("S"), "M": category("M"),
             "Lu": category("Lu"), "Ll": category("Ll"), "Lt": category("Lt"), "Lm": category("Lm"), "Lo": category("Lo"),
             "Nd": category("Nd"), "w": category("L", "M", "Nd", "Nl", "Pc")}
    rows = []
    for name, base in bases.items():
        escape = {"w": r"\w"}.get(name, rf"\p{{{name}}}")
        points = removed_by(pre_tokenizers.Split(Regex(escape), "removed"))
        missing = base - points
        if missing:
            sys.exit(f"{name}: PCRE2 has {len(missing)} points that Oniguruma lacks, from {min(missing):#x}")
        text = "".join(rf"\x{{{a:x}}}-\x{{{b:x}}}" for a, b in ranges(points - base))
        rows.append(f'    {{"{name}", R"({text})"}},')
    return "\n".join(rows)


def lower() -> str:
    rows = []
    for c in POINTS:
        small = normalizers.Lowercase().normalize_str(chr(c))
        if len(small) == 1 and small != chr(c):
            rows.append(f"{{{c:#x}, {ord(small):#x}}}")
    return "inline constexpr PointRange kLower[] = {" + ", ".join(rows) + "};\n"


def main() -> None:
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"unicodedata is {unicodedata.unidata_version}; run with Python 3.11, which has 14.0.0")
    text = f"""// Made by tests/golden/tokenizer/make_unicode_tables.py with tokenizers {tokenizers.__version__}; do not edit.
#pragma once

#include <cstdint>

namespace neap::text::unicode {{

// clang-format off
struct PointRange {{
  std::int32_t first, last;
}};
{table("kNumeric", "Rust's char::is_numeric.", isolated_by(pre_tokenizers.Digits(individual_digits=True)))}
{table("kPunctuation", "What the pre-tokenizer Punctuation isolates.", isolated_by(pre_tokenizers.Punctuation("isolated")))}
{table("kWord", "The class w of Rust's regular expressions.", words())}
{table("kNormalized", "What a normalization form changes, moves or composes.", normalized())}
/// Single characters and their lower case, by Rust's char::to_lowercase.
{lower()}
struct ClassAddition {{
  const char* name;
  const char* ranges;  ///< in PCRE2's syntax for the inside of a class
}};
/// What Oniguruma's classes have beyond PCRE2's; for "w" beyond L, M, Nd, Nl and Pc.
inline constexpr ClassAddition kClassAdditions[] = {{
{additions()}
}};
// clang-format on

}}  // namespace neap::text::unicode
"""
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write(text)


if __name__ == "__main__":
    main()
