"""A model that adds, its data in every form, and the program in their folder, for the tests beside it."""
import json
import pathlib
import shutil
import subprocess

import neap_program
from additions_case import AdditionsCase, steady
from neap_program import read_lines

HERE = pathlib.Path(__file__).resolve().parent
ROWS_PROGRAM = HERE.parents[2] / "src" / "data" / "parquet_rows.py"
SFT = ["sft.toml", "data.train_batch_size=32", "data.micro_batch_size_per_gpu=16", "trainer.total_training_steps=3"]
GRPO = ["grpo.toml", "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32", "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32", "trainer.total_training_steps=2"]
DPO = ["sft.toml", "task=dpo", "data.train_files=pairs.jsonl", "data.train_batch_size=16", "data.micro_batch_size_per_gpu=8",
       "trainer.total_training_steps=2", "actor_rollout_ref.model.path=out/start/latest/actor"]
# Tools are named by a digit, which the tokenizer has.
TEMPLATE = ("{% for tool in tools or [] %}{{ tool.function.name }}+{% endfor %}"
            "{% for message in messages %}{{ message.content }}{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "73"]
HAS_PYARROW = subprocess.run(["python3", "-c", "import pyarrow.parquet"], capture_output=True, check=False).returncode == 0


def has_zstd():
    return shutil.which("zstd") is not None


class DataCase(AdditionsCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = read_lines(cls.home / "sft_train.jsonl")
        cls.write("pairs.jsonl", [{"prompt": row["prompt"], "chosen": row["response"], "rejected": row["response"][:-1]}
                                  for row in cls.rows[:200]])
        result = cls.neap("train", *SFT, "trainer.default_local_dir=out/start")
        assert result.returncode == 0, result.stderr

    @classmethod
    def environment(cls, **more):
        return neap_program.environment(XDG_CACHE_HOME=str(cls.base / "cache"), **more)

    @classmethod
    def neap(cls, *words, **more):
        return neap_program.run(cls.path, *words, "device.kind=cpu", "device.memory=256MiB", cwd=cls.home, env=cls.environment(**more))

    def train(self, out, *words, expect=0, **more):
        result = self.neap("train", *words, f"trainer.default_local_dir=out/{out}", **more)
        self.assertEqual(result.returncode, expect, result.stderr)
        return result

    @classmethod
    def chat_model(cls):
        """The overrides that train a model with a chat template."""
        if not (cls.home / "chat").exists():
            shutil.copytree(cls.home / "out/start/latest/actor", cls.home / "chat")
            (cls.home / "chat/tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|end|>"}))
        return ["actor_rollout_ref.model.path=chat", "data.max_prompt_length=16", "data.val_files=[]"]

    @staticmethod
    def with_tools(row, tools):
        text = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][0]["content"]
        return {**row, "prompt": [{"role": "user", "content": text}], "tools": tools}

    @staticmethod
    def with_text(row):
        text = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][0]["content"]
        return {**row, "prompt": f"7+3+{text}", "tools": "a text prompt has no template: nothing reads this"}

    def metrics(self, out):
        return steady(read_lines(self.home / "out" / out / "metrics.jsonl"))

    def assert_same(self, out, other="start"):
        self.assertEqual(self.metrics(out), self.metrics(other), out)

    def cached(self):
        folder = self.base / "cache" / "neap" / "data"
        return sorted(path for path in folder.glob("*.rows")) if folder.exists() else []
