#!/usr/bin/env python3
"""Neap's adapters against PEFT itself: check_peft.py PEFT_GOLDEN_TEST.

Opens with PEFT the adapters that the test program writes, and with transformers the folders that it merges, compares what
they compute, then makes the golden files again and compares them with those of this folder. Exits with 77 where peft is
missing; NEAP_PYTHON may name an interpreter that has it.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIPPED = 77


def difference(actual, expected):
    return (actual.double() - expected.double()).abs().max().item() / (1 + expected.abs().max().item())


def computed(model, expected, scalar):
    with torch.no_grad():
        return difference(make_goldens.outputs(model.double().eval(), expected["tokens"], scalar).view(-1), expected["out"].view(-1))


def auto_class(name):
    scalar = make_goldens.CASES[name][1].get("task_type") == "SEQ_CLS"
    return scalar, transformers.AutoModelForSequenceClassification if scalar else transformers.AutoModelForCausalLM


def reopened(folder):
    """By the adapter's own words: it names its base."""
    scalar, auto = auto_class(folder.name)
    config = peft.PeftConfig.from_pretrained(folder / "adapter")
    base = auto.from_pretrained(config.base_model_name_or_path, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(base, folder / "adapter")
    return computed(model, load_file(folder / "expected.safetensors"), scalar)


def merged(folder):
    scalar, auto = auto_class(folder.name)
    model, info = auto.from_pretrained(folder / "merged", output_loading_info=True, attn_implementation="eager")
    if info["missing_keys"] or info["unexpected_keys"]:
        return f"missing {info['missing_keys']}, unexpected {info['unexpected_keys']}"
    return computed(model, load_file(folder / "expected.safetensors"), scalar)


def remade(name, folder):
    results = []
    for file in ("golden.safetensors", "adapter_model.safetensors"):
        committed, made = load_file(HERE / name / file), load_file(folder / name / file)
        if set(made) != set(committed):
            return f"{file}: tensors differ: {sorted(set(made) ^ set(committed))}"
        results += [difference(made[key], committed[key]) for key in made]
    return max(results)


def main():
    program, failures = sys.argv[1], 0

    def report(what, result):
        nonlocal failures
        good = isinstance(result, float) and result < 1e-6
        failures += not good
        print(f"{what}: {result if isinstance(result, str) else format(result, '.1e')}{'' if good else '  FAILED'}", flush=True)

    with tempfile.TemporaryDirectory() as work:
        exported, again = Path(work) / "exported", Path(work) / "again"
        done = subprocess.run([program, "--gtest_filter=*WritesFoldersForPeft*"], capture_output=True, text=True,
                              env={**os.environ, "NEAP_EXPORT": str(exported)})
        if done.returncode != 0:
            print(done.stdout + done.stderr)
            return 1
        for name, (base, settings) in make_goldens.CASES.items():
            if (exported / name / "adapter").exists():
                report(f"{name} reopened", reopened(exported / name))
            report(f"{name} merged", merged(exported / name))
            make_goldens.write(again / name, base, settings)
            report(f"{name} made again", remade(name, again))
    print(f"{len(make_goldens.CASES)} adapters, {failures} failures")
    return failures > 0


if __name__ == "__main__":
    if "NEAP_PYTHON" in os.environ and os.environ["NEAP_PYTHON"] != sys.executable:
        python = os.environ.pop("NEAP_PYTHON")
        os.execv(python, [python, *sys.argv])
    try:
        import peft
        import torch
        import transformers
        from safetensors.torch import load_file
    except ImportError as e:
        print(f"skipped: {e}")
        sys.exit(SKIPPED)
    sys.path.insert(0, str(HERE))
    import make_goldens
    sys.exit(main())
