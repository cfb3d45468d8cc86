#!/usr/bin/env python3
"""scripts/run-tests with a ctest that the test leads. usage: FILE SCRIPTS_DIR"""
import os
import pathlib
import pty
import select
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(sys.argv.pop(1)).resolve() / "run-tests"
# Prints what it is sent, up to an empty line.
CTEST = "#!/bin/sh\nwhile read -r line && [ -n \"$line\" ]; do printf '%s\\n' \"$line\"; done\nexit 8\n"
START = "    Start {0}: {1}"
RESULT = "{0}/4 Test #{1}: {2} .......{3} 0.10 sec"


class RunTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="neap-run-tests-")
        self.addCleanup(folder.cleanup)
        fake = pathlib.Path(folder.name) / "ctest"
        fake.write_text(CTEST)
        fake.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{folder.name}:{os.environ['PATH']}", "TERM": "xterm"}

    def start(self, output, **more):
        process = subprocess.Popen([SCRIPT, "core"], stdin=subprocess.PIPE, stdout=output, env={**self.environment, **more})
        self.addCleanup(process.stdin.close)
        return process

    def send(self, process, *lines):
        process.stdin.write("".join(line + "\n" for line in lines).encode())
        process.stdin.flush()

    def read_until(self, source, part, seconds=20):
        seen, end = "", time.monotonic() + seconds
        while part not in seen and time.monotonic() < end:
            if select.select([source], [], [], 0.1)[0]:
                seen += os.read(source, 4096).decode()
        self.assertIn(part, seen)
        return seen

    def test_a_failure_is_shown_when_it_comes_and_a_log_has_plain_lines(self):
        process = self.start(subprocess.PIPE, PROGRESS_SECONDS="1")
        out = process.stdout.fileno()
        self.addCleanup(process.stdout.close)
        self.send(process, START.format(1, "first"), START.format(2, "second"), RESULT.format(1, 2, "second", "***Failed"))
        self.read_until(out, "second .......***Failed")
        progress = self.read_until(out, "1 of 4 tests done, 1 failed, ")
        self.assertRegex(progress + self.read_until(out, "\n"), r"running: first \(\d+ s\)\n")
        self.send(process, RESULT.format(2, 1, "first", "   Passed"), RESULT.format(3, 3, "third", "***Skipped"), "")
        rest = self.read_until(out, "1 passed, 1 failed, 1 skipped\n")
        self.assertIn("NAME):\n  third\n", rest)
        self.assertNotIn("\r", progress + rest)
        self.assertNotIn("Passed", progress + rest)
        self.assertEqual(process.wait(timeout=20), 8)

    def test_cases_of_a_program_are_counted_in_place_of_it(self):
        case = '<testcase name="{}" file="a.cpp" line="1" status="run" result="{}" time="0." timestamp="now" classname="Suite"{}>'
        bad = case.format("Bad", "completed", "") + "\n<failure message=\"no\"></failure>\n<failure message=\"nor\"></failure>\n</testcase>"
        (pathlib.Path(self.environment["PATH"].split(":")[0]) / "cases").write_text("\n".join((
            case.format("Good", "completed", " /"), case.format("Else/1", "skipped", ""), "</testcase>", bad, bad.replace("Bad", "Worse"))))
        fake = CTEST.replace("while", 'cp "${0%/*}/cases" "${GTEST_OUTPUT#xml:}first.xml"\nwhile')
        (pathlib.Path(self.environment["PATH"].split(":")[0]) / "ctest").write_text(fake)
        process = self.start(subprocess.PIPE)
        self.send(process, RESULT.format(1, 1, "first", "***Failed"), RESULT.format(2, 2, "second", "   Passed"))
        said = process.communicate(b"\n", timeout=20)[0].decode()
        self.assertIn("Failed: first.Suite.Bad\nFailed: first.Suite.Worse\n", said)
        self.assertIn("NAME):\n  first.Suite.Else/1\n", said)
        self.assertTrue(said.endswith("2 passed, 2 failed, 1 skipped\n"), said)

    def test_a_log_is_quiet_between(self):
        process = self.start(subprocess.PIPE)
        self.send(process, START.format(1, "first"), RESULT.format(1, 1, "first", "   Passed"))
        time.sleep(2.5)
        self.assertEqual(process.communicate(b"\n", timeout=20)[0], b"1 passed, 0 failed, 0 skipped\n")

    def test_a_terminal_has_one_line_that_changes(self):
        here, there = pty.openpty()
        self.addCleanup(os.close, here)
        process = self.start(there)
        os.close(there)
        self.send(process, START.format(1, "first"), START.format(2, "a" * 200))
        lines = [self.read_until(here, "), aaa") for _ in range(2)]
        for line in lines:
            self.assertRegex(line, r"\r\x1b\[2K0 of \? tests done, 0 failed, \d+ s; running: first \(\d+ s\), aaa")
        self.assertNotEqual(*lines)
        self.send(process, RESULT.format(1, 1, "first", "   Passed"))
        shown = self.read_until(here, "1 of 4 tests done")
        self.send(process, "")
        shown += self.read_until(here, "\x1b[2K1 passed, 0 failed, 0 skipped\r\n")
        self.assertTrue(all(len(line) < 80 for line in shown.replace("\x1b[2K", "\r").split("\r")), shown)
        self.assertEqual(process.wait(timeout=20), 8)

    def test_no_test_is_a_failure(self):
        process = self.start(subprocess.PIPE)
        out = process.communicate(b"No tests were found!!!\n\n", timeout=20)[0]
        self.assertEqual(out, b"No tests were found!!!\nNo test ran.\n0 passed, 0 failed, 0 skipped\n")
        self.assertNotEqual(process.returncode, 0)


if __name__ == "__main__":
    unittest.main()
