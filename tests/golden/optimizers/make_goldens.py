#!/usr/bin/env python3
"""Writes what optimizers make of a small unit in 20 steps, worked out in float64.

Usage: make_goldens.py FILE [--compare]. Needs numpy. The formulas are the papers': Adafactor (Shazeer and Stern, 2018,
algorithms 4 and 5), SM3-II (Anil, Gupta, Koren and Singer, 2019), AdamW and SGD. With --compare, which needs torch and
transformers, the same steps are also made by torch.optim and transformers, where they mean the same, and must agree.
Weights and gradients are not stored: they follow from a parameter's place, an element's and the step (see `values`).
"""
import json
import sys

import numpy as np

STEPS = 20
SHAPES = [(24, 20), (33,), (1, 20), (5, 64)]
# Settings that differ from spec::OptimizerConfig's own.
CASES = {
    "adamw": dict(optimizer="adamw", lr=0.01, weight_decay=0.1),
    "adafactor": dict(optimizer="adafactor", lr=0.01, weight_decay=0.0),
    "adafactor_decay": dict(optimizer="adafactor", lr=0.005, weight_decay=0.1),
    "adafactor_absolute": dict(optimizer="adafactor", lr=0.003, weight_decay=0.0, relative_step=False),
    "adafactor_clipped": dict(optimizer="adafactor", lr=0.003, weight_decay=0.0, relative_step=False, clip_threshold=0.25,
                              beta2_decay=-0.5),
    "sm3": dict(optimizer="sm3", lr=0.02, weight_decay=0.0),
    "sm3_momentum": dict(optimizer="sm3", lr=0.02, weight_decay=0.1, momentum=0.9),
    "sgd": dict(optimizer="sgd", lr=0.05, weight_decay=0.01),
    "sgd_momentum": dict(optimizer="sgd", lr=0.02, weight_decay=0.01, momentum=0.9),
    "sgd_nesterov": dict(optimizer="sgd", lr=0.02, weight_decay=0.0, momentum=0.8, nesterov=True),
}


def values(stream: int, place: int, n: int) -> np.ndarray:
    """24 bits of a multiplicative hash in [-0.5, 0.5): exact in float32."""
    index = np.arange(n, dtype=np.uint64)
    word = (np.uint64(stream * 7919 + place * 1000003) + index) * np.uint64(2654435761) % np.uint64(2**32)
    word = (word ^ (word >> np.uint64(15))) * np.uint64(2246822519) % np.uint64(2**32)
    return (word >> np.uint64(8)).astype(np.float64) / 2**24 - 0.5


def weights(place: int, shape) -> np.ndarray:
    return values(0, place, int(np.prod(shape))).reshape(shape) * 0.5


def gradients(step: int, place: int, shape) -> np.ndarray:
    """Rows of different sizes, the second of each matrix zero."""
    g = values(step, place, int(np.prod(shape))).reshape(shape)
    if len(shape) == 2:
        g = g * (2.0 ** -(np.arange(shape[0]) % 4))[:, None]
        if shape[0] > 1:
            g[1] = 0
    return g


class AdamW:
    def __init__(self, shape, c):
        self.c, self.m, self.v = c, np.zeros(shape), np.zeros(shape)

    def step(self, x, g, t):
        lr = self.c["lr"]
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g * g
        x = x * (1 - lr * self.c["weight_decay"])
        return x - lr * (self.m / (1 - 0.9**t)) / (np.sqrt(self.v / (1 - 0.999**t)) + 1e-8)


class Adafactor:
    def __init__(self, shape, c):
        self.c, self.matrix = c, len(shape) == 2
        self.r, self.k, self.v = np.zeros(shape[0]), np.zeros(shape[-1]), np.zeros(shape)

    def step(self, x, g, t):
        c = self.c
        beta = 1 - t ** c.get("beta2_decay", -0.8)
        squares = g * g + 1e-30
        if self.matrix:
            self.r = beta * self.r + (1 - beta) * squares.mean(1)
            self.k = beta * self.k + (1 - beta) * squares.mean(0)
            v = np.outer(self.r, self.k) / self.r.mean()
        else:
            v = self.v = beta * self.v + (1 - beta) * squares
        u = g / np.sqrt(v)
        u = u / max(1.0, np.sqrt((u * u).mean()) / c.get("clip_threshold", 1.0))
        alpha = c["lr"]
        if c.get("relative_step", True):
            alpha = min(c["lr"], t**-0.5) * max(1e-3, np.sqrt((x * x).mean()))
        return x * (1 - c["lr"] * c["weight_decay"]) - alpha * u


