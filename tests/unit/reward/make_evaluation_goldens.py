#!/usr/bin/env python3
"""Writes evaluation_golden.json: figures of several responses to a prompt, counted in plain Python.

pass@k is the share of the k-subsets of a prompt's responses that hold a right one, found by going through
all of them; the majority is found by sorting; means are over prompts.
"""
import itertools
import json
import pathlib
import random
import statistics

random.seed(11)
N = 6
PROMPTS = []
for _ in range(25):
    skill = random.random()
    responses = []
    for _ in range(N):
        right = random.random() < skill
        answer = None if random.random() < 0.15 else ("7" if right else random.choice(["8", "9", "10"]))
        right = right and answer is not None
        responses.append({"score": round(float(right) - random.choice([0, 0, 0.25]), 2), "acc": float(right), "answer": answer})
    PROMPTS.append(responses)


def share_with_a_right_one(responses, k):
    subsets = list(itertools.combinations([r["acc"] == 1 for r in responses], k))
    return sum(any(s) for s in subsets) / len(subsets)


def majority(responses):
    voters = [r for r in responses if r["answer"] is not None]
    if not voters:
        return 0.0
    answers = [r["answer"] for r in voters]
    first_of = {a: answers.index(a) for a in answers}
    winner = sorted(first_of, key=lambda a: (-answers.count(a), first_of[a]))[0]
    return voters[first_of[winner]]["acc"]


def mean(f):
    return statistics.fmean(f(responses) for responses in PROMPTS)


scores = lambda responses: [r["score"] for r in responses]
FIGURES = {
    "acc/mean@6": mean(lambda r: statistics.fmean(x["acc"] for x in r)),
    **{f"acc/pass@{k}": mean(lambda r, k=k: share_with_a_right_one(r, k)) for k in (1, 2, 4, 6)},
    "acc/maj@6/mean": mean(majority),
    "reward/mean@6": mean(lambda r: statistics.fmean(scores(r))),
    "reward/std@6": mean(lambda r: statistics.pstdev(scores(r))),
    "reward/best@6/mean": mean(lambda r: max(scores(r))),
    "reward/worst@6/mean": mean(lambda r: min(scores(r))),
}
PASS = [[n, c, k, share_with_a_right_one([{"acc": float(i < c)} for i in range(n)], k)]
        for n in range(1, 9) for c in range(n + 1) for k in range(1, n + 1)]
out = {"prompts": PROMPTS, "figures": FIGURES, "pass_at_k": PASS}
(pathlib.Path(__file__).parent / "evaluation_golden.json").write_text(json.dumps(out) + "\n")
