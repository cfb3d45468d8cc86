#!/usr/bin/env python3
"""Writes the small snapshots of this folder and, beside each, what a reader must find in it.

Only Python's standard library. The expectations come from the objects themselves, by the plain
translation below, and not from any reader of Neap. Run it again after a change; the test compares.
"""
import gzip
import io
import json
import pathlib
import pickle
import struct

HERE = pathlib.Path(__file__).resolve().parent
KINDS = {"alloc": 1, "free_requested": 2, "free_completed": 3, "segment_alloc": 4, "segment_free": 5,
         "segment_map": 6, "segment_unmap": 7, "snapshot": 8, "oom": 9, "annotate": 18}
STATES = {"active_allocated": 0, "active_pending_free": 1, "active_awaiting_free": 1, "inactive": 2}
T0 = 1_795_198_078_852_074


def frames(*names):
    return [{"filename": f"/srv/rl/{n}.py", "line": 10 * len(n), "name": n} for n in names]


# --- the snapshots ---------------------------------------------------------------------------------

def modern():
    """Two devices, frames shared between entries, private pools, every action, wide integers."""
    deep = frames("matmul", "forward", "train_step", "main")
    flat = frames("main")
    high = 0x7F85_0000_0000
    graph = (0, 3)
    segments = [
        {"device": 0, "address": high + (4 << 20), "total_size": 20 << 20, "allocated_size": 3 << 20,
         "active_size": 4 << 20, "requested_size": (3 << 20) - 5, "stream": 0x55D0_1234_5678,
         "segment_type": "large", "segment_pool_id": graph, "is_expandable": False, "frames": deep,
         "blocks": [
             {"address": high + (4 << 20), "size": 3 << 20, "requested_size": (3 << 20) - 5,
              "state": "active_allocated", "frames": deep},
             {"address": high + (7 << 20), "size": 1 << 20, "requested_size": 1 << 20,
              "state": "active_pending_free", "frames": flat},
             {"address": high + (8 << 20), "size": 16 << 20, "requested_size": 0,
              "state": "inactive", "frames": []}]},
        {"device": 0, "address": high, "total_size": 2 << 20, "allocated_size": 512, "active_size": 512,
         "requested_size": 100, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
         "is_expandable": True, "frames": [],
         "blocks": [{"address": high, "size": 512, "requested_size": 100, "state": "active_awaiting_free",
                     "frames": flat},
                    {"address": high + 512, "size": (2 << 20) - 512, "requested_size": 77,
                     "state": "inactive", "frames": []}]},
        {"device": 1, "address": high, "total_size": 2 << 20, "allocated_size": 0, "active_size": 0,
         "requested_size": 0, "stream": 0, "segment_type": "small", "segment_pool_id": [0, 0],
         "is_expandable": False, "frames": [], "blocks": []},
    ]

    def entry(action, addr, size, at, stack=flat, stream=0, **more):
        e = {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": T0 + at,
             "compile_context": "N/A", "user_metadata": "", "frames": stack}
        e.update(more)
        return e

    oom = entry("oom", 0, 30 << 30, 90)
    del oom["addr"]
    oom["device_free"] = 12_345_678_901
    first = [
        entry("segment_alloc", high, 2 << 20, 0, []),
        entry("alloc", high, 100, 1),
        entry("segment_map", high + (4 << 20), 20 << 20, 2, deep, pool_id=graph),
        entry("alloc", high + (4 << 20), (3 << 20) - 5, 3, deep, stream=0x55D0_1234_5678, pool_id=graph),
        entry("alloc", 2**63 + 5, 2**40, 4, pool_id=(7, 2**62)),
        entry("free_requested", high, 100, 10),
        entry("free_completed", high, 100, 10),
        entry("segment_unmap", high, 2 << 20, 11),
        entry("segment_free", high, 2 << 20, 12),
        entry("annotate", 0, 0, 13, user_metadata="weights loaded"),
        entry("from_the_future", 0, 0, 14),
        entry("snapshot", 0, 4096, 80),
        oom,
    ]
    second = [entry("segment_alloc", high, 2 << 20, 5)]
    notes = [
        {"stage": "START", "name": "phase:generate", "device": 0, "time_us": T0 + 1},
        {"stage": "END", "name": "phase:generate", "device": 0, "time_us": T0 + 10},
        {"stage": "START", "name": "phase:träin", "device": 0, "time_us": T0 + 10},
        {"stage": "END", "name": "phase:träin", "device": 0, "time_us": T0 + 500},
    ]
    divisions = {str(1 << i): (4 if i < 3 else 0) for i in range(16)}
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,garbage_collection_threshold:0.8",
                "max_split_size": 128 << 20, "garbage_collection_threshold": 0.8,
                "expandable_segments": True, "pinned_num_register_threads": 1,
                "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
                "roundup_power2_divisions": divisions, "graph_capture_record_stream_reuse": False,
                "trace_alloc_max_entries": 100000, "trace_alloc_overflowed": [False, True]}
    return {"segments": segments, "device_traces": [first, second, []],
            "allocator_settings": settings, "external_annotations": notes}


