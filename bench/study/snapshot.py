"""A torch memory snapshot, cut to what `neap replay` needs, and figures of it."""
import lzma
import pickle

EVENT = ("action", "addr", "size", "stream", "time_us", "device_free")
GRAIN = 50_000  # microseconds; coarse times make the file small
START = 1_000_000  # time of the first event; 0 would mean that it is unknown


def bare(entry, dropped=("frames", "history", "compile_context", "user_metadata")):
    return {key: value for key, value in entry.items() if key not in dropped}


def cut(snapshot):
    """One device's events, segments and phase marks. Times are coarse, begin with START and keep the order of events and marks."""
    device = max(range(len(snapshot["device_traces"])), key=lambda i: len(snapshot["device_traces"][i]))
    trace = snapshot["device_traces"][device]
    origin = trace[0]["time_us"] - START

    def coarse(entry):
        return (entry["time_us"] - origin) // GRAIN * GRAIN
    marks = [bare(mark) for mark in snapshot.get("external_annotations", []) if mark["name"].startswith("phase:")]
    # A begin goes before the events of its microsecond, an end after them, as replay merges them.
    marks.sort(key=lambda mark: mark["time_us"])
    events, floor, at = [], 0, 0
    for event in trace:
        while at < len(marks) and (marks[at]["time_us"], marks[at]["stage"] == "END") <= (event["time_us"], False):
            floor = marks[at]["time_us"] = max(floor, coarse(marks[at])) + 1
            floor += 1
            at += 1
        floor = max(floor, coarse(event))
        events.append({key: event[key] for key in EVENT if key in event} | {"time_us": floor})
    for mark in marks[at:]:
        floor = mark["time_us"] = max(floor, coarse(mark)) + 1
    segments = [bare(segment) | {"blocks": [bare(block) for block in segment["blocks"]]}
                for segment in snapshot["segments"] if segment["device"] == device]
    return {"segments": segments, "device_traces": [[] for _ in range(device)] + [events], "external_annotations": marks,
            "allocator_settings": snapshot.get("allocator_settings", {})}


def figures(events):
    """Fragmentation as the paper has it: reserved minus allocated bytes whenever the allocator asks the driver for more.

    A block that waits for another stream counts as free, as in torch's statistics."""
    reserved = allocated = peak = without = 0
    at_peak = most = driver = 0
    for event in events:
        action, size = event["action"], event["size"]
        if action == "alloc":
            allocated += size
        elif action == "free_requested":
            allocated -= size
        elif action in ("segment_alloc", "segment_map"):
            fragmentation = reserved - allocated
            reserved += size
            driver += 1
            most = max(most, fragmentation)
            without = max(without, reserved - fragmentation)
            if reserved > peak:
                peak, at_peak = reserved, fragmentation
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size
    return {"fragmentation_at_peak": at_peak, "fragmentation_max": most, "fragmentation_overhead": peak - without, "events": len(events),
            "driver_allocs": driver}


def write(snapshot, path):
    with lzma.open(path, "wb", preset=1) as file:
        pickle.dump(snapshot, file, protocol=4)
