#!/usr/bin/env python3
"""docs/measurements/rlhf-stacks.md: the paper's table 1, DeepSpeed recorded, and Neap's plans, from bench/results/study-*.jsonl.

    page.py             prints it
    page.py --write     writes the page
    page.py --check     exits 1 where the page differs
"""
import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "measurements" / "rlhf-stacks.md"
sys.path.insert(0, str(ROOT / "bench" / "replay"))
sys.dont_write_bytecode = True
from docs_tables import grouped, table  # noqa: E402

GIB = 2.0**30
NAMES = {"none": "None", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "zero3-offload": "ZeRO-3, CPU offloading",
         "checkpointing": "gradient checkpointing", "all": "all of these"}
FIELDS = ("reserved", "fragmentation", "allocated", "emptied_reserved", "emptied_fragmentation")
NO_EFFECT = 0.15  # GiB; the paper gives one decimal


def lines(name):
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def paper():
    found = json.loads((ROOT / "bench" / "study" / "paper.json").read_text())
    return {strategy: dict(zip(FIELDS, found[strategy])) for strategy in NAMES}


def ran(rows):
    return [row for row in rows if "failed" not in row]


def recorded(rows):
    found = {}
    for row in ran(rows):
        if (row["group"], row["world"]) != ("fake", 4):
            continue
        mine = found.setdefault(row["strategy"], {})
        sizes = {"reserved": row["peak_reserved"] / GIB, "fragmentation": row["fragmentation_at_peak"] / GIB}
        if row["empty"] == "none":
            mine |= sizes | {"allocated": row["peak_allocated"] / GIB}
        elif row["empty"] == "all":
            mine |= {f"emptied_{key}": value for key, value in sizes.items()}
    return found


def planned():
    return {row["strategy"]: {key: row[key] / GIB for key in FIELDS[:3]} for row in lines("study-planned")}


def cell(values, keys, digits):
    return " / ".join(f"{values[key]:.{digits}f}" if key in values else "–" for key in keys) if values else "–"


def sizes(stacks):
    head = ["strategy", "paper, 4 x RTX 3090", "with `empty_cache()`", "DeepSpeed recorded, rank 0 of 4", "with `empty_cache()`", "Neap planned, 4 x RTX 3090"]
    return table(head, [[name, cell(stacks["paper"][key], FIELDS[:3], 1), cell(stacks["paper"][key], FIELDS[3:], 1),
                         cell(stacks["recorded"].get(key), FIELDS[:3], 2), cell(stacks["recorded"].get(key), FIELDS[3:], 2),
                         cell(stacks["planned"][key], FIELDS[:3], 2)] for key, name in NAMES.items()])


def effects(stacks):
    """Differences that the paper discusses, by stack; None where a row is missing."""
    def change(stack, one, field, other, base):
        values = stacks[stack]
        both = values.get(one, {}).get(field), values.get(other, {}).get(base)
        return None if None in both else both[0] - both[1]
    kinds = [(f"{NAMES[key]}: {field}", key, field, "none", field) for field in FIELDS[:2] for key in NAMES if key != "none"]
    kinds += [(f"{NAMES[key]}: `empty_cache()` on reserved", key, "emptied_reserved", key, "reserved") for key in NAMES]
    return [(name, *(change(stack, *some) for stack in stacks)) for name, *some in kinds]


def sign(value):
    return 0 if abs(value) < NO_EFFECT else 1 if value > 0 else -1


def agrees(one, other):
    if other is None:
        return "–"
    if sign(one) == sign(other):
        return "yes"
    return "one has none" if 0 in (sign(one), sign(other)) else "no"


def signs(stacks):
    def text(value):
        return "–" if value is None else f"{value:+.2f}".replace("-", "−")
    return table(["effect, GiB", "paper", "DeepSpeed", "same sign", "Neap", "same sign"],
                 [[name, text(first), text(second), agrees(first, second), text(third), agrees(first, third)]
                  for name, first, second, third in effects(stacks)])