def tuples():
    """The same content in tuples wherever a list can be one."""
    def convert(v):
        if isinstance(v, list):
            return tuple(convert(x) for x in v)
        if isinstance(v, dict):
            return {k: convert(x) for k, x in v.items()}
        return v
    return convert(modern())


def sparse():
    """No times, no settings, no annotations, no requested sizes: torch_npu and old versions."""
    address = 0x12C0_0000_0000
    return {
        "segments": [{"device": 0, "address": address, "total_size": 2 << 20, "stream": 0,
                      "segment_type": "small", "allocated_size": 1024, "active_size": 1024,
                      "blocks": [{"size": 1024, "state": "active_allocated"},
                                 {"size": (2 << 20) - 1024, "state": "inactive"}]}],
        "device_traces": [[{"action": "segment_alloc", "addr": address, "size": 2 << 20, "stream": 0},
                           {"action": "alloc", "addr": address, "size": 999, "stream": 0,
                            "frames": None}]]}


def bare_list():
    """torch.cuda.memory_snapshot() of version 2.0: segments only, blocks with a history."""
    newest = frames("attention", "main")
    return [{"device": 1, "address": 4096, "total_size": 2 << 20, "stream": 9, "segment_type": "large",
             "blocks": [{"size": 2048, "state": "active_allocated",
                         "history": [{"addr": 4096, "real_size": 2000, "frames": newest},
                                     {"addr": 4096, "real_size": 5, "frames": frames("main")}]},
                        {"size": 4096, "state": "active_pending_free",
                         "history": [{"addr": 6144, "real_size": 4000}]},
                        {"size": 1 << 20, "state": "inactive"}]}]


