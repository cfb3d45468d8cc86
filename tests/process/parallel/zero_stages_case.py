"""Trainings with stages of a pipeline whose replicas slice gradients and weights, for the tests beside it."""
from rank_case import FILES, SIZE, STAGES
from rollout_case import RolloutCase
from train_process_test import MODEL, REWARD, SFT  # noqa: E402

ZERO = "parallel.zero_stage={}"
SHARDS = "parallel.zero_shard_size={}"
TWO = f"{STAGES}=2"
ADAPTER = ("actor/adapter_model.safetensors", FILES[1])


class ZeroStagesCase(RolloutCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 2")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace("save_freq = 3", "save_freq = -1")
        sft = sft.replace('path = "model"', 'path = "untied"')
        (cls.home / "pairs.toml").write_text(REWARD.replace("per_gpu = 4", "per_gpu = 1").replace("total_training_steps = 3", "total_training_steps = 2"))
        (cls.home / "stages.toml").write_text(sft)
        for name, tied in (("untied", False), ("tied", True)):
            cls.add_model(name, dict(MODEL, num_hidden_layers=5, tie_word_embeddings=tied))

    def assert_stages_are_replicas(self, name, replicas, *words, stages=2, schedule=(), tensor=1, files=FILES, step=2, task="stages", zero=(2, 3)):
        """The bits of ZeRO-2 without stages, in which each micro-batch is summed over ranks, too."""
        size = (f"{SIZE}={tensor}",) if tensor > 1 else ()
        flat = f"{name}-flat"
        if not (self.home / "out" / flat).exists():
            self.run_ranks(replicas * tensor, flat, ZERO.format(2), *size, *words, task=task)
        for stage in zero:
            folder = f"{name}-p{stages}-z{stage}"
            with self.subTest(folder):
                self.run_ranks(stages * replicas * tensor, folder, f"{STAGES}={stages}", *schedule, ZERO.format(stage), *size, *words, task=task)
                self.assert_same_files(flat, folder, step, files)
                self.assertEqual(self.metrics(f"out/{flat}"), self.metrics(f"out/{folder}"))
                self.assertEqual(self.validations(f"out/{flat}"), self.validations(f"out/{folder}"))
                self.assert_ranks_are_as_planned(folder, stages * replicas * tensor)
