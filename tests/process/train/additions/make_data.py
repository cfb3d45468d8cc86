#!/usr/bin/env python3
"""Makes additions and a tokenizer of their characters, for tests of rewards.

    make_data.py FOLDER

Of all pairs of two-digit numbers 8 are held out, 1500 others have answers for SFT, and 64 others are prompts for GRPO. Standard library only; the same seed gives the same bytes on every Python since 3.8.
"""
import json
import pathlib
import random
import sys

SEED = 20260102
HELD_OUT, SFT, PROMPTS = 8, 1500, 64


def pairs():
    all_pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    rng = random.Random(SEED)
    for i in range(len(all_pairs) - 1, 0, -1):  # shuffle() may change between versions, random() does not
        j = int(rng.random() * (i + 1))
        all_pairs[i], all_pairs[j] = all_pairs[j], all_pairs[i]
    return all_pairs


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


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


def tokenizer():
    """Each character is a token: no merges."""
    vocab = {"<|end|>": 0, "<|pad|>": 1}
    for character in "0123456789+=,":
        vocab[character] = len(vocab)
    special = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for name, i in list(vocab.items())[:2]]
    stage = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": stage, "post_processor": None, "decoder": stage,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}


def files():
    rows = pairs()
    held_out, sft, prompts = rows[:HELD_OUT], rows[HELD_OUT:HELD_OUT + SFT], rows[HELD_OUT + SFT:][:PROMPTS]
    return {
        "sft_train.jsonl": lines(answered(a, b) for a, b in sft),
        "prompts_train.jsonl": lines(question("train", i, a, b) for i, (a, b) in enumerate(prompts)),
        "prompts_val.jsonl": lines(question("val", i, a, b) for i, (a, b) in enumerate(held_out)),
        "model/tokenizer.json": json.dumps(tokenizer(), indent=1) + "\n",
    }


def main():
    for name, text in files().items():
        path = pathlib.Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
