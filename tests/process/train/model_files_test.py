#!/usr/bin/env python3
"""A run and a plan read each file of a model's folder once. usage: FILE NEAP REVIEWS"""
import collections
import ctypes
import os
import struct

from train_process_test import PPO, TrainCase, main

ACCESS, CLOSED, OPENED = 0x1, 0x10, 0x20  # of inotify; reads between two openings keep them apart
EVENT = "iIII"
DISK = 'memory.allow=["recompute", "offload", "offload_optimizer", "offload_weights", "nvme"]'
ACTOR, JUDGE = "out/sft/latest/actor", "out/reward/latest/reward"
# config.json is parsed, and its text is part of the fingerprint.
ONCE = {"model.safetensors": 1, "config.json": 2}


class Watch:
    """Counts how often files of a folder are opened."""

    def __init__(self, folder):
        libc = ctypes.CDLL(None, use_errno=True)
        self.events = libc.inotify_init1(os.O_NONBLOCK)
        if self.events < 0 or libc.inotify_add_watch(self.events, os.fsencode(folder), ACCESS | CLOSED | OPENED) < 0:
            raise OSError(ctypes.get_errno(), f"Cannot watch {folder}")

    def opened(self):
        count = collections.Counter()
        while True:
            try:
                data = os.read(self.events, 1 << 16)
            except BlockingIOError:
                os.close(self.events)
                return count
            while data:
                _, mask, _, length = struct.unpack_from(EVENT, data)
                begin = struct.calcsize(EVENT)
                if mask & OPENED and length:
                    count[os.fsdecode(data[begin:begin + length].rstrip(b"\0"))] += 1
                data = data[begin + length:]


class ModelFiles(TrainCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home()
        (cls.home / "ppo.toml").write_text(PPO.replace("CEILING", "256MiB"))
        for stage in ("sft", "reward"):
            result = cls.neap("train", f"{stage}.toml", "trainer.total_training_steps=1")
            assert result.returncode == 0, result.stderr

    def opened(self, folders, *words):
        watches = [Watch(self.home / folder) for folder in folders]
        result = self.neap(*words, "trainer.total_training_steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        return [watch.opened() for watch in watches]

    def assert_opened(self, expected, *words, folders=(ACTOR, JUDGE)):
        for folder, count in zip(folders, self.opened(folders, *words)):
            self.assertEqual({name: count[name] for name in expected}, expected, (folder, words))

    def test_training(self):
        self.assert_opened(ONCE, "train", "ppo.toml")

    def test_training_of_an_adapter(self):
        self.assert_opened(ONCE, "train", "ppo.toml", "actor_rollout_ref.model.lora_rank=4", "trainer.default_local_dir=out/adapter")
        # The adapter of that run, which says what it was trained on, with its base.
        adapter = "out/adapter/latest/actor"
        files = {"adapter_model.safetensors": 1}
        words = ("train", "ppo.toml", f"actor_rollout_ref.model.lora_adapter_path={adapter}", "trainer.default_local_dir=out/further")
        for name, count in zip((ACTOR, adapter), self.opened((ACTOR, adapter), *words)):
            expected = files if name == adapter else ONCE
            self.assertEqual({each: count[each] for each in expected}, expected, name)

    def test_training_from_disk(self):
        """Plans ask whether layers can stay in the model's files."""
        self.assert_opened(ONCE, "train", "ppo.toml", DISK, "trainer.default_local_dir=out/disk")

    def test_plan(self):
        """A plan that fits nothing tries many jobs."""
        watch = Watch(self.home / JUDGE)
        result = self.neap("plan", "ppo.toml", DISK, "device.memory=1MiB")
        self.assertEqual(result.returncode, 3, result.stderr)
        count = watch.opened()
        self.assertEqual((count["model.safetensors"], count["config.json"]), (1, 1))


if __name__ == "__main__":
    main()
