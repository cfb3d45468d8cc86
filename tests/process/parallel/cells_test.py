#!/usr/bin/env python3
"""Combinations of degrees on 2 to 8 ranks, drawn from all that there are: of each architecture, of SFT, DPO, PPO and GRPO.
usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Losses and weights are those of one rank but for the order of sums: in float64 within 10^-12, where nothing but rounding is as
small. No rank takes more memory than its plan says, and what cannot be is refused with a sentence. NEAP_TEST_SLOW=1: until 200
ran, in float32, too; NEAP_TEST_CELLS=FIRST-LAST: those with these numbers.
"""
import operator
import os
import pathlib
import random
import re
import sys
import unittest

import launch

from neap_program import SLOW
from rank_case import ARCHITECTURES, CONTEXT, OPTIMIZER, RankCase, ROWS, SGD, SIZE, STAGES, tensors, ZERO_BUBBLE
from rollout_case import CRITIC_SGD
from train_process_test import grpo_of, PPO, REWARD, SFT  # noqa: E402

TASKS = ("sft", "dpo", "ppo", "grpo")
DRAWN = 700  # of which many are refused
RUN, FEW = 200, 6
MODELS = ("actor_rollout_ref.ref", "critic", "reward_model")
SEED = 24
EXACT = 1e-12  # in float64, of the largest of a tensor
# By a cell's number. Only float64 goes with those that divide a gradient by its size.
OPTIMIZERS = {"sgd": (), "adamw": ("lr=0.01",), "adafactor": ("lr=0.01",), "sm3": ("momentum=0.9", "lr=0.01")}
LORA = "actor_rollout_ref.model.lora_rank=4"


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def drawn(generator):
    """Ranks, and keys of one way to divide a job over them."""
    ranks = generator.choice((2, 2, 3, 4, 4, 4, 6, 8, 8))
    left, words = ranks, []
    sizes = {}
    for key in generator.sample((SIZE, CONTEXT, STAGES), 3):
        sizes[key] = generator.choice(divisors(left))
        left //= sizes[key]
        if sizes[key] > 1:
            words.append(f"{key}={sizes[key]}")
    if sizes[SIZE] > 1 and generator.random() < 0.5:
        words.append(ROWS)
    if sizes[CONTEXT] > 1 and generator.random() < 0.5:
        words.append("parallel.cp_comm_type=p2p")
    copies = left * sizes[CONTEXT]
    if copies > 1:
        stage = generator.randrange(4)
        words.append(f"parallel.zero_stage={stage}")
        some = [d for d in divisors(copies) if 1 < d < copies]
        if stage > 0 and some and generator.random() < 0.5:
            words.append(f"parallel.zero_shard_size={generator.choice(some)}")
    return ranks, tuple(words)


def of_models(generator, ranks, task):
    """Keys of models that are divided in ways of their own; of a step's last words, because not all tasks have all models."""
    models = {"dpo": MODELS[:1], "ppo": MODELS, "grpo": (MODELS[0], MODELS[2])}.get(task, ())
    words = []
    for model in models:
        if generator.random() < 0.3:
            words.append(f"{model}.zero_stage={generator.choice((0, 3))}")
        if generator.random() < 0.2:
            words.append(f"{model}.tensor_model_parallel_size={generator.choice(divisors(ranks))}")
        if generator.random() < 0.2:
            words.append(f"{model}.context_parallel_size={generator.choice(divisors(ranks))}")
        if generator.random() < 0.2:
            words.append(f"{model}.pipeline_model_parallel_size={generator.choice(divisors(ranks))}")
        if generator.random() < 0.2:
            words.append(f"{model}.sequence_parallel={generator.choice(('true', 'false'))}")
        if generator.random() < 0.2:
            words.append(f"{model}.cp_comm_type={generator.choice(('all_gather', 'p2p'))}")
    return tuple(words)


def of_stages(number, words):
    """A schedule of stages that are there. Most architectures have too few blocks for chunks."""
    staged = any(word.startswith(STAGES) for word in words)
    return (ZERO_BUBBLE,) if staged and random.Random(SEED + number).random() < 0.5 else ()


