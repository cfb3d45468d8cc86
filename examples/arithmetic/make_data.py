#!/usr/bin/env python3
"""Makes the additions and the tokenizer of this example.

    make_data.py [--out FOLDER]      writes the files (default: the folder of this script)
    make_data.py --check             compares them with what is there; exit code 1 on a difference

Of all pairs of two-digit numbers 256 are held out, 1500 others have answers for SFT, 256 say when SFT ends, and the other 6088 are prompts
for GRPO.
Standard library only; the same seed gives the same bytes on every Python since 3.8.
"""
import argparse
import json
import pathlib
import random
import sys

SEED = 20260102
HELD_OUT, SFT, SFT_VAL = 256, 1500, 256


def pairs():
    all_pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    rng = random.Random(SEED)
    for i in range(len(all_pairs) - 1, 0, -1):  # shuffle() may change between versions, random() does not
        j = int(rng.random() * (i + 1))
        all_pairs[i], all_pairs[j] = all_pairs[j], all_pairs[i]
    return all_pairs


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(a, b):
    """Three digits of the sum, the ones first, as one works it out on paper: 47+38=580."""
    return f"{a + b:03d}"[::-1]


def answered(a, b):
    return {"prompt": f"{a}+{b}=", "response": written(a, b)}


def question(a, b):
    """A row as TRL's data sets have it."""
    return {"prompt": f"{a}+{b}=", "answer": written(a, b)}


def held_out(index, a, b):
    """A row as verl's data sets have it. Sums with a carry of the ones are a source of their own."""
    source = "additions_with_carry" if a % 10 + b % 10 > 9 else "additions"
    return {"data_source": source, "prompt": [{"role": "user", "content": f"{a}+{b}="}],
            "reward_model": {"style": "rule", "ground_truth": written(a, b)}, "extra_info": {"split": "val", "index": index}}


def tokenizer(characters="0123456789+="):
    """Each character is a token: no merges."""
    vocab = {"<|end|>": 0, "<|pad|>": 1}
    for character in characters:
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
    parts, first = [], 0
    for size in (HELD_OUT, SFT, SFT_VAL, len(rows)):
        parts.append(rows[first:first + size])
        first += size
    held, sft, sft_val, prompts = parts
    return {
        "sft_train.jsonl": lines(answered(a, b) for a, b in sft),
        "sft_val.jsonl": lines(answered(a, b) for a, b in sft_val),
        "prompts_train.jsonl": lines(question(a, b) for a, b in prompts),
        "prompts_val.jsonl": lines(held_out(i, a, b) for i, (a, b) in enumerate(held)),
        "model/tokenizer.json": json.dumps(tokenizer(), indent=1) + "\n",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--out", type=pathlib.Path, default=here)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    differ = 0
    for name, text in files().items():
        path = options.out / name
        if options.check:
            if not path.exists() or path.read_text() != text:
                print(f"{path} differs", file=sys.stderr)
                differ = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return differ


if __name__ == "__main__":
    sys.exit(main())
