#!/usr/bin/env python3
"""Plans of the job of docs/one-gpu.md for models, methods and GPUs, without a GPU.

    one_gpu.py NEAP > bench/results/planned-one-gpu.jsonl
    one_gpu.py NEAP --check MODEL    exits 1 if the file has other plans of this model

The job is the file that the page shows. Each line is a plan: model, method, GPU, and memory and seconds from its --json; "fits" is false
where nothing fits. scripts/measurements --write makes the table of the page.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "gpu"), str(ROOT / "tests" / "docs")]
sys.dont_write_bytecode = True
import check_docs  # noqa: E402
import random_models  # noqa: E402

PAGE = ROOT / "docs" / "one-gpu.md"
KEPT = ROOT / "bench" / "results" / "planned-one-gpu.jsonl"
JOB = "one-gpu/grpo.toml"
MODELS = ("qwen2.5-1.5b", "llama-3.2-3b", "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b")
GPUS = ("rtx4090", "l40s", "h100")
FULL = ("actor_rollout_ref.model.lora_rank=0", "actor_rollout_ref.actor.optim.lr=1e-6")
DISK = ("--host", "64GiB", 'memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"]')
METHODS = {"LoRA-32": (), "full": FULL, "full, 64 GiB of host memory": (*FULL, *DISK)}
FIELDS = ("peak", "context", "host_bytes", "disk_bytes", "seconds")


def planned(neap, folder, model, words):
    done = subprocess.run([neap, "plan", JOB, "--json", f"actor_rollout_ref.model.path=../{model}", *words], cwd=folder,
                          capture_output=True, text=True)
    if done.returncode == 3:
        return {"fits": False}
    if done.returncode:
        raise SystemExit(f"{model} {words}: exit {done.returncode}: {done.stderr[-400:]}")
    plan = json.loads(done.stdout)
    return {"fits": True, **{field: plan[field] for field in FIELDS}, "min_capacity": plan["alternatives"]["min_capacity"]}


def plans(neap, models):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        check_docs.write_files(PAGE, folder)
        for model in models:
            (folder / model).mkdir()
            (folder / model / "config.json").write_text(json.dumps(random_models.MODELS[model]))
        for gpu in GPUS:
            for model in models:
                for method, words in METHODS.items():
                    plan = planned(neap, folder, model, ("--gpu", gpu, *words))
                    yield {"gpu": gpu, "model": model, "method": method, **plan}


def same(plan, kept):
    """Seconds may differ by rounding."""
    return plan.keys() == kept.keys() and all(math.isclose(plan[key], kept[key], rel_tol=1e-6) if key == "seconds" else plan[key] == kept[key]
                                              for key in plan)


def main():
    neap = pathlib.Path(sys.argv[1]).resolve()
    if sys.argv[2:3] != ["--check"]:
        for plan in plans(neap, MODELS):
            print(json.dumps(plan), flush=True)
        return 0
    model = sys.argv[3]
    kept = [plan for plan in map(json.loads, KEPT.read_text().splitlines()) if plan["model"] == model]
    found = list(plans(neap, [model]))
    if len(found) != len(kept):
        print(f"{KEPT.relative_to(ROOT)} has {len(kept)} plans of {model}, the program {len(found)}")
        return 1
    differ = [(plan, old) for plan, old in zip(found, kept) if not same(plan, old)]
    for plan, old in differ:
        print(f"planned: {json.dumps(plan)}\nkept:    {json.dumps(old)}")
    if differ:
        print(f"bench/plans/one_gpu.py NEAP > {KEPT.relative_to(ROOT)} plans all again, then scripts/measurements --write")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
