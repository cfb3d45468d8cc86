#!/usr/bin/env python3
"""Writes core_algos_golden.json: the RLHF formulas, worked out in plain Python on lists.

It shares nothing with the C++: sequences are handled one by one, masked tokens are taken out of the
lists instead of being multiplied away, variances come from the statistics module.
"""
import json
import math
import pathlib
import random
import statistics

random.seed(7)
B, T = 6, 9


def table(scale, shift=0.0):
    return [[random.gauss(shift, scale) for _ in range(T)] for _ in range(B)]


lengths = [9, 1, 4, 7, 3, 6]
mask = [[1.0 if t < n else 0.0 for t in range(T)] for n in lengths]
# One mask with holes: tokens of a tool's answer between the model's own.
holes = [row[:] for row in mask]
holes[0][3] = holes[0][4] = 0.0
holes[3][0] = 0.0
old = table(0.5, -2)
new = [[x + random.gauss(0, 0.4) for x in row] for row in old]
ref = [[x + random.gauss(0, 0.7) for x in row] for row in old]
ref[2][1] = old[2][1] + 30.0  # beyond both clamps
new[4][0] = old[4][0] - 25.0
rewards = table(1.0)
values = table(1.0)
new_values = [[x + random.gauss(0, 0.6) for x in row] for row in values]
returns = table(1.5)
advantages = table(1.0)
group = [5, 5, 2, 5, 2, 9]


def kept(x, m):
    return [x[i][t] for i in range(B) for t in range(T) if m[i][t]]


def mean(x, m):
    return math.fsum(kept(x, m)) / len(kept(x, m))


def whiten(x, m):
    flat = kept(x, m)
    mu, var = statistics.fmean(flat), statistics.variance(flat)
    return [[(v - mu) / math.sqrt(var + 1e-8) for v in row] for row in x]


def clamp(x, low, high):
    return max(low, min(high, x))


KL = {
    "kl": lambda p, q: p - q,
    "abs": lambda p, q: abs(p - q),
    "mse": lambda p, q: (p - q) ** 2 / 2,
    "low_var_kl": lambda p, q: clamp(math.exp(clamp(q - p, -20, 20)) - clamp(q - p, -20, 20) - 1, -10, 10),
}


def each(f, *tables):
    return [[f(*cells) for cells in zip(*rows)] for rows in zip(*tables)]


def gae(gamma, lam, m):
    advantage = [[0.0] * T for _ in range(B)]
    for i in range(B):
        own = [t for t in range(T) if m[i][t]]
        # sums of discounted deltas over the tokens that are there
        delta = [rewards[i][t] + gamma * (values[i][own[k + 1]] if k + 1 < len(own) else 0.0) - values[i][t]
                 for k, t in enumerate(own)]
        for k, t in enumerate(own):
            advantage[i][t] = math.fsum((gamma * lam) ** (j - k) * delta[j] for j in range(k, len(own)))
    return advantage


def masked(x, m):
    return [[x[i][t] if m[i][t] else 0.0 for t in range(T)] for i in range(B)]


def by_group(score_to_advantage):
    scores = [math.fsum(r[t] for t in range(T)) for r in rewards]
    out = []
    for i in range(B):
        same = [scores[j] for j in range(B) if group[j] == group[i]]
        out.append(score_to_advantage(scores[i], same))
    return [[out[i] * mask[i][t] for t in range(T)] for i in range(B)]


def grpo(s, same):
    return (s - 0) / (1 + 1e-6) if len(same) == 1 else (s - statistics.fmean(same)) / (statistics.stdev(same) + 1e-6)


def dr_grpo(s, same):
    return s if len(same) == 1 else s - statistics.fmean(same)


def rloo(s, same):
    return s if len(same) == 1 else s - (math.fsum(same) - s) / (len(same) - 1)


def rpp(gamma):
    out = [[0.0] * T for _ in range(B)]
    for i in range(B):
        for t in range(T):
            if mask[i][t]:
                out[i][t] = math.fsum(gamma ** (u - t) * rewards[i][u] for u in range(t, lengths[i]))
    return out


LOW, HIGH, C = 0.2, 0.28, 3.0


