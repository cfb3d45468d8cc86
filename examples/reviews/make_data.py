#!/usr/bin/env python3
"""Makes the restaurant reviews, preference pairs, prompts, lexicon and tokenizer of this example.

    make_data.py [--out FOLDER]      writes the files (default: the folder of this script)
    make_data.py --check             compares them with what is there; exit code 1 on a difference

Standard library only. The same seed gives the same bytes on every Python since 3.8: only
random.Random.random() is used, whose sequence Python promises to keep.
"""
import argparse
import json
import pathlib
import random
import re
import sys

SEED = 20260101
SFT_TRAIN, SFT_VAL = 4000, 200
PAIRS_TRAIN, PAIRS_VAL = 2400, 200
PROMPTS_TRAIN, PROMPTS_VAL = 2048, 128
VOCAB_SIZE = 1024
NOISY_PAIRS = 0.04  # people do not always agree

WHEN = ("Last night|Yesterday|On Sunday|On Friday evening|On Saturday|Last week|This morning|At noon|"
        "On our anniversary|For my birthday|After the theatre|Before the concert|During the festival|"
        "On a rainy Tuesday|On a warm Thursday|After a long walk|On the way home|In spring|Last winter|"
        "On holiday").split("|")
WHO = ("we|my wife and I|my husband and I|my friends and I|my sister and I|my brother and I|"
       "our whole family|the four of us|my parents and I|a colleague and I|the kids and I|"
       "my neighbour and I|my uncle and I|our team").split("|")
WENT = "went to|visited|stopped at|ate at|had dinner at|had lunch at|tried|booked a table at|walked into|met at".split("|")
ADJECTIVE = "old|little|new|blue|green|golden|red|quiet|corner|harbour|village|station|garden|river|market|mountain".split("|")
PLACE = "bistro|tavern|cafe|diner|pizzeria|grill|steakhouse|bakery|brasserie|canteen|noodle bar|tea house|trattoria|inn|kitchen|cantina".split("|")
WHERE = ("by the bridge|near the church|on the square|behind the museum|across from the park|at the beach|"
         "under the arches|beside the library|on the main street|next to the cinema|above the old mill|"
         "in the old town").split("|")
DISH = ("soup|salad|pasta|risotto|lasagna|pizza|burger|steak|salmon|trout|chicken|lamb|duck|curry|stew|omelette|"
        "paella|ramen|dumplings|tacos|bread|cheese|pudding|cake|tart|ice cream|pancakes|coffee|wine|lemonade|"
        "fish|beans|rice|potatoes|mushrooms|sausage|sandwich|pie|chowder|gnocchi").split("|")
PLURAL = {"dumplings", "tacos", "pancakes", "beans", "potatoes", "mushrooms", "gnocchi"}
STAFF = "waiter|waitress|chef|cook|owner|barman|hostess|manager|cashier|sommelier".split("|")
ROOM = "room|terrace|music|table|place|lighting|counter|bar".split("|")

GOOD = {
    "food": ("delicious|tasty|wonderful|fresh|perfect|superb|excellent|crisp|juicy|tender|heavenly|lovely|"
             "fragrant|rich|flawless|divine|creamy|splendid").split("|"),
    "staff": "kind|friendly|helpful|charming|attentive|polite|cheerful|patient|generous|gracious|warm|welcoming".split("|"),
    "room": "cozy|bright|clean|relaxing|beautiful|pleasant|elegant|comfortable|inviting|delightful|spotless|peaceful".split("|"),
    "verb": "smiled at us|thanked us|surprised us with dessert|remembered our names|found us the best seats|made us laugh".split("|"),
    "end": ("We loved it.|We will come back soon.|A real treasure.|Highly recommended.|Our new favourite.|"
            "Worth every penny.|What a joy.|Five stars from us.|We left happy.|Simply magnificent.").split("|"),
}
BAD = {
    "food": ("awful|cold|bland|stale|burnt|greasy|soggy|terrible|dry|tasteless|sour|rubbery|disgusting|horrible|"
             "watery|mushy|raw|rotten").split("|"),
    "staff": "rude|grumpy|careless|lazy|unfriendly|impatient|arrogant|clumsy|sullen|dismissive|hostile|hopeless".split("|"),
    "room": "noisy|dirty|gloomy|cramped|filthy|smelly|sticky|shabby|dreadful|stuffy|ugly|depressing".split("|"),
    "verb": "ignored us|shouted at us|forgot our order|spilled the drinks|lost our booking|made us wait an hour".split("|"),
    "end": ("We hated it.|We will never return.|A total waste.|Avoid this trap.|Our worst meal.|"
            "Not worth a penny.|What a disaster.|One star is too much.|We left angry.|Simply miserable.").split("|"),
}
DEGREE = "very|really|quite|so|truly|rather|always|almost too".split("|")
# The judge of the validation; no stage trains on it. The words that carry a tone, one list each.
END_WORDS = {
    "friendly": ("loved|soon|treasure|recommended|favourite|joy|five|happy|magnificent|smiled|thanked|surprised|"
                 "remembered|best|laugh|every").split("|"),
    "unfriendly": ("hated|never|waste|avoid|trap|worst|disaster|angry|miserable|ignored|shouted|forgot|spilled|"
                   "lost|wait|not").split("|"),
}


