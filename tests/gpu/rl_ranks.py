#!/usr/bin/env python3
"""Measures steps of GRPO and PPO on N GPUs. Compares tokens per second and GPU with verl's published ones, and each rank's memory with its plan.

    rl_ranks.py OUT_DIR PACKAGE_DIR [--ranks N] [--model NAME] [--tasks grpo ppo] [--prompts P] [--lengths PROMPT RESPONSE]
                [--updates U] [--steps N] [--minutes M] [--rehearse [MPIRUN]] [--keys KEY=VALUE ...]

Random weights (default qwen2.5-7b), full training with ZeRO-3: P prompts a GPU (default 64) with two responses each, 512 + 2 048 tokens, in
U updates a step (default 4) of micro-batches of 4. GRPO has a reference, PPO a critic of the actor's size; a reward function. Prompts have
their full length, responses of random weights nearly. A run is ended after N steps (default 3; figures leave out the first one). Appends to
OUT_DIR/rl_ranks.jsonl a line a run; a table on stdout. After M minutes (default 15) no further run starts. Exits 1 if a run fails or a phase
of a rank takes more than 0.3 % more memory than planned.
--rehearse: a tiny model on CPU ranks over MPI.
"""
import json
import statistics
import sys

import plan_check
import random_models
import rank_runs
import rollout_ranks
from rollout_ranks import WARM

PUBLISHED = {"ppo": 907, "grpo": 1544}  # tokens a second a GPU: verl 0.3, Qwen2-7B, 8 H100
GOAL = 1.5
SAMPLES = 2
KEYS = {"grpo": [], "ppo": ["algorithm.use_kl_in_reward=false"]}


def measure(neap, job, folder, keys, task, case, port):
    result = rollout_ranks.measure(neap, job, folder, keys, port)
    seconds = [json.loads(line)["timing_s/step"] for line in (folder / "metrics.jsonl").read_text().splitlines()[:ARGS.steps]]
    step = statistics.median(seconds[WARM:])
    tokens = case.rows * case.n * (case.prompt + statistics.mean(result["response_length"][WARM:])) / step
    return result | {"seconds_a_step": step, "steps": seconds, "tokens_a_second_a_rank": tokens, "published": PUBLISHED[task],
                     "times_published": tokens / PUBLISHED[task]}


def show(result):
    rollout_ranks.show(result)
    compared = "" if ARGS.rehearse else f", {result['times_published']:.2f} times verl's {result['published']} on H100 (goal {GOAL})"
    print(f"   {result['tokens_a_second_a_rank']:.0f} tokens/s a GPU{compared}", flush=True)


def runs(work):
    for task in ARGS.tasks:
        case = plan_check.Case(ARGS.model, task, ARGS.prompts, *ARGS.lengths, micro=4, n=SAMPLES)
        prompts = work / "prompts.jsonl"
        if not prompts.exists():
            rank_runs.make_inputs(work, case, prompt_words=2 * case.prompt)
            rows = (work / "grpo.jsonl").read_text()
            prompts.write_text(rows * (1 + 2 * case.rows * ARGS.ranks // rows.count("\n")))  # of two steps, with their full length
        job, folder = rank_runs.job_of(work, case), work / f"run-{task}"
        trained = ("actor_rollout_ref.actor", "critic")[:1 + (task == "ppo")]
        keys = rank_runs.keys_of(*rollout_ranks.REWARD, *KEYS[task], f"data.train_files=[\"{prompts}\"]", "data.truncation=left", "parallel.zero_stage=3",
                                 *(f"{model}.ppo_mini_batch_size={ARGS.ranks * case.rows // ARGS.updates}" for model in trained))
        yield rank_runs.Run(f"{task} of {ARGS.model} on {ARGS.ranks}",
                            {"model": ARGS.model, "task": task, "ranks_used": ARGS.ranks, "prompts": case.rows, "samples": case.n, "lengths": ARGS.lengths,
                             "updates": ARGS.updates}, folder,
                            lambda neap, port: measure(neap, job, folder, keys, task, case, port), rollout_ranks.wrong_in, show)


def arguments():
    parser = rank_runs.parser_of(__doc__, ranks=8, steps=3, minutes=15)
    parser.add_argument("--model", default="qwen2.5-7b", choices=list(random_models.MODELS))
    parser.add_argument("--tasks", nargs="+", default=list(KEYS), choices=list(KEYS))
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--lengths", nargs=2, type=int, default=[512, 2048])
    parser.add_argument("--updates", type=int, default=4)
    found = parser.parse_args()
    if found.rehearse:
        found.prompts, found.lengths = 8, [32, 16]
    return found


if __name__ == "__main__":
    ARGS = arguments()
    sys.exit(rank_runs.run_all("rl_ranks", ARGS, runs, 29850))
