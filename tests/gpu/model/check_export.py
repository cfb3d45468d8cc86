#!/usr/bin/env python3
"""Loads folders that model_gpu_test wrote with transformers and compares: check_export.py FOLDER."""
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

worst = 0.0
folders = sorted(p.parent for p in Path(sys.argv[1]).glob("*/expected.safetensors"))
for folder in folders:
    expected = load_file(folder / "expected.safetensors")
    scalar = folder.name.endswith("-score")
    auto = AutoModelForSequenceClassification if scalar else AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    if info["missing_keys"] or info["unexpected_keys"]:
        sys.exit(f"{folder.name}: missing {info['missing_keys']}, unexpected {info['unexpected_keys']}")
    with torch.no_grad():
        if scalar:
            backbone = getattr(model, model.base_model_prefix)
            out = model.score(backbone(expected["tokens"])[0]).squeeze(-1)
        else:
            out = model(expected["tokens"]).logits
    difference = (out - expected["out"]).abs().max().item() / (1 + expected["out"].abs().max().item())
    worst = max(worst, difference)
    print(f"{folder.name}: {difference:.2e}")
sys.exit(0 if folders and worst < 1e-4 else f"{len(folders)} folders, worst {worst:.2e}")
