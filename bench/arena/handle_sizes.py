#!/usr/bin/env python3
"""What the driver takes for 64 GiB by the size of its handles: create, map, access, unmap, release.

    bench/arena/handle_sizes.py [OUT.jsonl]

The arena's page sizes (src/arena/page_plan.h) come from this table. Needs a GPU with 70 GiB free, no
torch. "at rest" waits 300 ms first, so that memory released before is clean again; "each" gives access
page by page instead of once for the whole range.
"""

import ctypes
import json
import statistics
import sys
import time

GIB, MIB = 1 << 30, 1 << 20
TOTAL = 64 * GIB
SIZES = [128 * MIB, 256 * MIB, 512 * MIB, 768 * MIB, GIB, 1280 * MIB, 1536 * MIB, 1792 * MIB,
         2 * GIB - 2 * MIB, 2 * GIB, 3 * GIB, 4 * GIB, 8 * GIB]
CYCLES = 5

cuda = ctypes.CDLL("libcuda.so.1")
u64, size_t, pointer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("where", ctypes.c_int),
                ("id", ctypes.c_int), ("windows", pointer), ("compression", ctypes.c_ubyte),
                ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]


class Access(ctypes.Structure):
    _fields_ = [("where", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name} failed with {code}")


def main():
    call("cuInit", 0)
    context = pointer()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    properties = Properties(type=1, handle_types=1, where=1, id=0, rdma=1)
    access = Access(1, 0, 3)
    base = u64()
    call("cuMemAddressReserve", ctypes.byref(base), size_t(TOTAL + 8 * GIB), size_t(0), u64(0), u64(0))
    lines = []
    for size in SIZES:
        count = -(-TOTAL // size)
        times = {}

        def timed(key, work):
            begin = time.perf_counter()
            work()
            times.setdefault(key, []).append((time.perf_counter() - begin) * 1e3)

        handles = [u64() for _ in range(count)]
        at = [u64(base.value + i * size) for i in range(count)]

        def create():
            for handle in handles:
                call("cuMemCreate", ctypes.byref(handle), size_t(size), ctypes.byref(properties), u64(0))

        def enter():
            for place, handle in zip(at, handles):
                call("cuMemMap", place, size_t(size), size_t(0), handle, u64(0))

        def allow():
            call("cuMemSetAccess", base, size_t(count * size), ctypes.byref(access), size_t(1))

        def allow_each():
            for place in at:
                call("cuMemSetAccess", place, size_t(size), ctypes.byref(access), size_t(1))

        def leave():
            call("cuMemUnmap", base, size_t(count * size))

        def leave_each():
            for place in at:
                call("cuMemUnmap", place, size_t(size))

        def release():
            for handle in handles:
                call("cuMemRelease", handle)

        for cycle in range(CYCLES + 1):
            time.sleep(0.3)
            timed("create at rest", create)
            timed("map", enter)
            timed("access", allow)
            time.sleep(0.05)
            timed("unmap", leave)
            timed("map again", enter)
            timed("access again, each", allow_each)
            timed("unmap again, each", leave_each)
            timed("release", release)
            if cycle == 0:
                times.clear()
        line = {"handle_mib": size / MIB, "handles": count,
                **{key: round(statistics.median(values), 3) for key, values in times.items()}}
        line["anew"] = round(line["create at rest"] + line["map"] + line["access"], 3)
        line["kept"] = round(line["map"] + line["access"], 3)
        lines.append(line)
        print(line, flush=True)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
