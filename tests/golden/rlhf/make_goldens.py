#!/usr/bin/env python3
"""Writes goldens.json: losses, their gradients and advantages of the algorithms in docs/algorithms.md.

Plain Python in float64 on sequences of their own lengths, from the formulas that each system documents. Gradients are central
differences; what a formula keeps out of the gradient is frozen at the point where it is taken. PUBLISHED has values that were
worked out from the systems' code, which the formulas of policy_losses.py and corrections.py must give.
"""
import json
import math
import pathlib
import random
import statistics

from corrections import accepted, correction_case, divergence, importance, limited
from policy_losses import LOSSES, gradient, padded, policy_case, vanilla

random.seed(11)


def random_batch(lengths):
    batch = []
    drawn = random.Random(3)
    for n in lengths:
        old = [random.gauss(-2, 0.5) for _ in range(n)]
        batch.append({"index": len(batch), "noise": [1 - drawn.random() for _ in range(n)], "old": old, "new": [x + random.gauss(0, 0.4) for x in old],
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
             ("vanilla", "token-mean", {"c": 0}, .513626), ("vanilla", "token-mean", {"high": .28, "c": 10}, .497626),
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

# ---- pairs ----

BETA, SMOOTHING = 0.1, 0.1


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def preference(kind, u, v, chosen, rejected, smoothing):
    """u, v: gains over the reference on responses of so many tokens."""
    gap = BETA * (u - v)
    per_token = u / chosen - v / rejected
    return {"sigmoid": lambda: -log_sigmoid(gap) * (1 - smoothing) - log_sigmoid(-gap) * smoothing,
            "sigmoid_norm": lambda: -log_sigmoid(BETA * per_token) * (1 - smoothing) - log_sigmoid(-BETA * per_token) * smoothing,
            "robust": lambda: (-log_sigmoid(gap) * (1 - smoothing) + log_sigmoid(-gap) * smoothing) / (1 - 2 * smoothing),
            "hinge": lambda: max(0, 1 - gap),
            "ipo": lambda: (per_token - 1 / (2 * BETA)) ** 2,
            "ipo_sum": lambda: (u - v - 1 / (2 * BETA)) ** 2}[kind]()


for kind, smoothing, value in [("sigmoid", 0, .598139), ("sigmoid", .1, .618139), ("robust", .1, .573139), ("hinge", 0, .8),
                               ("ipo_sum", 0, 9.0), ("ipo", 0, 20.7025), ("sigmoid_norm", 0, .670900)]:
    assert abs(preference(kind, 1, -1, 4, 5, smoothing) - value) < 6e-7, kind

# Rows as in a batch: all chosen, then all rejected.
P_LENGTHS = [4, 1, 6, 5, 3, 2]
PAIRS = len(P_LENGTHS) // 2
pair_rows = [{"new": [random.gauss(-2, 1.5) for _ in range(n)], "reference": random.gauss(-2 * n, 1)} for n in P_LENGTHS]
P_WIDTH = max(P_LENGTHS)


def gains(batch):
    return [math.fsum(row["new"]) - row["reference"] for row in batch]


def preference_mean(batch, kind, smoothing):
    g = gains(batch)
    return statistics.fmean(preference(kind, g[i], g[i + PAIRS], P_LENGTHS[i], P_LENGTHS[i + PAIRS], smoothing) for i in range(PAIRS))


def preference_case(kind, smoothing):
    g = gains(pair_rows)
    value = lambda batch: preference_mean(batch, kind, smoothing)
    return {"loss_type": kind, "label_smoothing": smoothing, "loss": value(pair_rows),
            "gradient": padded(gradient(value, pair_rows), P_WIDTH),
            "chosen_reward": BETA * math.fsum(g[:PAIRS]), "rejected_reward": BETA * math.fsum(g[PAIRS:]),
            "right": sum(u > v for u, v in zip(g[:PAIRS], g[PAIRS:]))}


preferences = [preference_case(kind, smoothing)
               for kind in ("sigmoid", "sigmoid_norm", "robust", "hinge", "ipo", "ipo_sum") for smoothing in (0.0, SMOOTHING)]

reward_scores = [[1.5, -0.5, 0.25, 2.0], [0.5, 1.0, 0.25, -1.0]]  # chosen, rejected
reward_margins = [0.0, 0.5, 1.0, 2.5]


def reward_loss(scores, center):
    return statistics.fmean(-log_sigmoid(c - r - m) + center * (c + r) ** 2 for c, r, m in zip(*scores, reward_margins))


def reward_case(center):
    batch = [{"new": row} for row in reward_scores]
    return {"center": center, "loss": reward_loss(reward_scores, center),
            "gradient": gradient(lambda moved: reward_loss([s["new"] for s in moved], center), batch)}


# ---- correction between rollout and trainer ----

C_LENGTHS = [6, 3, 1, 5]
c_trainer = [[random.gauss(-2, 0.7) for _ in range(n)] for n in C_LENGTHS]
c_rollout = [[x + random.gauss(0, 0.5) for x in row] for row in c_trainer]
CORRECTIONS = [
    {"rollout_is": "token"}, {"rollout_is": "sequence"}, {"rollout_is": "token", "rollout_is_threshold": "0.7_1.5"},
    {"rollout_is": "sequence", "rollout_is_threshold": "0.3_3"}, {"rollout_is": "token", "normalize": True},
    {"rollout_is": "sequence", "normalize": True, "rollout_is_threshold": "1.1"},
    {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.7_1.5"}, {"rollout_rs": "token_k2", "rollout_rs_threshold": "0.1"},
    {"rollout_rs": "token_k3", "rollout_rs_threshold": "0.1"}, {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "2.0"},
    {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.25"}, {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.08"},
    {"rollout_rs": "seq_sum_k2", "rollout_rs_threshold": "0.5"}, {"rollout_rs": "seq_max_k3", "rollout_rs_threshold": "0.2"},
    {"rollout_rs": "token_k1,seq_max_k2", "rollout_rs_threshold": "0.5_2.0,0.4"},
    {"rollout_rs": "token_k2,seq_mean_k2", "rollout_rs_threshold": "0.2"},
]
corrections = [correction_case(c_trainer, c_rollout, **c) for c in CORRECTIONS]
for case in corrections:  # each rejects some and keeps some
    assert "mask" not in case or 0 < sum(map(sum, case["mask"])) < sum(C_LENGTHS), case


def bypass_loss(rows, frozen, c):
    """Rows: new log-probabilities; what is frozen decides which tokens count and how much."""
    ratios = [[limited(a - b) for a, b in zip(n, r)] for n, r in zip(frozen, c_rollout)]
    masks = accepted(ratios, c["rollout_rs"], c["rollout_rs_threshold"]) if c["rollout_rs"] != "null" else [[1.0] * len(r) for r in ratios]
    weights = importance(ratios, c["rollout_is"], c["rollout_is_threshold"], c["normalize"]) if c["rollout_is"] != "null" else masks
    total = 0.0
    for new, rollout, advantage, mask, weight in zip(rows, c_rollout, c_advantage, masks, weights):
        if c["loss_type"] == "ppo_clip":
            sequence = {"old": rollout, "new": new, "advantage": advantage}
            losses = [x[0] for x in vanilla(sequence, sequence, {"low": .2, "high": .2, "c": 3.0})]
        else:
            losses = [-a * n * w for a, n, w in zip(advantage, new, weight)] if c["rollout_is"] != "null" else \
                     [-a * n for a, n in zip(advantage, new)]
        total += math.fsum(x * m for x, m in zip(losses, mask))
    return total / sum(C_LENGTHS)  # rejected tokens stay in the denominator


def bypass_case(**c):
    c = {"loss_type": "ppo_clip", "rollout_is": "null", "rollout_is_threshold": "2.0", "normalize": False, "rollout_rs": "null",
         "rollout_rs_threshold": "null"} | c

    def moved(i, t, by):
        return [[x + (by if (i, t) == (j, u) else 0) for u, x in enumerate(row)] for j, row in enumerate(c_trainer)]

    step = 1e-5
    slope = [[(bypass_loss(moved(i, t, step), c_trainer, c) - bypass_loss(moved(i, t, -step), c_trainer, c)) / (2 * step)
              for t in range(len(row))] for i, row in enumerate(c_trainer)]
    return c | {"loss": bypass_loss(c_trainer, c_trainer, c), "gradient": padded(slope, max(C_LENGTHS))}


c_advantage = [[drawn * sign for sign in [1.0] * n] for n, drawn in zip(C_LENGTHS, (0.8, -1.1, 0.4, -0.3))]
BYPASSES = [{}, {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.7_1.5"},
            {"rollout_rs": "seq_mean_k3,token_k2", "rollout_rs_threshold": "0.2,0.2"},
            {"rollout_is": "token"},  # PPO's ratio holds it already
            *({"loss_type": "reinforce", **case} for case in CORRECTIONS)]
bypasses = [bypass_case(**c) for c in BYPASSES]

SAMPLED = [[-1.1, -1.9, -.5], [-2, -2.7]]
known = divergence([s["old"] for s in PUBLISHED_BATCH], SAMPLED)
for name, value in (("kl", -.24), ("k3_kl", .226025), ("chi2_token", 2.012662)):
    assert abs(known[name] - value) < 6e-7, (name, known[name])


def weighted_loss(**c):
    case = correction_case([s["old"] for s in PUBLISHED_BATCH], SAMPLED, **c)
    cells = [[cell[0] for cell in vanilla(s, s, {"low": .2, "high": .2, "c": 3.0})] for s in PUBLISHED_BATCH]
    return math.fsum(x * w for row, weights in zip(cells, case["weights"]) for x, w in zip(row, weights)) / 5


for level, threshold, value in (("token", "2", .428664), ("sequence", "2", 1.038322), ("sequence", "0_3", -.603746)):
    assert abs(weighted_loss(rollout_is=level, rollout_is_threshold=threshold) - value) < 6e-7, (level, threshold)

golden = {
    "corrections": {"lengths": C_LENGTHS, "width": max(C_LENGTHS), "trainer": padded(c_trainer, 6), "rollout": padded(c_rollout, 6),
                    "divergence": divergence(c_trainer, c_rollout), "cases": corrections},
    "bypasses": {"lengths": C_LENGTHS, "width": max(C_LENGTHS), "trainer": padded(c_trainer, 6), "rollout": padded(c_rollout, 6),
                 "advantage": padded(c_advantage, 6), "cases": bypasses},
    "preferences": {"beta": BETA, "lengths": P_LENGTHS, "width": P_WIDTH, "new": padded([row["new"] for row in pair_rows], P_WIDTH),
                    "reference": [row["reference"] for row in pair_rows], "cases": preferences},
    "rewards": {"scores": reward_scores, "margins": reward_margins, "cases": [reward_case(0), reward_case(0.05)]},
    "policy": {"lengths": LENGTHS, "width": WIDTH,
               **{key: padded([s[key] for s in batch], WIDTH) for key in ("old", "new", "advantage", "noise")}, "cases": policy},
    "published": {"lengths": [3, 2], "width": 3,
                  **{key: padded([s[key] for s in PUBLISHED_BATCH], 3) for key in PUBLISHED_BATCH[0]}, "cases": published},
    "advantages": {"lengths": A_LENGTHS, "width": A_WIDTH, "group": GROUP, "baselines": baselines,
                   "rewards": padded(rewards, A_WIDTH),
                   "want": {name: padded(rows, A_WIDTH) for name, rows in advantages.items()}},
}
path = pathlib.Path(__file__).resolve().parent / "goldens.json"
path.write_text(json.dumps(golden) + "\n")
