#!/usr/bin/env python3
"""scripts/run-tests passes a line on when it comes, to a pipe as well. usage: FILE SCRIPTS_DIR"""
import os
import pathlib
import select
import subprocess
import sys
import tempfile


def main() -> int:
    script = pathlib.Path(sys.argv[1]).resolve() / "run-tests"
    with tempfile.TemporaryDirectory(prefix="neap-run-tests-") as folder:
        fake = pathlib.Path(folder) / "ctest"
        fake.write_text("#!/bin/sh\necho '1/1 Test #1: first ....***Failed 0.1 sec'\nread line\nexit 8\n")
        fake.chmod(0o755)
        run = subprocess.Popen([script, "core"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        ready = select.select([run.stdout], [], [], 20)[0]
        early = run.stdout.readline() if ready else ""
        rest = run.communicate("\n")[0]
    if "first" not in early:
        print("the failed test was only shown after the last test")
        return 1
    if "0 passed, 1 failed, 0 skipped" not in rest or run.returncode != 8:
        print(rest, run.returncode)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