def long_run():
    """More entries than one batch of the pickler holds, one stack for all. The test knows the rule."""
    stack = frames("step", "main")
    return {"segments": [],
            "device_traces": [[{"action": "alloc" if i % 2 == 0 else "free_completed",
                                "addr": 2**40 + 512 * (i // 2), "size": 300 + i // 2, "stream": 0,
                                "time_us": T0 + i, "frames": stack} for i in range(2345)]]}


# --- what a reader must find -----------------------------------------------------------------------

def expectation(snapshot):
    if isinstance(snapshot, (list, tuple)):
        snapshot = {"segments": snapshot}
    pools = [[0, 0]]
    warnings = 0

    def pool(pair):
        pair = [x % 2**64 for x in (pair or (0, 0))]
        if pair not in pools:
            pools.append(pair)
        return pair

    def stack(fs):
        return [f"{f['name']}@{f['filename']}:{f['line']}" for f in (fs or [])]

    devices = {}

    def device(i):
        return devices.setdefault(i, {"ordinal": i, "has_times": False, "overflowed": False,
                                      "segments": [], "events": []})

    for s in sorted(snapshot.get("segments", []), key=lambda s: s["address"]):
        at, blocks = s["address"], []
        for b in s["blocks"]:
            history = (b.get("history") or [{}])[0]
            at = b.get("address", at)
            blocks.append([at, b["size"], b.get("requested_size", history.get("real_size", 0)),
                           STATES[b["state"]], stack(b.get("frames", history.get("frames")))])
            at += b["size"]
        device(s.get("device", 0))["segments"].append(
            [s["address"], s["total_size"], s["stream"], pool(s.get("segment_pool_id")),
             s["segment_type"] == "small", bool(s.get("is_expandable")), stack(s.get("frames")), blocks])

    notes = snapshot.get("external_annotations", [])
    times = [e["time_us"] for t in snapshot.get("device_traces", []) for e in t if "time_us" in e]
    start = min(times + [n["time_us"] for n in notes], default=0)
    for i, trace in enumerate(snapshot.get("device_traces", [])):
        if not trace:
            continue
        d = device(i)
        d["has_times"] = any("time_us" in e for e in trace)
        for n, e in enumerate(trace):
            time = (e["time_us"] - start) * 1000 if d["has_times"] else n
            if e["action"] not in KINDS:
                warnings += 1
                continue
            kind = KINDS[e["action"]]
            name = e.get("user_metadata", "") if kind == 18 else stack(e.get("frames"))
            address = e["device_free"] if kind == 9 else e["addr"]
            d["events"].append([kind, time, address, e["size"], e["stream"], pool(e.get("pool_id")), name])
    for n in sorted(notes, key=lambda n: n["time_us"]):
        events, time = device(n["device"])["events"], (n["time_us"] - start) * 1000
        begins = n["stage"] == "START"
        at = 0
        for j, e in enumerate(events):
            if e[1] < time or (e[1] == time and (not begins or e[0] == 17)):
                at = j + 1
        events.insert(at, [16 if begins else 17, time, 0, 0, 0, [0, 0], n["name"]])

    said = snapshot.get("allocator_settings")
    settings = None
    if said:
        settings = {"conf": said["PYTORCH_CUDA_ALLOC_CONF"], "max_split_size": said["max_split_size"],
                    "gc": said["garbage_collection_threshold"], "expandable": said["expandable_segments"],
                    "roundup": [said["roundup_power2_divisions"][str(1 << i)] for i in range(16)],
                    "max_entries": said["trace_alloc_max_entries"]}
        for i, overflowed in enumerate(said["trace_alloc_overflowed"]):
            if i in devices:
                devices[i]["overflowed"] = overflowed
    return {"start_unix_ns": start * 1000, "devices": [devices[i] for i in sorted(devices)],
            "settings": settings, "warnings": warnings}


# --- how they are written --------------------------------------------------------------------------

def python_pickle(protocol, fast=False):
    def dump(obj):
        out = io.BytesIO()
        pickler = pickle.Pickler(out, protocol=protocol)
        pickler.fast = fast  # no memo: nothing is shared
        pickler.dump(obj)
        return out.getvalue()
    return dump


def cpp_pickle(obj):
    """As PyTorch's own C++ pickler writes: protocol 2, memo for text only, 8-byte LONG1."""
    out, memo = bytearray(b"\x80\x02"), {}

    def push(v):
        if v is None:
            out.extend(b"N")
        elif isinstance(v, bool):
            out.extend(b"\x88" if v else b"\x89")
        elif isinstance(v, int):
            if 0 <= v < 256:
                out.extend(struct.pack("<cB", b"K", v))
            elif 0 <= v < 65536:
                out.extend(struct.pack("<cH", b"M", v))
            elif -2**31 <= v < 2**31:
                out.extend(struct.pack("<ci", b"J", v))
            else:
                out.extend(b"\x8a\x08" + struct.pack("<Q", v % 2**64))
        elif isinstance(v, float):
            out.extend(b"G" + struct.pack(">d", v))
        elif isinstance(v, str):
            if v in memo:
                n = memo[v]
                out.extend(struct.pack("<cB", b"h", n) if n < 256 else struct.pack("<cI", b"j", n))
            else:
                data = v.encode()
                out.extend(b"X" + struct.pack("<I", len(data)) + data)
                n = memo[v] = len(memo)
                out.extend(struct.pack("<cB", b"q", n) if n < 256 else struct.pack("<cI", b"r", n))
        elif isinstance(v, tuple):
            if len(v) > 3 or not v:
                out.extend(b"(")
            for x in v:
                push(x)
            out.extend({1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(v), b"t"))
        elif isinstance(v, list):
            out.extend(b"](")
            for x in v:
                push(x)
            out.extend(b"e")
        else:
            out.extend(b"}(")
            for k, x in v.items():
                push(k)
                push(x)
            out.extend(b"u")

    push(obj)
    return bytes(out + b".")


def main():
    def write(name, obj, dump, pack=lambda b: b):
        (HERE / name).write_bytes(pack(dump(obj)))

    for name, make in [("modern", modern), ("tuples", tuples), ("sparse", sparse),
                       ("bare_list", bare_list)]:
        (HERE / f"{name}.json").write_text(json.dumps(expectation(make()), indent=None) + "\n")
    for protocol in (2, 3, 4, 5):
        write(f"modern.p{protocol}.pickle", modern(), python_pickle(protocol))
    write("modern.fast.pickle", modern(), python_pickle(4, fast=True))
    write("modern.cpp.pickle", modern(), cpp_pickle)
    write("modern.p4.pickle.gz", modern(), python_pickle(4), lambda b: gzip.compress(b, mtime=0))
    write("tuples.p4.pickle", tuples(), python_pickle(4))
    write("tuples.cpp.pickle", tuples(), cpp_pickle)
    write("sparse.p2.pickle", sparse(), python_pickle(2))
    write("bare_list.p3.pickle", bare_list(), python_pickle(3))
    write("long_run.p5.pickle.gz", long_run(), python_pickle(5), lambda b: gzip.compress(b, mtime=0))


if __name__ == "__main__":
    main()
