"""Trainings with the stages of a pipeline beside those of one rank, for the tests beside it."""
import json
import pathlib

import launch

from rank_case import FILES, RankCase, ZERO_BUBBLE
from train_process_test import REWARD, SFT  # noqa: E402

STAGES = "parallel.pipeline_model_parallel_size={}"
CHUNKS = "parallel.virtual_pipeline_model_parallel_size={}"
TENSOR = "parallel.tensor_model_parallel_size=2"


class PipelineCase(RankCase):
    BLOCKS = 5

    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        cls.write_model("model", num_hidden_layers=cls.BLOCKS, tie_word_embeddings=True)
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 2")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2")
        (cls.home / "sft.toml").write_text(sft)
        (cls.home / "reward.toml").write_text(REWARD.replace("per_gpu = 4", "per_gpu = 2"))
        dpo = REWARD.replace('"reward"', '"dpo"').replace("per_gpu = 4", "per_gpu = 1").replace("out/reward", "out/dpo")
        (cls.home / "dpo.toml").write_text(dpo)

    @classmethod
    def write_model(cls, name, **changes):
        config = json.loads((cls.home / "model" / "config.json").read_text())
        folder = cls.home / name
        folder.mkdir(exist_ok=True)
        for file in (cls.home / "model").iterdir():
            if file.name != "config.json" and not (folder / file.name).exists():
                (folder / file.name).write_bytes(file.read_bytes())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    @staticmethod
    def schedule(chunks=1, zero_bubble=False):
        return [CHUNKS.format(chunks)] * (chunks > 1) + [ZERO_BUBBLE] * zero_bubble

    def assert_stages_are_one_rank(self, name, stages, *words, chunks=1, zero_bubble=False, replicas=1, step=2, files=FILES, task="sft", exact=True):
        one, divided = f"{name}-1", f"{name}-{stages}" + (f"x{chunks}" if chunks > 1 else "")
        if not (self.home / "out" / one).exists():
            self.run_ranks(replicas, one, *words, task=task)
        self.run_ranks(replicas * stages, divided, STAGES.format(stages), *words, *self.schedule(chunks, zero_bubble), task=task)
        self.assert_same_files(one, divided, step, files)
        self.assertEqual(self.metrics(f"out/{one}"), self.metrics(f"out/{divided}"))
        if exact:
            self.assert_ranks_are_as_planned(divided, replicas * stages)
        return one, divided
