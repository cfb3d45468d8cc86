#!/usr/bin/env python3
"""Compares ids and decoded texts with Hugging Face's tokenizers on many random texts.

  compare.py ENCODE_LINES [--count 200000] [--seed 1] [--family NAME ...]

ENCODE_LINES is the program that `ninja encode_lines` builds. Needs `tokenizers` (PyPI).
"""
import argparse
import json
import subprocess
import sys
import tempfile

import tokenizers
from families import families, texts


def oracles(tree: dict) -> tuple:
    """The tokenizer, and the one to decode with.

    From 0.23.2 on, decoding spells a token with `normalized` as the normalizer does, and then does not know it for a special
    one. Earlier releases and Neap do not.
    """
    plain = json.loads(json.dumps(tree))
    for token in plain["added_tokens"]:
        token["normalized"] = False
    return tokenizers.Tokenizer.from_str(json.dumps(tree)), tokenizers.Tokenizer.from_str(json.dumps(plain))


def compare(program: str, tree: dict, count: int, seed: int) -> dict:
    oracle, decoder = oracles(tree)
    with tempfile.TemporaryDirectory() as folder:
        path, lines = f"{folder}/tokenizer.json", f"{folder}/texts"
        json.dump(tree, open(path, "w"))
        with open(lines, "w") as out:
            out.writelines(json.dumps(t) + "\n" for t in texts(count, seed))
        wrong = {"ids": 0, "decoded": 0, "streamed": 0}
        first = None
        with open(lines) as given, subprocess.Popen([program, path], stdin=given, stdout=subprocess.PIPE, text=True) as ours:
            for text in texts(count, seed):
                ids, decoded, streamed = json.loads(ours.stdout.readline())
                expected = oracle.encode(text).ids
                want = [expected, *(decoder.decode(expected, skip_special_tokens=skip) for skip in (True, False))]
                for name, a, b in zip(wrong, want, (ids, decoded, streamed)):
                    if a != b:
                        wrong[name] += 1
                        first = first or {"text": text, "what": name, "expected": a, "got": b}
    return {"different": wrong, "first": first}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=200000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", nargs="*")
    args = parser.parse_args()
    failed = False
    for name, tree in families().items():
        if args.family and name not in args.family:
            continue
        result = compare(args.program, tree, args.count, args.seed)
        failed |= any(result["different"].values())
        print(json.dumps({"family": name, "texts": args.count, **result["different"]}), flush=True)
        if result["first"]:
            print("  " + json.dumps(result["first"]), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
