#!/usr/bin/env python3
"""Replays of the study's recordings against what was measured.

    replayed.py NEAP                  prints a line for each recording of bench/results/study-h100 and study-h200
    replayed.py NEAP --write [DIR]    writes bench/results/study-replayed.jsonl; replays the recordings in DIR also; keeps the lines of recordings
                                      that it does not find
    replayed.py NEAP --check          exits 1 unless every address is reproduced, peaks are those measured, the settings that were measured are
                                      predicted within 1 %, and study-replayed.jsonl has these figures. Of the recordings in RANGES the measured
                                      peak lies in the predicted range
"""
import concurrent.futures
import json
import lzma
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
CARDS, KEPT = ("study-h100", "study-h200"), RESULTS / "study-replayed.jsonl"
NEAR = 0.01
# The peak depends by more than NEAR on the addresses of new segments, which the driver chooses.
RANGES = {"colossal-gpt2-zero3-offload-none"}
EMPTY = ("inference", "training", "all")


def measured():
    """Rows that ran. The first recordings had one set of models, and generated all tokens."""
    rows = [json.loads(line) for card in CARDS for line in (RESULTS / f"{card}.jsonl").read_text().splitlines()]
    return [{"set": "deepspeed-opt", "remade": False, "generated": row.get("response"), **row} for row in rows if "failed" not in row]


def same_but(row, rows, empty):
    """The row that differs by its empty_cache() alone, or None."""
    keys = ("set", "strategy", "group", "world", "generated", "remade")
    return next((other for other in rows if other["empty"] == empty and all(other[key] == row[key] for key in keys)), None)


def replay(neap, path, row, orders):
    settings = ("recorded", *EMPTY) if row["empty"] == "none" else ("recorded",)
    words = [word for empty in settings for word in ("--empty", empty)]
    with tempfile.NamedTemporaryFile(suffix=".pickle") as unpacked:
        if path.suffix == ".xz":
            unpacked.write(lzma.open(path).read())
            unpacked.flush()
            path = unpacked.name
        done = subprocess.run([neap, "replay", path, "--json", "--no-advice", "--orders", orders, "--capacity", f"{row['environment']['total_memory']}B", *words],
                              capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path}: exit {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout)


def line_of(neap, path, row):
    ranged = name_of(path) in RANGES
    found = replay(neap, path, row, "12" if ranged else "1")
    fields = ("peak_reserved", "peak_allocated", "fragmentation_at_peak", "driver_allocs")
    predicted = (*fields, "peak_reserved_range") if ranged else fields
    return {"recording": name_of(path), **{key: row[key] for key in ("set", "stack", "strategy", "empty", "group", "world")},
            **{key: found["fidelity"][key] for key in ("allocs", "allocs_equal", "segments", "segments_equal")},
            **{key: found["recorded"][key] for key in ("events", *fields)},
            "free_segments_at_peak": found["blame"]["releasable"], "what_if": {entry["empty"]: {key: entry[key] for key in predicted} for entry in found["what_if"]}}


def lines(neap, folders):
    rows = {row["recording"]: row for row in measured() if row["recording"]}
    paths = [(path, name_of(path)) for folder in folders for path in sorted(folder.glob("*.pickle.*"))]
    unique = {name: path for path, name in reversed(paths)}  # one that is kept comes first
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(lambda name: line_of(neap, unique[name], rows[name]), dict.fromkeys(name for _, name in paths)))


def name_of(path):
    return path.name.partition(".pickle")[0]


def problems(line, rows):
    row = next(row for row in rows if row["recording"] == line["recording"])
    for what in ("allocs", "segments"):
        if line[what] == 0 or line[f"{what}_equal"] != line[what]:
            yield f"{line[what + '_equal']} of {line[what]} {what} reproduced"
    for what in ("peak_reserved", "peak_allocated", "fragmentation_at_peak", "events"):
        if line[what] != row[what]:
            yield f"{what} {line[what]} replayed, {row[what]} measured"
    for empty in EMPTY:
        truth = same_but(row, rows, empty)
        if row["empty"] != "none" or not truth:
            continue
        guess = line["what_if"][empty]
        least, most = guess.get("peak_reserved_range", [(1 + part) * guess["peak_reserved"] for part in (-NEAR, NEAR)])
        if not least <= truth["peak_reserved"] <= most:
            yield f"{empty}: {guess['peak_reserved']} predicted, {truth['peak_reserved']} measured"


def main():
    neap, mode = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2] if len(sys.argv) > 2 else ""
    found = lines(neap, [*(RESULTS / card for card in CARDS), *map(pathlib.Path, sys.argv[3:])])
    text = [json.dumps(line) for line in found]
    if mode == "--write":
        others = [line for line in KEPT.read_text().splitlines() if json.loads(line)["recording"] not in {line["recording"] for line in found}]
        KEPT.write_text("\n".join(text + others) + "\n")
    if mode != "--check":
        print("\n".join(text))
        return 0
    rows, kept = measured(), KEPT.read_text().splitlines()
    bad = [f"{line['recording']}: {problem}" for line in found for problem in problems(line, rows)]
    bad += [f"{json.loads(line)['recording']}: {KEPT.name} has other figures; --write writes them" for line in text if line not in kept]
    if not found:
        bad.append(f"{', '.join(CARDS)} have no recordings")
    print("\n".join(bad))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
