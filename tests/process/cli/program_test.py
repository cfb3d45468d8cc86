#!/usr/bin/env python3
"""The program without libtorch, and how it finds the trainer. Usage: program_test.py BUILD_DIR [TORCH_ROOT]

With TORCH_ROOT (a build with the trainer) the installed layout is tried with it, too.
"""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
import neap_program  # noqa: E402

BUILD = Path(sys.argv[1])
TORCH_ROOT = sys.argv[2] if len(sys.argv) > 2 and sys.argv[2] else None
TORCH_VERSION = re.search(r"'([\d.]+)", (Path(TORCH_ROOT) / "torch" / "version.py").read_text())[1] if TORCH_ROOT else None
CLEAN = neap_program.environment(["NEAP_TORCH_ROOT", "NEAP_TRAINER_LIBRARY", "NEAP_HOOK_LIBRARY", "LD_LIBRARY_PATH"])


def run(program, *arguments, **variables):
    return neap_program.run(str(program), *arguments, env={**CLEAN, **variables}, timeout=120)


def python_that_finds(folder: Path, root: str) -> str:
    """A PATH whose python3 has the torch under `root`; none where it is empty."""
    folder.mkdir()
    stub = folder / "python3"
    stub.write_text(f"#!/bin/sh\necho '{root and root + '/torch'}'\n")
    stub.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        prefix = Path(cls.scratch.name) / "installed"
        done = subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(prefix), "--component", "neap"],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.neap = prefix / "bin" / "neap"
        cls.trainer = prefix / "lib" / "neap" / "libneap_trainer.so"

    def folder(self) -> Path:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Path(folder.name)

    def test_links_no_libtorch_and_no_cuda(self):
        for program in (BUILD / "bin" / "neap", self.neap):
            needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", str(program)], capture_output=True,
                                                                     text=True, check=True).stdout)
            self.assertTrue(needed)
            for name in needed:
                self.assertNotRegex(name, "torch|c10|cuda|mpi|python", program)

    def test_help_is_quick_and_complete(self):
        times = []
        for _ in range(20):
            start = time.perf_counter()
            done = run(self.neap, "--help")
            times.append(time.perf_counter() - start)
        self.assertEqual(done.returncode, 0, done.stderr)
        for command in ("train", "plan", "replay", "report", "run", "generate", "eval", "merge", "bench", "doctor"):
            self.assertRegex(done.stdout, rf"\n  {command} ")
        if not os.environ.get("NEAP_TEST_RUNTIME"):  # a sanitizer takes longer
            self.assertLess(min(times), 0.030)

    def test_unknown_commands_are_named(self):
        for word, nearest in (("repaly", "replay"), ("Report", "report"), ("benhc", "bench")):
            done = run(self.neap, word, "x")
            self.assertEqual(done.returncode, 2)
            self.assertIn(f'"{word}" is not a command, did you mean "{nearest}"?', done.stderr)
        far = run(self.neap, "nosuchcmd")
        self.assertEqual(far.returncode, 2)
        self.assertIn('"nosuchcmd" is not a command; `neap --help` lists them', far.stderr)
        self.assertRegex(run(self.neap, "--help").stdout, r"\n  train .*DPO")

    def test_every_command_has_help(self):
        for command in ("plan", "replay", "report", "run", "bench", "doctor"):
            done = run(self.neap, command, "--help")
            self.assertEqual(done.returncode, 0, command)
            # A summary is a sentence; what stands behind an option or a position is a phrase.
            self.assertRegex(done.stdout, r"\A[A-Z][a-z]", command)
            for line in re.findall(r"^  (?!-h,--help)(?:-|[\w.]+ .*(?=  )).*$", done.stdout, re.MULTILINE):
                text = re.split(r" {2,}", line.strip(), maxsplit=1)[-1]
                self.assertNotRegex(text, r"^[A-Z][a-z]", f"{command}: {line}")
        for line in re.findall(r"^  [a-z]+ {3,}(.*)$", run(self.neap, "--help").stdout, re.MULTILINE):
            self.assertRegex(line, r"^[A-Z][a-z]")

    def test_without_the_trainers_library(self):
        if self.trainer.exists():
            self.trainer.rename(self.trainer.with_suffix(".away"))
            self.addCleanup(lambda: self.trainer.with_suffix(".away").rename(self.trainer))
        done = run(self.neap, "train", "job.toml")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no trainer", done.stderr)
        self.assertIn("make package", done.stderr)
        self.assertIs(json.loads(run(self.neap, "doctor", "--json", "--quick").stdout)["trainer"]["usable"], False)
        for command in ("train", "generate", "eval", "merge"):
            self.assertIn("no trainer", run(self.neap, command).stderr)

    def doctor_on_hook(self, contents):
        """What doctor says of the hook where its file has these contents."""
        hook = self.neap.parent.parent / "lib" / "neap" / "libneap_hook.so"
        right = hook.read_bytes()
        if b"__asan_init" in right:
            self.skipTest("a library with AddressSanitizer loads into no other program")
        hook.write_bytes(contents(right))
        try:
            done = run(self.neap, "doctor", "--json", "--quick")
        finally:
            hook.write_bytes(right)
        self.assertEqual(done.returncode, 0, done.stderr)
        doctor = json.loads(done.stdout)
        if not doctor["hook"]["usable"]:
            self.assertEqual(len([a for a in doctor["advice"] if a.startswith(f"{hook} does not load")]), 1, doctor["advice"])
        return doctor["hook"]

    def test_doctor_says_whether_the_hook_loads(self):
        self.assertIs(self.doctor_on_hook(lambda right: right)["usable"], True)
        self.assertIn("file too short", self.doctor_on_hook(lambda _: b"no library")["reason"])
        self.assertIs(self.doctor_on_hook(lambda right: right[:1000])["usable"], False)

    def test_doctor_names_a_version_of_glibc_that_is_missing(self):
        def change(contents):
            # The name of the newest version of glibc that is needed, in the section of needed versions.
            first, size, count = struct.unpack_from("<Q", contents, 40)[0], *struct.unpack_from("<HH", contents, 58)
            sections = [struct.unpack_from("<IIQQQQIIQQ", contents, first + size * i) for i in range(count)]
            needs = next(section for section in sections if section[1] == 0x6FFFFFFE)
            text = sections[needs[6]][4]
            changed, entry = bytearray(contents), needs[4]
            while not contents[text + struct.unpack_from("<I", contents, entry + 4)[0]:].startswith(b"libc.so.6\0"):
                entry += struct.unpack_from("<I", contents, entry + 12)[0]
            version = entry + struct.unpack_from("<I", contents, entry + 8)[0]
            at = contents.index(b"neap_exporter_close\0", text)
            changed[at:at + 11] = b"GLIBC_2.99\0"
            digest = 0
            for byte in b"GLIBC_2.99":
                digest = (digest << 4) + byte
                digest = (digest ^ (digest & 0xF0000000) >> 24) & 0x0FFFFFFF
            struct.pack_into("<I", changed, version, digest)
            struct.pack_into("<I", changed, version + 8, at - text)
            return bytes(changed)

        hook = self.doctor_on_hook(change)
        self.assertRegex(hook["reason"], r"libc\.so\.6: version `GLIBC_2\.99' not found \(required by .*libneap_hook\.so\)")

    def test_a_named_trainer_that_does_not_exist(self):
        done = run(self.neap, "train", "job.toml", NEAP_TRAINER_LIBRARY="/nowhere/trainer.so")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/trainer.so", done.stderr)

    @unittest.skipUnless(TORCH_ROOT, "a build without the trainer")
    def test_no_torch(self):
        done = run(self.neap, "train", "job.toml", PATH=python_that_finds(self.folder() / "bin", ""))
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"pip install torch=={TORCH_VERSION}", done.stderr)
        self.assertIn("NEAP_TORCH_ROOT", done.stderr)

    @unittest.skipUnless(TORCH_ROOT, "a build without the trainer")
    def test_doctor_says_which_torch_was_built_with_and_which_were_tested(self):
        torch = json.loads(run(self.neap, "doctor", "--json", "--quick", NEAP_TORCH_ROOT=TORCH_ROOT).stdout)["trainer"]["torch"]
        self.assertEqual(torch["version"], TORCH_VERSION)
        self.assertIn("2.11", torch["tested"])
        self.assertEqual(torch["tested_on"], torch["tested"].get(TORCH_VERSION.rpartition(".")[0]))

    @unittest.skipUnless(TORCH_ROOT, "a build without the trainer")
    def test_another_version_of_torch(self):
        folder = self.folder()
        (folder / "torch").mkdir()
        (folder / "torch" / "version.py").write_text("__version__ = '2.10.1+cpu'\n")
        for variables in ({"NEAP_TORCH_ROOT": str(folder)}, {"PATH": python_that_finds(folder / "bin", str(folder))}):
            done = run(self.neap, "generate", "model", **variables)
            self.assertEqual(done.returncode, 1)
            self.assertIn("2.10.1", done.stderr)

    @unittest.skipUnless(TORCH_ROOT, "a build without the trainer")
    def test_a_torch_in_the_working_folder_is_not_meant(self):
        folder = self.folder()
        (folder / "torch" / "lib").mkdir(parents=True)
        (folder / "torch" / "__init__.py").touch()
        (folder / "torch" / "version.py").write_text("__version__ = '2.11.0'\n")
        (folder / "torch" / "lib" / "libtorch_cpu.so").write_text("not meant")
        (folder / "importlib.py").write_text("print('/not/meant/torch')\n")
        for python in ("python3", "env -u PYTHONSAFEPATH python3"):  # the second is as one before 3.11
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / "python3").write_text(f'#!/bin/sh\nPATH={os.environ["PATH"]}\nexec {python} "$@"\n')
            (folder / "bin" / "python3").chmod(0o755)
            done = neap_program.run(str(self.neap), "train", "--help", cwd=folder, timeout=120,
                                    env={**CLEAN, "PATH": f"{folder}/bin:{os.environ['PATH']}"})
            self.assertNotIn("not/meant", done.stderr)
            self.assertNotIn(str(folder), done.stderr)

    @unittest.skipUnless(TORCH_ROOT, "a build without the trainer")
    def test_a_root_without_torch(self):
        done = run(self.neap, "train", "job.toml", NEAP_TORCH_ROOT="/nowhere")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere", done.stderr)

    @unittest.skipUnless(TORCH_ROOT, "a build without the trainer")
    def test_finds_torch(self):
        path = python_that_finds(self.folder() / "bin", TORCH_ROOT)
        for variables in ({"NEAP_TORCH_ROOT": TORCH_ROOT}, {"PATH": path}):
            for command in ("train", "generate", "eval", "merge"):
                done = run(self.neap, command, "--help", **variables)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"neap {command} [OPTIONS]", done.stdout)
            doctor = json.loads(run(self.neap, "doctor", "--json", "--quick", **variables).stdout)
            self.assertIs(doctor["trainer"]["usable"], True)
            self.assertEqual(doctor["trainer"]["libtorch"], f"{TORCH_ROOT}/torch/lib/libtorch_cpu.so")

    @unittest.skipUnless(TORCH_ROOT, "a build without the trainer")
    def test_a_build_folder_has_its_own_torch(self):
        done = run(BUILD / "bin" / "neap", "train", "--help", PATH=python_that_finds(self.folder() / "bin", ""))
        self.assertEqual(done.returncode, 0, done.stderr)

    @unittest.skipUnless(TORCH_ROOT, "a build without the trainer")
    def test_run_paths_stay_in_the_build_folder(self):
        for file in (self.neap, self.trainer):
            dynamic = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True, check=True).stdout
            self.assertNotRegex(dynamic, "RPATH|RUNPATH")

    @unittest.skipUnless(TORCH_ROOT, "a build without the trainer")
    def test_the_trainers_errors_are_the_programs(self):
        done = run(BUILD / "bin" / "neap", "train", "/nowhere/job.toml")
        self.assertEqual(done.returncode, 2)
        self.assertIn("/nowhere/job.toml", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
