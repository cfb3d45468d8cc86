"""Sums over records of phases.jsonl: seconds, streamed bytes and moves of a step."""
import statistics


def in_a_step(records, warm, key):
    """The median over steps of what a step's runs of a phase took together. `key`: a field, or a function of a record."""
    steps = {}
    for r in records:
        if r["step"] > warm:
            steps[r["step"]] = steps.get(r["step"], 0) + (key(r) if callable(key) else r[key])
    return statistics.median(steps.values())


def stream_seconds(record):
    return sum(s["exposed_seconds"] for s in record["streamed"])


def streamed_of(records):
    """Of one step: bytes over the link and seconds that the device's work waited, by tag and what of it."""
    sums = {}
    for s in (s for r in records for s in r["streamed"]):
        line = sums.setdefault((s["tag"], s["what"]), {"tag": s["tag"], "what": s["what"], "to_device": 0, "to_host": 0, "exposed_seconds": 0})
        for key in ("to_device", "to_host", "exposed_seconds"):
            line[key] += s[key]
    return list(sums.values())


def moves_of(records, warm):
    """Every move of a phase that copied: means over its runs."""
    runs = {}
    for r in records:
        for m in r["moves"] if r["step"] > warm else []:
            if m["copied"]:
                runs.setdefault((m["kind"], m["tag"], m["overlapped"]), []).append(m)
    return [{"kind": kind, "tag": tag, "overlapped": behind}
            | {key: statistics.mean(m[key] for m in some) for key in ("copied", "copy_seconds", "exposed_seconds")}
            for (kind, tag, behind), some in runs.items()]