def policy_cell(o, n, a):
    ratio = math.exp(clamp(n - o, -20, 20))
    plain, clipped = -a * ratio, -a * clamp(ratio, 1 - LOW, 1 + HIGH)
    upper = max(plain, clipped)
    loss = min(upper, -a * C) if a < 0 else upper
    return loss, float(clipped > plain), float(a < 0 and upper > -a * C), -clamp(n - o, -20, 20)


def aggregate(x, mode):
    sums = [math.fsum(x[i][t] for t in range(T) if mask[i][t]) for i in range(B)]
    if mode == "token-mean":
        return math.fsum(sums) / sum(lengths)
    if mode == "seq-mean-token-sum":
        return math.fsum(sums) / B
    if mode == "seq-mean-token-mean":
        return math.fsum(s / n for s, n in zip(sums, lengths)) / B
    return math.fsum(sums) / B / T


MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
policy = each(policy_cell, old, new, advantages)
pick = lambda k: each(lambda cell: cell[k], policy)


def value_cell(v, r, o):
    near = clamp(v, o - 0.5, o + 0.5)
    return max((v - r) ** 2, (near - r) ** 2) / 2, float((near - r) ** 2 > (v - r) ** 2)


value = each(value_cell, new_values, returns, values)
kl = each(KL["kl"], old, ref)
sequence_kl = [statistics.fmean(kl[i][t] for t in range(T) if mask[i][t]) for i in range(B)]
beta = 0.003
for _ in range(1):  # one step of the adaptive controller
    adapted = beta * (1 + clamp(statistics.fmean(sequence_kl) / 0.1 - 1, -0.2, 0.2) * B / 10000)
logits = table(3.0)
margin = [(c, r) for c, r in zip([2.0, -1.0, 0.5], [1.0, 3.0, 0.5])]


def entropy(row):
    top = max(row)
    total = math.fsum(math.exp(x - top) for x in row)
    p = [math.exp(x - top) / total for x in row]
    return -math.fsum(q * math.log(q) for q in p)


golden = {
    "inputs": {"mask": mask, "holes": holes, "old": old, "new": new, "ref": ref, "rewards": rewards,
               "values": values, "new_values": new_values, "returns": returns, "advantages": advantages,
               "group": group, "logits": logits},
    "masked_mean": mean(rewards, mask),
    "whiten": whiten(rewards, mask),
    "kl": {name: each(f, old, ref) for name, f in KL.items()},
    "reward_kl": {"beta": beta, "kl": statistics.fmean(sequence_kl), "adapted": adapted,
                  "rewards": [[rewards[i][t] - beta * kl[i][t] * mask[i][t] for t in range(T)] for i in range(B)]},
    "gae": [{"gamma": g, "lam": l, "mask": name, "raw": gae(g, l, m), "whitened": masked(whiten(gae(g, l, m), m), m)}
            for g, l in [(1.0, 1.0), (0.99, 0.95)] for name, m in [("mask", mask), ("holes", holes)]],
    "grpo": by_group(grpo), "dr_grpo": by_group(dr_grpo), "rloo": by_group(rloo),
    "reinforce_plus_plus": [{"gamma": g, "raw": rpp(g), "whitened": masked(whiten(rpp(g), mask), mask)}
                            for g in (1.0, 0.9)],
    "policy": {"low": LOW, "high": HIGH, "c": C, "loss": {m: aggregate(pick(0), m) for m in MODES},
               "clip_fraction": mean(pick(1), mask), "clip_fraction_lower": mean(pick(2), mask),
               "ppo_kl": mean(pick(3), mask)},
    "value": {"cliprange": 0.5, "loss": {m: aggregate(each(lambda c: c[0], value), m) for m in MODES},
              "clip_fraction": mean(each(lambda c: c[1], value), mask)},
    "pairwise": {"chosen": [c for c, _ in margin], "rejected": [r for _, r in margin],
                 "loss": statistics.fmean(math.log1p(math.exp(-(c - r))) for c, r in margin)},
    "entropy": [entropy(row) for row in logits],
}
path = pathlib.Path(__file__).resolve().parent / "core_algos_golden.json"
path.write_text(json.dumps(golden, indent=1) + "\n")
