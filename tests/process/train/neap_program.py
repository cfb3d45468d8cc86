"""The program as a child process, and what it writes, for the tests of whole programs."""
import functools
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

NAMESPACE = ["unshare", "--map-root-user", "--mount"]
SLOW = os.environ.get("NEAP_TEST_SLOW") == "1"
ADDITIONS = pathlib.Path(__file__).resolve().parent / "additions"


def without(*names, of):
    """Cases, by name or with a name first, without those whose parts others cover. NEAP_TEST_SLOW=1: all of them."""
    if isinstance(of, dict):
        return {name: case for name, case in of.items() if SLOW or name not in names}
    return [case for case in of if SLOW or case[0] not in names]


@functools.cache
def has_namespaces():
    return shutil.which("unshare") is not None and subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                                                                  capture_output=True, check=False).returncode == 0


def needs_namespaces(test):
    """Asks when the test runs: most tests import this file without such a test."""
    @functools.wraps(test)
    def asked(self):
        if not has_namespaces():
            self.skipTest("no mount namespaces for this user")
        test(self)
    return asked


slow = unittest.skipUnless(SLOW, "others cover its parts; NEAP_TEST_SLOW=1 runs it")


def environment(without=(), **more):
    """The test's own, without variables whose names start with one of `without`. One thread, because other tests use the cores."""
    own = {"OMP_NUM_THREADS": "1", **os.environ}
    kept = {name: value for name, value in own.items() if not name.startswith(tuple(without))}
    return {**kept, "NEAP_PROGRESS": "off", **more}


def start(program, *words, cwd=None, env=None, **options):
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([program, *map(str, words)], cwd=cwd, env=env or environment(), **options)


def outcome(process, timeout=900):
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(program, *words, timeout=900, **options):
    return outcome(start(program, *words, **options), timeout)


def output_of(program, *words, **options):
    """What a run that must succeed prints."""
    result = run(program, *words, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def wait_for(process, condition, timeout=300):
    """Until `condition` holds; it has to before the process ends."""
    end = time.monotonic() + timeout
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(f"it ended or took {timeout} s: {outcome(process).stderr}")
        time.sleep(0.002)


def stop(process):
    """Stops all of its threads, as a signal alone does some time later."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


def logged_steps(output):
    """Whole lines of the metrics in an output folder."""
    path = output / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def make_additions(folder):
    """Data, model and jobs of additions in a new folder."""
    shutil.copytree(ADDITIONS, folder)
    subprocess.run([sys.executable, ADDITIONS / "make_data.py", folder], check=True)


def least_host(plan):
    """The least memory.host_budget in bytes. `plan`: the outcome of `neap plan --json` with that many."""
    least = 1 << 30
    while (shown := plan(least - 1)).returncode == 0:  # what it takes is enough, and often the least
        least = min(least - 1, json.loads(shown.stdout)["host_bytes"])
    return least


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_safetensors(path, tensors):
    """tensors: name -> (shape, float32 values)."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
