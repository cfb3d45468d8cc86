#!/usr/bin/env python3
"""`neap replay` on snapshots that other people published on GitHub, against bench/results/public-snapshots.jsonl.

    public_snapshots.py NEAP --cache FOLDER     fetches what FOLDER lacks, replays, exits 1 where figures differ
    public_snapshots.py NEAP --from FOLDER      replays files that FOLDER has under any name; fetches nothing
    ... --write                                 writes the figures and the date instead; a new line needs repository, commit, path and sha256

The list has a line for each file: its SHA-256 and the figures of its replay. The files are not part of Neap.
"""
import argparse
import concurrent.futures
import datetime
import hashlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "bench" / "results" / "public-snapshots.jsonl"
OTHERWISE = "If you have the file, name its folder with --from"
SOURCE = ("repository", "commit", "path", "sha256", "bytes")


def address(row):
    return f"https://raw.githubusercontent.com/{row['repository']}/{row['commit']}/{urllib.parse.quote(row['path'])}"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fetched(row, folder):
    """The file of a row in the cache; None, and a message, where GitHub does not have it."""
    file = folder / row["sha256"]
    if file.exists() and sha256(file) == row["sha256"]:
        return file
    try:
        with urllib.request.urlopen(address(row), timeout=60) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        print(f"{address(row)} is not there (HTTP {error.code}). {OTHERWISE}", file=sys.stderr)
        return None
    except OSError as error:
        raise SystemExit(f"{address(row)} cannot be reached ({getattr(error, 'reason', error)}). {OTHERWISE}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != row["sha256"]:
        print(f"{address(row)} has SHA-256 {found}, expected is {row['sha256']}. {OTHERWISE}", file=sys.stderr)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{row['sha256']}.part"
    partial.write_bytes(content)
    partial.rename(file)
    return file


def files_in(folder, rows):
    """Files of a folder by their SHA-256; only those with the size of a row are read."""
    sizes = {row.get("bytes") for row in rows}
    some = (path for path in folder.rglob("*") if path.is_file() and (None in sizes or path.stat().st_size in sizes))
    return {sha256(path): path for path in some}


def figures(neap, file):
    done = subprocess.run([neap, "replay", file, "--json"], capture_output=True, text=True)
    if done.returncode == 2 and "the history was not recorded" in done.stderr:
        return {"history": "none"}
    if done.returncode:
        return {"failed": f"exit {done.returncode}: {done.stderr.strip()[-200:]}"}
    found = json.loads(done.stdout)
    cut, best = found["history_cut"], found["advice"][0] if found["advice"] else None
    return {"history": "complete" if cut is None else "cut", "comparable": cut is None or cut["comparable"],
            **{key: found["fidelity"][key] for key in ("allocs", "allocs_equal", "segments", "segments_equal")},
            **{key: found["recorded"][key] for key in ("events", "peak_reserved", "peak_allocated", "driver_allocs", "policy")},
            "advice": best and {key: best[key] for key in ("conf", "empty", "fraction", "peak_reserved", "saves")}}


def differences(row, found):
    for key, value in found.items():
        if row.get(key) != value:
            yield f"{row['repository']}/{row['path']}: {key} is {value}, was {row.get(key)}"


def environment(neap):
    version = subprocess.run([neap, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {"version": version, "machine": platform.machine(), "python": platform.python_version()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neap")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--cache", type=pathlib.Path, metavar="FOLDER")
    where.add_argument("--from", type=pathlib.Path, metavar="FOLDER", dest="there")
    parser.add_argument("--list", type=pathlib.Path, default=KEPT, metavar="FILE", help="another list of snapshots")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = [row for row in map(json.loads, options.list.read_text().splitlines()) if "sha256" in row]
    if options.there:
        if not options.there.is_dir():
            parser.error(f"{options.there} is not a folder")
        there = files_in(options.there, rows)
        places = [there.get(row["sha256"]) for row in rows]
        for row in (row for row, place in zip(rows, places) if place is None):
            print(f"{options.there} has no file with SHA-256 {row['sha256']} ({address(row)})", file=sys.stderr)
    else:
        places = [fetched(row, options.cache) for row in rows]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda place: place and figures(options.neap, place), places))
    ran = [(row, place, some) for row, place, some in zip(rows, places, found) if some]
    broken = [f"{row['repository']}/{row['path']}: {some['failed']}" for row, _, some in ran if "failed" in some]
    if options.write and not broken and len(ran) == len(rows):
        head = {"date": datetime.date.today().isoformat(), "environment": environment(options.neap)}
        new = [{key: row[key] for key in SOURCE if key in row} | {"bytes": place.stat().st_size} | some for row, place, some in ran]
        options.list.write_text("".join(json.dumps(line) + "\n" for line in (head, *new)))
    elif not options.write:
        broken += [text for row, _, some in ran if "failed" not in some for text in differences(row, some)]
    complete = len(ran) == len(rows)
    print("\n".join([*broken, f"{len(ran)} of {len(rows)} snapshots replayed" + (", all figures as kept" if complete and not broken else "")]))
    return int(bool(broken) or not complete)


if __name__ == "__main__":
    sys.exit(main())