class Dice:
    def __init__(self, seed):
        self._random = random.Random(seed).random

    def pick(self, items):
        return items[int(self._random() * len(items))]

    def chance(self, probability):
        return self._random() < probability

    def shuffle(self, items):
        for i in range(len(items) - 1, 0, -1):
            j = int(self._random() * (i + 1))
            items[i], items[j] = items[j], items[i]


def opening(dice):
    """The prompt: who went where, without any tone."""
    place = f"the {dice.pick(ADJECTIVE)} {dice.pick(PLACE)}"
    where = f" {dice.pick(WHERE)}" if dice.chance(0.4) else ""
    if dice.chance(0.8):
        return f"{dice.pick(WHEN)} {dice.pick(WHO)} {dice.pick(WENT)} {place}{where}."
    who = dice.pick(WHO)
    return f"{who[0].upper() + who[1:]} {dice.pick(WENT)} {place}{where}."


def clause_food(dice, tone):
    dish = dice.pick(DISH)
    degree = f"{dice.pick(DEGREE)} " if dice.chance(0.35) else ""
    return f"the {dish} {'were' if dish in PLURAL else 'was'} {degree}{dice.pick(tone['food'])}"


def clause_staff(dice, tone):
    staff = dice.pick(STAFF)
    if dice.chance(0.4):
        return f"the {staff} {dice.pick(tone['verb'])}"
    degree = f"{dice.pick(DEGREE)} " if dice.chance(0.35) else ""
    return f"the {staff} was {degree}{dice.pick(tone['staff'])}"


def clause_room(dice, tone):
    return f"the {dice.pick(ROOM)} was {dice.pick(tone['room'])}"


def sentence(first, joint, second):
    return f"{first[0].upper()}{first[1:]} {joint} {second}."


def review(dice, friendly):
    """The response. `friendly` has four flags: of its three clauses and of its ending. Returns the text and by how
    many clauses it is more friendly than not."""
    clauses = [clause_food, clause_staff, clause_room]
    dice.shuffle(clauses)
    first, second, third = (clause(dice, GOOD if good else BAD) for clause, good in zip(clauses, friendly))
    parts = [sentence(first, "and" if friendly[0] == friendly[1] else "but", second)]
    said = list(friendly[:2])
    if dice.chance(0.5):
        parts.append(f"{third[0].upper()}{third[1:]}.")
        said.append(friendly[2])
    if dice.chance(0.7):
        parts.append(dice.pick((GOOD if friendly[3] else BAD)["end"]))
        said.append(friendly[3])
    return " ".join(parts), sum(1 if good else -1 for good in said)


def any_review(dice, friendly):
    """In one tone, but for one clause in some."""
    flags = [friendly] * 4
    if dice.chance(0.15):
        flags[1] = not friendly
    return review(dice, flags)[0]


