"""Tokenizers of the families that checkpoints have, trained on a small made-up corpus, and texts.

Needs `tokenizers` (PyPI). make_family_goldens.py and compare.py use it.
"""
import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

L3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = L3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
DS3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
       r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DS_LLM = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+"]
MARK = "▁"


def corpus(chance: random.Random) -> str:
    syllables = ["the", "re", "wa", "ter", "ti", "de", "ne", "ap", "low", "ing", "est", "mem", "o", "ry", "é", "ß", "日", "本", "при",
                 "вет", "ال", "م", "क", "ि", "가", "e\u0301", "Wa", "TER"]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 3))) for _ in range(160)]
    weights = [1 / (i + 1) for i in range(len(words))]
    lines = []
    for _ in range(120):
        line = " ".join(chance.choices(words, weights, k=chance.randint(4, 14)))
        lines.append(line.capitalize() + chance.choice([".", "!", "?", ", isn't it?", " 12345", "  (a)", "\t x", "  y   z", " f(x)=1;"]))
    return "\n".join(lines) + "\n"


def byte_level(regex=False, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def isolated(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def begin(*tokens: str, text: str = "$A"):
    return lambda t: processors.TemplateProcessing(
        single=" ".join([*tokens, text]), special_tokens=[(x, t.token_to_id(x)) for x in dict.fromkeys(tokens)])


def make(text, *, specials, normalizer=None, pre=None, decoder=None, post=None, added=(), size=600, alphabet=True, limit=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    trainer = dict(vocab_size=size, min_frequency=2, special_tokens=[AddedToken(s, special=True, normalized=False) for s in specials],
                   show_progress=False)
    if alphabet:
        trainer["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    elif limit:
        trainer["limit_alphabet"] = limit
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainers.BpeTrainer(**trainer))
    tokenizer.decoder = decoder or decoders.ByteLevel()
    tokenizer.add_tokens([a for a in added if not a.special])
    tokenizer.add_special_tokens([a for a in added if a.special])
    if post:
        tokenizer.post_processor = post(tokenizer)
    return json.loads(tokenizer.to_str())


BYTES = [f"<0x{b:02X}>" for b in range(256)]
SP = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]


def sentencepiece(text, *, strip=True, added=(), normalized=False, **more):
    """Llama-2's layout: <unk>, <s>, </s>, then the byte tokens, which are ordinary tokens of the vocabulary."""
    tree = make(text, specials=["<unk>", "<s>", "</s>", *BYTES], alphabet=False, limit=60, byte_fallback=True, fuse_unk=True, unk_token="<unk>",
                decoder=decoders.Sequence(SP + ([decoders.Strip(" ", 1, 0)] if strip else [])), added=added, **more)
    tree["added_tokens"] = [a for a in tree["added_tokens"] if a["content"] not in BYTES]
    for token in tree["added_tokens"]:
        if normalized and token["content"] in ("<s>", "</s>"):
            token["normalized"] = True
    return tree


def families() -> dict:
    text = corpus(random.Random(20))
    # Merges stay within words in sentencepiece's vocabularies; here spaces come before a word only.
    marked = text
    legacy = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    chat = [AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")]
    think = [AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>", "<tool_call>")]
    ppbl = lambda _: processors.ByteLevel(trim_offsets=False)
    s, f = pre_tokenizers.Sequence, {}
    f["gpt2"] = make(text, specials=["<|endoftext|>"], pre=byte_level(True), post=ppbl)
    f["opt"] = make(text, specials=["<pad>", "</s>"], pre=byte_level(True, True), post=begin("</s>"),
                    added=[AddedToken("<mask>", lstrip=True), AddedToken("<single>", single_word=True)])
    # Trained with Metaspace so that merges end at words, then given the legacy normalizer.
    llama2 = sentencepiece(marked, pre=pre_tokenizers.Metaspace(), post=begin("<s>"))
    for name, normalized in (("llama2", False), ("llama2_normalized", True)):
        tree = json.loads(json.dumps(llama2))
        tree["pre_tokenizer"] = None
        tree["normalizer"] = json.loads(Tokenizer.from_str(json.dumps({**tree, "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}})).to_str())["normalizer"]
        for token in tree["added_tokens"]:
            token["normalized"] = normalized
        f[name] = tree
    f["mistral"] = json.loads(json.dumps(llama2))
    f["mistral"]["pre_tokenizer"] = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}
    f["metaspace_words"] = sentencepiece(text, pre=pre_tokenizers.Metaspace(), post=begin("<s>"), added=chat)
    f["metaspace_words"]["decoder"] = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}
    f["phi3"] = json.loads(json.dumps(f["llama2"]))
    f["phi3"]["post_processor"] = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                                   "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {}}
    size = max(f["phi3"]["model"]["vocab"].values()) + 1
    for i, t in enumerate(("<|user|>", "<|end|>", "<|assistant|>")):
        f["phi3"]["added_tokens"].append({"id": size + i, "content": t, "single_word": False, "lstrip": False, "rstrip": True,
                                          "normalized": False, "special": True})
    gemma = sentencepiece(text, strip=False, pre=pre_tokenizers.Metaspace(prepend_scheme="never"), post=begin("<s>"),
                          added=[AddedToken(t, special=False, normalized=False) for t in ("\n", "\n\n", "  ", "   ")])
    gemma["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    gemma["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    f["gemma"] = gemma
    f["nemo"] = make(text, specials=["<unk>", "<s>", "</s>"], pre=s(isolated(TEKKEN) + [byte_level()]), ignore_merges=True, post=begin("<s>"))
    f["llama3"] = make(text, specials=["<|begin_of_text|>", "<|eot_id|>"], pre=s(isolated(L3) + [byte_level()]), ignore_merges=True,
                       post=lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=False), begin("<|begin_of_text|>")(t)]))
    f["smollm3"] = make(text, specials=["<|begin_of_text|>"], pre=s(isolated(L3) + [byte_level()]), ignore_merges=True, added=think + chat)
    f["qwen"] = make(text, specials=["<|endoftext|>"], normalizer=normalizers.NFC(), pre=s(isolated(QWEN) + [byte_level()]), added=chat + think,
                     post=ppbl)
    f["neox"] = make(text, specials=["<|endoftext|>", "<|padding|>"], normalizer=normalizers.NFC(), pre=byte_level(True),
                     added=[AddedToken(" " * n, normalized=True) for n in range(2, 9)])
    f["bloom"] = make(text, specials=["<unk>", "<s>"], pre=s(isolated(BLOOM) + [byte_level()]), post=ppbl)
    f["starcoder"] = make(text, specials=["<|endoftext|>"], pre=s([pre_tokenizers.Digits(True), byte_level(True)]), post=ppbl)
    f["olmo2"] = make(text, specials=["<|endoftext|>"], pre=s(isolated(CL100K) + [byte_level()]))
    f["o200k"] = make(text, specials=["<|endoftext|>"], pre=s(isolated(O200K) + [byte_level()]))
    f["deepseek"] = make(text, specials=["<s>", "</s>"], normalizer=normalizers.Sequence([]), post=begin("<s>"),
                         pre=s(isolated(*DS_LLM) + [pre_tokenizers.Digits(True), byte_level()]))
    f["deepseek3"] = make(text, specials=["<s>", "</s>"], normalizer=normalizers.Sequence([]), post=begin("<s>"),
                          pre=s(isolated(r"\p{N}{1,3}", r"[一-龥\u3040-ゟ゠-ヿ]+", DS3) + [byte_level()]))
    # The other stages, several at once.
    f["words"] = make(text, specials=["[UNK]", "[CLS]", "[SEP]"], alphabet=False, unk_token="[UNK]", fuse_unk=False, limit=40,
                      normalizer=normalizers.Sequence([normalizers.Strip(), normalizers.NFKC(), normalizers.Lowercase()]),
                      pre=s([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(False)]), decoder=decoders.Fuse(),
                      post=begin("[CLS]"), added=[AddedToken("Mixed", normalized=True, single_word=True)])
    f["pieces"] = make(text, specials=["[UNK]"], alphabet=False, unk_token="[UNK]", fuse_unk=True, limit=50,
                       normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.NFKD(), normalizers.Replace(Regex(r"\s+"), " ")]),
                       pre=s([pre_tokenizers.Split("-", "merged_with_next"), pre_tokenizers.Split(Regex(r"[a-f]+"), "contiguous", True),
                              pre_tokenizers.Punctuation("merged_with_previous"), pre_tokenizers.WhitespaceSplit()]),
                       decoder=decoders.Sequence([decoders.Strip("a", 1, 0), decoders.Replace(Regex("e+"), "E"), decoders.Fuse(), decoders.Strip("E", 1, 0)]))
    f["fixed"] = make(text, specials=["[UNK]"], alphabet=False, limit=50, normalizer=normalizers.NFC(),
                      pre=s([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.FixedLength(3), pre_tokenizers.Metaspace(prepend_scheme="first")]),
                      decoder=decoders.Fuse())
    f["fixed"]["decoder"] = None
    return f


SCRIPTS = [(0x20, 0x7F), (0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x530, 0x600), (0x600, 0x700),
           (0x900, 0xA00), (0xA00, 0xE00), (0xE00, 0xE80), (0x1000, 0x1200), (0x1200, 0x13A0), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2C00),
           (0x3000, 0x3100), (0x3100, 0x3400), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFB00), (0xFE00, 0xFFFE), (0x10000, 0x10FFF),
           (0x11000, 0x11FFF), (0x1D400, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x20100), (0xE0000, 0xE0200), (1, 0x20)]