def cells():
    """(architecture, task, ranks, words), always the same."""
    generator = random.Random(SEED)
    names = sorted(path.stem for path in ARCHITECTURES.glob("*.json"))
    out = []
    while len(out) < DRAWN:
        name, task = names[len(out) % len(names)], TASKS[(len(out) + len(out) // len(names)) % len(TASKS)]
        ranks, words = drawn(generator)
        out.append((name, task, ranks, words + of_stages(len(out), words) + of_models(generator, ranks, task)))
    return out


class Cells(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        packed = "use_dynamic_bsz = true\nmax_token_len_per_gpu = 128"
        rows = {"sft": SFT.replace("train_batch_size = 16", "train_batch_size = 24"),
                "dpo": REWARD.replace('"reward"', '"dpo"').replace("train_batch_size = 8", "train_batch_size = 24")}
        for task, text in rows.items():
            text = re.sub(r"use_dynamic_bsz = false", packed, text).replace("[trainer]", "[trainer]\ntotal_epochs = 1", 1)
            text = re.sub(r"total_training_steps = \d+", "total_training_steps = 1", text)
            (cls.home / f"{task}.toml").write_text(re.sub(r"val_files = .*", "val_files = []", text))
        ppo = PPO.replace("CEILING", "256MiB").replace("train_batch_size = 8", "train_batch_size = 24")
        ppo = ppo.replace("use_dynamic_bsz = false", "use_dynamic_bsz = true\nppo_max_token_len_per_gpu = 128")
        ppo = re.sub(r"ppo_mini_batch_size = \d+", "ppo_mini_batch_size = 24", ppo).replace("ppo_micro_batch_size_per_gpu = 4\n", "")
        ppo = re.sub(r"total_training_steps = \d+", "total_training_steps = 1", re.sub(r"val_files = .*", "val_files = []", ppo))
        (cls.home / "ppo.toml").write_text(ppo)
        grpo = re.sub(r"\[algorithm\].*?(?=\[trainer\])", "", grpo_of(ppo), flags=re.S)
        (cls.home / "grpo.toml").write_text(grpo.replace("[actor_rollout_ref.rollout]", "[actor_rollout_ref.rollout]\nn = 2"))
        cls.starts = {}

    def start(self, name):
        """A model of the architecture that was trained a little, and a reward model of it."""
        if name not in self.starts:
            model, _ = self.architecture(name)
            self.run_ranks(1, f"{name}-start", f"actor_rollout_ref.model.path={model}", *SGD)
            (self.home / f"{name}-judge.toml").write_text((self.home / "dpo.toml").read_text().replace('"dpo"', '"reward"'))
            self.run_ranks(1, f"{name}-judge", f"actor_rollout_ref.model.path=out/{name}-start/latest/actor", task=f"{name}-judge")
            self.starts[name] = f"out/{name}-start/latest/actor", f"out/{name}-judge/latest/reward"
        return self.starts[name]

    def optimizer(self, number, name):
        """Words of an optimizer, the number's. Gradients of a key's bias are rounding, of which adafactor and sm3 make whole steps."""
        weights = tensors(self.home / self.starts[name][0] / "model.safetensors")
        bias = any(re.search(r"(k_proj|query_key_value|c_attn|qkv_proj)\.bias", weight) for weight in weights)
        kinds = list(OPTIMIZERS)[:2 if bias else 4]
        kind = kinds[number // 2 % len(kinds)]
        return [f"{OPTIMIZER}{word}" for word in (f"optimizer={kind}", *OPTIMIZERS[kind])] if kind != "sgd" else []

    def words_of(self, name, task):
        actor, judge = self.start(name)
        words = [f"actor_rollout_ref.model.path={actor}", "actor_rollout_ref.model.activation_checkpointing=auto", *SGD]
        if task in ("ppo", "grpo"):
            words += [f"reward_model.model.path={judge}", "actor_rollout_ref.actor.use_kl_loss=true"]
        if task == "ppo":
            # A KL to a reference that is the actor is rounding, which advantages amplify.
            words += [f"critic.model.path={judge}", *CRITIC_SGD, "algorithm.use_kl_in_reward=false"]
        return words

    def refusal(self, task, ranks, words):
        """Why the combination cannot be; empty: it can."""
        result = launch.run(1, launch.NEAP, "plan", f"{task}.toml", "--ranks", str(ranks), *words, cwd=self.home)
        self.assertIn(result.returncode, (0, 2), (words, result.stderr))
        return "" if result.returncode == 0 else result.stderr

    def compare(self, number, name, task, ranks, own, dtype):
        words = [*self.words_of(name, task), f"device.dtype={dtype}"]
        lora = number % 4 == 3
        more = [*(self.optimizer(number, name) if dtype == "float64" else ()), *([LORA] if lora else ())]
        words += more
        refused = self.refusal(task, ranks, (*words, *own))
        if refused:
            self.assertRegex(refused, r"neap: error: \S.{20}", own)
            return False
        one = "-".join((name, task, dtype, *(word.rsplit("=", 1)[1] for word in more)))
        other = f"cell-{number}-{dtype}"
        if not (self.home / "out" / one).exists():
            self.run_ranks(1, one, *words, task=task)
        self.run_ranks(ranks, other, *words, *own, task=task)
        self.assert_within_plans(other, ranks)
        (a,), (b,) = self.metrics(f"out/{one}"), self.metrics(f"out/{other}")
        # In float32 advantages are divided by their deviation, and values add up a head that starts near zero.
        single = dtype == "float32"
        near = EXACT if not single else 2e-6 if task in ("sft", "dpo") else 6e-5
        for key in (key for key in a if key.endswith("loss")):
            self.assertLessEqual(abs(a[key] - b[key]), near * max(1, abs(a[key])), (key, own))
        for role in ("actor", "critic") if task == "ppo" else ("actor",):
            file = "adapter_model" if lora and role == "actor" else "model"
            files = [self.file(folder, f"{role}/{file}.safetensors", 1) for folder in (one, other)]
            # Adapters start at zero, as a critic's head does: they have the errors of gradients.
            near = EXACT if not single else 2e-6 if file == "model" and role == "actor" else 3e-5
            self.assert_near_weights(*files, near, (other, own))
            if file == "model":
                self.assert_moved(self.starts[name][role == "critic"], files[0], (one, role))
        return True

    def assert_moved(self, before, after, where):
        """A step that changes nothing would be equal on any ranks."""
        a, b = tensors(self.home / before / "model.safetensors"), tensors(after)
        moved = max(max(map(abs, map(operator.sub, values, b[name]))) for name, values in a.items())
        self.assertGreater(moved, 1e-5, where)

    def test_combinations(self):
        wanted, numbers = RUN if SLOW else FEW, range(DRAWN)
        if some := os.environ.get("NEAP_TEST_CELLS"):
            first, last = map(int, some.split("-"))
            wanted, numbers = 1, range(first, last + 1)
        ran = 0
        for number, (name, task, ranks, own) in enumerate(cells()):
            if number not in numbers or (ran >= wanted and not some):
                continue
            with self.subTest(number=number, architecture=name, task=task, ranks=ranks, keys=own):
                if self.compare(number, name, task, ranks, own, "float64"):
                    ran += 1
                    if SLOW:
                        self.compare(number, name, task, ranks, own, "float32")
        self.assertGreaterEqual(ran, wanted)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
