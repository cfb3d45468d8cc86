#!/usr/bin/env python3
"""Replays of the study's recordings against what was measured.

    replayed.py NEAP                  prints a line for each recording of bench/results/study-h100 and study-h200
    replayed.py NEAP --write [DIR]    writes bench/results/study-replayed.jsonl; DIR has recordings that are not kept, too;
                                      lines of recordings that are in neither stay
    replayed.py NEAP --check          exits 1 unless every address is reproduced, peaks are those measured, the settings that were measured are
                                      predicted within 1 %, and study-replayed.jsonl has these figures
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
NEAR_OFFLOADED = 0.015  # blocks wait for copies to the host, so that two runs of a program differ
EMPTY = ("inference", "training", "all")


def measured():
    """Rows that ran. The first recordings had one set of models, and generated all tokens."""
    rows = [json.loads(line) for card in CARDS for line in (RESULTS / f"{card}.jsonl").read_text().splitlines()]
    return [{"set": "deepspeed-opt", "remade": False, "generated": row.get("response"), **row} for row in rows if "failed" not in row]


def same_but(row, rows, empty):
    """The row that differs by its empty_cache() alone, or None."""
    keys = ("set", "strategy", "group", "world", "generated", "remade")
    return next((other for other in rows if other["empty"] == empty and all(other[key] == row[key] for key in keys)), None)


def replay(neap, path, row):
    settings = ("recorded", *EMPTY) if row["empty"] == "none" else ("recorded",)
    words = [word for empty in settings for word in ("--empty", empty)]
    with tempfile.NamedTemporaryFile(suffix=".pickle") as unpacked:
        if path.suffix == ".xz":
            unpacked.write(lzma.open(path).read())
            unpacked.flush()
            path = unpacked.name
        done = subprocess.run([neap, "replay", path, "--json", "--no-advice", "--orders", "1", "--capacity", f"{row['environment']['total_memory']}B", *words],
                              capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path}: exit {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout)


def line_of(neap, path, row):
    found = replay(neap, path, row)
    fields = ("peak_reserved", "peak_allocated", "fragmentation_at_peak", "driver_allocs")
    return {"recording": name_of(path), **{key: row[key] for key in ("set", "stack", "strategy", "empty", "group", "world")},
            **{key: found["fidelity"][key] for key in ("allocs", "allocs_equal", "segments", "segments_equal")},
            **{key: found["recorded"][key] for key in ("events", *fields)},
            "free_segments_at_peak": found["blame"]["releasable"], "what_if": {entry["empty"]: {key: entry[key] for key in fields} for entry in found["what_if"]}}


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
        near = NEAR_OFFLOADED if "offload" in row["strategy"] or row["strategy"] == "all" else NEAR
        if row["empty"] == "none" and truth and abs(line["what_if"][empty]["peak_reserved"] / truth["peak_reserved"] - 1) > near:
            yield f"{empty}: {line['what_if'][empty]['peak_reserved']} predicted, {truth['peak_reserved']} measured"


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
