#!/usr/bin/env python3
"""Writes golden logits, scores and gradients of tiny models by Hugging Face's implementations.

Usage: make_goldens.py FOLDER. Needs torch, transformers and safetensors. One safetensors file a
model: metadata "config" is its config.json; tensors "tokens", "targets", "weights", "logits",
"grad.<parameter>" of loss = -sum(weights * log p(targets)) and "scores" of a scalar head. Weights are
not stored: they follow from a parameter's place in the sorted list of names (see `fill`).
"""
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

SMALL = dict(vocab_size=29, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
MODELS = {
    "llama": dict(model_type="llama", intermediate_size=24, num_key_value_heads=2, head_dim=6,
                  max_position_embeddings=32, rms_norm_eps=1e-5, rope_theta=5000.0, **SMALL),
    "qwen2": dict(model_type="qwen2", intermediate_size=24, num_key_value_heads=1, tie_word_embeddings=True,
                  max_position_embeddings=32, rms_norm_eps=1e-6, **SMALL),
    "gpt2": dict(model_type="gpt2", vocab_size=29, n_embd=16, n_layer=2, n_head=4, n_inner=24, n_positions=12),
    "opt": dict(model_type="opt", ffn_dim=24, max_position_embeddings=12, word_embed_proj_dim=16, **SMALL),
    "opt_post_norm": dict(model_type="opt", ffn_dim=24, max_position_embeddings=12, word_embed_proj_dim=8,
                          do_layer_norm_before=False, **SMALL),
}


def fill(model: torch.nn.Module) -> None:
    """Values that C++ can repeat to the last bit: 24 bits of a multiplicative hash."""
    for place, (name, parameter) in enumerate(sorted(model.named_parameters())):
        index = torch.arange(parameter.numel(), dtype=torch.int64)
        word = ((place * 1000003 + index) * 2654435761 % 2**32) >> 8
        value = (word.double() / 2**24 - 0.5) * 0.4
        if parameter.dim() == 1 and name.endswith("weight"):
            value += 1
        with torch.no_grad():
            parameter.copy_(value.view(parameter.shape))


def build(auto, config: dict, **extra) -> torch.nn.Module:
    settings = AutoConfig.for_model(attn_implementation="eager", pad_token_id=0, **config, **extra)
    model = auto.from_config(settings, attn_implementation="eager").double().eval()
    fill(model)
    return model


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in MODELS.items():
        model = build(AutoModelForCausalLM, config)
        tokens = (torch.arange(18) * 11 % 28 + 1).view(2, 9)
        targets = (torch.arange(18) * 5 + 3) % 29
        weights = torch.linspace(-0.5, 1.5, 18, dtype=torch.float64)
        logits = model(tokens).logits.view(18, -1)
        log_p = logits.log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)
        (-(weights * log_p).sum()).backward()
        out = {"tokens": tokens, "targets": targets, "weights": weights.float(), "logits": logits.detach().float()}
        for parameter_name, parameter in model.named_parameters():
            out["grad." + parameter_name] = parameter.grad.float()
        # Rows before the last real token are not pooled by the classifier: one length at a time.
        classifier = build(AutoModelForSequenceClassification, config, num_labels=1)
        with torch.no_grad():
            out["scores"] = torch.stack(
                [classifier(tokens[:, :n]).logits[:, 0] for n in range(1, 10)], 1).float().contiguous()
        save_file(out, folder / f"{name}.safetensors",
                  {"config": json.dumps(config), "made_by": f"transformers {transformers.__version__}"})
        print(name, sum(t.numel() for t in out.values()), "elements")


if __name__ == "__main__":
    main()
