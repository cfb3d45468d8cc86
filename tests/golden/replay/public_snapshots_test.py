#!/usr/bin/env python3
"""bench/replay/public_snapshots.py with a list of two snapshots: figures are kept, compared, and missing files are named.

Usage: public_snapshots_test.py SOURCE_DIR NEAP
"""
import hashlib
import json
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

ROOT, NEAP = pathlib.Path(sys.argv[1]), sys.argv[2]
BASE, MIB = 0x7F0000000000, 2**20


def snapshot(events):
    """A block of 1 MiB of a segment of 20 MiB, with or without the events that made it."""
    block = {"address": BASE, "size": 2 * MIB, "requested_size": 2 * MIB, "state": "active_allocated", "frames": []}
    rest = {"address": BASE + 2 * MIB, "size": 18 * MIB, "requested_size": 0, "state": "inactive", "frames": []}
    segment = {"device": 0, "address": BASE, "total_size": 20 * MIB, "allocated_size": 2 * MIB, "active_size": 2 * MIB, "stream": 0,
               "segment_type": "large", "blocks": [block, rest], "frames": []}
    made = [{"action": action, "addr": BASE, "size": size, "stream": 0, "time_us": 1, "frames": []}
            for action, size in (("segment_alloc", 20 * MIB), ("alloc", 2 * MIB))]
    return pickle.dumps({"segments": [segment], "device_traces": [made if events else []]}, protocol=4)


class PublicSnapshots(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.files, self.list = pathlib.Path(folder.name) / "files", pathlib.Path(folder.name) / "list.jsonl"
        self.files.mkdir()
        for name in ("whole", "bare"):
            content = snapshot(name == "whole")
            (self.files / name).write_bytes(content)
            line = {"repository": "someone/something", "commit": "0" * 40, "path": name, "sha256": hashlib.sha256(content).hexdigest()}
            with self.list.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def run_script(self, *words, where="--from"):
        return subprocess.run([sys.executable, ROOT / "bench/replay/public_snapshots.py", NEAP, where, self.files, "--list", self.list, *words],
                              capture_output=True, text=True)

    def rows(self):
        return [json.loads(line) for line in self.list.read_text().splitlines()]

    def test_written_figures_are_compared(self):
        self.assertEqual(self.run_script("--write").returncode, 0)
        head, whole, bare = self.rows()
        self.assertIn("date", head)
        self.assertEqual([whole[key] for key in ("history", "allocs_equal", "segments_equal", "peak_reserved")], ["complete", 1, 1, 20 * MIB])
        self.assertEqual(bare["history"], "none")
        self.assertEqual(self.run_script().returncode, 0)
        whole["peak_reserved"] += 1
        self.list.write_text("".join(json.dumps(line) + "\n" for line in (head, whole, bare)))
        again = self.run_script()
        self.assertEqual(again.returncode, 1)
        self.assertIn(f"someone/something/whole: peak_reserved is {20 * MIB}, was {20 * MIB + 1}", again.stdout)

    def test_a_missing_file_is_named_and_nothing_is_written(self):
        (self.files / "whole").write_bytes(b"another file")
        before = self.list.read_text()
        done = self.run_script("--write")
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no file with SHA-256", done.stderr)
        self.assertIn("1 of 2 snapshots replayed", done.stdout)
        self.assertEqual(self.list.read_text(), before)

    def test_a_cache_needs_no_network(self):
        for file in list(self.files.iterdir()):
            file.rename(self.files / hashlib.sha256(file.read_bytes()).hexdigest())
        self.assertEqual(self.run_script("--write", where="--cache").returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
