"""Every test runs its program in a process of its own: what is loaded into one stays there."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ["NEAP_TEST_BUILD_DIR"])
HOOK = BUILD / "lib" / "libneap_hook.so"
DROP_IN = BUILD / "lib" / "libneap_memory_saver.so"
STANDIN = BUILD / "standin"
RUNTIME = os.environ.get("NEAP_TEST_RUNTIME", "")  # a sanitizer's, or nothing
PRELUDE = """
import ctypes, os, signal, socket, subprocess, sys, tempfile, threading, time
MIB = 1 << 20
"""


def environment(**changes):
    """A process without a GPU: the host device, no torch."""
    env = {key: value for key, value in os.environ.items()
           if not key.startswith(("NEAP_", "TMS_", "PYTORCH_")) and key != "LD_PRELOAD"}
    env["PYTHONPATH"] = os.pathsep.join([str(SOURCE / "python"),
                                         str(SOURCE / "python" / "memory_saver")])
    env["NEAP_HOOK_LIBRARY"] = str(HOOK)
    env["NEAP_HOOK_DEVICE"] = "host:64MiB"
    env.update(changes)
    return {key: value for key, value in env.items() if value is not None}


def standin_environment(**changes):
    """A process with the stand-in CUDA libraries and the stand-in torch."""
    env = environment(NEAP_HOOK_DEVICE=None, LD_LIBRARY_PATH=str(STANDIN),
                      NEAP_STANDIN_DIR=str(STANDIN), NEAP_STANDIN_BYTES=str(64 << 20))
    env["PYTHONPATH"] += os.pathsep + str(SOURCE / "tests" / "standin" / "python")
    env.update(changes)
    return {key: value for key, value in env.items() if value is not None}


def saver_environment(files, mode="torch", **changes):
    """As standin_environment, with the drop-in that memory_saver_files laid out."""
    env = standin_environment(NEAP_HOOK_LIBRARY=None, **changes)
    env["PYTHONPATH"] = str(files) + os.pathsep + env["PYTHONPATH"]
    if mode == "preload":
        env["LD_PRELOAD"] = str(files / "torch_memory_saver_hook_mode_preload_cu13.abi3.so")
    return env


def run(code, env=None, timeout=240):
    """Runs Python code; its assertions are the test's."""
    env = dict(env or environment())
    if RUNTIME:
        env["LD_PRELOAD"] = ":".join(filter(None, [env.get("LD_PRELOAD"), RUNTIME]))
    done = subprocess.run([sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
                          env=env, capture_output=True, text=True,
                          timeout=timeout)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture
def memory_saver_files(tmp_path):
    """The drop-in as it is installed: packages, and library files in the folder around them."""
    import shutil

    shutil.copytree(SOURCE / "python" / "memory_saver" / "torch_memory_saver",
                    tmp_path / "torch_memory_saver")
    for mode in ("preload", "torch"):
        for cuda in ("", "_cu12", "_cu13"):
            os.symlink(DROP_IN, tmp_path / f"torch_memory_saver_hook_mode_{mode}{cuda}.abi3.so")
    return tmp_path
