#!/usr/bin/env python3
"""Neap's models against transformers itself: check_transformers.py MODEL_GOLDEN_TEST.

Opens the folders that the test program writes for every golden model and compares their logits and scores, then makes the
golden files again and compares them with those of this folder. Exits with 77 where torch or transformers are missing;
NEAP_PYTHON may name an interpreter that has them.
"""
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from reference_check import Report, difference, export, load_model, skip, use_chosen_python  # noqa: E402


def reopened(folder):
    expected = load_file(folder / "expected.safetensors")
    scalar = folder.name.endswith("-score")
    auto = transformers.AutoModelForSequenceClassification if scalar else transformers.AutoModelForCausalLM
    model = load_model(auto, folder)
    if isinstance(model, str):
        return model
    with torch.no_grad():
        if scalar:
            backbone = getattr(model, model.base_model_prefix)
            out = model.score(backbone(expected["tokens"], use_cache=False)[0]).squeeze(-1)
        else:
            out = model(expected["tokens"], use_cache=False).logits
    return difference(out, expected["out"])


def remade(name, config):
    committed = load_file(HERE / f"{name}.safetensors")
    made = make_goldens.golden(config)
    if set(made) != set(committed):
        return f"tensors differ: {sorted(set(made) ^ set(committed))}"
    return max(difference(made[key], committed[key]) for key in made)


def remade_texts(name, config, committed):
    return 0.0 if make_goldens.greedy(config) == committed else "other tokens"


def main():
    report = Report()
    with tempfile.TemporaryDirectory() as exported:
        if not export(sys.argv[1], "WritesFoldersForTransformers", exported):
            return 1
        models = make_goldens.models()
        names = [f"{name}-{head}" for name, config in models.items() for head in ("lm", "score")
                 if head == "lm" or config.get("model_type") not in make_goldens.NOT_SCALAR]
        for name in names:
            report(f"{name} reopened", reopened(Path(exported) / name))
    texts = json.loads((HERE / "greedy.json").read_text())
    for name, config in models.items():
        report(f"{name}.safetensors", remade(name, config))
        report(f"{name} in greedy.json", remade_texts(name, config, texts.get(name)))
    print(f"{len(names)} folders, {len(models)} golden files, {report.failures} failures")
    return report.failures > 0


if __name__ == "__main__":
    use_chosen_python()
    try:
        import torch
        import transformers
        from safetensors.torch import load_file

        import make_goldens
    except ImportError as error:
        skip(error)
    transformers.utils.logging.disable_progress_bar()
    sys.exit(main())
