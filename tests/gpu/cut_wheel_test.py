#!/usr/bin/env python3
"""cut_wheel.py on a wheel with an ELF file of fatbins: which code is left, what stays as it is."""

import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import cut_wheel
from cut_wheel import CUBIN, PTX

RECORD = "pack-1.dist-info/RECORD"
TEXT = "pack/__init__.py", b"print()\n"


def fatbin(*entries):
    """Entries are (kind, architecture, byte)."""
    body = b"".join(struct.pack("<HHIQ", kind, 0x101, 64, 32) + bytes(12) + struct.pack("<I", version) + bytes(32) + bytes([byte]) * 32
                    for kind, version, byte in entries)
    return struct.pack("<IHHQ", cut_wheel.MAGIC, 1, 16, len(body)) + body


def elf(section):
    names = b"\0.nv_fatbin\0.names\0"
    table = [(0, 0, 0), (1, 64, len(section)), (12, 64 + len(section), len(names))]
    headers = b"".join(struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 8, 0) for name, offset, size in table)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(section) + len(names), 0, 64, 0, 0, 64, 3, 2)
    return header + section + names + headers


def left(architecture, *entries):
    data = bytearray(elf(fatbin(*entries) + bytes(8) + fatbin((CUBIN, architecture, 99))))
    length = len(data)
    before, after = cut_wheel.cut(data, architecture)
    kept = [byte for _, _, byte in entries if bytes([byte]) * 32 in data]
    assert len(data) == length and bytes([99]) * 32 in data  # the section's second fatbin is found
    assert (before, after) == (32 * (len(entries) + 1), 32 * (len(kept) + 1))
    return kept


def run(*arguments):
    return subprocess.run([sys.executable, cut_wheel.__file__, *map(str, arguments)], capture_output=True, text=True)


def main():
    many = (CUBIN, 80, 1), (CUBIN, 86, 2), (CUBIN, 90, 3), (CUBIN, 90, 4), (CUBIN, 100, 5), (PTX, 80, 6), (PTX, 90, 7), (PTX, 120, 8)
    assert left(90, *many) == [3, 4]  # sm_90 and sm_90a
    assert left(89, *many) == [2]  # the nearest of the same major number
    assert left(75, *many) == []
    assert left(110, *many) == [7]  # no machine code: the newest PTX that is not too new
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        code, wheel = elf(fatbin(*many)), folder / "pack-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as out:
            for name, data in (TEXT, ("pack/a.so", code), ("pack/unused.so", code), (RECORD, b"")):
                out.writestr(name, data)
        done = run(wheel, 90, folder / "new", "--without", "pack/unused*")
        assert done.returncode == 0, done.stderr
        with zipfile.ZipFile(folder / "new" / wheel.name) as new:
            assert new.namelist() == [TEXT[0], "pack/a.so", RECORD]
            assert new.read(TEXT[0]) == TEXT[1]
            lines = dict(line.split(",", 1) for line in new.read(RECORD).decode().split())
            for name in new.namelist()[:-1]:
                assert lines[name] == ",".join(map(str, cut_wheel.record_line(name, new.read(name))[1:]))
        again = run(wheel, 90, folder)
        assert again.returncode == 1 and "name another folder" in again.stderr


if __name__ == "__main__":
    main()
