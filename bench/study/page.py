#!/usr/bin/env python3
"""docs/measurements/rlhf-stacks.md: the paper's tables 1 and 2, DeepSpeed recorded, and Neap's plans, from bench/results/study-*.jsonl.

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
SETS = {"deepspeed-opt": "DeepSpeed-Chat, OPT", "colossal-opt": "ColossalChat, OPT", "colossal-gpt2": "ColossalChat, GPT-2",
        "a100-opt-1.3b": "ColossalChat, OPT-1.3b, A100", "a100-opt-6.7b": "ColossalChat, OPT-6.7b, A100", "a100-llama-2-7b": "ColossalChat, Llama-2-7b, A100"}
RECORDED = "deepspeed-opt"  # the only set that runs with today's torch
FIELDS = ("reserved", "fragmentation", "allocated", "emptied_reserved", "emptied_fragmentation")
NO_EFFECT = 0.15  # GiB; the paper gives one decimal


def lines(name):
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def paper():
    found = json.loads((ROOT / "bench" / "study" / "paper.json").read_text())["rows"]
    return {(group, strategy): dict(zip(FIELDS, values)) for group, rows in found.items() for strategy, values in rows.items()}


def ran(rows):
    return [row for row in rows if "failed" not in row]


def recorded(rows):
    found = {}
    for row in ran(rows):
        if (row["group"], row["world"]) != ("fake", 4):
            continue
        mine = found.setdefault((RECORDED, row["strategy"]), {})
        sizes = {"reserved": row["peak_reserved"] / GIB, "fragmentation": row["fragmentation_at_peak"] / GIB}
        if row["empty"] == "none":
            mine |= sizes | {"allocated": row["peak_allocated"] / GIB}
        elif row["empty"] == "all":
            mine |= {f"emptied_{key}": value for key, value in sizes.items()}
    return found


def planned():
    return {(row["set"], row["strategy"]): {key: row[key] / GIB for key in FIELDS[:3]} for row in lines("study-planned")}


def cell(values, keys, digits):
    return " / ".join(f"{values[key]:.{digits}f}" if key in values else "–" for key in keys) if values else "–"


def sizes(stacks):
    head = ["strategy", "paper", "with `empty_cache()`", "DeepSpeed recorded, rank 0 of 4", "with `empty_cache()`", "Neap planned, 4 ranks"]
    body = []
    for group, title in SETS.items():
        body.append([f"**{title}**", *[""] * 5])
        for key in (key for key in stacks["paper"] if key[0] == group):
            body.append([NAMES[key[1]], cell(stacks["paper"][key], FIELDS[:3], 1), cell(stacks["paper"][key], FIELDS[3:], 1),
                         cell(stacks["recorded"].get(key), FIELDS[:3], 2), cell(stacks["recorded"].get(key), FIELDS[3:], 2),
                         cell(stacks["planned"][key], FIELDS[:3], 2)])
    return table(head, body)


def effects(stacks):
    """Differences that the paper discusses: set, strategy, what, and the change of each stack; None where a row is missing."""
    def change(stack, one, field, other, base):
        values = stacks[stack]
        both = values.get(one, {}).get(field), values.get(other, {}).get(base)
        return None if None in both else both[0] - both[1]
    for group, strategy in stacks["paper"]:
        key, none = (group, strategy), (group, "none")
        kinds = [(field, field, none, field) for field in FIELDS[:2]] if strategy != "none" else []
        for what, *some in (*kinds, ("`empty_cache()` on reserved", "emptied_reserved", key, "reserved")):
            yield group, strategy, what, *(change(stack, key, *some) for stack in stacks)


def sign(value):
    return 0 if abs(value) < NO_EFFECT else 1 if value > 0 else -1


def signs(stacks):
    """Sentence and table: how many effects have the paper's sign, and those that do not. Neap has nothing that fragments."""
    agree = {"DeepSpeed": [], "Neap": []}
    body = []
    for group, strategy, what, first, *others in effects(stacks):
        for stack, other in zip(agree, others):
            if other is None or (stack == "Neap" and what != "reserved"):
                continue
            agree[stack].append(sign(first) == sign(other))
            if not agree[stack][-1]:
                body.append([f"{SETS[group]}, {NAMES[strategy]}: {what}", stack, *(f"{value:+.2f}".replace("-", "−") for value in (first, other))])
    counts = {stack: f"{sum(some)} of {len(some)}" for stack, some in agree.items()}
    yield (f"DeepSpeed has the paper's sign in {counts['DeepSpeed']} effects, Neap in {counts['Neap']} on reserved memory. An effect below {NO_EFFECT} GiB counts as "
           "none. The others:")
    yield ""
    yield from table(["effect, GiB", "stack", "paper", "here"], body)


