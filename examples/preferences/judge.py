#!/usr/bin/env python3
"""Scores texts for `neap eval`: 1 where a text has more friendly than unfriendly words. No stage trains on its lists."""
import json
import pathlib
import re
import sys

LEXICON = json.loads((pathlib.Path(__file__).resolve().parent.parent / "reviews" / "lexicon.json").read_text())
VALUE = {word: value for key, value in (("friendly", 1), ("unfriendly", -1)) for word in LEXICON[key]}

for line in sys.stdin:
    texts = [item["response"].lower() for item in json.loads(line)["items"]]
    right = [sum(VALUE.get(word, 0) for word in re.findall("[a-z]+", text)) > 0 for text in texts]
    print(json.dumps({"scores": [{"score": float(r), "acc": r} for r in right]}), flush=True)