def percent(share):
    return f"{100 * share:+.2f} %".replace("-", "−")


def where():
    """Reserved memory with empty_cache() after some phases, predicted from the recording without it."""
    some = [line for line in lines("study-replayed") if line["empty"] == "none" and (line["group"], line["world"]) == ("fake", 4)]
    some.sort(key=lambda line: list(NAMES).index(line["strategy"]))
    return table(["strategy", "as recorded", "after inference", "after training", "after all phases"],
                 [[NAMES[line["strategy"]], f"{line['peak_reserved'] / GIB:.2f}",
                   *(f"{line['what_if'][empty]['peak_reserved'] / GIB:.2f}" for empty in ("inference", "training", "all"))] for line in some])


def replays(rows):
    by_key = {tuple(row[key] for key in ("strategy", "empty", "group", "world")): row for row in ran(rows)}
    body = []
    for line in lines("study-replayed"):
        truth = by_key.get((line["strategy"], "all", line["group"], line["world"])) if line["empty"] == "none" else None
        guess = line["what_if"].get("all", {}).get("peak_reserved")
        ranks = f"{line['world']} ranks over NCCL" if line["group"] == "nccl" else f"rank 0 of {line['world']}"
        body.append([f"{NAMES[line['strategy']]}, {ranks}", line["empty"], f"{grouped(line['allocs_equal'])} of {grouped(line['allocs'])}",
                     f"{grouped(line['segments_equal'])} of {grouped(line['segments'])}", f"{guess / GIB:.3f}" if guess else "",
                     f"{truth['peak_reserved'] / GIB:.3f} ({percent(guess / truth['peak_reserved'] - 1)})" if truth else ""])
    return table(["recording", "`empty_cache()` after", "addresses", "segment events", "`all` predicted, GiB", "`all` measured, GiB"], body)


def seconds(rows):
    """Steps with empty_cache() after all phases, and the calls' own share; several rows shared a GPU."""
    some = [row for row in ran(rows) if row["empty"] == "all"]
    return statistics.median(100 * row["empty_seconds"] / sum(row["seconds"]) for row in some)


def pair(rows):
    """A row with real ranks against the same with rank 0 alone."""
    real = next(row for row in ran(rows) if row["group"] == "nccl")
    alone = next(row for row in ran(rows) if row["group"] == "fake" and all(row[key] == real[key] for key in ("strategy", "empty", "world")))
    same = all(real[key] == alone[key] for key in ("peak_reserved", "peak_allocated", "fragmentation_at_peak", "events", "num_device_alloc"))
    return "equal" if same else "differ"


def failed(rows):
    some = sorted({NAMES[row["strategy"]] for row in rows if "failed" in row}, key=list(NAMES.values()).index)
    return "; ".join(some)


def free_segments():
    """GiB in whole free segments at the peak without a strategy."""
    return next(line for line in lines("study-replayed") if line["recording"] == "deepspeed-none-none")["free_segments_at_peak"] / GIB


