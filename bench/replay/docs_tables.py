#!/usr/bin/env python3
"""The tables of docs/measurements/replay.md, from replays of the recordings in tests/data.

  bench/replay/docs_tables.py NEAP            prints them
  bench/replay/docs_tables.py NEAP --write    puts them between their marks in the docs
  bench/replay/docs_tables.py NEAP --check    exits 1 where the docs have other figures
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
RUN = DATA / "h200-rlhf" / "opt-lora.pickle.gz"
CAPACITY = "139.80GiB"
TOLERANCE = 0.001  # of measured bytes and counts against a range


def lines(path):
    """Objects of a JSON lines file, whatever stands before the first brace of a line."""
    return [json.loads(line[line.index("{"):]) for line in path.read_text().splitlines() if "{" in line]


def replay(neap, snapshot, settings):
    command = [neap, "replay", str(snapshot), "--settings", "/dev/stdin", "--capacity", CAPACITY, "--no-advice", "--json"]
    text = "\n".join(json.dumps({k: s[k] for k in ("conf", "empty", "fraction")}) for s in settings)
    return json.loads(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)


def size(count):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}" if unit == 1 << 30 else f"{count / unit:.0f} {name}"
    return f"{count} B"


def grouped(count):
    return f"{count:,}".replace(",", " ")


def name_of(setting):
    conf = setting["conf"] or "defaults"
    return f"{conf}, fraction {setting['fraction']}" if setting["fraction"] else conf


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def percent(value):
    return f"{100 * value:+.1f}".replace("-", "−")


def lies_in(interval, value):
    return interval[0] * (1 - TOLERANCE) <= value <= interval[1] * (1 + TOLERANCE)


def programs(neap):
    truths = lines(DATA / "what-if" / "measured.jsonl")
    rows = []
    for snapshot in sorted((DATA / "what-if").glob("*.pickle.gz")):
        name = snapshot.name.removesuffix(".pickle.gz")
        work = name.removesuffix("-emptied").removesuffix("-expandable")
        mine = [t for t in truths if t["work"] == work]
        run = replay(neap, snapshot, mine)
        peaks = sum(lies_in(e["peak_reserved_range"], t["peak_reserved"]) for e, t in zip(run["what_if"], mine))
        counts = sum(lies_in(e["driver_allocs_range"], t["num_device_alloc"]) for e, t in zip(run["what_if"], mine))
        width = [e["peak_reserved_range"][1] / e["peak_reserved_range"][0] - 1 for e in run["what_if"]]
        off = [abs(e["peak_reserved"] / t["peak_reserved"] - 1) for e, t in zip(run["what_if"], mine)]
        fidelity = run["fidelity"]
        assert fidelity["allocs_equal"] == fidelity["allocs"], name
        rows.append([name, grouped(fidelity["allocs"]), str(len(mine)), str(peaks), str(counts), f"{100 * max(off):.1f} %", f"{100 * max(width):.1f} %"])
    return rows


def strategies(run):
    entries = sorted(run["what_if"], key=lambda e: (e["conf"], e["fraction"]))
    base = run["what_if"][0]["peak_reserved"]
    for entry in entries:
        change = entry["peak_reserved"] / base - 1
        text = "" if entry["peak_reserved"] == base else f"{percent(change)} %"
        yield [name_of(entry), entry["empty"], size(entry["peak_reserved"]), f"**{text}**" if change > 0.1 else text,
               size(entry["fragmentation_overhead"]), f"{entry['driver_ms']:.0f} ms"]


def make(neap):
    truths = lines(DATA / "h200-rlhf" / "opt-lora.jsonl")
    run = replay(neap, RUN, truths)
    return {
        ("docs/measurements/replay.md", "programs"): table(
            ["recording", "addresses", "settings", "peaks in their range", "driver allocs in it", "largest error of the best estimate", "widest range"],
            programs(neap)),
        ("docs/measurements/replay.md", "strategies"): table(
            ["settings", "empty_cache after", "peak reserved", "against defaults", "overhead", "driver time"], strategies(run)),
    }


def put(tables, script, mode):
    """Prints tables, given by page and name, or (--write, --check) compares them with those between their marks. How many differ."""
    stale = 0
    for (page, name), rows in tables.items():
        begin, end = f"<!-- {name}: {script} --write -->\n", "<!-- end -->"
        text = "\n".join(rows) + "\n"
        if mode not in ("--write", "--check"):
            print(f"{page}, {name}\n{text}")
            continue
        old = (ROOT / page).read_text()
        at = old.index(begin) + len(begin)
        to = old.index(end, at)
        if old[at:to] == text:
            continue
        stale += 1
        if mode == "--write":
            (ROOT / page).write_text(old[:at] + text + old[to:])
        else:
            print(f"{page}: the table of {name} differs; {script} --write makes it")
    return stale


def main():
    neap, mode = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    stale = put(make(neap), "bench/replay/docs_tables.py", mode)
    return int(mode == "--check" and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
