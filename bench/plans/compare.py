#!/usr/bin/env python3
"""Plans of two programs, or of a program and of a record, for the same jobs: none may be worse.

    compare.py NEAP OLD [CASES]      OLD: another program, or a file that --write made
    compare.py NEAP --write FILE [CASES]
    CASES: [--golden] [--records] [--random N] [--seed S] [--capacities K]; default: all golden jobs, all records, 60 random jobs

Golden jobs are those of tests/golden/plan, records the jobs of bench/plans/recorded.py. Random jobs have one to eight ranks: a task, a model, an
adapter, parallel degrees, batches and what the search may do are drawn. Each job is planned at K capacities (default 4): the least that it
needs, and shares of what it takes where memory is free.

A plan is worse if it does not fit where the old one did, is slower by more than 1 %, or uses other settings (types of states) while it
is less than 5 % faster. Prints the worse plans, how many are faster, and the largest gain. Exits 1 if more than 0.5 % of the plans are slower,
one by more than 1 %, or a least capacity is larger. --limit PERCENT replaces the 1 %.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "plans"), str(ROOT / "tests" / "gpu")]
sys.dont_write_bytecode = True
import random_models  # noqa: E402
import recorded  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "plan"
MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "opt-1.3b", "llama-3.2-3b", "qwen2.5-7b")
GPUS = ("rtx4090", "l40s", "a100", "h100", "h200")
NOTHING_FITS = 3
SAME_SECONDS = 1e-9  # the order of sums may differ
SETTINGS_GAIN = 1.05  # other settings are worth it if they are faster by this
ALLOWED = ("recompute", "offload", "offload_optimizer", "offload_weights")
FIELDS = ("peak", "seconds", "host_bytes", "disk_bytes", "overrides", "optimizer_offload", "offloaded_weights", "offloaded_embeddings",
          "offloaded_layer_inputs", "offloaded_gradients", "weights_on_nvme", "micro_batches_per_load", "decodes_in_graphs", "logits_chunk",
          "activations")


class Case:
    """A configuration and words that `neap plan` takes after it."""

    def __init__(self, name, config, words=()):
        self.name, self.config, self.words = name, pathlib.Path(config), tuple(words)


def golden_cases():
    for config in sorted(GOLDEN.glob("*.toml")):
        yield Case(f"golden {config.stem}", config)


def record_cases(folder):
    seen = set()
    for row in recorded.rows():
        if row["case"] in seen:
            continue
        seen.add(row["case"])
        config, words = recorded.job_of(folder, row["case"])
        yield Case(f"record {row['case']}", config, (*words, "--gpu", row["card"]))


def random_case(folder, seed):
    dice = random.Random(seed)
    task = dice.choice(("sft", "reward", "dpo", "grpo", "ppo"))
    ranks = dice.choice((1, 1, 2, 4, 8))
    model = dice.choice(MODELS[:3] if ranks == 1 else MODELS)
    prompt, response = dice.choice((64, 256, 1024)), dice.choice((128, 512, 1024))
    rows = ranks * dice.choice((4, 8, 16))
    actor = {"path": str(folder / model), "activation_checkpointing": dice.choice(("auto", "auto", "none", "full"))}
    if task != "reward" and dice.random() < 0.4:
        actor["lora_rank"] = dice.choice((8, 32))
    tables = {
        "device": {"kind": "cuda"},
        "data": {"train_files": [], "val_files": [], "train_batch_size": rows, "max_prompt_length": prompt, "max_response_length": response,
                 "truncation": "left", "micro_batch_size_per_gpu": dice.choice((1, 2, 4))},
        "actor_rollout_ref.model": actor,
        "memory": {"allow": [word for word in ALLOWED if dice.random() < 0.85]},
        "trainer": {"n_gpus_per_node": ranks},
    }
    if task in ("grpo", "ppo"):
        tables["data"].pop("micro_batch_size_per_gpu")
        tables["actor_rollout_ref.actor"] = {"ppo_mini_batch_size": rows // dice.choice((1, 2)), "ppo_epochs": dice.choice((1, 2)),
                                             "use_dynamic_bsz": dice.random() < 0.5,
                                             "ppo_max_token_len_per_gpu": (prompt + response) * dice.choice((1, 4))}
        tables["actor_rollout_ref.rollout"] = {"n": dice.choice((4, 8)) if task == "grpo" else 1}
        tables["reward.functions"] = None
    if task == "ppo":
        tables["critic"] = {"ppo_mini_batch_size": tables["actor_rollout_ref.actor"]["ppo_mini_batch_size"]}
        tables["algorithm"] = {"use_kl_in_reward": dice.random() < 0.5}
    if ranks > 1:
        tables["parallel"] = {"zero_stage": dice.choice((0, 1, 2, 3))}
        if ranks > 2 and dice.random() < 0.4:
            tables["parallel"]["tensor_model_parallel_size"] = 2
        if ranks > 2 and task in ("sft", "reward", "dpo") and dice.random() < 0.3:
            tables["parallel"] = {"pipeline_model_parallel_size": 2, "zero_stage": dice.choice((0, 1))}
    text = f"task = {json.dumps(task)}\n"
    for name, table in tables.items():
        if table is None:
            text += '\n[[reward.functions]]\nkind = "numeric"\n'
            continue
        text += f"\n[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    config = folder / f"random-{seed}.toml"
    config.write_text(text)
    return Case(f"random {seed}", config, ("--gpu", dice.choice(GPUS)))


def plan_of(neap, case, words=()):
    """The plan, or None where nothing fits."""
    done = subprocess.run([neap, "plan", case.config.name, "--json", *case.words, *words], cwd=case.config.parent, capture_output=True, text=True)
    if done.returncode == NOTHING_FITS:
        return None
    if done.returncode:
        raise RuntimeError(f"{case.name}: exit {done.returncode}: {done.stderr[-300:]}")
    return json.loads(done.stdout)


def least_of(plan):
    """None where ranks have several plans, which have no alternatives."""
    return plan.get("alternatives", {}).get("min_capacity")


def smallest(neap, case, most):
    """The least capacity that fits, to 1 %."""
    low = 0
    while most - low > most // 100:
        middle = (low + most) // 2
        if plan_of(neap, case, ("--capacity", f"{middle}B")) is None:
            low = middle
        else:
            most = middle
    return most


def capacities_of(neap, case, count):
    """The least that the job needs, and shares of what it takes where memory is free."""
    free = plan_of(neap, case, ("--capacity", "4096GiB"))
    if free is None:
        return []
    most = free["peak"]
    least = least_of(free) or smallest(neap, case, most)
    steps = [least * (most / least) ** (i / max(1, count - 1)) for i in range(count)]
    return sorted({least, *(int(step) for step in steps[1:])})


def row_of(neap, case, capacity):
    plan = plan_of(neap, case, ("--capacity", f"{capacity}B"))
    row = {"case": case.name, "capacity": capacity, "fits": plan is not None}
    if plan is not None:
        row |= {field: plan[field] for field in FIELDS} | {"least": least_of(plan)}
    return row


def tried(work, cases):
    """Of each case; None where a job is refused, which the program says in a message that is not compared."""
    def one(case):
        try:
            return work(case)
        except RuntimeError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, cases))


def rows_of(neap, cases, count):
    found, refused = [], []
    for case, capacities in zip(cases, tried(lambda case: capacities_of(neap, case, count), cases)):
        if isinstance(capacities, RuntimeError):
            refused.append(str(capacities))
        else:
            found += [(case, capacity) for capacity in capacities]
    rows = tried(lambda each: row_of(neap, *each), found)
    refused += [str(row) for row in rows if isinstance(row, RuntimeError)]
    for message in refused:
        print(f"refused: {message}", file=sys.stderr)
    return [row for row in rows if isinstance(row, dict)]


def worse(new, old, limit):
    """Why a plan is worse than the old one of the same case and capacity; empty: it is not."""
    if not old["fits"]:
        return ""
    if not new["fits"]:
        return "does not fit any more"
    if old["least"] and new["least"] > old["least"]:
        return f"needs at least {new['least']} bytes, not {old['least']}"
    if new["overrides"] and not old["overrides"] and new["seconds"] * SETTINGS_GAIN > old["seconds"]:
        return f"takes {' '.join(new['overrides'])} for {old['seconds'] / new['seconds'] - 1:.1%}"
    slower = new["seconds"] / old["seconds"] - 1
    return f"{slower:.2%} slower" if slower > limit else ""


def compare(new, old, limit):
    kept = {(row["case"], row["capacity"]): row for row in old}
    pairs = [(row, kept[row["case"], row["capacity"]]) for row in new if (row["case"], row["capacity"]) in kept]
    if not pairs:
        print("no plan of both")
        return 1
    bad = [(row, why) for row, before in pairs if (why := worse(row, before, limit))]
    for row, why in bad:
        print(f"{row['case']} at {row['capacity'] / 2**30:.2f} GiB {why}")
    timed = [(row["seconds"], before["seconds"]) for row, before in pairs if row["fits"] and before["fits"]]
    slower = [new / old for new, old in timed if new > old * (1 + SAME_SECONDS)]
    gains = [old / new for new, old in timed if new < old * (1 - SAME_SECONDS)]
    same = sum(row == before for row, before in pairs)
    print(f"{len(pairs)} plans: {same} the same, {len(gains)} faster" + (f", at most {max(gains) - 1:.1%}" if gains else "") +
          f", {len(slower)} slower" + (f", at most {max(slower) - 1:.2%}" if slower else "") + f"; {len(bad)} worse")
    return int(bool(bad) or len(slower) > 0.005 * len(pairs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap", type=pathlib.Path)
    parser.add_argument("old", type=pathlib.Path, nargs="?")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--golden", action="store_true")
    parser.add_argument("--records", action="store_true")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--capacities", type=int, default=4)
    parser.add_argument("--limit", type=float, default=1.0)
    options = parser.parse_args()
    if (options.old is None) == (options.write is None):
        parser.error("name another program or a record, or --write FILE")
    if not (options.golden or options.records or options.random):
        options.golden, options.records, options.random = True, True, 60
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        cases = list(golden_cases()) if options.golden else []
        if options.records:
            cases += record_cases(folder)
        for model in MODELS:
            (folder / model).mkdir(exist_ok=True)
            (folder / model / "config.json").write_text(json.dumps(random_models.MODELS[model]))
        cases += [random_case(folder, seed) for seed in range(options.seed, options.seed + options.random)]
        programs = [options.neap.resolve()]
        if options.old and os.access(options.old, os.X_OK):
            programs.append(options.old.resolve())
        # The capacities are those of the old program or of the record.
        if options.write or len(programs) == 2:
            old = rows_of(programs[-1], cases, options.capacities)
        else:
            old = [json.loads(line) for line in options.old.read_text().splitlines()]
        if options.write:
            options.write.write_text("".join(json.dumps(row) + "\n" for row in old))
            print(f"{len(old)} plans of {len({row['case'] for row in old})} jobs")
            return 0
        by_name = {case.name: case for case in cases}
        wanted = [(by_name[row["case"]], row["capacity"]) for row in old if row["case"] in by_name]
        new = tried(lambda each: row_of(programs[0], *each), wanted)
        for row in new:
            if isinstance(row, RuntimeError):
                print(row)
        failed = any(isinstance(row, RuntimeError) for row in new)
        return compare([row for row in new if isinstance(row, dict)], old, options.limit / 100) or int(failed)


if __name__ == "__main__":
    sys.exit(main())
