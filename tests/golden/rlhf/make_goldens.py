#!/usr/bin/env python3
"""Writes goldens.json: losses, their gradients and advantages of the algorithms in docs/algorithms.md.

Plain Python in float64 on sequences of their own lengths, from the formulas that each system documents. Gradients are central
differences; what a formula keeps out of the gradient is frozen at the point where it is taken. PUBLISHED has values that were
worked out from the systems' code, which the formulas here must give.
"""
import json
import math
import pathlib
import random
import statistics

random.seed(11)


def clamp(x, low, high):
    return max(low, min(high, x))


# ---- policy losses: a sequence is {"old", "new", "advantage"}, lists of one length ----

def vanilla(s, base, c):
    for o, n, a in zip(s["old"], s["new"], s["advantage"]):
        ratio = math.exp(clamp(n - o, -20, 20))
        plain, clipped = -a * ratio, -a * clamp(ratio, 1 - c["low"], 1 + c["high"])
        upper = max(plain, clipped)
        yield (min(upper, -a * c["c"]) if a < 0 else upper), clipped > plain, a < 0 and upper > -a * c["c"]


def gspo(s, base, c):
    mean = sum(n - o for o, n in zip(base["old"], base["new"])) / max(len(base["old"]), 1)
    for n, frozen, a in zip(s["new"], base["new"], s["advantage"]):
        ratio = math.exp(min(n - frozen + mean, 10))
        plain, clipped = -a * ratio, -a * clamp(ratio, 1 - c["low"], 1 + c["high"])
        yield max(plain, clipped), clipped > plain, False


def cispo(s, base, c):
    for o, n, frozen, a in zip(s["old"], s["new"], base["new"], s["advantage"]):
        ratio = math.exp(clamp(frozen - o, -20, 20))
        weight = clamp(ratio, 1 - c["low"], 1 + c["high"])
        yield -weight * a * n, weight != ratio, False


def gpg(s, base, c):
    for n, a in zip(s["new"], s["advantage"]):
        yield -a * n, False, False


LOSSES = {"vanilla": vanilla, "gspo": gspo, "cispo": cispo, "gpg": gpg}


def aggregate(rows, mode, length):
    """rows: losses of each sequence's tokens; sequences without tokens count as sequences."""
    tokens, sequences = sum(map(len, rows)), len(rows)
    if mode == "token-mean":
        return math.fsum(x for row in rows for x in row) / tokens
    if mode == "token-sum":
        return math.fsum(x for row in rows for x in row)
    if mode == "seq-mean-token-sum":
        return math.fsum(math.fsum(row) for row in rows) / sequences
    if mode == "seq-mean-token-mean":
        return math.fsum(math.fsum(row) / len(row) for row in rows if row) / sequences
    assert mode == "seq-mean-token-sum-norm"
    return math.fsum(math.fsum(row) / length for row in rows) / sequences


def loss_of(batch, base, kind, mode, c):
    mode = "seq-mean-token-mean" if kind == "gspo" else mode
    return aggregate([[x[0] for x in LOSSES[kind](s, b, c)] for s, b in zip(batch, base)], mode, c["length"])


def with_token(batch, i, t, by):
    moved = [dict(s) for s in batch]
    moved[i]["new"] = [x + (by if u == t else 0) for u, x in enumerate(batch[i]["new"])]
    return moved


def gradient(f, batch, step=1e-5):
    return [[(f(with_token(batch, i, t, step)) - f(with_token(batch, i, t, -step))) / (2 * step) for t in range(len(s["new"]))]
            for i, s in enumerate(batch)]


def padded(rows, width):
    return [list(row) + [0.0] * (width - len(row)) for row in rows]


def policy_case(batch, kind, mode, width, **settings):
    c = {"low": 0.2, "high": 0.2, "c": 3.0, "length": width} | settings
    cells = [list(LOSSES[kind](s, s, c)) for s in batch]
    flat = [cell for row in cells for cell in row]
    return {
        "loss_mode": kind, "loss_agg_mode": mode, **c, "loss": loss_of(batch, batch, kind, mode, c),
        "gradient": padded(gradient(lambda moved: loss_of(moved, batch, kind, mode, c), batch), width),
        "clip_fraction": statistics.fmean(float(cell[1]) for cell in flat),
        "clip_fraction_lower": statistics.fmean(float(cell[2]) for cell in flat),
    }


def random_batch(lengths):
    batch = []
    for n in lengths:
        old = [random.gauss(-2, 0.5) for _ in range(n)]
        batch.append({"old": old, "new": [x + random.gauss(0, 0.4) for x in old],
                      "advantage": [random.gauss(0, 1) for _ in range(n)]})
    # Beyond the limits of a log ratio: 20 for a token, 10 for a sequence.
    batch[0]["new"][1] = batch[0]["old"][1] - 25.0
    batch[3]["new"] = [x + 11.0 for x in batch[3]["old"]]
    return batch


MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
LENGTHS, WIDTH = [7, 1, 4, 3, 0, 5], 7
batch = random_batch(LENGTHS)
policy = [policy_case(batch, kind, mode, WIDTH, high=0.28, length=length)
          for kind in LOSSES for mode in MODES for length in ([7] if mode != MODES[-1] else [7, 1024])]

PUBLISHED_BATCH = [{"old": [-1, -2, -.5], "new": [-.6, -2.2, -.5], "advantage": [1, 1, 1]},
                   {"old": [-2, -1.5], "new": [-.5, -1.4], "advantage": [-1, -1]}]
PUBLISHED = [("vanilla", "token-mean", {}, .217288), ("vanilla", "seq-mean-token-mean", {}, .523171),
             ("vanilla", "seq-mean-token-sum", {}, .543220), ("vanilla", "seq-mean-token-sum-norm", {"length": 4}, .135805),
             ("vanilla", "token-mean", {"c": 1e9}, .513626), ("vanilla", "token-mean", {"high": .28, "c": 10}, .497626),
             ("gspo", "token-mean", {"low": 3e-4, "high": 4e-4}, .612570),
             ("cispo", "token-mean", {"low": 10, "high": .2}, .174794),
             # TRL's cap of 5 is an upper end of 1 + 4.
             ("cispo", "token-mean", {"low": 10, "high": 4}, -.118356)]
published = []
for kind, mode, settings, value in PUBLISHED:
    case = policy_case(PUBLISHED_BATCH, kind, mode, 3, **settings)
    assert abs(case["loss"] - value) < 6e-7, (kind, mode, settings, case["loss"], value)
    published.append(case)

# ---- advantages: rewards of tokens, and which prompt a sequence answers ----

GROUP = [4, 4, 1, 4, 1, 9]
A_LENGTHS = [6, 1, 4, 3, 2, 5]
rewards = [[random.gauss(0, 1) if random.random() < .6 else 0.0 for _ in range(n)] for n in A_LENGTHS]
rewards[4] = [0.0, 0.0]  # a score of zero, which gpg counts
baselines = [random.gauss(0, 1) for _ in A_LENGTHS]
scores = [math.fsum(row) for row in rewards]


def group_of(i):
    return [j for j, g in enumerate(GROUP) if g == GROUP[i]]


def whitened(rows):
    flat = [x for row in rows for x in row]
    mean, deviation = statistics.fmean(flat), math.sqrt(statistics.variance(flat) + 1e-8)
    return [[(x - mean) / deviation for x in row] for row in rows]


def against_mean(i):
    same = group_of(i)
    return scores[i] - (statistics.fmean(scores[j] for j in same) if len(same) > 1 else 0)


def opo(i):
    same = group_of(i)
    if len(same) == 1:
        return scores[i]
    return scores[i] - math.fsum(A_LENGTHS[j] * scores[j] for j in same) / sum(A_LENGTHS[j] for j in same)


def every_token(value):
    return [[value(i)] * n for i, n in enumerate(A_LENGTHS)]


def remax(i):
    return [math.fsum(rewards[i][t:]) - baselines[i] for t in range(A_LENGTHS[i])]


scored = sum(1 for s in scores if s != 0)
A_WIDTH = max(A_LENGTHS)
advantages = {
    "reinforce_plus_plus_baseline": whitened(every_token(against_mean)),
    "remax": [remax(i) for i in range(len(scores))],
    "opo": every_token(opo),
    "gpg": every_token(lambda i: len(scores) / scored * against_mean(i)),
    "grpo": every_token(against_mean),  # without the division by the deviation: Dr. GRPO
}

golden = {
    "policy": {"lengths": LENGTHS, "width": WIDTH,
               **{key: padded([s[key] for s in batch], WIDTH) for key in batch[0]}, "cases": policy},
    "published": {"lengths": [3, 2], "width": 3,
                  **{key: padded([s[key] for s in PUBLISHED_BATCH], 3) for key in PUBLISHED_BATCH[0]}, "cases": published},
    "advantages": {"lengths": A_LENGTHS, "width": A_WIDTH, "group": GROUP, "baselines": baselines,
                   "rewards": padded(rewards, A_WIDTH),
                   "want": {name: padded(rows, A_WIDTH) for name, rows in advantages.items()}},
}
path = pathlib.Path(__file__).resolve().parent / "goldens.json"
path.write_text(json.dumps(golden) + "\n")
