#!/usr/bin/env python3
"""Writes families.json: make_family_goldens.py families.json (needs `tokenizers`, PyPI).

For each family a tokenizer, the ids of the first texts, and for each text a checksum of its ids and of both decoded texts.
"""
import json
import sys

import tokenizers
from compare import oracles
from families import families, texts

COUNT, SHOWN = 2000, 30


def checksum(text: str) -> str:
    value = 0x811C9DC5  # FNV-1a, 32 bits
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value:08x}"


def main() -> None:
    given = list(texts(COUNT, 7))
    out = {"made_by": f"tokenizers {tokenizers.__version__}", "texts": given, "families": {}}
    for name, tree in families().items():
        encoder, decoder = oracles(tree)
        rows = [encoder.encode(t).ids for t in given]
        sums = [checksum(json.dumps(ids, separators=(",", ":")) + decoder.decode(ids, skip_special_tokens=True) + "\n" +
                         decoder.decode(ids, skip_special_tokens=False)) for ids in rows]
        out["families"][name] = {"tokenizer": tree, "ids": rows[:SHOWN], "checksums": "".join(sums)}
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(out, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
