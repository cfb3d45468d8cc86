#!/usr/bin/env python3
"""Writes adapters of tiny models by PEFT, and what the adapted models compute.

Usage: make_goldens.py FOLDER [CASE ...]. Needs torch, transformers and peft. For each case of CASES a folder with
adapter_config.json and adapter_model.safetensors as PEFT saves them, and golden.safetensors: metadata "config" is the
base's config.json; "tokens", "logits" (of a classifier "scores" at every position), "grad.<tensor of the adapter>" of
loss = sum(weights * scores), or -sum(weights * log p(targets)), and "merged.<parameter>" of every parameter that merge_and_unload() changes. The base's
weights are those of tests/golden/model/make_goldens.py.
"""
import copy
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

spec = importlib.util.spec_from_file_location("models", Path(__file__).resolve().parent.parent / "model" / "make_goldens.py")
bases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bases)

LLAMA = "llama_biases"
# name: base, settings of LoraConfig.
CASES = {
    "lists": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "patterns": (LLAMA, dict(r=4, lora_alpha=6, use_rslora=True, target_modules=r"model\.layers\.\d+\.(self_attn|mlp)\.(?:q|k|up)_proj",
                             rank_pattern={"k_proj": 2, r"layers\.1\.self_attn\.q_proj": 3}, alpha_pattern={"^model.layers.0.mlp.up_proj": 12})),
    "some_layers": ("qwen3", dict(r=2, lora_alpha=4, target_modules=["q_proj", "o_proj", "mlp.down_proj"], layers_to_transform=[1], exclude_modules=["o_proj"])),
    "transposed": ("gpt2", dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "per_head": ("gpt_neox", dict(r=2, lora_alpha=2, target_modules="all-linear")),
    "fused": ("phi3", dict(r=2, lora_alpha=4, target_modules=["qkv_proj", "gate_up_proj"])),
    "classifier": (LLAMA, dict(r=2, lora_alpha=4, target_modules=["o_proj", "down_proj"], task_type="SEQ_CLS")),
    "dora": (LLAMA, dict(r=2, lora_alpha=4, target_modules=["q_proj", "gate_proj"], use_dora=True, bias="lora_only")),
    "dora_transposed": ("gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True, use_dora=True)),
    "all_biases": ("opt", dict(r=2, lora_alpha=4, target_modules=["q_proj", "fc1"], bias="all")),
    "saved_modules": ("llama", dict(r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["lm_head", "input_layernorm"])),
    "head": ("llama", dict(r=2, lora_alpha=4, target_modules=["v_proj", "lm_head"])),
}


def fill(model: torch.nn.Module) -> None:
    """Values that float32 holds, around 0; magnitudes and norms around 1."""
    for place, (name, parameter) in enumerate(sorted(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        index = torch.arange(parameter.numel(), dtype=torch.int64)
        word = ((place * 1000003 + index) * 2654435761 % 2**32) >> 16
        value = (word.double() / 2**16 - 0.5) / 4
        if "magnitude" in name or "norm" in name and name.endswith("weight"):
            value += 1
        with torch.no_grad():
            parameter.copy_(value.view(parameter.shape))


def outputs(model: torch.nn.Module, tokens: torch.Tensor, scalar: bool) -> torch.Tensor:
    """Logits, or scores of every position."""
    if not scalar:
        return model(tokens, use_cache=False).logits
    classifier = model.base_model.model if isinstance(model, peft.PeftModel) else model
    return classifier.score(getattr(classifier, classifier.base_model_prefix)(tokens, use_cache=False)[0]).squeeze(-1)


def write(folder: Path, base: str, settings: dict) -> None:
    scalar = settings.get("task_type") == "SEQ_CLS"
    auto, extra = (AutoModelForSequenceClassification, {"num_labels": 1}) if scalar else (AutoModelForCausalLM, {})
    config = bases.models()[base]
    model = bases.build(auto, config, **extra)
    before = {bases.disk_name(model, name): p.detach().clone() for name, p in model.named_parameters()}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**({"task_type": "CAUSAL_LM"} | settings))).double()
    fill(adapted)
    tokens = (torch.arange(18) * 11 % 28 + 1).view(2, 9)
    out = outputs(adapted, tokens, scalar)
    weights = torch.linspace(-0.5, 1.5, tokens.numel(), dtype=torch.float64)
    targets = (torch.arange(18) * 5 + 3) % 29
    rows = out.view(-1) if scalar else -out.view(18, -1).log_softmax(-1)[torch.arange(18), targets]
    (weights * rows).sum().backward()
    shutil.rmtree(folder, ignore_errors=True)
    copy.deepcopy(adapted).float().save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    golden = {"tokens": tokens, "scores" if scalar else "logits": out.detach().float().contiguous()}
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            golden["grad." + name.replace(".modules_to_save.default", "").replace(".default", "")] = parameter.grad.float()
    merged = adapted.merge_and_unload()
    for name, parameter in merged.named_parameters():
        name = bases.disk_name(merged, name)
        if not torch.equal(parameter, before[name]):
            golden["merged." + name] = parameter.detach().float()
    after = outputs(merged, tokens, scalar)
    assert torch.allclose(after, out, atol=1e-9), (after - out).abs().max()
    save_file(golden, folder / "golden.safetensors",
              {"config": json.dumps(config), "made_by": f"peft {peft.__version__}, transformers {transformers.__version__}"})
    print(folder.name, sum(t.numel() for t in golden.values()), "elements")


def main() -> None:
    for name, (base, settings) in CASES.items():
        if len(sys.argv) <= 2 or name in sys.argv[2:]:
            write(Path(sys.argv[1]) / name, base, settings)


if __name__ == "__main__":
    main()
