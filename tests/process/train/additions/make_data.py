#!/usr/bin/env python3
"""Makes additions and a tokenizer of their characters, for tests of rewards; pairs and tokenizer as examples/arithmetic has them.

    make_data.py FOLDER

Of all pairs of two-digit numbers 8 are held out, 1500 others have answers for SFT, and 64 others are prompts for GRPO. Standard library only; the same seed gives the same bytes on every Python since 3.8.
"""
import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "examples" / "arithmetic"))
from make_data import lines, pairs, tokenizer  # noqa: E402

HELD_OUT, SFT, PROMPTS = 8, 1500, 64


def answered(a, b):
    """Ones, then tens with the carry, then the sum: 47+38= 7+8=15,4+3+1=8,85"""
    ones = a % 10 + b % 10
    carry = "+1" if ones > 9 else ""
    tens = a // 10 + b // 10 + ones // 10
    return {"prompt": f"{a}+{b}=", "response": f"{a % 10}+{b % 10}={ones},{a // 10}+{b // 10}{carry}={tens},{a + b}"}


def question(split, index, a, b):
    """A row as verl's data sets have it."""
    return {"data_source": "arithmetic", "prompt": [{"role": "user", "content": f"{a}+{b}="}],
            "reward_model": {"style": "rule", "ground_truth": str(a + b)}, "extra_info": {"split": split, "index": index}}


def files():
    rows = pairs()
    held_out, sft, prompts = rows[:HELD_OUT], rows[HELD_OUT:HELD_OUT + SFT], rows[HELD_OUT + SFT:][:PROMPTS]
    return {
        "sft_train.jsonl": lines(answered(a, b) for a, b in sft),
        "prompts_train.jsonl": lines(question("train", i, a, b) for i, (a, b) in enumerate(prompts)),
        "prompts_val.jsonl": lines(question("val", i, a, b) for i, (a, b) in enumerate(held_out)),
        "model/tokenizer.json": json.dumps(tokenizer("0123456789+=,"), indent=1) + "\n",
    }


def main():
    for name, text in files().items():
        path = pathlib.Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