def page():
    rows = lines("study-h100")
    stacks = {"paper": paper(), "recorded": recorded(rows), "planned": planned()}
    known = ran(rows)[0]["environment"]
    found = stacks["recorded"]
    return "\n".join([
        "# Measurements: RLHF on DeepSpeed and on Neap", "",
        "<!-- Written by `bench/study/page.py --write`; a test compares. -->", "",
        f"{ran(rows)[0]['date'][:10]}, 2 x {known['gpu']}, driver {known['driver']}, torch {known['torch']}, DeepSpeed {known['deepspeed']}, transformers "
        f"{known['transformers']}, PEFT {known['peft']}.", "",
        "[*Understanding and Alleviating Memory Consumption in RLHF for LLMs*](https://arxiv.org/abs/2410.15651) measures step 3 of DeepSpeed-Chat. "
        "`bench/study/record.py` runs the same step on today's DeepSpeed and records it. Neap's column is its plan.", "",
        "- **R1, the cause.** Fragmentation also sets the peak here: "
        f"{found['none']['fragmentation']:.1f} of {found['none']['reserved']:.1f} GiB without a strategy. It arises inside training, not in inference. The "
        f"optimizer's step asks for all gradients of the actor as one float32 tensor of 843 MiB. Then {free_segments():.1f} GiB are in free segments, most of 32 and "
        "64 MiB: attention matrices of the backward pass. None is large enough.",
        "- **R2, the strategies.** ZeRO-1, ZeRO-2 and checkpointing lower reserved memory in the paper, here and in Neap. Checkpointing leaves few such "
        "segments. ZeRO-3 was not recorded.",
        "- **R3, the remedy.** `empty_cache()` after all phases saves "
        f"{found['zero1']['reserved'] - found['zero1']['emptied_reserved']:.2f} GiB with ZeRO-1 and ZeRO-2 and nothing without a strategy: it cannot act inside "
        f"a phase. Those after training save it, in the paper those after inference. The calls take {seconds(rows):.1f} % of a step, without the driver "
        "allocations that follow (paper: 2 % in all).", "",
        "## Sizes", "",
        "Reserved / fragmentation / allocated; with `empty_cache()` reserved / fragmentation. The paper's in GB, others in GiB. Fragmentation is reserved minus "
        "allocated bytes when the allocator asked the driver for the peak's segment.", "",
        *sizes(stacks), "",
        "Neap has no column with `empty_cache()`: its arena gives memory back after each phase.", "",
        "## Signs", "", *signs(stacks), "",
        f"An effect below {NO_EFFECT} GiB counts as none. Why some differ from the paper's:", "",
        "- Checkpointing lowers fragmentation here and raises it in the paper. Rows are compared with the one without a strategy, which has "
        f"{found['none']['fragmentation']:.1f} GiB here and 0.2 in the paper. The paper does not name its versions; another optimizer step or another attention "
        "changes that row.",
        "- ZeRO-1 and ZeRO-2 add fragmentation here: the peak moves to the critic's training and finds what the actor's training left. So `empty_cache()` saves, "
        "while the paper's ZeRO-1 had nothing to save.",
        "- ZeRO-1 equals ZeRO-2 here in every figure. With `overlap_comm`, as DeepSpeed-Chat sets it, gradients of both take the same path.",
        "- Neap's fragmentation does not change: tags have regions of their own, and only temporary tensors are in a caching allocator.",
        "- Neap trains only the adapters. DeepSpeed-Chat also trains embeddings, norms and biases, 221 million parameters of the actor. Neap's OPT-350m has the full "
        "width of embeddings, and its numbers are bfloat16 with float32 adapters.", "",
        "## Replays", "",
        "`neap replay` reproduces every recording and predicts `empty_cache()` after all phases from the recording without it.", "",
        *replays(rows), "",
        "Predicted GiB reserved, by the place of `empty_cache()`:", "", *where(), "",
        "## How it was run", "",
        "- OPT-1.3b and OPT-350m with random weights, LoRA of rank 128, 2 rows of 256 + 256 tokens, float16, eager attention, two steps, torch's fused AdamW in place "
        "of DeepSpeed's compiled one.",
        "- A row is rank 0 of a group without other ranks. It allocates as with real ones: the row without a strategy on 2 real GPUs over NCCL and that of rank 0 alone are "
        f"{pair(rows)} in peaks, events and driver allocations.",
        f"- Did not finish: {failed(rows)}. Under ZeRO-3 every generated token gathers every layer again. DeepSpeed's hooks run in Python for each module, and two "
        "rollouts of 256 tokens took more than the 200 s that a row had, while up to twelve rows ran at once.",
        "- Not measured: `empty_cache()` after inference or training alone, ColossalChat, the models of table 2.", ""])


def main():
    mode, text = sys.argv[1] if len(sys.argv) > 1 else "", page()
    if mode == "--write":
        PAGE.write_text(text)
    elif mode == "--check":
        if PAGE.read_text() != text:
            print(f"{PAGE.relative_to(ROOT)} differs; bench/study/page.py --write makes it")
            return 1
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
