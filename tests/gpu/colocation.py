#!/usr/bin/env python3
"""Rollout and training on the same cards: full GRPO of a 7B model with each value of actor_rollout_ref.rollout.colocation.

    tests/gpu/colocation.py NEAP OUT_DIR [--way WAY]... [--ratio R]... [--ranks N] [--model NAME] [--steps N] [--minutes M]
                            [--rehearse [MPIRUN]]

NEAP is the program. With several ranks (default one) ZeRO-3 trains and pairs of GPUs generate. The ratio is that of SGLang's mem_fraction_static: weights and KV cache of the rollout, of the card's memory. For
each way, the plan of each ratio (0.6, 0.7, 0.8, 0.9) says whether it fits, and the largest that fits is found by bisection. Then the
job trains N steps (default 3) at the largest of the four ratios that fits; a job whose plan fits at none is started at the least, and
has to be refused. Gradient norms of ways at the same ratio must be equal, and each phase has the plan's tags and no more memory than planned (0.2 %).
Random weights of Qwen2.5-7B's shape (or the model's); 64 prompts (with several ranks 80 a rank) x 8 responses of 128 tokens, prompts of up to 3 968 tokens (they are
short: the cache has the size of the longest). Writes OUT_DIR/colocation.jsonl: plans, and of each run its phases and moves with their seconds, and one
step's memory by tag over time from the run's trace. --rehearse: a tiny model on the host, several ranks over MPI. Exits 1 on any failure.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(SOURCE / "bench" / "plans"))
import plan_check  # noqa: E402
import rank_processes  # noqa: E402
from alternation import KEY, RATIOS, STRATEGIES  # noqa: E402
from python_suite import torch_environment  # noqa: E402

WAYS = tuple(STRATEGIES.values())
JOB = """task = "grpo"
[data]
train_files = ["train.jsonl"]
train_batch_size = {prompts}
max_prompt_length = {prompt}
max_response_length = {response}
[actor_rollout_ref]
model.path = "model"
actor.optim.lr = 1e-6
rollout.n = 8
[[reward.functions]]
kind = "regex"
pattern = "^ *[a-m]"
[trainer]
total_training_steps = 100000
save_freq = 50000
logger = ["jsonl"]
deterministic = true
"""
SIZES = {"prompts": 64, "prompt": 3968, "response": 128}
TINY = {"prompts": 4, "prompt": 48, "response": 16}
TINY_MODEL = {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2}
STEP = 2  # sequences of the cache


def write_inputs(folder, arguments):
    (folder / "model").mkdir()
    config = plan_check.MODELS[arguments.model] | (TINY_MODEL if arguments.rehearse else {})
    (folder / "model" / "config.json").write_text(json.dumps(config))
    shutil.copy(SOURCE / "examples" / "reviews" / "model" / "tokenizer.json", folder / "model")
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": f"{i} + {i * i % 97} =", "answer": str(i + i * i % 97)}) + "\n"
                                                for i in range(256 * arguments.ranks)))
    (folder / "job.toml").write_text(JOB.format(**sizes_of(arguments)))


def sizes_of(arguments):
    sizes = TINY if arguments.rehearse else SIZES
    more = 1.25 if arguments.ranks > 1 else 1  # a pair of GPUs has room for more of them
    return sizes | {"prompts": int(sizes["prompts"] * more * arguments.ranks)}


class Job:
    def __init__(self, arguments, folder):
        self.neap, self.folder, self.steps = arguments.neap.resolve(), folder, arguments.steps
        self.ranks, self.mpirun = arguments.ranks, arguments.rehearse
        self.words = ["device.kind=cpu", "device.memory=28MiB"] if arguments.rehearse else []
        if self.ranks > 1:
            self.words += ["parallel.zero_stage=3", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"]
        self.plans = {}
        least = self.plan("stages", STEP)
        sizes = {tag["tag"]: tag["bytes"] for tag in least["tags"]}
        self.card = least["capacity"] + least.get("context", 0)
        self.weights = sizes.get("actor.rollout_weights") or sum(size for tag, size in sizes.items() if tag.startswith("actor.") and "weights" in tag)
        self.cache = sizes["rollout.kv"] / STEP
        job = sizes_of(arguments)
        self.tokens, self.most = job["prompt"] + job["response"], job["prompts"] * 8 // max(1, self.ranks // 2)  # sequences of a pair of ranks

    def command(self, verb, way, sequences, *words):
        return [self.neap, verb, "job.toml", KEY + way, f"actor_rollout_ref.rollout.batch_size={sequences}", *self.words, *words]

    def plan(self, way, sequences):
        """None if nothing fits."""
        if (way, sequences) not in self.plans:
            ranks = ["--ranks", str(self.ranks)] if self.ranks > 1 else []
            done = subprocess.run(self.command("plan", way, sequences, "--json", *ranks), cwd=self.folder, capture_output=True, text=True)
            if done.returncode not in (0, 3):
                raise RuntimeError(done.stderr[-800:])
            self.plans[way, sequences] = json.loads(done.stdout) if done.returncode == 0 else None
        return self.plans[way, sequences]

    def sequences_at(self, ratio):
        return max(STEP, min(self.most, int((ratio * self.card - self.weights) / self.cache / STEP) * STEP))

    def size(self, sequences):
        return {"sequences": sequences, "ratio": round((self.weights + self.cache * sequences) / self.card, 3),
                "kv_bytes": round(self.cache * sequences), "kv_tokens": sequences * self.tokens}

    def planned(self, way, sequences):
        plan = self.plan(way, sequences)
        return {"way": way, **self.size(sequences), "fits": plan is not None,
                **({"peak": plan["peak"], "host_bytes": plan["host_bytes"], "move_seconds": plan["move_seconds"]} if plan else {})}

    def largest(self, way):
        low, high = 0, self.most + STEP
        while high - low > STEP:
            middle = (low + high) // 2 // STEP * STEP
            low, high = (middle, high) if self.plan(way, middle) else (low, middle)
        return low

    def train(self, way, sequences):
        """Trains the steps, then ends the run, which would write a checkpoint of 100 GiB."""
        out, begin = self.folder / f"out-{way}", time.monotonic()
        command = self.command("train", way, sequences, f"trainer.default_local_dir={out}")
        try:
            rank_processes.run_until_logged(rank_processes.commands(command, self.ranks, 29900 + len(self.plans) % 90, self.mpirun), out, f"{out}.err", 280,
                                            self.steps, self.mpirun, self.folder)
        except RuntimeError as error:
            return out, time.monotonic() - begin, str(error)
        return out, time.monotonic() - begin, ""


def lines_of(file):
    """Whole lines."""
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")] if file.exists() else []


def thinned(changes):
    """Without changes that the next one of the same band replaces within 5 ms."""
    out, after = [], {}
    for change in reversed(changes):
        second, name, _ = change
        if name in after and after[name] - second < 0.005:
            continue
        after[name] = second
        out.append(change)
    return out[::-1]


def timeline(neap, out, step):
    """Of one step, from the run's trace: phases, and bytes by tag and of temporaries after each change, in seconds from its begin."""
    view = out / "view.json"
    subprocess.run([neap, "report", out, "--perfetto", view], check=True, capture_output=True, text=True)
    events = json.loads(view.read_text())["traceEvents"]
    phases = sorted((e["ts"], e["dur"], e["name"]) for e in events if e["ph"] == "X")
    first = phases[0][2]
    begins = [number for number, (_, _, name) in enumerate(phases) if name == first]
    here = phases[begins[step - 1] - 1: begins[step]]  # from the end of the step before: its moves are those into the first phase
    start, end = here[0][0] + here[0][1], here[-1][0] + here[-1][1]
    changes = [[round((max(e["ts"], start) - start) / 1e6, 4), e["name"], e["args"]["bytes"]]
               for e in events if e["ph"] == "C" and (e["name"] == "reserved" or e["name"].startswith("tag ")) and e["ts"] <= end]
    last = {}
    for time_, name, size in changes:
        if time_ <= 0:
            last[name] = size
    return {"seconds": round((end - start) / 1e6, 4), "begins_with": last, "changes": thinned([c for c in changes if c[0] > 0]),
            "phases": [[round((ts - start) / 1e6, 4), round(dur / 1e6, 4), name] for ts, dur, name in here[1:]]}


