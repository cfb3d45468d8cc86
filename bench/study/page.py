#!/usr/bin/env python3
"""docs/measurements/rlhf-stacks.md: the paper's tables 1 and 2, DeepSpeed and FSDP2 recorded, and Neap's plans, from bench/results/study-*.jsonl.

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
import replayed  # noqa: E402
from docs_tables import grouped, table  # noqa: E402

GIB = 2.0**30
NAMES = {"none": "None", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "zero3-offload": "ZeRO-3, CPU offloading",
         "checkpointing": "gradient checkpointing", "all": "all of these"}
SETS = {"deepspeed-opt": "DeepSpeed-Chat, OPT", "colossal-opt": "ColossalChat, OPT", "colossal-gpt2": "ColossalChat, GPT-2",
        "a100-opt-1.3b": "ColossalChat, OPT-1.3b, A100", "a100-opt-6.7b": "ColossalChat, OPT-6.7b, A100", "a100-llama-2-7b": "ColossalChat, Llama-2-7b, A100"}
SAME = {"a100-opt-1.3b": "colossal-opt"}  # one recording: the sets differ by the paper's GPU
FIELDS = ("reserved", "fragmentation", "allocated", "emptied_reserved", "emptied_fragmentation")
NO_EFFECT = 0.15  # GiB; the paper gives one decimal


def lines(name):
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def paper():
    found = json.loads((ROOT / "bench" / "study" / "paper.json").read_text())["rows"]
    return {(group, strategy): dict(zip(FIELDS, values)) for group, rows in found.items() for strategy, values in rows.items()}


def recorded(rows):
    found = {}
    for row in rows:
        if (row["group"], row["world"]) != ("fake", 4):
            continue
        mine = found.setdefault((row["set"], row["strategy"]), {})
        sizes = {"reserved": row["peak_reserved"] / GIB, "fragmentation": row["fragmentation_at_peak"] / GIB}
        if row["empty"] == "none":
            mine |= sizes | {"allocated": row["peak_allocated"] / GIB}
        elif row["empty"] == "all":
            mine |= {f"emptied_{key}": value for key, value in sizes.items()}
    return found | {(group, strategy): values for group, same in SAME.items() for (other, strategy), values in found.items() if other == same}


def planned():
    return {(row["set"], row["strategy"]): {key: row[key] / GIB for key in FIELDS[:3]} for row in lines("study-planned")}


def cell(values, keys, digits):
    return " / ".join(f"{values[key]:.{digits}f}" if key in values else "–" for key in keys) if values else "–"


def sizes(stacks):
    head = ["strategy", "paper", "with `empty_cache()`", "recorded, rank 0 of 4", "with `empty_cache()`", "Neap planned"]
    body = []
    for group, title in SETS.items():
        body.append([f"**{title}**", *[""] * 5])
        for key in (key for key in stacks["paper"] if key[0] == group):
            body.append([NAMES[key[1]], cell(stacks["paper"][key], FIELDS[:3], 1), cell(stacks["paper"][key], FIELDS[3:], 1),
                         cell(stacks["recorded"].get(key), FIELDS[:3], 2), cell(stacks["recorded"].get(key), FIELDS[3:], 2),
                         cell(stacks["planned"][key], FIELDS[:1], 2)])
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
    """How many effects have the paper's sign. Neap has nothing that fragments."""
    whats = ("reserved", "fragmentation", "`empty_cache()` on reserved")
    agree = {what: ([], []) for what in whats}
    for _, _, what, first, *others in effects(stacks):
        for some, other in zip(agree[what], others):
            if other is not None:
                some.append(sign(first) == sign(other))

    def share(some):
        return f"{sum(some)} of {len(some)}"
    reserved, emptied = agree[whats[0]], agree[whats[2]]
    yield (f"In the recordings {share(reserved[0])} effects on reserved memory, {share(agree[whats[1]][0])} on fragmentation and {share(emptied[0])} of `empty_cache()` have "
           f"the paper's sign; in Neap's plans {share(reserved[1])} on reserved memory. An effect below {NO_EFFECT} GiB counts as none. Why the others differ:")


