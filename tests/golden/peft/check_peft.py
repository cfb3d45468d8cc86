#!/usr/bin/env python3
"""Neap's adapters against PEFT itself: check_peft.py PEFT_GOLDEN_TEST.

Opens with PEFT the adapters that the test program writes, and with transformers the folders that it merges, compares what
they compute, then makes the golden files again and compares them with those of this folder. Exits with 77 where peft is
missing; NEAP_PYTHON may name an interpreter that has it.
"""
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from reference_check import Report, difference, export, load_model, skip, use_chosen_python  # noqa: E402


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
    model = load_model(auto, folder / "merged")
    return model if isinstance(model, str) else computed(model, load_file(folder / "expected.safetensors"), scalar)


def remade(name, folder):
    results = []
    for file in ("golden.safetensors", "adapter_model.safetensors"):
        committed, made = load_file(HERE / name / file), load_file(folder / name / file)
        if set(made) != set(committed):
            return f"{file}: tensors differ: {sorted(set(made) ^ set(committed))}"
        results += [difference(made[key], committed[key]) for key in made]
    return max(results)


def main():
    report = Report()
    with tempfile.TemporaryDirectory() as work:
        exported, again = Path(work) / "exported", Path(work) / "again"
        if not export(sys.argv[1], "WritesFoldersForPeft", exported):
            return 1
        for name, (base, settings) in make_goldens.CASES.items():
            if (exported / name / "adapter").exists():
                report(f"{name} reopened", reopened(exported / name))
            report(f"{name} merged", merged(exported / name))
            make_goldens.write(again / name, base, settings)
            report(f"{name} made again", remade(name, again))
    print(f"{len(make_goldens.CASES)} adapters, {report.failures} failures")
    return report.failures > 0


if __name__ == "__main__":
    use_chosen_python()
    try:
        import peft
        import torch
        import transformers
        from safetensors.torch import load_file
    except ImportError as error:
        skip(error)
    sys.path.insert(0, str(HERE))
    import make_goldens
    sys.exit(main())
