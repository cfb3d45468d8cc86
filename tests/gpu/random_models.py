"""Models of real sizes: their config.json, and checkpoints with random weights."""
import array
import json
import random
import shutil

QWEN = {"model_type": "qwen2", "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 1}
MODELS = {
    "opt-1.3b": {"model_type": "opt", "vocab_size": 50272, "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24,
                 "num_attention_heads": 32, "max_position_embeddings": 2048, "word_embed_proj_dim": 2048,
                 "do_layer_norm_before": True, "activation_function": "relu", "tie_word_embeddings": True, "eos_token_id": 2,
                 "bos_token_id": 2, "pad_token_id": 1},
    "qwen2.5-0.5b": {**QWEN, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
                     "num_key_value_heads": 2},
    "qwen2.5-1.5b": {**QWEN, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
                     "num_key_value_heads": 2},
    "qwen2.5-7b": {**QWEN, "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                   "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "llama-3.2-3b": {"model_type": "llama", "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192,
                     "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
                     "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
                     "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16"},
    "qwen3-0.6b": {**QWEN, "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                   "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
    "qwen3-1.7b": {**QWEN, "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
                   "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
    "qwen3-8b": {**QWEN, "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False},
    "qwen3-4b": {**QWEN, "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
                 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    "llama-3.1-8b": {"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
                     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                     "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
                     "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16"},
    # 24 of Llama-3.1-8B's 32 layers: full training takes 106 GiB of host memory
    "llama-3.1-6b": {"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
                     "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 8,
                     "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
                     "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16"},
    "qwen2.5-14b": {**QWEN, "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48,
                    "num_attention_heads": 40, "num_key_value_heads": 8, "tie_word_embeddings": False},
    "qwen2.5-32b": {**QWEN, "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
                    "num_attention_heads": 40, "num_key_value_heads": 8, "tie_word_embeddings": False},
    # 38 of Qwen2.5-32B's 64 layers: 40.2 GB in bfloat16
    "qwen2.5-20b": {**QWEN, "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 38,
                    "num_attention_heads": 40, "num_key_value_heads": 8, "tie_word_embeddings": False},
}
# without the narrow embedding of the published model
MODELS["opt-350m"] = {**MODELS["opt-1.3b"], "hidden_size": 1024, "ffn_dim": 4096, "num_attention_heads": 16, "word_embed_proj_dim": 1024}
TINY = {"vocab_size": 1024, "hidden_size": 64, "ffn_dim": 128, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "word_embed_proj_dim": 64}


def gpt2_parameters(c):
    h, vocab = c["n_embd"], c["vocab_size"]
    yield "transformer.wte.weight", (vocab, h)
    yield "transformer.wpe.weight", (c["n_positions"], h)
    blocks = [f"transformer.h.{layer}" for layer in range(c["n_layer"])]
    for block in blocks:  # matrices are stored (in, out)
        for name, shape in {"attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h), "mlp.c_fc": (h, 4 * h), "mlp.c_proj": (4 * h, h)}.items():
            yield f"{block}.{name}.weight", shape
            yield f"{block}.{name}.bias", shape[1:]
    for norm in [f"{block}.{name}" for block in blocks for name in ("ln_1", "ln_2")] + ["transformer.ln_f"]:
        yield f"{norm}.weight", (h,)
        yield f"{norm}.bias", (h,)
    yield "score.weight", (1, h)


def parameters(c):
    """Names and shapes of a checkpoint with the scalar head of a reward model."""
    if c["model_type"] == "gpt2":
        yield from gpt2_parameters(c)
        return
    h, vocab = c["hidden_size"], c["vocab_size"]
    width = c.get("head_dim", h // c["num_attention_heads"])
    if c["model_type"] == "opt":
        yield "model.decoder.embed_tokens.weight", (vocab, h)
        yield "model.decoder.embed_positions.weight", (c["max_position_embeddings"] + 2, h)
        linears = {"self_attn.q_proj": (h, h), "self_attn.k_proj": (h, h), "self_attn.v_proj": (h, h),
                   "self_attn.out_proj": (h, h), "fc1": (c["ffn_dim"], h), "fc2": (h, c["ffn_dim"])}
        biased, norms, blocks = set(linears), ("self_attn_layer_norm", "final_layer_norm"), "model.decoder.layers"
        last = "model.decoder.final_layer_norm"
    else:
        queries, keys = width * c["num_attention_heads"], width * c["num_key_value_heads"]
        yield "model.embed_tokens.weight", (vocab, h)
        linears = {"self_attn.q_proj": (queries, h), "self_attn.k_proj": (keys, h), "self_attn.v_proj": (keys, h),
                   "self_attn.o_proj": (h, queries), "mlp.gate_proj": (c["intermediate_size"], h),
                   "mlp.up_proj": (c["intermediate_size"], h), "mlp.down_proj": (h, c["intermediate_size"])}
        biased = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"} if c["model_type"] == "qwen2" else set()
        norms, blocks, last = ("input_layernorm", "post_attention_layernorm"), "model.layers", "model.norm"
    layer_norm = c["model_type"] == "opt"
    for layer in range(c["num_hidden_layers"]):
        for name, shape in linears.items():
            yield f"{blocks}.{layer}.{name}.weight", shape
            if name in biased:
                yield f"{blocks}.{layer}.{name}.bias", shape[:1]
        for name in ("self_attn.q_norm", "self_attn.k_norm") if c["model_type"] == "qwen3" else ():
            yield f"{blocks}.{layer}.{name}.weight", (width,)
        for name in norms:
            yield f"{blocks}.{layer}.{name}.weight", (h,)
            if layer_norm:
                yield f"{blocks}.{layer}.{name}.bias", (h,)
    yield f"{last}.weight", (h,)
    if layer_norm:
        yield f"{last}.bias", (h,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, h)
    yield "score.weight", (1, h)


def bfloat16(values):
    halves = array.array("H")
    halves.frombytes(array.array("f", values).tobytes())
    return halves[1::2]  # little endian: the upper half of each float


def write_weights(file, config):
    """Matrices are cut out of one long row of normal numbers, whose length is prime."""
    generator = random.Random(1)
    pattern = bfloat16(generator.gauss(0, 0.02) for _ in range(999983)).tobytes()
    pattern *= 8
    header, offset, tensors = {}, 0, list(parameters(config))
    for name, shape in tensors:
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        start = 0
        for name, shape in tensors:
            first, last = header[name]["data_offsets"]
            size = last - first
            if len(shape) == 1:
                out.write(bfloat16([1.0 if name.endswith("weight") else 0.0]).tobytes() * shape[0])
                continue
            while size > 0:
                piece = pattern[start:start + size]
                out.write(piece)
                size -= len(piece)
                start = (start + len(piece)) % len(pattern)


def make_model(folder, config, tokenizer):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for file in tokenizer.iterdir():
        if file.name != "config.json" and file.suffix != ".safetensors":
            shutil.copy(file, folder)
    write_weights(folder / "model.safetensors", config)
