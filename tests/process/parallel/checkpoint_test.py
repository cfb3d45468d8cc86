#!/usr/bin/env python3
"""Checkpoints whose files all ranks write. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN

Whatever happens to a rank, the newest checkpoint is whole, and the job ends with one message.
"""
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import launch
import neap_program

from rank_case import FILES, OPTIMIZER, SIZE, RankCase
from rank_case import STAGES as PIPE
from train_process_test import MODEL, SFT  # noqa: E402

ZERO = "parallel.zero_stage"
# Of three ranks the second has another folder under the name of the output.
ELSEWHERE = (*neap_program.NAMESPACE, "sh", "-c", 'mount -t tmpfs tmpfs out && exec "$@"', "sh")
# A write over the limit of files fails, instead of ending the process.
LIMITED = ("sh", "-c", 'trap "" XFSZ; exec "$@"', "sh")


class Checkpoints(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 1")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace('["sft_val.jsonl"]', "[]")
        (cls.home / "sft.toml").write_text(sft)
        # A table of 7.7 million elements: pieces of 16 MiB, some of several ranks.
        cls.large = ("actor_rollout_ref.model.path=large", "trainer.save_freq=1")
        cls.add_model("large", dict(MODEL, vocab_size=60_000))

    def start_ranks(self, folder, words, before):
        """One rank for each entry of `before`: the words in front of its command."""
        command = (launch.NEAP, "train", "sft.toml", f"trainer.default_local_dir=out/{folder}", *words)
        each = [word for one in before for word in (":", "-n", "1", *one, *command)]
        # Processes of two user namespaces may not read each other's memory.
        return launch.start(1, launch.MPIRUN, *launch.FLAGS, *each[1:], cwd=self.home, OMPI_MCA_btl_vader_single_copy_mechanism="none")

    def finish(self, process):
        return neap_program.outcome(process, 240)

    def errors(self, result):
        return [line for line in result.stderr.splitlines() if "error:" in line]

    def assert_resumes(self, folder, *words, step):
        result = self.run_ranks(2, folder, *words, f"trainer.total_training_steps={step + 1}")
        self.assertRegex(result.stderr, rf"Resuming from \S*global_step_{step}")
        left = [path.name for path in (self.home / "out" / folder).iterdir()]
        self.assertFalse([name for name in left if "tmp" in name], left)

    @neap_program.needs_namespaces
    def test_ranks_that_do_not_see_the_folder_send_what_they_have(self):
        narrow = [f"{OPTIMIZER}{key}_dtype=bfloat16" for key in ("state", "gradient", "master")]
        cases = {"sliced": (f"{ZERO}=2",), "weights": (f"{ZERO}=3",),
                 "cut": (*self.large, f"{ZERO}=1", "device.dtype=bfloat16", *narrow, "trainer.total_training_steps=1"),
                 "parts": (f"{SIZE}=2",), "stages": (f"{PIPE}=2",)}
        for name, words in cases.items():
            ranks = 2 if name in ("parts", "stages") else 3
            words = (*words, f"data.micro_batch_size_per_gpu={12 // ranks}")
            with self.subTest(name):
                self.run_ranks(ranks, f"{name}-seen", *words)
                (self.home / "out" / f"{name}-sent").mkdir()
                result = self.finish(self.start_ranks(f"{name}-sent", words, [(), ELSEWHERE, ()][:ranks]))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertFalse((self.home / "out" / f"{name}-sent" / "ranks" / "1").exists())
                self.assert_same_files(f"{name}-seen", f"{name}-sent", step=1 if name == "cut" else 2)

    def test_a_rank_that_cannot_write_ends_all_and_the_checkpoint_before_stays(self):
        """Its limit comes when it has its memory, whose pages are files, too."""
        for stage, failing in ((1, 0), (1, 1), (3, 1)):
            folder = f"limited-{stage}-{failing}"
            output = self.home / "out" / folder
            words = (f"{ZERO}={stage}", "trainer.save_freq=1", "memory.offload=none")
            process = self.start_ranks(folder, (*words, "trainer.total_training_steps=1000"), [LIMITED, LIMITED])
            neap_program.wait_for(process, lambda output=output: (output / "global_step_2").exists(), timeout=120)
            start = time.monotonic()
            resource.prlimit(launch.rank_process(process.pid, failing), resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            result = self.finish(process)
            self.assertLess(time.monotonic() - start, 60)
            self.assertEqual(result.returncode, 1, result.stderr)
            (error,) = self.errors(result)
            self.assertRegex(error, r"Cannot write \S*actor/\w+.safetensors: File too large")
            step = int((output / "latest_checkpointed_iteration.txt").read_text())
            self.assertRegex(error, rf"The newest checkpoint is \S*global_step_{step}; the same command resumes from there")
            self.assertEqual("rank 1: " in error, failing == 1, error)
            self.assert_resumes(folder, *words, step=step)

    def test_every_rank_knows_that_the_folder_was_moved(self):
        """One that fails says where the newest checkpoint is."""
        output, moved = self.home / "out/to-move", self.home / "out/mövéd"
        process = self.start_ranks("to-move", (f"{ZERO}=1", "trainer.save_freq=1", "trainer.total_training_steps=1000", "memory.offload=none"),
                                   [LIMITED, LIMITED])
        neap_program.wait_for(process, lambda: (output / "global_step_1").exists(), timeout=120)
        output.rename(moved)
        step = neap_program.logged_steps(moved)
        neap_program.wait_for(process, lambda: neap_program.logged_steps(moved) > step + 1, timeout=120)
        resource.prlimit(launch.rank_process(process.pid, 1), resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        result = self.finish(process)
        self.assertEqual(result.returncode, 1, result.stderr)
        (error,) = self.errors(result)
        step = int((moved / "latest_checkpointed_iteration.txt").read_text())
        self.assertRegex(error, rf"rank 1: .*The newest checkpoint is {re.escape(str(moved.resolve()))}/global_step_{step}; "
                                rf"to resume from there, set trainer.default_local_dir={re.escape(str(moved.resolve()))}")
        self.assertFalse(output.exists())

    def test_a_folder_that_is_removed_during_a_save_is_replaced(self):
        output = self.home / "out/removed"
        process = self.start_ranks("removed", (f"{ZERO}=1", "trainer.save_freq=1", "trainer.total_training_steps=1000"), [(), ()])
        ranks = []
        try:
            neap_program.wait_for(process, lambda: (output / "global_step_1").exists(), timeout=120)
            ranks = [launch.rank_process(process.pid, rank) for rank in (0, 1)]
            neap_program.wait_for(process, lambda: any(output.glob("*.tmp-*")), timeout=120)
            for rank in ranks:
                os.kill(rank, signal.SIGSTOP)
            shutil.rmtree(output)
        finally:
            for rank in ranks:
                os.kill(rank, signal.SIGCONT)
        result = self.finish(process)
        self.assertEqual(result.returncode, 1, result.stderr)
        (error,) = self.errors(result)
        self.assertRegex(error, "out/removed was removed while the run worked in it. The steps are saved in .*; the same command resumes from there")
        self.assertTrue((output / "latest/trainer.json").exists())

    @neap_program.needs_namespaces
    def test_full_disk_is_told_once(self):
        """Whether the weights fit or not; the states do not."""
        (self.home / "out/full").mkdir()
        command = f"{launch.MPIRUN} {' '.join(launch.FLAGS)} -n 2 {launch.NEAP} train sft.toml trainer.default_local_dir=out/full {ZERO}=1"
        for size, file in (("1m", "model"), ("4m", "optimizer")):
            script = f"mount -t tmpfs -o size={size} tmpfs out/full && {command}; echo exit $?; ls out/full"
            result = subprocess.run([*neap_program.NAMESPACE, "sh", "-c", script], cwd=self.home, env=launch.environment(),
                                    capture_output=True, text=True, timeout=240, check=False)
            self.assertIn("exit 1\n", result.stdout, result.stderr)
            (error,) = self.errors(result)
            self.assertRegex(error, rf"Cannot write \S*{file}.safetensors: No space left on device")
            self.assertNotRegex(result.stdout, "global_step|tmp")

    def test_a_rank_killed_while_states_are_written(self):
        words = (*self.large, f"{ZERO}=1")
        for killed in (0, 1):
            folder = f"killed-{killed}"
            process = launch.start(2, launch.NEAP, "train", "sft.toml", f"trainer.default_local_dir=out/{folder}", *words,
                                   "trainer.total_training_steps=100", cwd=self.home)
            output = self.home / "out" / folder
            pattern = re.compile(r"global_step_([2-9]|\d\d)\.tmp-\d+")

            def writes_states():
                names = os.listdir(output) if output.exists() else []
                return any(list((output / name / "actor").glob("optimizer.safetensors.tmp-*")) for name in names if pattern.fullmatch(name))
            neap_program.wait_for(process, writes_states, timeout=120)
            launch.kill_rank(process, killed, 2)
            self.assertNotEqual(process.returncode, 0)
            step = int((output / "latest_checkpointed_iteration.txt").read_text())
            self.assert_resumes(folder, *words, step=step)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