class SM3:
    def __init__(self, shape, c):
        self.c, self.matrix = c, len(shape) == 2
        self.r, self.k, self.m = np.zeros(shape[0]), np.zeros(shape[-1]), np.zeros(shape)

    def step(self, x, g, t):
        lr, momentum = self.c["lr"], self.c.get("momentum", 0.0)
        v = (np.minimum(self.r[:, None], self.k[None, :]) if self.matrix else self.k) + g * g
        self.k = v.max(0) if self.matrix else v
        if self.matrix:
            self.r = v.max(1)
        u = np.divide(g, np.sqrt(v), out=np.zeros_like(g), where=v > 0)
        self.m = momentum * self.m + (1 - momentum) * u
        return x * (1 - lr * self.c["weight_decay"]) - lr * self.m


class SGD:
    def __init__(self, shape, c):
        self.c, self.b = c, np.zeros(shape)

    def step(self, x, g, t):
        momentum = self.c.get("momentum", 0.0)
        g = g + self.c["weight_decay"] * x
        self.b = momentum * self.b + g
        return x - self.c["lr"] * (g + momentum * self.b if self.c.get("nesterov") else self.b)


MADE = {"adamw": AdamW, "adafactor": Adafactor, "sm3": SM3, "sgd": SGD}


def run(case: dict) -> list[np.ndarray]:
    out = []
    for place, shape in enumerate(SHAPES):
        optimizer, x = MADE[case["optimizer"]](shape, case), weights(place, shape)
        for t in range(1, STEPS + 1):
            x = optimizer.step(x, gradients(t, place, shape), t)
        out.append(x)
    return out


def peers(name: str, case: dict):
    """Other implementations of a case: name and a function of the parameters."""
    import torch
    from transformers.optimization import Adafactor as HuggingFaceAdafactor

    lr, decay = case["lr"], case["weight_decay"]
    if case["optimizer"] == "adamw":
        yield "torch.optim.AdamW", lambda p: torch.optim.AdamW(p, lr=lr, weight_decay=decay)
    elif case["optimizer"] == "sgd":
        yield "torch.optim.SGD", lambda p: torch.optim.SGD(
            p, lr=lr, weight_decay=decay, momentum=case.get("momentum", 0), nesterov=case.get("nesterov", False))
    elif case["optimizer"] == "adafactor" and case.get("relative_step", True):
        yield "torch.optim.Adafactor", lambda p: torch.optim.Adafactor(p, lr=lr, weight_decay=decay, eps=(1e-30, 1e-3))
        if name == "adafactor":  # lr 0.01 is the step that transformers has built in
            yield "transformers.Adafactor", lambda p: HuggingFaceAdafactor(p)
    elif case["optimizer"] == "adafactor":
        yield "transformers.Adafactor", lambda p: HuggingFaceAdafactor(
            p, lr=lr, relative_step=False, scale_parameter=False, clip_threshold=case.get("clip_threshold", 1.0),
            decay_rate=case.get("beta2_decay", -0.8))


def compare() -> None:
    import torch

    for name, case in CASES.items():
        for peer, make in peers(name, case):
            parameters = [torch.nn.Parameter(torch.from_numpy(weights(i, s))) for i, s in enumerate(SHAPES)]
            optimizer = make(parameters)
            for t in range(1, STEPS + 1):
                for place, p in enumerate(parameters):
                    p.grad = torch.from_numpy(gradients(t, place, SHAPES[place]))
                optimizer.step()
            worst = max(np.abs(p.detach().numpy() - x).max() for p, x in zip(parameters, run(case)))
            print(f"{name:20s} {peer:24s} largest difference {worst:.1e}")
            assert worst < 1e-9, (name, peer)


def main() -> None:
    if "--compare" in sys.argv:
        compare()
    cases = []
    for name, case in CASES.items():
        cases.append({"name": name, "config": case, "weights": [x.ravel().round(10).tolist() for x in run(case)]})
    with open(sys.argv[1], "w") as out:
        json.dump({"steps": STEPS, "shapes": SHAPES, "cases": cases}, out)
        out.write("\n")


if __name__ == "__main__":
    main()
