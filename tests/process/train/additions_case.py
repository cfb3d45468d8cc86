"""A model that adds a little, its data, and the program in their folder, for the tests beside it."""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

import neap_program
import resident

UNSTEADY = ("timing_s/", "perf/", "memory/")
BATCH = ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
         "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32", "device.kind=cpu",
         "device.memory=256MiB"]
SMALL = [*BATCH, "trainer.total_training_steps=4"]


def steady(lines):
    return [{k: v for k, v in line.items() if not k.startswith(UNSTEADY)} for line in lines]


class AdditionsCase(unittest.TestCase):
    """`home`: the data and a model without training, in the folder `base`, which goes with the tests."""
    path = "neap"  # of the program; main() sets it

    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="neap-additions-"))
        cls.home = cls.base / "home"
        neap_program.make_additions(cls.home)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    @classmethod
    def write(cls, name, rows):
        (cls.home / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


class TrainedCase(AdditionsCase):
    """After supervised training: the model adds a little."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sft_run = cls.neap("train", "sft.toml", "device.kind=cpu")
        assert cls.sft_run.returncode == 0, cls.sft_run.stderr

    @classmethod
    def neap(cls, *words):
        return resident.neap(cls.path, *words, cwd=cls.home)


def main():
    AdditionsCase.path = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