def pair(dice):
    """Two reviews of any mixture of tones; people like the one with more friendly words."""
    prompt = opening(dice)
    texts = []
    while len(texts) < 2 or texts[0][1] == texts[1][1]:
        if len(texts) == 2:
            texts.pop()
        share = dice.pick([0.05, 0.5, 0.95])
        texts.append(review(dice, [dice.chance(share) for _ in range(4)]))
    texts.sort(key=lambda text: text[1])
    if dice.chance(NOISY_PAIRS):
        texts.reverse()
    return {"prompt": prompt, "chosen": " " + texts[1][0], "rejected": " " + texts[0][0]}


def sft_rows(dice, count):
    # Exactly half of each tone, in random order.
    tones = [i % 2 == 0 for i in range(count)]
    dice.shuffle(tones)
    return [{"prompt": opening(dice), "response": " " + any_review(dice, tone)} for tone in tones]


def held_out_openings(dice, count, seen):
    rows = []
    while len(rows) < count:
        text = opening(dice)
        if text not in seen:
            seen.add(text)
            rows.append({"prompt": text})
    return rows


def lexicon():
    def words(tone, ends):
        return sorted(set(tone["food"] + tone["staff"] + tone["room"]) | set(ends))
    return {"friendly": words(GOOD, END_WORDS["friendly"]), "unfriendly": words(BAD, END_WORDS["unfriendly"])}


def byte_alphabet():
    """The printable stand-ins for the 256 bytes that byte-level BPE files use."""
    kept = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for byte in range(256):
        if byte in kept:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def tokenizer(texts):
    """Byte-level BPE in the format of tokenizer.json. Ties go to the pair that sorts first."""
    special = ["<|endoftext|>", "<|pad|>"]
    table = byte_alphabet()
    # The texts are ASCII, for which this equals the GPT-2 pattern.
    pattern = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
    counts = {}
    for text in texts:
        for word in pattern.findall(text):
            key = tuple(table[b] for b in word.encode())
            counts[key] = counts.get(key, 0) + 1
    vocab = special + [table[b] for b in sorted(table, key=lambda b: table[b])]
    merges = []
    while len(vocab) < VOCAB_SIZE:
        pairs = {}
        for word, n in counts.items():
            for a, b in zip(word, word[1:]):
                pairs[a, b] = pairs.get((a, b), 0) + n
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        vocab.append(best[0] + best[1])
        merged = {}
        for word, n in counts.items():
            out, i = [], 0
            while i < len(word):
                if i + 1 < len(word) and (word[i], word[i + 1]) == best:
                    out.append(word[i] + word[i + 1])
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            merged[tuple(out)] = merged.get(tuple(out), 0) + n
        counts = merged
    added = [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, s in enumerate(special)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(vocab)},
                  "merges": [f"{a} {b}" for a, b in merges]},
    }


def files():
    """Relative path -> contents."""
    sft = sft_rows(Dice(SEED), SFT_TRAIN)
    sft_val = sft_rows(Dice(SEED + 1), SFT_VAL)
    dice = Dice(SEED + 2)
    pairs = [pair(dice) for _ in range(PAIRS_TRAIN)]
    dice = Dice(SEED + 3)
    pairs_val = [pair(dice) for _ in range(PAIRS_VAL)]
    seen = {row["prompt"] for row in sft + sft_val + pairs + pairs_val}
    dice = Dice(SEED + 4)
    prompts = held_out_openings(dice, PROMPTS_TRAIN, seen)
    prompts_val = held_out_openings(dice, PROMPTS_VAL, seen)

    def lines(rows):
        return "".join(json.dumps(row) + "\n" for row in rows)

    texts = [row["prompt"] + row["response"] for row in sft]
    return {
        "sft_train.jsonl": lines(sft), "sft_val.jsonl": lines(sft_val),
        "pairs_train.jsonl": lines(pairs), "pairs_val.jsonl": lines(pairs_val),
        "prompts_train.jsonl": lines(prompts), "prompts_val.jsonl": lines(prompts_val),
        "lexicon.json": json.dumps(lexicon(), indent=1) + "\n",
        "model/tokenizer.json": json.dumps(tokenizer(texts), indent=1, ensure_ascii=False) + "\n",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    different = []
    for name, contents in files().items():
        path = arguments.out / name
        data = contents.encode()
        if arguments.check:
            if not path.is_file() or path.read_bytes() != data:
                different.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    if different:
        print("differ from what make_data.py makes: " + ", ".join(different), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
