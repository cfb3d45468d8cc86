"""The judge of held-out texts: 1 where a text has more friendly than unfriendly words. No stage trains on its lists."""
import json
import pathlib
import re

LEXICON = json.loads(pathlib.Path(__file__).with_name("lexicon.json").read_text())
VALUE = {word: value for key, value in (("friendly", 1), ("unfriendly", -1)) for word in LEXICON[key]}


def compute_score(solution_str):
    friendly = sum(VALUE.get(word, 0) for word in re.findall("[a-z]+", solution_str.lower())) > 0
    return {"score": float(friendly), "acc": friendly}
