"""A model that takes little time, so that what is measured is the data; and where it was measured."""
import json
import os
import pathlib
import platform
import shutil
import subprocess

REVIEWS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "reviews"
CONFIG = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 64,
          "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1,
          "torch_dtype": "float32", "hidden_act": "silu"}


def write_model(folder):
    """Without weights: training starts them at random."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shutil.copy(REVIEWS / "model" / "tokenizer.json", folder)


def environment(neap, command):
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    version = subprocess.run([neap, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "version": version, "command": command,
            "load_1min": round(os.getloadavg()[0], 1)}
