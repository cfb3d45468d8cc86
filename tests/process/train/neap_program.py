"""The program as a child process, and what it writes, for the tests beside it."""
import json
import os
import struct
import subprocess


def environment(**more):
    return dict(os.environ, NEAP_PROGRESS="off", **more)


def start(program, *words, cwd=None, env=None, **options):
    return subprocess.Popen([program, *map(str, words)], cwd=cwd, env=env or environment(), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


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
