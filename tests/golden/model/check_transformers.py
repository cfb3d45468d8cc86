#!/usr/bin/env python3
"""Neap's models against transformers itself: check_transformers.py MODEL_GOLDEN_TEST.

Opens the folders that the test program writes for every golden model and compares their logits and scores, then makes the
golden files again and compares them with those of this folder. Exits with 77 where torch or transformers are missing;
NEAP_PYTHON may name an interpreter that has them.
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


def reopened(folder):
    expected = load_file(folder / "expected.safetensors")
    scalar = folder.name.endswith("-score")
    auto = transformers.AutoModelForSequenceClassification if scalar else transformers.AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    if info["missing_keys"] or info["unexpected_keys"]:
        return f"missing {info['missing_keys']}, unexpected {info['unexpected_keys']}"
    model = model.double().eval()
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


def main():
    program, failures = sys.argv[1], 0

    def report(what, result):
        nonlocal failures
        good = isinstance(result, float) and result < 1e-6
        failures += not good
        print(f"{what}: {result if isinstance(result, str) else format(result, '.1e')}{'' if good else '  FAILED'}", flush=True)

    with tempfile.TemporaryDirectory() as exported:
        done = subprocess.run([program, "--gtest_filter=*WritesFoldersForTransformers*"], capture_output=True, text=True,
                              env={**os.environ, "NEAP_EXPORT": exported})
        if done.returncode != 0:
            print(done.stdout + done.stderr)
            return 1
        models = make_goldens.models()
        names = [f"{name}-{head}" for name, config in models.items() for head in ("lm", "score")
                 if head == "lm" or config.get("model_type") not in make_goldens.NOT_SCALAR]
        for name in names:
            report(f"{name} reopened", reopened(Path(exported) / name))
    for name, config in models.items():
        report(f"{name}.safetensors", remade(name, config))
    print(f"{len(names)} folders, {len(models)} golden files, {failures} failures")
    return failures > 0


if __name__ == "__main__":
    if "NEAP_PYTHON" in os.environ and os.environ["NEAP_PYTHON"] != sys.executable:
        python = os.environ.pop("NEAP_PYTHON")
        os.execv(python, [python, *sys.argv])
    try:
        import torch
        import transformers
        from safetensors.torch import load_file

        import make_goldens
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(SKIPPED)
    transformers.utils.logging.disable_progress_bar()
    sys.exit(main())
