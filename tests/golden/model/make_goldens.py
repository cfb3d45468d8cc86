#!/usr/bin/env python3
"""Writes golden logits, scores, gradients and losses of tiny models by Hugging Face's implementations.

Usage: make_goldens.py FOLDER [MODEL ...]. Needs torch and transformers. One safetensors file for each model of models.json:
metadata "config" is its config.json; tensors "tokens", "targets", "weights", "logits", "grad.<parameter>" of
loss = -sum(weights * log p(targets)), "losses" before and after each of three steps of torch's AdamW with the settings in
ADAMW, and "scores" of a scalar head where transformers has one. greedy.json has the tokens that generate() adds to the rows of
"tokens", the scale of the model's matrices, and the keys of config.json that give learned positions room for them. Weights are not stored: they follow from a parameter's place in the sorted list of
names (see `fill`).
"""
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, GenerationConfig

HERE = Path(__file__).parent
SIZES = dict(vocab_size=29, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
ADAMW = dict(lr=5e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
STEPS = 3
NEW_TOKENS = 64
SCALES = (1, 2, 3, 5, 8)
NOT_SCALAR = ["granite"]  # transformers has no class for sequence classification


def models() -> dict:
    """Configurations by name; those with GPT-2's keys say everything themselves."""
    sparse = json.loads((HERE / "models.json").read_text())
    return {name: config if "n_embd" in config else SIZES | config for name, config in sparse.items()}


def fill(model: torch.nn.Module) -> None:
    """Values that C++ can repeat to the last bit: 24 bits of a multiplicative hash."""
    for place, (name, parameter) in enumerate(sorted(model.named_parameters(), key=lambda item: disk_name(model, item[0]))):
        index = torch.arange(parameter.numel(), dtype=torch.int64)
        word = ((place * 1000003 + index) * 2654435761 % 2**32) >> 8
        value = (word.double() / 2**24 - 0.5) * 0.4
        if parameter.dim() == 1 and name.endswith("weight"):
            value += 1
        with torch.no_grad():
            parameter.copy_(value.view(parameter.shape))


def disk_name(model: torch.nn.Module, name: str) -> str:
    """Some classes call a tensor otherwise than their files."""
    return "embed_out.weight" if model.config.model_type == "gpt_neox" and name == "lm_head.weight" else name


def build(auto, config: dict, **extra) -> torch.nn.Module:
    settings = AutoConfig.for_model(**config, **extra)
    settings.pad_token_id = 0
    model = auto.from_config(settings, attn_implementation="eager").double().eval()
    fill(model)
    return model


def prompts() -> torch.Tensor:
    return (torch.arange(18) * 11 % 28 + 1).view(2, 9)


def greedy_with(config: dict, scale: int) -> dict:
    key = {"gpt2": "n_positions", "opt": "max_position_embeddings"}.get(config["model_type"])
    room = {key: prompts().shape[1] + NEW_TOKENS} if key else {}
    model = build(AutoModelForCausalLM, config | room)
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= scale if parameter.dim() == 2 else 1
        out = model.generate(prompts(), attention_mask=torch.ones_like(prompts()))
    return {"config": room, "scale": scale, "tokens": out[:, prompts().shape[1]:].tolist()}


def greedy(config: dict) -> dict:
    """Of a model whose matrices are scaled so that its texts do not repeat one token."""
    different = lambda made: min(len(set(text)) for text in made["tokens"])
    return max((greedy_with(config, scale) for scale in SCALES), key=different)


def loss_of(model, tokens, targets, weights):
    logits = model(tokens, use_cache=False).logits.view(targets.numel(), -1)
    log_p = logits.log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)
    return -(weights * log_p).sum(), logits


def golden(config: dict) -> dict:
    model = build(AutoModelForCausalLM, config)
    tokens = prompts()
    targets = (torch.arange(18) * 5 + 3) % 29
    weights = torch.linspace(-0.5, 1.5, 18, dtype=torch.float64)
    loss, logits = loss_of(model, tokens, targets, weights)
    loss.backward()
    out = {"tokens": tokens, "targets": targets, "weights": weights.float(), "logits": logits.detach().float()}
    for name, parameter in model.named_parameters():
        out["grad." + disk_name(model, name)] = parameter.grad.float()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = [loss.item()]
    for _ in range(STEPS):
        optimizer.step()
        optimizer.zero_grad()
        loss, _ = loss_of(model, tokens, targets, weights)
        loss.backward()
        losses.append(loss.item())
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    # Every position of one pass: the classifier itself gives only the last one's.
    if config["model_type"] in NOT_SCALAR:
        return out
    classifier = build(AutoModelForSequenceClassification, config, num_labels=1)
    backbone = getattr(classifier, classifier.base_model_prefix)
    with torch.no_grad():
        out["scores"] = classifier.score(backbone(tokens, use_cache=False)[0]).squeeze(-1).float().contiguous()
    return out


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {name: config for name, config in models().items() if len(sys.argv) <= 2 or name in sys.argv[2:]}
    for name, config in chosen.items():
        out = golden(config)
        save_file(out, folder / f"{name}.safetensors",
                  {"config": json.dumps(config), "made_by": f"transformers {transformers.__version__}"})
        print(name, sum(t.numel() for t in out.values()), "elements")
    known = json.loads((folder / "greedy.json").read_text()) if (folder / "greedy.json").exists() else {}
    known |= {name: greedy(config) for name, config in chosen.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
    (folder / "greedy.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