def measured(job, way, sequences):
    out, seconds, said = job.train(way, sequences)
    metrics = lines_of(out / "metrics.jsonl")[:job.steps]
    row = {"way": way, **job.size(sequences), "seconds": round(seconds, 1)}
    if len(metrics) < job.steps:
        return row | {"refused": "exit [3" in said and "minimum capacity" in said, "error": said[-900:]}
    plan = json.loads((out / "plan.json").read_text())
    planned = {phase["name"]: phase for phase in plan["phases"]}
    records = [r for r in lines_of(out / "phases.jsonl") if r["step"] == job.steps - 1]  # inside the cycle
    phases = [{key: r[key] for key in ("phase", "persistent", "temporary_reserved", "peak", "planned", "seconds", "move_seconds", "as_planned")}
              | {"moves": [m for m in r["moves"] if m["copied"] or m["exposed_seconds"] > 0.001]} for r in records]
    # Responses and prompts are shorter than the plan's, so temporaries may be.
    wrong = [f"{r['phase']} has {r['peak']} bytes, planned {r['planned']}" for r in records if r["peak"] > 1.002 * r["planned"]]
    wrong += [f"{r['phase']} has tags of {r['persistent']} bytes, planned {planned[r['phase']]['persistent']}" for r in records
              if r["persistent"] != planned[r["phase"]]["persistent"]]
    wrong += [f"{r['phase']} did not move as planned" for r in records if not r["as_planned"]]
    peaks = [max(r["peak"] for r in lines_of(folder / "phases.jsonl") if r["step"] <= job.steps) for folder in rank_processes.of_ranks(out, job.ranks)]
    wrong += [f"rank {rank} has {peak} bytes, planned {plan['peak']}" for rank, peak in enumerate(peaks) if peak > 1.002 * plan["peak"]]
    return row | {"capacity": plan["capacity"], "peak": max(r["peak"] for r in records), "rank_peaks": peaks, "planned_peak": plan["peak"], "host_bytes": plan["host_bytes"],
                  "disk_bytes": plan["disk_bytes"], "loss": [m["actor/pg_loss"] for m in metrics], "grad_norm": [m["actor/grad_norm"] for m in metrics],
                  "reward": [m["critic/rewards/mean"] for m in metrics], "step_seconds": [m["timing_s/step"] for m in metrics], "planned_seconds": plan["seconds"],
                  "transition_seconds": round(sum(r["move_seconds"] + (r["seconds"] if r["phase"] in ("store_weights", "wake_up") else 0)
                                                  for r in records), 3),
                  "disk_seconds": {name: planned[name]["seconds"] for name in ("store_weights", "wake_up") if name in planned},
                  "phases": phases, "wrong": wrong, "timeline": timeline(job.neap, out, job.steps - 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--ratio", action="append", type=float, help="train at this one instead")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--model", default="qwen2.5-7b", choices=list(plan_check.MODELS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8, help="after which no further run starts")
    parser.add_argument("--rehearse", nargs="?", const="mpirun", default="")
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps is at least 3: the trace is drawn from a step that another one follows")
    arguments.out.mkdir(parents=True, exist_ok=True)
    begin, failures, losses = time.monotonic(), [], {}
    with tempfile.TemporaryDirectory() as scratch, open(arguments.out / "colocation.jsonl", "w") as log:
        def write(row):
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(json.dumps({k: v for k, v in row.items() if k not in ("timeline", "phases")}), flush=True)

        folder = pathlib.Path(scratch)
        write_inputs(folder, arguments)
        job = Job(arguments, folder)
        write({"environment": {**torch_environment(), "command": "tests/gpu/colocation.py", "date": time.strftime("%Y-%m-%d"),
                               "host_threads": os.cpu_count()}, "model": arguments.model,
               "ranks": arguments.ranks, "rehearsal": bool(arguments.rehearse)})
        for way in arguments.way or WAYS:
            fitting = []
            for ratio in RATIOS:
                row = job.planned(way, job.sequences_at(ratio))
                write({"planned": ratio, **row})
                fitting += [ratio] * row["fits"]
            most = job.largest(way)
            write({"planned": "largest", **(job.planned(way, most) if most else {"way": way, "fits": False})})
            for ratio in arguments.ratio or [max(fitting, default=RATIOS[0])]:
                if time.monotonic() - begin > 60 * arguments.minutes:
                    failures.append(f"{way} did not start in time")
                    continue
                try:
                    row = measured(job, way, job.sequences_at(ratio))
                except (RuntimeError, OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as error:
                    row = {"way": way, "error": f"{type(error).__name__}: {error}"}
                write({"measured": ratio, **row})
                refused = row.get("refused", False)
                failures += row.get("wrong", [])
                if "error" in row and (ratio in fitting or not refused):
                    failures.append(f"{way} at {ratio}: {row['error'][-200:]}")
                if "loss" in row and losses.setdefault(ratio, row["grad_norm"]) != row["grad_norm"]:
                    failures.append(f"{way} at {ratio} has other gradients: {row['grad_norm']}, not {losses[ratio]}")
                shutil.rmtree(folder / f"out-{way}", ignore_errors=True)
    for failure in failures:
        print(f"FAILED {failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
