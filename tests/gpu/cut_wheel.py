#!/usr/bin/env python3
"""Makes a wheel small: keeps the GPU code of one architecture, and leaves files out.

    tests/gpu/cut_wheel.py WHEEL ARCHITECTURE FOLDER [--without PATTERN...]

ARCHITECTURE  90 for compute capability 9.0
FOLDER        gets a wheel of the same name, which pip installs
--without     files to leave out, e.g. 'vllm/vllm_flash_attn/_vllm_fa2_C*'

GPU code in an ELF file is in fatbins, each with the same kernels for several architectures. Code that this GPU does not load is
overwritten with zeros, and the wheel is compressed with LZMA. All offsets stay, so the file needs no other change.

vLLM 0.23.0 shrinks from 274 MB to 36 MB, and vllm_suite.py runs, with
--without 'vllm/vllm_flash_attn/_vllm_fa2_C*' 'vllm/_moe_C*' '*flashmla*' 'vllm/third_party/deep_gemm/*' vllm/vllm-rs
test_sleep_mode needs vllm_server.txt's packages as well, of which mistral_common/data and pycountry/locales can stay away.
"""

import argparse
import base64
import csv
import fnmatch
import hashlib
import io
import struct
import sys
import zipfile
from pathlib import Path

SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
MAGIC = 0xBA55ED50
PTX, CUBIN = 1, 2


def fatbin_sections(data):
    """Offset and size of each section that holds fatbins. Only ELF of 64 bits."""
    if data[:5] != b"\x7fELF\x02":
        return
    table, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        begin = headers[names][4] + name
        if bytes(data[begin:data.index(b"\0", begin)]) in SECTIONS:
            yield offset, length


def containers(data, offset, length):
    """Entries of each fatbin: (kind, architecture, payload's offset, payload's size)."""
    end = offset + length
    while offset + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, offset)
        if magic != MAGIC:
            offset += 8  # padding
            continue
        at, offset = offset + header, offset + header + size
        if offset > end:
            raise ValueError("a fatbin is longer than its section")
        entries = []
        while at < offset:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            entries.append((kind, struct.unpack_from("<I", data, at + 28)[0], at + header, size))
            at += header + size
        yield entries


def loaded(entries, architecture):
    """The entries that a GPU loads: machine code of the nearest architecture with the same major number, else the newest PTX."""
    def newest(kind, oldest):
        versions = [version for k, version, _, _ in entries if k == kind and oldest <= version <= architecture]
        return [entry for entry in entries if entry[0] == kind and entry[1] == max(versions)] if versions else []

    return newest(CUBIN, architecture // 10 * 10) or newest(PTX, 0)


def cut(data, architecture):
    """Zeros the code that the GPU does not load. Returns the bytes of code before and after."""
    before = after = 0
    for section in fatbin_sections(data):
        for entries in containers(data, *section):
            kept = loaded(entries, architecture)
            for entry in entries:
                before += entry[3]
                if entry in kept:
                    after += entry[3]
                else:
                    data[entry[2]:entry[2] + entry[3]] = bytes(entry[3])
    return before, after


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return name, f"sha256={digest}", len(data)


def cut_wheel(wheel, architecture, out, without=()):
    lines = []
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as new:
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        for entry in old.infolist():
            if entry.filename == record or any(fnmatch.fnmatch(entry.filename, pattern) for pattern in without):
                continue
            data = bytearray(old.read(entry))
            before, after = cut(data, architecture)
            if before:
                print(f"{entry.filename}: {before / 1e6:.1f} MB of GPU code, {after / 1e6:.1f} left", flush=True)
            entry.compress_type = zipfile.ZIP_LZMA
            new.writestr(entry, bytes(data))
            lines.append(record_line(entry.filename, data))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*lines, (record, "", "")])
        new.writestr(record, text.getvalue())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("architecture", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without", nargs="*", default=[])
    arguments = parser.parse_args()
    out = arguments.folder / arguments.wheel.name
    if out.exists() and out.samefile(arguments.wheel):
        sys.exit(f"{out} would be overwritten; name another folder")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    cut_wheel(arguments.wheel, arguments.architecture, out, arguments.without)
    print(f"{out}: {arguments.wheel.stat().st_size / 1e6:.1f} MB -> {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
