#!/usr/bin/env python3
"""Ranks that fail, die or stop at a call of their communicator. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN FAULTY_MPI

Every rank ends in bounded time, with one message; the same command resumes, and its files are those of a run without a fault.
NEAP_TEST_SLOW=1: at many more calls.
"""
import os
import pathlib
import shutil
import signal
import sys
import time
import unittest

import launch
import neap_program

from neap_program import SLOW
from rank_case import FILES, SIZE, STAGES, RankCase
from train_process_test import SFT  # noqa: E402

ZERO = "parallel.zero_stage"
FAULTY = ""
TIMEOUT = 10  # seconds of waits; a busy machine needs some of them
MESHES = {"zero3": (3, f"{ZERO}=3"), "zero1-parts": (4, f"{ZERO}=1", f"{SIZE}=2"), "stages": (2, f"{STAGES}=2")}


class Faults(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 1")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 3").replace("save_freq = 3", "save_freq = 1")
        (cls.home / "sft.toml").write_text(sft)
        # The program looks for its libraries beside itself first.
        program = cls.home / "bin" / "neap"
        program.parent.mkdir()
        try:
            os.link(pathlib.Path(launch.NEAP).resolve(), program)
        except OSError:  # another disk
            shutil.copy(launch.NEAP, program)
        shutil.copy(FAULTY, program.parent / "libneap_mpi.so")
        cls.program, cls.real = program, pathlib.Path(launch.NEAP).resolve().parent.parent / "lib" / "libneap_mpi.so"
        (cls.home / "lib").symlink_to(cls.real.parent)

    def train(self, mesh, folder, **environment):
        ranks, *words = MESHES[mesh]
        return launch.run(ranks, str(self.program), "train", "sft.toml", f"trainer.default_local_dir=out/{folder}",
                          f"actor_rollout_ref.nccl_timeout={TIMEOUT}", "trainer.max_ckpt_to_keep=1", *words, cwd=self.home, timeout=120,
                          NEAP_TEST_MPI=str(self.real), **environment)

    def calm(self, mesh):
        """A run without a fault: how many calls each rank makes."""
        calls = self.home / "calls" / mesh
        if not calls.exists():
            calls.mkdir(parents=True)
            result = self.train(mesh, f"calm-{mesh}", NEAP_TEST_CALLS=str(calls))
            self.assertEqual(result.returncode, 0, result.stderr)
        return [int((calls / str(rank)).read_text()) for rank in range(MESHES[mesh][0])]

    def assert_ends_and_resumes(self, mesh, rank, call, kind):
        folder = f"{mesh}-{kind}-{rank}-{call}"
        with self.subTest(folder):
            start = time.monotonic()
            result = self.train(mesh, folder, NEAP_TEST_FAULT=f"{rank}:{call}:{kind}")
            seconds = time.monotonic() - start
            self.assertNotEqual(result.returncode, 0, result.stderr)
            self.assertLess(seconds, TIMEOUT + 30, result.stderr)
            errors = [line for line in result.stderr.splitlines() if "error: " in line]
            if kind == "kill":  # mpirun tells it
                self.assertEqual(errors, [])
                self.assertIn(f"process rank {rank}", result.stderr)
                self.assertIn("signal 9", result.stderr)
                self.assertNotIn("Stopping after this step, with a checkpoint", result.stderr)
            else:
                self.assertEqual(len(errors), 1, result.stderr)
                what = rf"MPI failed in \w+ on rank {rank}: " if kind == "fail" else rf"waited {TIMEOUT} s in \w+ for rank {rank} "
                self.assertRegex(errors[0], what)
            again = self.train(mesh, folder)
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertEqual(self.metrics(f"out/{folder}"), self.metrics(f"out/calm-{mesh}"))
            self.assert_same_files(folder, f"calm-{mesh}", step=3)

    def of_many(self, mesh, rank, number):
        """So many of a rank's calls, the first and the last among them."""
        calls = self.calm(mesh)[rank]
        number = 25 if SLOW else number
        return [1 + i * (calls - 1) // (number - 1) for i in range(number)]

    def test_a_call_that_fails(self):
        for mesh, rank in (("zero3", 0), ("zero1-parts", 3), ("stages", 1)):
            for call in self.of_many(mesh, rank, 4):
                self.assert_ends_and_resumes(mesh, rank, call, "fail")

    def test_a_rank_that_is_killed(self):
        for mesh, rank in (("zero3", 2), ("stages", 0)):
            for call in self.of_many(mesh, rank, 3):
                self.assert_ends_and_resumes(mesh, rank, call, "kill")

    def test_a_rank_that_stops(self):
        for mesh, rank in (("zero3", 0), ("zero1-parts", 3), ("stages", 1)):
            for call in self.of_many(mesh, rank, 3):
                self.assert_ends_and_resumes(mesh, rank, call, "stop")

    def test_ranks_that_are_stopped_together_go_on(self):
        """Rank 0 waits for rank 1 when both stop, and wakes first."""
        timeout, out = 5, self.home / "out/stopped"
        process = launch.start(2, launch.NEAP, "train", "sft.toml", "trainer.default_local_dir=out/stopped", f"actor_rollout_ref.nccl_timeout={timeout}",
                               "trainer.total_training_steps=1000", "trainer.save_freq=-1", cwd=self.home)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(out) >= 1)
        ranks = [launch.rank_process(process.pid, rank) for rank in (0, 1)]
        for rank, sent, seconds in ((1, signal.SIGSTOP, 0.5), (0, signal.SIGSTOP, timeout), (0, signal.SIGCONT, 0.5), (1, signal.SIGCONT, 0)):
            os.kill(ranks[rank], sent)
            time.sleep(seconds)
        steps = neap_program.logged_steps(out)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(out) >= steps + 2)
        process.send_signal(signal.SIGINT)
        result = neap_program.outcome(process, 120)
        self.assertIn("Interrupted after step", result.stderr)
        self.assertNotIn("waited", result.stderr)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN, FAULTY = sys.argv[1:6]
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
