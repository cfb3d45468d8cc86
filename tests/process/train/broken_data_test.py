#!/usr/bin/env python3
"""`neap train` on data that is broken, that changes, or that has no room. usage: FILE NEAP"""
import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import unittest

import neap_program
from additions_case import main
from data_case import DataCase, has_zstd, SFT

BROKEN_ROWS = [(b'{"prompt": "1+1=", "response": 2}', "is number"), (b'["1+1=", "2"]', "is array"), (b'{"prompt": "1+1=", ', "not valid JSON"),
               (b'{"prompt": "1+1=", "response": "\xff"}', "\\xff"), (b'{"prompt": "1+1=", "response": null}', "is missing"),
               (b'{"prompt": "1+1=", "response": ""}', "the text is empty"), (b'{"response": "2"}', "is missing")]


class Hostile(DataCase):
    def test_whatever_is_wrong_with_a_row_is_exit_code_2(self):
        for row, part in BROKEN_ROWS:
            (self.home / "bad.jsonl").write_bytes(b'{"prompt": "1+1=", "response": "2"}\n' + row + b"\n")
            result = self.train("bad", *SFT, "data.train_files=bad.jsonl", expect=2)
            self.assertIn("bad.jsonl:2", result.stderr)
            self.assertIn(part, result.stderr)
        for text, part in (("[\n{}]".encode(), "jq -c '.[]'"), (json.dumps(self.rows[0]).encode("utf-16"), "is UTF-16")):
            (self.home / "bad.jsonl").write_bytes(text)
            self.assertIn(part, self.train("bad", *SFT, "data.train_files=bad.jsonl", expect=2).stderr)
        self.train("bad", *SFT, "data.train_files=missing.jsonl", expect=2)

    def test_broken_and_hostile_files_are_one_error(self):
        packed = gzip.compress((self.home / "sft_train.jsonl").read_bytes())
        (self.home / "cut.gz").write_bytes(packed[:-20])
        (self.home / "garbage.gz").write_bytes(packed + b"garbage")
        with gzip.open(self.home / "long.gz", "wb", compresslevel=9) as out:
            out.write(b'{"prompt": "1+1=", "response": "2"}\n{"prompt": "')
            for _ in range(64):
                out.write(b"1" * (16 << 20))
        with (self.home / "long.jsonl").open("wb") as out:
            out.write(b'{"prompt": "1+1=", "response": "2"}\n{"prompt": "')
            out.truncate(1 << 30)
        (self.home / "hole.jsonl").write_bytes(b'{"prompt": "1+1=", "response": "2"}\n')
        os.truncate(self.home / "hole.jsonl", 1 << 42)
        broken = [("hole.jsonl", "hole: write or copy it again"), ("cut.gz", "cut short"), ("garbage.gz", "is not valid gzip"), ("long.gz", "long.gz:2"), ("long.jsonl", "hole: write or copy it again")]
        if has_zstd():
            subprocess.run(["zstd", "-q", self.home / "sft_train.jsonl", "-o", self.home / "cut.zst"], check=True)
            os.truncate(self.home / "cut.zst", (self.home / "cut.zst").stat().st_size // 2)
            broken.append(("cut.zst", "cut short"))
        for name, part in broken:
            result = self.train("hostile", *SFT, f"data.train_files={name}", expect=2)
            self.assertIn(part, result.stderr)
            self.assertEqual(len([line for line in result.stderr.splitlines() if "neap: " in line and name in line]), 1, result.stderr)
            self.assertFalse((self.home / "out" / "hostile" / "metrics.jsonl").exists())

    def test_a_killed_and_a_second_process_share_the_cache(self):
        # Large enough that encoding takes a second or more.
        with (self.home / "large.jsonl").open("w") as out:
            for turn in range(120):
                for row in self.rows:
                    out.write(json.dumps(dict(row, note=f"{turn}")) + "\n")
        disk = [self.path, "train", *SFT, "device.kind=cpu", "device.memory=256MiB", "data.train_files=large.jsonl", "data.rows_in_memory=0B",
                "data.cache_dir=shared"]
        start = lambda out: neap_program.start(*disk, f"trainer.default_local_dir=out/{out}", cwd=self.home, env=self.environment())
        killed = start("killed")
        neap_program.wait_for(killed, lambda: list((self.home / "shared").glob("*.rows.tmp-*")))
        killed.kill()
        killed.communicate()
        runs = [start("one"), start("two")]
        for run in runs:
            _, errors = run.communicate(timeout=900)
            self.assertEqual(run.returncode, 0, errors)
        self.assert_same("one", "two")
        self.assertEqual(len(list((self.home / "shared").glob("*.rows"))), 1)
        self.assertEqual(list((self.home / "shared").glob("*.rows.tmp-*")), [])

    def start_with_rows_on_disk(self, out, *words):
        return neap_program.start(self.path, "train", *SFT, "device.kind=cpu", "device.memory=256MiB", "data.rows_in_memory=0B",
                                  f"trainer.default_local_dir=out/{out}", *words, cwd=self.home, env=self.environment())

    def logged(self, out):
        return neap_program.logged_steps(self.home / "out" / out)

    def test_a_file_that_changes_while_it_is_read_is_one_error(self):
        with (self.home / "growing.jsonl").open("w") as out:
            for turn in range(120):
                for row in self.rows:
                    out.write(json.dumps(dict(row, note=f"{turn}")) + "\n")
        words = ("growing", "data.train_files=growing.jsonl", "data.cache_dir=growing")
        process = self.start_with_rows_on_disk(*words)
        neap_program.wait_for(process, lambda: list((self.home / "growing").glob("*.rows.tmp-*")))
        with (self.home / "growing.jsonl").open("a") as out:
            out.write('{"prompt": "1+')  # as another program writes it
        result = neap_program.outcome(process)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("growing.jsonl changed while it was read", result.stderr)
        self.assertEqual(list((self.home / "growing").glob("*.rows*")), [])
        self.assertFalse((self.home / "out" / "growing" / "metrics.jsonl").exists())

    LONGER = "trainer.total_training_steps=40"

    def whole(self):
        """A run of so many steps that nothing disturbs."""
        if not (self.home / "out/whole").exists():
            self.train("whole", *SFT, self.LONGER)
        return "whole"

    def test_a_data_file_that_changes_while_the_run_trains_is_not_read_again(self):
        for name, words in (("memory", ["data.rows_in_memory=256MiB"]), ("disk", ["data.cache_dir=steady"])):
            shutil.copy(self.home / "sft_train.jsonl", self.home / "moving.jsonl")
            process = self.start_with_rows_on_disk(f"moving-{name}", self.LONGER, "data.train_files=moving.jsonl", *words)
            neap_program.wait_for(process, lambda out=f"moving-{name}": self.logged(out) > 0)
            self.write("moving.jsonl", self.rows[:40])
            (self.home / "moving.jsonl").unlink()
            result = neap_program.outcome(process)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assert_same(f"moving-{name}", self.whole())

    def test_rows_that_cannot_be_read_lose_no_step(self):
        """The disk of the encoded rows fails while the run trains."""
        words = ("broken", self.LONGER, "data.cache_dir=broken")
        process = self.start_with_rows_on_disk(*words)
        neap_program.wait_for(process, lambda: self.logged("broken") > 0)
        (file,) = (self.home / "broken").glob("*.rows")
        os.truncate(file, 100)
        result = neap_program.outcome(process)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, r"Stopped after \d+ of 40 steps: .*\.rows cannot be read. The steps are saved in ")
        (saved,) = (self.home / "out" / "broken").glob("global_step_*")
        self.assertEqual(int(saved.name.split("_")[-1]), self.logged("broken"), "the step before the failure is there")
        result = neap_program.outcome(self.start_with_rows_on_disk(*words))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("is made anew", result.stderr)
        self.assert_same("broken", self.whole())

    @neap_program.needs_namespaces
    def test_a_full_file_system_is_one_error_and_can_be_gone_on_from(self):
        """The encoded rows have a file system of 24 KiB; nobody else sees it."""
        self.train("kept", *SFT, "trainer.total_training_steps=1")
        script = ('mkdir -p small && mount -t tmpfs -o size=24k tmpfs small && "$@"; code=$?; ls small >left; mount -o remount,size=1m small && '
                  '"$@" && exit $code')
        result = subprocess.run([*neap_program.NAMESPACE, "sh", "-c", script, "sh", self.path, "train", *SFT, "device.kind=cpu", "device.memory=256MiB",
                                 "data.rows_in_memory=0B", "data.cache_dir=small", "trainer.default_local_dir=out/kept"],
                                cwd=self.home, env=self.environment(), capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.count("No space left on device"), 1, result.stderr)
        self.assertIn("data.cache_dir names the folder of encoded rows", result.stderr)
        self.assertNotIn(".rows", (self.home / "left").read_text())
        self.assertIn("Resuming from", result.stderr)
        self.assert_same("kept")

    @neap_program.needs_namespaces
    def test_a_file_system_that_is_full_for_a_while_costs_no_step(self):
        """It is full from the first steps until the logs and the trace have said so. Only the trace ends there."""
        script = ('mkdir -p room && mount -t tmpfs -o size=16m tmpfs room || exit 9\n"$@" 2>said & run=$!\n'
                  'until [ -s room/out/metrics.jsonl ]; do kill -0 $run || exit 8; sleep 0.01; done\nhead -c 16m /dev/zero >room/fill 2>/dev/null\n'
                  'until grep -q "tried again" said && grep -q "recording stopped" said; do kill -0 $run || exit 7; sleep 0.01; done\n'
                  'rm room/fill; wait $run; code=$?; cp room/out/*.jsonl room/out/report.html . && ls room/out >left; exit $code')
        result = subprocess.run([*neap_program.NAMESPACE, "sh", "-c", script, "sh", self.path, "train", *SFT, "trainer.total_training_steps=400",
                                 "data.train_batch_size=8", "data.micro_batch_size_per_gpu=8", "device.kind=cpu", "device.memory=256MiB",
                                 "trainer.default_local_dir=room/out"], cwd=self.home, env=self.environment(), capture_output=True, text=True, timeout=300,
                                check=False)
        said = (self.home / "said").read_text()
        self.assertEqual(result.returncode, 0, result.stderr + said)
        self.assertIn("No whole trace: ", said)
        steps = {name: [row["step"] for row in neap_program.read_lines(self.home / name)] for name in ("metrics.jsonl", "phases.jsonl")}
        self.assertEqual(steps["metrics.jsonl"], list(range(1, 401)))
        self.assertLessEqual(set(range(1, 401)), set(steps["phases.jsonl"]))
        self.assertIn("global_step_400", (self.home / "left").read_text())

    def test_a_log_that_stays_unwritable_ends_with_a_checkpoint(self):
        """Its name leads to a device that is always full; the other files have room."""
        for name in ("metrics.jsonl", "phases.jsonl", "validation.jsonl"):
            with self.subTest(name):
                out = self.home / "out" / f"full-{name}"
                out.mkdir(parents=True)
                (out / name).symlink_to("/dev/full")
                words = (*SFT, "data.val_files=sft_train.jsonl", "trainer.test_freq=1", "trainer.save_freq=-1", f"trainer.default_local_dir=out/{out.name}")
                result = self.train(out.name, *words, "trainer.total_training_steps=3", expect=1)
                self.assertEqual(result.stderr.count("Records are kept in memory and tried again"), 1, result.stderr)
                (error,) = [line for line in result.stderr.splitlines() if "error:" in line]
                self.assertRegex(error, rf"Stopped after 3 of 3 steps: Cannot write .*{name}: No space left on device. "
                                 r"The steps are saved in \S*global_step_3, logs are not complete; the same command resumes from there")
                self.assertTrue((out / "global_step_3/actor/model.safetensors").exists())
                for other in {"metrics.jsonl", "validation.jsonl"} - {name}:
                    self.assertEqual(neap_program.read_lines(out / other)[-1]["step"], 3)
                (out / name).unlink()
                again = self.train(out.name, *words, "trainer.total_training_steps=4")
                self.assertRegex(again.stderr, "Resuming from .*global_step_3")
                self.assertEqual([row["step"] for row in neap_program.read_lines(out / "metrics.jsonl")], [4] if name == "metrics.jsonl" else [1, 2, 3, 4])

    def test_a_full_disk_is_one_error(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))
        result = neap_program.run(self.path, "train", *SFT, "device.kind=cpu", "device.memory=256MiB", "data.rows_in_memory=0B", "data.cache_dir=full",
                             "trainer.default_local_dir=out/full", cwd=self.home, env=self.environment(), preexec_fn=limit)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("data.cache_dir", result.stderr)
        self.assertEqual(list((self.home / "full").glob("*.rows*")), [])


if __name__ == "__main__":
    main()
