#!/usr/bin/env python3
"""Writes dpo.json: three DPO steps of a tiny model by transformers' implementation and torch's autograd and AdamW.

Needs torch and transformers. Models and their weights are those of ../model/make_goldens.py. For each loss: the batch's loss and
TRL's metrics before the first step and after each of three, with the initial weights as the reference.
"""
import copy
import json
import pathlib
import sys

import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "model"))
from make_goldens import ADAMW, STEPS, build, models  # noqa: E402

BETA, SMOOTHING, PAD = 0.1, 0.1, 0
MODELS = ["llama", "gpt2"]
# Prompt, chosen, rejected; lengths differ on purpose.
PAIRS = [([5, 9, 2], [7, 11, 3, 28], [4, 1]), ([17, 20], [6, 6, 2], [13, 25, 8, 19, 28]), ([8], [21], [3, 14, 28]),
         ([12, 26, 10, 4], [15, 28], [22, 9, 16])]


def losses(kind, u, v, chosen, rejected):
    """u, v: log-ratios to the reference, summed; chosen, rejected: lengths."""
    gap = BETA * (u - v)
    if kind == "sigmoid":
        return -logsigmoid(gap)
    if kind == "cdpo":
        return -logsigmoid(gap) * (1 - SMOOTHING) - logsigmoid(-gap) * SMOOTHING
    if kind == "robust":
        return (-logsigmoid(gap) * (1 - SMOOTHING) + logsigmoid(-gap) * SMOOTHING) / (1 - 2 * SMOOTHING)
    if kind == "hinge":
        return torch.relu(1 - gap)
    if kind == "ipo":
        return (u / chosen - v / rejected - 1 / (2 * BETA)) ** 2
    if kind == "ipo_sum":
        return (u - v - 1 / (2 * BETA)) ** 2
    assert kind == "sigmoid_norm"
    return -logsigmoid(BETA * (u / chosen - v / rejected))


KINDS = ["sigmoid", "cdpo", "robust", "hinge", "ipo", "ipo_sum", "sigmoid_norm"]


def log_probs(model, sequences):
    """Summed log-probability of each response, in one padded batch."""
    width = max(len(p) + len(r) for p, r in sequences)
    tokens = torch.tensor([p + r + [PAD] * (width - len(p) - len(r)) for p, r in sequences])
    attention = torch.tensor([[1] * (len(p) + len(r)) + [0] * (width - len(p) - len(r)) for p, r in sequences])
    logits = model(tokens, attention_mask=attention, use_cache=False).logits.log_softmax(-1)
    sums = []
    for i, (prompt, response) in enumerate(sequences):
        places = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
        sums.append(logits[i, places, torch.tensor(response)].sum())
    return torch.stack(sums)


def run(name, kind):
    model = build(AutoModelForCausalLM, models()[name])
    frozen = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    sequences = [(p, c) for p, c, _ in PAIRS] + [(p, r) for p, _, r in PAIRS]
    with torch.no_grad():
        reference = log_probs(frozen, sequences)
    chosen = torch.tensor([len(c) for _, c, _ in PAIRS])
    rejected = torch.tensor([len(r) for _, _, r in PAIRS])
    out = []
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        now = log_probs(model, sequences)
        u, v = (now - reference).chunk(2)
        loss = losses(kind, u, v, chosen, rejected).mean()
        loss.backward()
        logps = now.detach().chunk(2)
        out.append({"loss": loss.item(), "rewards/chosen": BETA * u.mean().item(), "rewards/rejected": BETA * v.mean().item(),
                    "rewards/accuracies": (u > v).double().mean().item(), "rewards/margins": BETA * (u - v).mean().item(),
                    "logps/chosen": logps[0].mean().item(), "logps/rejected": logps[1].mean().item()})
        optimizer.step()
    return out


golden = {"beta": BETA, "label_smoothing": SMOOTHING, "pairs": PAIRS,
          "runs": {name: {kind: run(name, kind) for kind in KINDS} for name in MODELS},
          "configs": {name: models()[name] for name in MODELS}}
(HERE / "dpo.json").write_text(json.dumps(golden, indent=1) + "\n")