def on_cpus():
    rows = [row for row in lines("study-cpu") if "strategy" in row]
    ranks = " and ".join(str(count) for count in sorted({row["ranks"] for row in rows}))
    phases, worst = sum(row["phases"] for row in rows), max(abs(row["largest_percent"]) for row in rows)
    return (f"The {len({(row['set'], row['strategy']) for row in rows})} rows also ran with small models on {ranks} CPU ranks (`bench/study/measured.py`): the peaks of all "
            f"{grouped(phases)} phases of ranks {'equal' if worst == 0 else f'are within {worst:.2f} % of'} their plans.")


def percent(share):
    return f"{100 * share:+.2f} %".replace("-", "−")


def emptied(line, rows):
    """What was measured with empty_cache() after all phases, of the program that a recording is of."""
    return replayed.same_but(next(row for row in rows if row["recording"] == line["recording"]), rows, "all")["peak_reserved"]


def replays(rows):
    """Recordings without empty_cache(): reserved memory predicted with it after some phases, and measured after all."""
    order = list(SETS), list(NAMES)
    some = [line for line in lines("study-replayed") if line["empty"] == "none" and (line["group"], line["world"]) == ("fake", 4)]
    some.sort(key=lambda line: (order[0].index(line["set"]), order[1].index(line["strategy"])))
    body, off = [], 0
    for line in some:
        truth, guess = emptied(line, rows), line["what_if"]["all"]["peak_reserved"]
        off += abs(guess / truth - 1) >= 0.001
        if abs(guess / truth - 1) >= 0.001 or line["strategy"] == "zero3":
            body.append([f"{SETS[line['set']]}, {NAMES[line['strategy']]}", f"{line['peak_reserved'] / GIB:.2f}",
                         *(f"{line['what_if'][empty]['peak_reserved'] / GIB:.2f}" for empty in replayed.EMPTY),
                         f"{truth / GIB:.2f} ({percent(guess / truth - 1)})"])
    yield f"{len(some) - off} of {len(some)} predictions are within 0.1 % of the measured peak. The others, and those of ZeRO-3, in GiB:"
    yield ""
    yield from table(["recording", "as recorded", "after inference", "after training", "after all phases", "measured (prediction's error)"], body)


def ranges(rows):
    """A sentence for each prediction that depends on addresses by more than 1 %."""
    for line in lines("study-replayed"):
        if line["recording"] in replayed.RANGES:
            least, most = line["what_if"]["all"]["peak_reserved_range"]
            runs = [row["peak_reserved"] for row in lines("study-repeats-h200") if all(row[key] == line[key] for key in ("set", "strategy")) and row["empty"] == "all"]
            yield (f"The peak of {SETS[line['set']]}, {NAMES[line['strategy']]} depends on addresses that the driver chooses. Predicted is a "
                   f"range, {least / GIB:.2f} to {most / GIB:.2f} GiB, which contains the measured peak. {len(runs)} more runs measured "
                   f"{'the same' if set(runs) == {emptied(line, rows)} else 'OTHER'} bytes.")


def fidelity():
    some = lines("study-replayed")
    whole = all(line[f"{what}_equal"] == line[what] for line in some for what in ("allocs", "segments"))
    return f"{'every' if whole else 'NOT every'} address and segment event of {len(some)} recordings ({grouped(sum(line['allocs'] for line in some))} allocations)"


def seconds(rows):
    """Share of the calls in steps with empty_cache() after all phases, in percent; several rows shared a GPU."""
    some = [row for row in rows if row["empty"] == "all" and not row["remade"]]
    return statistics.median(100 * row["empty_seconds"] / sum(row["seconds"]) for row in some)


