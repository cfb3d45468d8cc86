#!/usr/bin/env python3
"""README.md: every number of its results is that of bench/results; README and CHANGELOG keep their budgets of words.

Usage: check_readme.py SOURCE_DIR
"""
import json
import statistics
import sys
from pathlib import Path

GIB = 2**30
WORDS = {"README.md": 700, "CHANGELOG.md": 250}


class Results:
    def __init__(self, folder: Path):
        self.folder = folder

    def rows(self, name: str, **keys):
        lines = (self.folder / f"{name}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        return [r for r in rows if all(r.get(k) == v for k, v in keys.items())]

    def newest(self, name: str, **keys):
        found = self.rows(name, **keys)
        if not found:
            raise SystemExit(f"bench/results/{name}.jsonl has no row with {keys}")
        return found[-1]

    def percents(self):
        """All differences of a measured peak from its plan, in percent."""
        def values(item):
            if isinstance(item, list):
                for i in item:
                    yield from values(i)
            elif isinstance(item, dict):
                for key, value in item.items():
                    if key == "percent" and isinstance(value, (int, float)):
                        yield value
                    else:
                        yield from values(value)
        for file in sorted(self.folder.glob("*.jsonl")):
            yield from values(self.rows(file.stem))


def memory_and_time(row, gib: str, seconds: str) -> str:
    return f"{row['measured_peak'] / GIB:{gib}} GiB, {row['seconds_a_step']:{seconds}} s"


def training(results: Results):
    grpo, limited = (results.newest("start-h200", case=c) for c in ("full", "full under 22 GiB"))
    yield memory_and_time(limited, ".1f", ".1f") + " per step | no limit: " + memory_and_time(grpo, ".1f", ".1f")
    _, limited, whole = sorted(results.rows("least-capacity-h200", case="full3b"), key=lambda r: r["capacity"])
    yield memory_and_time(limited, ".2f", ".2f") + " per step | no limit: " + memory_and_time(whole, ".1f", ".3f")
    torch = results.newest("ranks-four-h200", suite="fsdp2", model="qwen2.5-1.5b", ranks_used=4)
    yield f"{torch['ranks'][0]['reserved_peak'] / GIB:.1f} GiB, {torch['seconds_a_step']:.3f} s"
    own = results.newest("ranks-four-h200", suite="ranks", model="qwen2.5-1.5b", case="zero3")
    peak = max(rank["measured_peak"] for rank in own["ranks"])
    yield f"{peak / GIB:.1f} GiB, {own['seconds_a_step']:.3f} s per step | FSDP2"


def arena(results: Results):
    first = results.newest("side-by-side-h200", program="weights", number="first_pause_ms")["median"]
    yield f"{first['drop-in'] / 1000:.2f} s | torch_memory_saver: {first['torch_memory_saver'] / 1000:.1f} s"
    times = {(c, w): results.newest("arena-h200", case=c, what=w)
             for c in ("discard_released_used", "discard_kept") for w in ("pause", "resume")}
    released, kept = (tuple(times[c, w] for w in ("pause", "resume")) for c in ("discard_released_used", "discard_kept"))
    yield f"{released[0]['median']:.1f} / {released[1]['median']:.2f} ms; {kept[0]['median']:.2f} / {kept[1]['median']:.2f} ms"
    yield "{:.1f} / {:.2f} ms; {:.2f} / {:.2f} ms".format(*(t["limit"]["median"] for t in released + kept))


def plans(results: Results):
    percents = list(results.percents())
    near = sum(abs(p) <= 0.2 for p in percents)
    above = sorted(p for p in percents if p > 0.02)
    yield f"{len(percents):,} measured peaks".replace(",", " ") + f" against their plans | {100 * near / len(percents):.0f} % within 0.2 %"
    yield "two above the plan: " + " and ".join(f"{p:.2f} %" for p in above)
    errors = [abs(r["seconds_percent"]) for r in results.rows("published-ranks", kind="step")]
    yield f"of {len(errors)} published A100 runs | median error {statistics.median(errors):.1f} % | worst {max(errors):.0f} %"


def demo(results: Results):
    seconds = sorted(r["seconds"] for r in results.rows("first-hour", command="make demo"))
    yield f"took {seconds[0]} s, on a slower host {seconds[-1]} s"


def main() -> int:
    root = Path(sys.argv[1])
    results, text = Results(root / "bench" / "results"), (root / "README.md").read_text()
    problems = [f"README.md does not say \"{said}\", as bench/results does"
                for part in (training, arena, plans, demo) for said in part(results) if said not in text]
    for name, most in WORDS.items():
        words = len((root / name).read_text().split())
        if words > most:
            problems.append(f"{name} has {words} words; at most {most}")
    print("\n".join(problems) or "README.md: numbers and words are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
