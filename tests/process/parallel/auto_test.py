#!/usr/bin/env python3
"""`neap train` and `neap plan` with degrees that the plan chooses. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN"""
import json
import pathlib
import sys
import unittest

import launch

from rank_case import FILES, RankCase
from train_process_test import SFT  # noqa: E402

KEYS = ("pipeline_model_parallel_size", "tensor_model_parallel_size", "sequence_parallel", "context_parallel_size", "cp_comm_type",
        "zero_stage", "zero_shard_size", "virtual_pipeline_model_parallel_size", "pipeline_parallel_schedule")
AUTO = tuple(f"parallel.{key}=auto" for key in KEYS if key != "sequence_parallel")
# Whole models do not fit; nothing but dividing them is open.
DIVIDED = (*AUTO[:2], "parallel.context_parallel_size=1", "parallel.cp_comm_type=all_gather", "parallel.zero_stage=0",
           "parallel.zero_shard_size=0", *AUTO[-2:])
ALL_STAYS = ("memory.offload=none", "memory.optimizer_offload=none")


class Auto(RankCase):
    @classmethod
    def setUpClass(cls):
        cls.make_home(pathlib.Path(launch.REVIEWS))
        sft = SFT.replace("train_batch_size = 16", "train_batch_size = 12").replace("per_gpu = 8", "per_gpu = 1")
        sft = sft.replace("total_training_steps = 8", "total_training_steps = 2").replace('["sft_val.jsonl"]', "[]")
        (cls.home / "sft.toml").write_text(sft)

    def degrees(self, folder, step=2):
        """What a run was saved with, as words of a command."""
        config = json.loads((self.home / "out" / folder / f"global_step_{step}" / "trainer.json").read_text())["config"]
        values = ((key, config["parallel"][key]) for key in KEYS)
        return [f"parallel.{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values]

    def plan(self, ranks, *words, code=0):
        done = launch.run(1, launch.NEAP, "plan", "sft.toml", *words, f"trainer.n_gpus_per_node={ranks}", cwd=self.home)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def least(self, ranks, *words):
        """Of all ways to divide the model, and of whole ones, with all states: MiB."""
        choice = json.loads(self.plan(ranks, *words, *ALL_STAYS, "--json").stdout)["parallel_sizes"]
        peaks = [(each["peak"], each["parallel_sizes"]) for each in choice["candidates"] if each["fits"]]
        whole = min(peak for peak, degrees in peaks if degrees["data"] == ranks and degrees["zero"] == 0)
        return min(peak for peak, _ in peaks) / 2**20, whole / 2**20

    def test_a_run_is_that_with_the_degrees_written_out(self):
        for ranks in (2, 4):
            least, whole = self.least(ranks, *DIVIDED)
            self.assertLess(least, whole)
            chosen = set()
            for name, mib, keys in (("roomy", 256, AUTO), ("tight", (least + whole) / 2, DIVIDED)):
                with self.subTest(ranks=ranks, memory=name):
                    words = (f"device.memory={mib:.1f}MiB", *ALL_STAYS)
                    auto, written = f"{name}-{ranks}-auto", f"{name}-{ranks}-written"
                    run = self.run_ranks(ranks, auto, *keys, *words)
                    degrees = self.degrees(auto)
                    self.assertEqual(run.stderr.count("neap: parallel: "), 1, run.stderr)
                    self.assertIn("the fastest of ", run.stderr)
                    self.assertNotIn("auto", " ".join(degrees))
                    self.run_ranks(ranks, written, *degrees, *words)
                    self.assert_same_files(auto, written)
                    self.assertEqual(self.metrics(f"out/{auto}"), self.metrics(f"out/{written}"))
                    planned = json.loads(self.plan(ranks, *keys, *words, "--json").stdout)
                    self.assertEqual(planned["parallel_sizes"]["overrides"], [d for d in degrees if d not in keys])
                    self.assertLessEqual(planned["peak"], mib * 2**20)
                    chosen.add(tuple(degrees))
            self.assertEqual(len(chosen), 2, chosen)

    def test_a_run_that_resumes_keeps_them(self):
        least, whole = self.least(2, *DIVIDED)
        tight = f"device.memory={(least + whole) / 2:.1f}MiB"
        self.run_ranks(2, "resumed", *DIVIDED, *ALL_STAYS, tight, "trainer.total_training_steps=1")
        before = self.degrees("resumed", 1)
        self.run_ranks(2, "other", *DIVIDED, *ALL_STAYS, "trainer.total_training_steps=1")
        self.assertNotEqual(before, self.degrees("other", 1))
        run = self.run_ranks(2, "resumed", *DIVIDED, *ALL_STAYS)
        self.assertIn("as in the checkpoint that the run resumes from", run.stderr)
        self.assertEqual(before, self.degrees("resumed"))
        # On other ranks they are chosen again.
        run = self.run_ranks(1, "resumed", *DIVIDED, *ALL_STAYS, "trainer.total_training_steps=3")
        self.assertIn("the fastest of 1 configurations", run.stderr)
        self.assertEqual(self.degrees("resumed", 3)[:2], [f"parallel.{key}=1" for key in KEYS[:2]])

    def test_a_row_that_no_rank_holds_is_one_for_several(self):
        packed = (*AUTO, "data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=40")  # of rows of 64
        self.run_ranks(2, "long-auto", *packed, "trainer.total_training_steps=1")
        degrees = self.degrees("long-auto", 1)
        self.assertIn("parallel.context_parallel_size=2", degrees)
        run = self.run_ranks(2, "long-auto", *packed)
        self.assertIn("as in the checkpoint that the run resumes from", run.stderr)
        self.assertEqual(degrees, self.degrees("long-auto"))
        self.run_ranks(2, "long-written", *degrees, *packed[len(AUTO):])
        self.assert_same_files("long-auto", "long-written")
        self.assertIn("max_token_len_per_gpu is 40; it has to be", self.plan(1, *packed, code=2).stderr)

    def test_where_nothing_chooses_it_says_so(self):
        done = launch.run(1, launch.NEAP, "plan", "--formulas", "sft.toml", AUTO[1], cwd=self.home)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f'What is "auto" has its default here: {AUTO[1].split("=")[0]}. ', done.stderr)

    def test_what_does_not_fit_is_told_once(self):
        words = (*AUTO, *ALL_STAYS, "device.memory=1MiB", "trainer.default_local_dir=out/none")
        for ranks in (1, 2):
            done = launch.run(ranks, launch.NEAP, "train", "sft.toml", *words, cwd=self.home)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertEqual(done.stderr.count("fits into 1 MiB per rank. The nearest is pipe"), 1, done.stderr)
        self.assertIn("The nearest is", self.plan(2, *words, "--json", code=3).stderr)

    def test_fit_chooses_what_nobody_set(self):
        least, _ = self.least(2, *AUTO)
        done = launch.run(1, launch.NEAP, "plan", "sft.toml", "--ranks", "2", "--fit", f"{1.2 * least:.1f}MiB", "--json", cwd=self.home)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertLessEqual(found["peak"], 1.2 * least * 2**20)
        # All but replicas of slices, chunks and zero bubble, which take more memory.
        self.assertEqual([words.split("=")[0] for words in found["parallel_sizes"]["overrides"]], [f"parallel.{key}" for key in KEYS[:-3]])
        # Where no way fits as the job is, the nearest for which changes are enough.
        long = ("data.max_response_length=100", "data.micro_batch_size_per_gpu=6")
        done = launch.run(1, launch.NEAP, "plan", "sft.toml", *long, "--ranks", "2", "--fit", "12MiB", "--json", cwd=self.home)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertFalse(any(each["fits"] for each in found["parallel_sizes"]["candidates"]))
        self.assertLessEqual(found["peak"], 12 * 2**20)
        self.assertIn("data.micro_batch_size_per_gpu=3", found["plans"][0]["overrides"])
        done = launch.run(1, launch.NEAP, "plan", "sft.toml", *long, "--ranks", "2", "--fit", "4MiB", cwd=self.home)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("fits into 4 MiB; the least that was found is", done.stderr)
        text = self.plan(2, *AUTO).stdout
        self.assertIn("Parallel configurations for 2 ranks: ", text)
        self.assertIn("Chosen: parallel.pipeline_model_parallel_size=", text)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