FRAGMENTS = ["<|endoftext|>", "<s>", "</s>", "<unk>", "<mask>", "<single>", "<think>", "</think>", "<tool_call>", "<|im_start|>", "<|im_end|>", "<|user|>",
             "<|end|>", "<|begin_of_text|>", "<|eot_id|>", "<0x0A>", "<0xE6>", "\n", "\n\n", "\r\n", " ", "  ", "   ", "    ", "\t", "'s", "'LL", "'\u017f", "123",
             "4567", "x=1;", "▁", "▁▁", " the", "water", "Mixed", "mixed", "-", "--", "\u00a0", "\u3000", "\u180e", "\u2028", "\u0085", "\u200d", "\ufeff", "\u212a",
             "ﬁ", "Å", "e\u0301\u0323", "\uac00\u11a8", "İ", "ǅ", "Ⅷ", "½", "٣", "👩‍👩‍👧", "🇩🇪", "\U0010ffff", "\ue000", "[UNK]", "日本", "привет", "\x00" if False else "\x01"]


def texts(count: int, seed: int):
    """Random and adversarial texts, the same for the same seed."""
    chance = random.Random(seed)
    words = corpus(random.Random(20)).split()
    for i in range(count):
        kind, out = i % 5, []
        for _ in range(chance.randint(1, 14)):
            if kind == 0:
                out.append(chance.choice(words) + chance.choice([" ", " ", "  ", "", "\n"]))
            elif kind == 1:
                out.append(chance.choice(FRAGMENTS))
            elif kind == 2:
                low, high = chance.choice(SCRIPTS)
                out.append("".join(chr(chance.randrange(low, high)) for _ in range(chance.randint(1, 5))))
            elif kind == 3:
                out.append(chance.choice([chance.choice(words), chance.choice(FRAGMENTS), chr(chance.randrange(0x20, 0x250)), str(chance.randrange(10**chance.randint(1, 9)))]))
            else:
                c = chance.randrange(1, 0x110000)
                out.append("a" if 0xD800 <= c < 0xE000 else chr(c))
        yield "".join("" if 0xD800 <= ord(c) < 0xE000 else c for c in "".join(out))
