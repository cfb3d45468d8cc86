"""Models with random weights under the names that vLLM's tests load, in a folder laid out as the hub's cache.

    vllm_models.py CACHE NAME...
"""

import shutil
import sys
from pathlib import Path

HASH = "0" * 40
VOCABULARY = 512
LLAMA = dict(model_type="llama", hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
             head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True)
MODELS = {
    "hmellor/tiny-random-LlamaForCausalLM": LLAMA,
    "meta-llama/Llama-3.2-1B": dict(LLAMA, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                                    num_key_value_heads=8),
    "facebook/opt-125m": dict(model_type="opt", hidden_size=768, ffn_dim=3072, num_hidden_layers=12, num_attention_heads=12,
                              max_position_embeddings=2048, word_embed_proj_dim=768),
    "Qwen/Qwen2-0.5B": dict(model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                            num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True),
    "Qwen/Qwen2.5-7B": dict(model_type="qwen2", hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
                            num_key_value_heads=4, max_position_embeddings=32768, vocab_size=152064),
}


def write_tokenizer(folder):
    """All bytes, pairs of letters and three special tokens: every id has a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(ord("a") + i) for i in range(26)]
    words = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [a + b for a in letters for b in letters][: VOCABULARY - len(words)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>").save_pretrained(folder)


def write_model(folder, settings, weights=True):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True)
    write_tokenizer(folder)
    settings = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **settings}
    config = AutoConfig.for_model(**settings)
    if not weights:  # vLLM's load_format "dummy"
        config.architectures = [{"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}[settings["model_type"]]]
        config.dtype = torch.bfloat16
        config.save_pretrained(folder)
        return
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16 if settings["model_type"] == "opt" else torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.1)  # so that the next token depends on the text
    model.save_pretrained(folder)
    if settings["model_type"] == "opt":  # "sleep mode with pytorch checkpoint"
        (folder / "model.safetensors").unlink()
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, folder / "pytorch_model.bin")


def folder_of(cache, name):
    return Path(cache) / ("models--" + name.replace("/", "--"))


def make(cache, name):
    """Once: refs/main is written last."""
    folder = folder_of(cache, name)
    if (folder / "refs" / "main").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    write_model(folder / "snapshots" / HASH, MODELS[name])
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(HASH)


if __name__ == "__main__":
    for each in sys.argv[2:]:
        make(sys.argv[1], each)
