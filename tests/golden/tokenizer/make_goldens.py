#!/usr/bin/env python3
"""Writes golden ids by Hugging Face's tokenizers: make_goldens.py goldens.json (needs `tokenizers`).

Tokenizers of four kinds are trained on a small made-up corpus; each encodes the same texts, random
Unicode among them.
"""
import json
import random
import sys

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def corpus(chance: random.Random) -> str:
    syllables = ["the", "re", "wa", "ter", "ti", "de", "ne", "ap", "low", "ing", "est", "mem", "o", "ry", "é", "ß", "日", "本"]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 3))) for _ in range(90)]
    weights = [1 / (i + 1) for i in range(len(words))]
    lines = []
    for _ in range(60):
        line = " ".join(chance.choices(words, weights, k=chance.randint(4, 14)))
        lines.append(line.capitalize() + chance.choice([".", "!", "?", ", isn't it?", " 12345", "  (a)", "\t x"]))
    return "\n".join(lines) + "\n"


def texts(chance: random.Random) -> list[str]:
    fixed = ["", " ", "  ", "\n", "\r\n\r\n  x", "Hello world", "don't DON'T we'LL I'\u017f", "the water  tide   nearest\n\n\nlow",
             "1234567890 12 3", "a\u180eb \u180e c", "x\u00a0y\u2028z\u3000w\u0085v", "\u1680\u2003 tab\t\ttab",
             "e\u0301 \u00e9 \u1e9b\u0323 \ufb01", "\uac00\u1100\u1161\u11a8", "日本語テキスト 日本", "😀👩‍👩‍👧‍👦🏽 flags 🇩🇪",
             "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c", "x <mask> y", "x   <mask>   y", "word<single>word <single> <single>!",
             "norm\u00e9 norme\u0301 xnorme\u0301x", "<|im_start|>user\nhi<|im_end|>\n", "<|<|endoftext|>|>", "\u0000\u0001\u007f",
             "\U0010ffff\ue000\ud7ff", "ÀÁÂ àáâ ß ẞ İ ı", "a" * 70, "!" * 30 + "\n\n", " " * 40 + "x", "x" + " " * 40, "K\u212a\u017f'\u017f",
             "٣٤٥ ४५६ Ⅷ ½", "हिन्दी ไทย עברית العربية"]
    pools = ["abc the ne ap", "  \t\n\r\u00a0\u3000\u180e\u200b", "0123456789٣½", "'sStTdDmMlLvVeErR", ".,;!?-_/\\()[]{}",
             "éßæøÅñ日本語가각😀👍🏽", "e\u0301\u0323a\u030a"]
    made = ["".join(chance.choice(chance.choice(pools)) for _ in range(chance.randint(5, 40))) for _ in range(50)]
    wild = []
    for _ in range(25):
        points = [chance.randrange(0x3000) if chance.random() < 0.8 else chance.randrange(0x1F000, 0x1FA00) for _ in range(chance.randint(3, 20))]
        wild.append("".join(chr(p) for p in points))
    return fixed + made + wild


def train(tokenizer: Tokenizer, text: str, specials: list) -> Tokenizer:
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainers.BpeTrainer(
        vocab_size=420, min_frequency=2, special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def build(text: str) -> dict:
    made = {}
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made["gpt2"] = train(gpt2, text, ["<|endoftext|>"])

    opt = Tokenizer(models.BPE())
    opt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    train(opt, text, ["<pad>", "</s>"])
    opt.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=False), AddedToken("<single>", single_word=True)])
    opt.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 1)])
    made["opt"] = opt

    qwen2 = Tokenizer(models.BPE())
    qwen2.normalizer = normalizers.NFC()
    qwen2.pre_tokenizer = split(QWEN2)
    train(qwen2, text, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    qwen2.add_tokens([AddedToken("norm\u00e9", normalized=True), AddedToken("<mask>", rstrip=True, normalized=False)])
    qwen2.post_processor = processors.ByteLevel(trim_offsets=False)
    made["qwen2"] = qwen2

    llama3 = Tokenizer(models.BPE(ignore_merges=True))
    llama3.pre_tokenizer = split(LLAMA3)
    train(llama3, text, ["<|begin_of_text|>", "<|endoftext|>"])
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])])
    made["llama3"] = llama3
    return made


def main() -> None:
    chance = random.Random(20)
    text = corpus(chance)
    cases = texts(chance)
    out = {"made_by": f"tokenizers {tokenizers.__version__}", "texts": cases, "tokenizers": {}}
    for name, tokenizer in build(text).items():
        ids = [tokenizer.encode(t).ids for t in cases]
        entry = {"tokenizer": json.loads(tokenizer.to_str()), "ids": ids,
                 "decoded": {}}
        # Decoding gives the text back but for normalization, added spaces and special tokens.
        for i, t in enumerate(cases):
            for skip in (False, True):
                decoded = tokenizer.decode(ids[i], skip_special_tokens=skip)
                if decoded != t:
                    entry["decoded"].setdefault(str(i), {})["skip" if skip else "keep"] = decoded
        # Every prefix of the ids of a text with wide characters cuts some character in two.
        row = tokenizer.encode("日本😀é").ids
        entry["prefixes"] = [tokenizer.decode(row[:n]) for n in range(len(row) + 1)]
        out["tokenizers"][name] = entry
    json.dump(out, open(sys.argv[1], "w"), ensure_ascii=True, separators=(",", ":"))


if __name__ == "__main__":
    main()