def pair(rows):
    """A row with real ranks against the same with rank 0 alone."""
    real = next(row for row in rows if row["group"] == "nccl")
    alone = next(row for row in rows if row["group"] == "fake" and all(row[key] == real[key] for key in ("set", "strategy", "empty", "world")))
    same = all(real[key] == alone[key] for key in ("peak_reserved", "peak_allocated", "fragmentation_at_peak", "events", "num_device_alloc"))
    return "equal" if same else "differ"


def free_segments():
    """GiB in whole free segments at the peak without a strategy."""
    return next(line for line in lines("study-replayed") if line["recording"] == "deepspeed-none-none")["free_segments_at_peak"] / GIB


def overhead(row):
    """GiB that the peak of reserved memory would be lower without fragmentation, and its share of the rest in percent."""
    without = row["peak_reserved"] - row["fragmentation_overhead"]
    return row["fragmentation_overhead"] / GIB, 100 * row["fragmentation_overhead"] / without


def page():
    rows = replayed.measured()
    stacks = {"paper": paper(), "recorded": recorded(rows), "planned": planned()}
    first, last = rows[0], rows[-1]
    known, card = first["environment"], last["environment"]
    found = {strategy: values for (group, strategy), values in stacks["recorded"].items() if group == "deepspeed-opt"}
    alone = {row["strategy"]: row for row in rows if row["set"] == "deepspeed-opt" and row["empty"] == "none" and row["world"] == 4}
    saved = {strategy: values["reserved"] - values["emptied_reserved"] for strategy, values in found.items()}
    guess = {line["strategy"]: line["what_if"] for line in lines("study-replayed") if line["recording"].startswith("deepspeed-opt") and line["what_if"].get("all")}
    strong = ("zero3", "zero3-offload", "all")
    shares = ", ".join(f"{100 * saved[s] / found[s]['reserved']:.0f} %" for s in strong)
    most = max(100 * (1 - values["emptied_reserved"] / values["reserved"]) for key, values in stacks["recorded"].items()
               if key not in {("deepspeed-opt", s) for s in strong})
    after = (alone["zero3"]["peak_reserved"] - guess["zero3"]["inference"]["peak_reserved"]) / GIB
    return "\n".join([
        "# Measurements: RLHF on DeepSpeed and on Neap", "",
        "<!-- Written by `bench/study/page.py --write`; a test compares. -->", "",
        "[*Understanding and Alleviating Memory Consumption in RLHF for LLMs*](https://arxiv.org/abs/2410.15651) asks three questions:", "",
        f"- **R1, what takes the memory?** Fragmentation, as in the paper. On DeepSpeed it adds {overhead(alone['all'])[1]:.0f} % with all strategies, "
        f"{overhead(alone['zero3'])[1]:.0f} % with ZeRO-3 and {overhead(alone['none'])[1]:.0f} % with none. Under ZeRO-3 most of it comes from inference: "
        f"`empty_cache()` saves {saved['zero3']:.1f} GiB, {after:.1f} of them after inference. Without ZeRO-3 it comes from training: "
        "the optimizer step allocates all gradients of the actor as one float32 tensor of 843 MiB, "
        f"and {free_segments():.1f} GiB are in free segments that are too small.",
        "- **R2, which strategies help?** All lower allocated memory. All but ZeRO-3 alone lower reserved memory. "
        f"ZeRO-3 alone does not on DeepSpeed: {found['zero3']['reserved']:.1f} GiB against {found['zero1']['reserved']:.1f} with ZeRO-1 and "
        f"{found['none']['reserved']:.1f} with none. FSDP2's and Neap's ZeRO-3 do.",
        f"- **R3, what reduces it?** On DeepSpeed with ZeRO-3, `empty_cache()` after all phases saves {shares} (alone, with offloading, with all "
        f"strategies), in other rows {most:.0f} % at most. The calls take {seconds(rows):.1f} % of a step, "
        "without the driver allocations that follow (paper: 2 % in all). Neap needs no calls: its arena releases memory after each phase.", "",
        "![Memory of each phase of a PPO step on DeepSpeed and on Neap](../images/rlhf-phases.svg)", "",
        "## Sizes", "",
        "Cells are reserved / fragmentation / allocated, with `empty_cache()` reserved / fragmentation, in GB for the paper, else in GiB. Fragmentation is reserved minus "
        "allocated bytes when the allocator requests the peak's segment. DeepSpeed-Chat was recorded on DeepSpeed, ColossalChat on FSDP2. "
        "Plans are of reserved memory on 4 RTX 3090s or A100s.", "",
        *sizes(stacks), "", on_cpus(), "",
        "## Signs", "", *signs(stacks), "",
        "- Checkpointing and fragmentation: the row without a strategy has more fragmentation here. The paper does not name its versions.",
        "- ZeRO-1 and ZeRO-2 add fragmentation here: the critic's training cannot reuse the segments of the actor's. "
        "The two rows are equal: with `overlap_comm`, as DeepSpeed-Chat sets it, gradients take the same path.",
        "- ColossalChat: here all 32 rows of a batch train at once; the paper does not name this number. Without ZeRO-3 and checkpointing nearly all of the peak is allocated, "
        "so `empty_cache()` saves nothing.",
        "- ZeRO-3 with 7B models adds more fragmentation in the paper than sharding saves. FSDP2 adds less "
        f"({overhead(next(r for r in rows if r['recording'] == 'a100-llama-2-7b-zero3-none'))[1]:.0f} % with Llama-2-7b against "
        f"{overhead(next(r for r in rows if r['recording'] == 'a100-llama-2-7b-none-none'))[1]:.0f} % without). Neap's is at most "
        f"{max(values['fragmentation'] for values in stacks['planned'].values()):.2f} GiB: tags have their own regions.",
        "- Checkpointing of GPT-2: the paper's peak is in inference, which checkpointing does not change. Here it is in training.",
        "- Neap and ColossalChat train only the adapters. DeepSpeed-Chat also trains embeddings, norms and biases (221 million parameters).", "",
        "## Replays", "",
        f"`neap replay` reproduces {fidelity()} and predicts `empty_cache()` from the recording without it.", "",
        *replays(rows), "",
        *ranges(rows), "",
        "## How it was run", "",
        f"- `bench/study/record.py`. DeepSpeed without ZeRO-3: {first['date'][:10]}, {known['gpu']}. Other rows: {last['date'][:10]}, one {card['gpu']}. "
        f"Driver {card['driver']}, torch {card['torch']}, DeepSpeed {known['deepspeed']}, transformers {card['transformers']}, PEFT {card['peft']}.",
        "- Random weights, LoRA of rank 128, eager attention, two steps. DeepSpeed-Chat: OPT-1.3b and OPT-350m, 2 rows of 256 + 256 tokens, float16, torch's fused AdamW in place "
        "of DeepSpeed's compiled one.",
        "- A row is rank 0 of a group without other ranks: gathered shards are copies of its own shard. Without a strategy a run on 2 GPUs over NCCL "
        f"{'has the same' if pair(rows) == 'equal' else 'has OTHER'} peaks, events and driver allocations. Not run: several real ranks under ZeRO-3.",
        "- Under ZeRO-3 DeepSpeed gathers every layer for every token. With offloading, only the first 16 tokens are generated, and the others are random.",
        "- ColossalChat needs older versions of torch. Its schedule was written again with FSDP2 and transformers: "
        "32 rows of 96 + 32 tokens, bfloat16. Models for inference are not sharded, and are in host memory during training (in Neap's plans: on the GPU). With 7B models "
        "16 of the 32 tokens are random, and weights that return from the host get new random values.",
        "- OPT-6.7b and Llama-2-7b have all four roles; the paper names neither roles nor sizes. Its OPT-1.3b takes 17 GB in table 1 and 43 GB in table 2; here both are one recording.",
        ""])


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
