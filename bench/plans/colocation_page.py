#!/usr/bin/env python3
"""docs/measurements/colocation.md: rollout and training on one GPU in four ways, measured and planned, from bench/results.

    colocation_page.py             prints it
    colocation_page.py --write     writes the page
    colocation_page.py --check     exits 1 where the page differs
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "measurements" / "colocation.md"
sys.path.insert(0, str(ROOT / "bench" / "replay"))
sys.dont_write_bytecode = True
from alternation import RATIOS, STRATEGIES  # noqa: E402
from docs_tables import grouped, table  # noqa: E402

GIB = 2.0**30
WAYS = {way: name for name, way in STRATEGIES.items()}


def lines(name):
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def source(name):
    return f"[{name}](../../bench/results/{name}.jsonl)"


def gib(count):
    return f"{count / GIB:.1f}"


def tokens(row):
    return f"{row['kv_tokens'] / 1e6:.2f}" if row.get("fits", True) and "kv_tokens" in row else "–"


def seconds_of(row, phase, key):
    found = [p for p in row["phases"] if p["phase"] == phase]
    return f"{found[0][key]:.2f}" if found else "–"


def measured(rows):
    runs = {row["way"]: row for row in rows if "measured" in row}
    largest = {row["way"]: row for row in rows if row.get("planned") == "largest"}
    out = []
    for way, name in WAYS.items():
        run, most = runs[way], largest[way]
        if "error" in run:
            out.append((f"{name}, `{way}`", "none", "–", "–", "–", "–", "–", "–", "–"))
            continue
        out.append((f"{name}, `{way}`", f"{run['measured']:g}", tokens(run), f"{most['ratio']:.2f}" if most["fits"] else "none",
                    f"{gib(run['peak'])} ({gib(run['planned_peak'])})", gib(run["host_bytes"]), f"{run['transition_seconds']:.2f}",
                    " + ".join(seconds_of(run, phase, "seconds") for phase in ("store_weights", "wake_up") if seconds_of(run, phase, "seconds") != "–")
                    or "–", f"{run['step_seconds'][-1]:.1f}"))
    return table(("way", "largest of the four ratios", "KV cache, million tokens", "largest planned ratio", "GPU GiB, measured (planned)",
                  "host GiB, planned", "s of transitions per step", "of it: store, wake up", "s per step"), out)


def planned(rows):
    out = []
    for job in dict.fromkeys(row["job"] for row in rows):
        for way, name in WAYS.items():
            mine = [row for row in rows if row["job"] == job and row["strategy"] == name]
            least, most = (next(row for row in mine if row.get("asked") == ratio) for ratio in (RATIOS[0], RATIOS[-1]))
            largest = next(row for row in mine if row.get("largest"))
            out.append((job, f"{name}, `{way}`", *(gib(row["needs"]) if row["fits"] else f"needs {gib(row['needs'])}" for row in (least, most)),
                        f"{largest['ratio']:.2f}" if largest["fits"] else "none", tokens(largest)))
    return table(("job", "way", *(f"GiB at {ratio:g}" for ratio in (RATIOS[0], RATIOS[-1])), "largest ratio", "million tokens"), out)


def refusal(rows):
    run = next(row for row in rows if row.get("way") == "resident" and "measured" in row)
    return " ".join(line for line in run["error"].splitlines() if "minimum capacity" in line).split("error: ")[-1].split(" Each of these")[0].strip()


def asleep():
    """(table, the trainer's row)."""
    rows = lines("asleep-h200")
    assert all(row["grown_mib"] == 0 for row in rows if "grown_mib" in row)
    out = [(row["package"], f"{row['asleep_first_mib']:.0f}", *(f"{size:.0f}" for size in row["parts_mib"].values()), f"{row['unexplained_mib']:.0f}")
           for row in rows if "parts_mib" in row]
    mine, eager = [row for row in rows if row.get("package") == "neap train"]
    kernels = next(row for row in rows if "parts_mib" in row)["kernels_and_cublas_mib"]  # those of the same libraries
    left = mine["beyond_account_mib"] - mine["context_mib"] - kernels
    out.append(("`neap train`, not in its plan", f"{mine['beyond_account_mib']:.0f}", f"{mine['context_mib']:.0f}", f"{kernels:.0f}", "planned", "planned", f"{left:.0f}"))
    head = ("program", "MiB", "context", "kernels, cuBLAS", "graphs", "torch's reserve", "unexplained")
    return table(head, out), mine, eager


def vllm():
    """The section on engines of vLLM."""
    rows = lines("vllm-suite-h200")
    found, tests = rows[0]["environment"], [row for row in rows if "test" in row]
    engines = {row["engine"]: row for row in rows if "engine" in row}
    summaries = {(row["summary"], row["level"]): row for row in rows if "summary" in row}

    def spread(row, key):
        return f"{row[key]['median']:.3f} ({row[key]['least']:.3f}–{row[key]['most']:.3f})"

    out = [(name, *(spread(summaries[engine, level], key) for level in (1, 2) for key in ("sleep_s", "wake_s")),
            *(grouped(round(summaries[engine, 1][key]["median"])) for key in ("awake_mib", "asleep_mib")),
            grouped(engines[engine]["first_sleep"]["host_mib"]))
           for engine, name in (("vllm", "vLLM's"), ("neap", "Neap's"))]
    head = ("allocator", "s to sleep, level 1", "s to wake up", "s to sleep, level 2", "s to wake up", "GPU MiB awake", "asleep",
            "host MiB")
    same = all(row.get("same_text", True) for row in rows)
    passed = [row for row in tests if row["neap"] == "passed"]
    assert same and len(passed) == len(tests)
    counts = [row[key]["count"] for row in summaries.values() for key in ("sleep_s", "wake_s")]
    text = [
        "## vLLM",
        f"{found['gpu'].removeprefix('NVIDIA ')}, {found['date']}, `tests/gpu/vllm_suite`: vLLM {found['vllm']} with Qwen2.5-7B's shape, random weights, CUDA "
        f"graphs and {engines['neap']['in_pools_mib'] / 1024:.1f} GiB in its allocator, 12 of them KV cache. "
        f"Median (least–most) of {min(counts)} to {max(counts)} moves each; GPU MiB by `nvidia-smi`. {source('vllm-suite-h200')}", "",
        *table(head, out), "",
        "- Greedy outputs after each wake-up equal those before the first sleep, on both allocators.",
        "- vLLM's backup is larger because torch rounds its pinned blocks up to powers of two. Both allocators keep it for the next sleep.",
        f"- All {len(tests)} of vLLM's tests of sleep mode pass on Neap's allocator, five of them with whole engines and one with `vllm serve`.",
        "- The wheel's GPU code was cut to one architecture (`tests/gpu/cut_wheel.py`).", ""]
    return text


def page():
    rows, plans = lines("colocation-h200"), lines("planned-alternation")
    found = rows[0]["environment"]
    runs = {row["way"]: row for row in rows if "measured" in row}
    same = runs["reload"]["grad_norm"] == runs["stages"]["grad_norm"]
    sleeping, trainer, eager = asleep()
    text = [
        "# Measurements: rollout and training on one GPU", "",
        "<!-- Written by `bench/plans/colocation_page.py --write`; a test compares. -->", "",
        "[SGLang's RL team](https://hebiao064.github.io/rl-memory-management) describes four ways in which a rollout engine and a trainer share a "
        "GPU. `actor_rollout_ref.rollout.colocation` runs each of them in `neap train`:", "",
        "- **v0, `resident`**: everything stays on the GPU.",
        "- **v1, `reload`**: the rollout's weights are written to disk and read back.",
        "- **v2, `whole`**: weights and KV cache of the rollout are resumed together. The trained weights stay until the rollout's are filled.",
        "- **v3, `stages`** (default): a tag is loaded when a phase needs it.", "",
        "In v0 to v2 the rollout has its own copy of the weights, like an engine. In v3 it decodes with the trained weights, unless parallel sizes differ. "
        "Results are bitwise identical"
        + (" (tested on the CPU; the gradient norms of v1 and v3 below are also equal)." if same else ".") + " The ratio is SGLang's `mem_fraction_static`: the "
        "share of the GPU's memory for weights and KV cache of the rollout.", "",
        "![GPU memory of a step over time in three ways](../images/colocation.svg)", "",
        "## Measured",
        f"{found['gpu'].removeprefix('NVIDIA ')}, {found['date']}, `tests/gpu/colocation.py`: full GRPO of Qwen2.5-7B's shape with random weights, 64 x 8 "
        f"responses of 128 tokens, sequences of up to {grouped(4096)} tokens. {source('colocation-h200')}", "",
        *measured(rows), "",
        "The ratio 0.9 holds all 512 sequences. v2 is refused at 0.9: both copies of the weights and the cache exceed the GPU and the 125 GiB of host memory.", "",
        f"v0 is refused before anything is loaded: *{refusal(rows)}*", "",
        f"With `reload` a step also waits {seconds_of(runs['reload'], 'backward_actor', 'move_seconds')} s to load the trained weights and "
        f"{seconds_of(runs['reload'], 'update_actor', 'move_seconds')} s to load the optimizer states. Other moves take less than 0.1 s each.", "",
        "## Planned",
        "GRPO with 512 x 8 responses of 1 024 tokens to prompts of 512, with 2 TiB of host memory: v2 can then offload layers of the trained weights. "
        f"{source('planned-alternation')}", "", *planned(plans), "",
        "## Asleep",
        f"{found['gpu'].removeprefix('NVIDIA ')}, {found['date']}, `tests/gpu/asleep.py`: MiB on the GPU after 100 pauses of everything, in "
        f"a torch program with CUDA graphs, and in `neap train` after {trainer['steps']} steps. They do not grow. {source('asleep-h200')}", "", *sleeping, "",
        f"CUDA loads a kernel when it is first used. `CUDA_MODULE_LOADING=EAGER` loads all at the start, which takes {eager['most_used_mib'] - trainer['most_used_mib']:.0f} MiB more.", "",
        *vllm(),
    ]
    return "\n".join(text).rstrip("\n") + "\n"


def main():
    text = page()
    if "--write" in sys.argv:
        PAGE.write_text(text)
    elif "--check" in sys.argv:
        if PAGE.read_text() != text:
            print(f"{PAGE.relative_to(ROOT)} differs; bench/plans/colocation_page.py --write makes it")
            return 1
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