def on_cpus():
    rows = [row for row in lines("study-cpu") if "strategy" in row]
    ranks = " and ".join(str(count) for count in sorted({row["ranks"] for row in rows}))
    phases, worst = sum(row["phases"] for row in rows), max(abs(row["largest_percent"]) for row in rows)
    return (f"The {len({(row['set'], row['strategy']) for row in rows})} rows also ran with small models on {ranks} CPU ranks (`bench/study/measured.py`): the peaks of all "
            f"{grouped(phases)} phases of ranks {'equal' if worst == 0 else f'are within {worst:.2f} % of'} their plans.")


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

    def equal(line, what):
        every = line[f"{what}_equal"] == line[what]
        return f"all {grouped(line[what])}" if every else f"{grouped(line[f'{what}_equal'])} of {grouped(line[what])}"
    for line in lines("study-replayed"):
        truth = by_key.get((line["strategy"], "all", line["group"], line["world"])) if line["empty"] == "none" else None
        guess = line["what_if"].get("all", {}).get("peak_reserved")
        ranks = f"{line['world']} ranks over NCCL" if line["group"] == "nccl" else f"rank 0 of {line['world']}"
        body.append([f"{NAMES[line['strategy']]}, {ranks}", line["empty"], equal(line, "allocs"), equal(line, "segments"), f"{guess / GIB:.3f}" if guess else "",
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
    found = {strategy: values for (_, strategy), values in stacks["recorded"].items()}
    saved = f"{found['zero1']['reserved'] - found['zero1']['emptied_reserved']:.2f}"
    return "\n".join([
        "# Measurements: RLHF on DeepSpeed and on Neap", "",
        "<!-- Written by `bench/study/page.py --write`; a test compares. -->", "",
        "[*Understanding and Alleviating Memory Consumption in RLHF for LLMs*](https://arxiv.org/abs/2410.15651) asks three questions:", "",
        f"- **R1, what takes the memory?** Fragmentation, as in the paper: {found['none']['fragmentation']:.1f} of {found['none']['reserved']:.1f} GiB without a "
        "strategy. The paper finds that inference leaves it. Here it arises inside training: the optimizer's step asks for all gradients of the actor as one float32 "
        f"tensor of 843 MiB. Then {free_segments():.1f} GiB are in free segments, most of 32 and 64 MiB: attention matrices of the backward pass. None is large enough.",
        "- **R2, which strategies help?** ZeRO-1, ZeRO-2 and checkpointing lower reserved memory in the paper, here and in Neap. ZeRO-3 was not recorded. The paper's "
        "ZeRO-3 raises it for 7B models by fragmentation; Neap's lowers it.",
        f"- **R3, what reduces it?** `empty_cache()` after all phases saves {saved} GiB with ZeRO-1 and ZeRO-2 and nothing without a strategy: it cannot act inside "
        f"a phase. The calls after training save it, in the paper those after inference. They take {seconds(rows):.1f} % of a step, without the driver "
        "allocations that follow (paper: 2 % in all). Neap needs none: its arena gives memory back after each phase.", "",
        "![Memory of each phase of a PPO step on DeepSpeed and on Neap](../images/rlhf-phases.svg)", "",
        "## Sizes", "",
        "Reserved / fragmentation / allocated; with `empty_cache()` reserved / fragmentation. The paper's in GB, others in GiB. Fragmentation is reserved minus "
        "allocated bytes when the allocator asked the driver for the peak's segment. Plans are for RTX 3090s or A100s.", "",
        *sizes(stacks), "", on_cpus(), "",
        "## Signs", "", *signs(stacks), "",
        "Why:", "",
        "- Checkpointing and fragmentation: rows are compared with the one without a strategy, which has "
        f"{found['none']['fragmentation']:.1f} GiB here and 0.2 in the paper. The paper does not name its versions; another optimizer or attention changes that row.",
        "- ZeRO-1 and ZeRO-2 add fragmentation here: the peak moves to the critic's training and finds what the actor's training left. So `empty_cache()` saves, "
        "while the paper's ZeRO-1 had nothing to save. Both are equal: with `overlap_comm`, as DeepSpeed-Chat sets it, gradients take the same path.",
        "- ZeRO-3 on A100s: the paper's allocated memory falls as Neap's, but fragmentation outweighs it. Neap's is at most "
        f"{max(values['fragmentation'] for values in stacks['planned'].values()):.2f} GiB: "
        "tags have regions of their own, and only temporary tensors are in a caching allocator.",
        "- Checkpointing of GPT-2: ColossalChat's peak is in inference, which it does not lower. Neap's is in training.",
        "- Neap trains only the adapters. DeepSpeed-Chat also trains embeddings, norms and biases (221 million parameters). Neap's OPT-350m has the full "
        "width of embeddings, and its numbers are bfloat16 with float32 adapters.", "",
        "## Replays", "",
        "`neap replay` reproduces every recording and predicts `empty_cache()` from the recording without it.", "",
        *replays(rows), "",
        "Predicted GiB reserved, by the place of `empty_cache()`:", "", *where(), "",
        "## How it was run", "",
        f"- `bench/study/record.py`, {ran(rows)[0]['date'][:10]}, 2 x {known['gpu']}, driver {known['driver']}, torch {known['torch']}, DeepSpeed "
        f"{known['deepspeed']}, transformers {known['transformers']}, PEFT {known['peft']}.",
        "- OPT-1.3b and OPT-350m with random weights, LoRA of rank 128, 2 rows of 256 + 256 tokens, float16, eager attention, two steps, torch's fused AdamW in place "
        "of DeepSpeed's compiled one.",
        f"- A row is rank 0 of a group without other ranks. Without a strategy it and a run on 2 GPUs over NCCL are {pair(rows)} in peaks, events and driver allocations.",
        f"- Did not finish: {failed(rows)}. Under ZeRO-3 every generated token gathers every layer again, with hooks in Python. Two rollouts of 256 tokens took more than "
        "the 200 s that a row had.",
        "- Not recorded: `empty_cache()` after inference or training alone; ColossalChat's 15 rows. Its PPO trainer pins torch below 2.0, and colossalai 0.5.0 "
        "torch up to 2.5.1.",
        "- Neap's plans of ColossalChat's rows have 32 rows a rank of 96 + 32 tokens, its script's defaults. OPT-6.7b and Llama-2-7b have all four roles. The paper names "
        "neither; its OPT-1.3b takes 17 GB in table 1 and 43 GB in table 2. ColossalChat keeps models for inference on the host during training, Neap here on the GPU.", ""])


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
