#!/usr/bin/env python3
"""driver_times.c over the stand-in driver: calls are forwarded and counted, failures are passed on."""

import ctypes
import json
import sys

u64, size_t = ctypes.c_uint64, ctypes.c_size_t
MIB = 1 << 20


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("where", ctypes.c_int), ("id", ctypes.c_int),
                ("windows", ctypes.c_void_p), ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte),
                ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]


def main():
    cuda = ctypes.CDLL(sys.argv[1])
    cuda.driver_times_take.restype = ctypes.c_char_p
    context, at, handle = ctypes.c_void_p(), u64(), u64()
    assert cuda.cuInit(0) == 0  # not forwarded: found in the driver
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert json.loads(cuda.driver_times_take())["cuCtxPushCurrent_v2"][0] == 1
    properties = Properties(type=1, where=1)
    assert cuda.cuMemAddressReserve(ctypes.byref(at), size_t(4 * MIB), size_t(0), u64(0), u64(0)) == 0
    assert at.value != 0
    for _ in range(3):
        assert cuda.cuMemCreate(ctypes.byref(handle), size_t(2 * MIB), ctypes.byref(properties), u64(0)) == 0
        assert cuda.cuMemMap(at, size_t(2 * MIB), size_t(0), handle, u64(0)) == 0
        assert cuda.cuMemUnmap(at, size_t(2 * MIB)) == 0
        assert cuda.cuMemRelease(handle) == 0
    assert cuda.cuMemUnmap(at, size_t(2 * MIB)) != 0  # nothing is mapped there
    times = json.loads(cuda.driver_times_take())
    counts = {name: values[0] for name, values in times.items()}
    expected = {"cuMemAddressReserve": 1, "cuMemCreate": 3, "cuMemMap": 3, "cuMemUnmap": 4, "cuMemRelease": 3}
    assert counts == expected, counts
    assert all(0 <= longest <= whole for _, whole, longest in times.values()), times
    assert json.loads(cuda.driver_times_take()) == {}


main()
