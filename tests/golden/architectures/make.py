#!/usr/bin/env python3
"""Writes the golden files of this folder from Hugging Face's own classes.

    pip install torch transformers==5.23.0 && python3 make.py

Each case is a sparse config.json of a tiny model. Its golden file has the tensors that save_pretrained
writes for both heads, and the frequencies of the rotary embedding after a forward pass of `lengths`.
"""
import json
import pathlib
import re
import tempfile

import safetensors
import torch
import transformers

HERE = pathlib.Path(__file__).parent
SMALL = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 64, "pad_token_id": 0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
CASES = {
    "llama": {"model_type": "llama", **SMALL},
    "llama_biases": {"model_type": "llama", **SMALL, "num_key_value_heads": 2, "head_dim": 12, "attention_bias": True,
                     "mlp_bias": True, "tie_word_embeddings": True},
    "llama_rope_llama3": {"model_type": "llama", **SMALL, "num_key_value_heads": 2, "rope_parameters": LLAMA3},
    "llama_rope_linear": {"model_type": "llama", **SMALL, "rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama_rope_dynamic": {"model_type": "llama", **SMALL, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama_rope_yarn": {"model_type": "llama", **SMALL, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                        "original_max_position_embeddings": 16, "beta_fast": 4}},
    "qwen2": {"model_type": "qwen2", **SMALL, "num_key_value_heads": 2},
    "qwen3": {"model_type": "qwen3", **SMALL, "num_key_value_heads": 2, "head_dim": 12},
    "qwen3_head_dim_default": {"model_type": "qwen3", **SMALL, "num_key_value_heads": 2, "attention_bias": True},
    "mistral": {"model_type": "mistral", **SMALL, "num_key_value_heads": 2, "head_dim": 16},
    "gpt2": {"model_type": "gpt2", "vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "pad_token_id": 0},
    "opt": {"model_type": "opt", "vocab_size": 40, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 64},
    "opt_post_norm": {"model_type": "opt", "vocab_size": 40, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2,
                      "num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 16,
                      "do_layer_norm_before": False},
    "gpt_neox": {"model_type": "gpt_neox", **SMALL},
    "gpt_neox_sequential": {"model_type": "gpt_neox", **SMALL, "use_parallel_residual": False, "rotary_pct": 0.5,
                            "rotary_emb_base": 5000.0, "attention_bias": False, "tie_word_embeddings": True},
    "gemma": {"model_type": "gemma", **SMALL, "num_key_value_heads": 1, "head_dim": 12},
    "gemma2": {"model_type": "gemma2", **SMALL, "num_key_value_heads": 2, "head_dim": 12},
    "gemma3_text": {"model_type": "gemma3_text", **SMALL, "num_hidden_layers": 6, "num_key_value_heads": 2, "head_dim": 12},
    "olmo2": {"model_type": "olmo2", **SMALL, "num_key_value_heads": 2},
    "smollm3": {"model_type": "smollm3", **SMALL, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2},
    "granite": {"model_type": "granite", **SMALL, "num_key_value_heads": 2},
    "bloom": {"model_type": "bloom", "vocab_size": 40, "hidden_size": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0},
    "phi3": {"model_type": "phi3", **SMALL, "eos_token_id": 2, "num_key_value_heads": 2, "partial_rotary_factor": 0.5},
    "phi3_longrope": {"model_type": "phi3", **SMALL, "eos_token_id": 2, "original_max_position_embeddings": 16,
                      "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5],
                                       "long_factor": [1.0, 2.0, 3.5, 8.0]}},
}


def tensors(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safetensors.safe_open(pathlib.Path(folder) / "model.safetensors", "pt") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


def rotary(model, length):
    layer = next((m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding")), None)
    if layer is None:
        return None
    with torch.no_grad():
        model(torch.zeros(1, length, dtype=torch.long))
    # Of layers that see everything, where those that slide turn differently.
    kind = "" if hasattr(layer, "inv_freq") else "full_attention_"
    # inv_freq is float32; its repr as a double is exact.
    return {"length": length, "frequencies": getattr(layer, f"{kind}inv_freq").tolist(),
            "attention_factor": float(getattr(layer, f"{kind}attention_scaling"))}


def main():
    for name, source in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(source))
            config = transformers.AutoConfig.from_pretrained(folder)
            language = transformers.AutoModelForCausalLM.from_config(config)
            scalar = None  # transformers has no such class for granite
            if source["model_type"] != "granite":
                scalar = transformers.AutoModelForSequenceClassification.from_config(
                    transformers.AutoConfig.from_pretrained(folder, num_labels=1))
        scaling = source.get("rope_scaling", {})
        kind = scaling.get("rope_type", scaling.get("type"))
        lengths = {"dynamic": [64, 100], "longrope": [16, 17]}.get(kind, [32])
        golden = {"transformers": transformers.__version__, "config": source, "language_model": tensors(language),
                  "scalar": scalar and tensors(scalar), "rotary": [r for r in (rotary(language, n) for n in lengths) if r]}
        text = json.dumps(golden, indent=1)
        (HERE / f"{name}.json").write_text(compact(text) + "\n")


def compact(text):
    """Innermost lists on one line."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda m: re.sub(r"\s+", " ", m[0]).replace("[ ", "[").replace(" ]", "]"), text)


if __name__ == "__main__":
    main()
