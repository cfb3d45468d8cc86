#!/usr/bin/env python3
"""Numbers in README.md and some pages are those of bench/results, variables in docs/rewards.md those of the source; README and CHANGELOG keep their budgets of words.

Usage: check_readme.py SOURCE_DIR
"""
import json
import re
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
sys.dont_write_bytecode = True
import ceilings  # noqa: E402

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


def gib(count) -> str:
    return f"{count / GIB:.{2 if count < 10 * GIB else 1}f}"


def training_row(results: Results, row, seconds: str) -> str:
    """The cells behind a job's name: GPU and host GiB, seconds."""
    host = results.newest("planned-host", case=row["case"], date=row["date"])["host_bytes"]
    if "H200" not in row["environment"]["gpu"]:
        raise SystemExit(f"README.md's GPU is not that of {row['case']}, {row['date']}")
    return f"| {gib(row['measured_peak'])} / {host / GIB:.1f} | {row['seconds_a_step']:{seconds}} |"


def key(row, name: str) -> int:
    return int(re.search(rf"{re.escape(name)}=(\d+)", row["command"])[1])


def training(results: Results):
    whole, limited = (results.newest("start-h200", case=c) for c in ("full", "full under 22 GiB"))
    # docs/start.md has 64 prompts per step.
    job = f"{64 * key(whole, 'rollout.n')} responses of {key(whole, 'data.max_response_length')} tokens "
    yield job + training_row(results, whole, ".1f")
    yield f"limit {limited['capacity'] / GIB:.0f} GiB " + training_row(results, limited, ".1f")
    _, limited, whole = sorted(results.rows("least-capacity-h200", case="full3b"), key=lambda r: r["capacity"])
    case = ceilings.WORK["full3b"][0]
    yield f"{case.sequences} x {case.prompt + case.response:,} tokens ".replace(",", " ") + training_row(results, whole, ".3f")
    yield f"limit {gib(limited['capacity'])} GiB " + training_row(results, limited, ".2f")
    torch = results.newest("ranks-four-h200", suite="fsdp2", model="qwen2.5-1.5b", ranks_used=4)
    yield f"{torch['ranks'][0]['reserved_peak'] / GIB:.1f} GiB, {torch['seconds_a_step']:.3f} s"
    own = results.newest("ranks-four-h200", suite="ranks", model="qwen2.5-1.5b", case="zero3")
    peak = max(rank["measured_peak"] for rank in own["ranks"])
    yield f"{peak / GIB:.1f} GiB, {own['seconds_a_step']:.3f} s per step | FSDP2"


def arena(results: Results):
    first = results.newest("side-by-side-h200", program="weights", number="first_pause_ms")["median"]
    yield f"{first['drop-in'] / 1000:.2f} s | torch_memory_saver: {first['torch_memory_saver'] / 1000:.1f} s"


def grpo7b(results: Results):
    row = results.newest("least-capacity-h200", case="grpo7b-full")
    yield f"took {row['measured_peak'] / GIB:.2f} GiB and {row['seconds_a_step']:.1f} s"
    yield f"{row['planned_seconds']:.1f} s"


def plans(results: Results):
    percents = list(results.percents())
    near = sum(abs(p) <= 0.2 for p in percents)
    above = sorted(p for p in percents if p > 0.02)
    yield f"{len(percents):,} measured peaks".replace(",", " ") + f" against their plans | {100 * near / len(percents):.0f} % within 0.2 %"
    yield "two above the plan: " + " and ".join(f"{p:.2f} %" for p in above)
    errors = [abs(r["seconds_percent"]) for r in results.rows("published-ranks", kind="step")]
    yield f"of {len(errors)} published A100 runs | median error {statistics.median(errors):.1f} % | worst {max(errors):.0f} %"


def environment(results: Results):
    source = (results.folder.parents[1] / "src" / "reward" / "worker_environment.cpp").read_text()
    usual = re.search(r"kUsual = \{(.*?)\}", source, re.DOTALL)[1]
    yield "`" + " ".join(re.findall(r'"(.+?)"', usual)) + "`"


def demo(results: Results):
    seconds = sorted(r["seconds"] for r in results.rows("first-hour", command="make demo"))
    yield f"{seconds[0]} s, on a slower host {seconds[-1]} s"


PAGES = {"README.md": (training, arena, plans, demo), "docs/one-gpu.md": (grpo7b,), "docs/rewards.md": (environment,)}


def main() -> int:
    root = Path(sys.argv[1])
    results = Results(root / "bench" / "results")
    problems = []
    for page, parts in PAGES.items():
        text = (root / page).read_text()
        problems += [f"{page} does not say \"{said}\"" for part in parts for said in part(results) if said not in text]
    for name, most in WORDS.items():
        words = len((root / name).read_text().split())
        if words > most:
            problems.append(f"{name} has {words} words; at most {most}")
    print("\n".join(problems) or "README.md: numbers and words are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
