#!/usr/bin/env python3
"""Records the memory of RLHF's third step under the strategies of the study, on GPUs or, as a rehearsal, on CPUs.

    record.py --out DIR [--rows deepspeed-opt/none/none,deepspeed-opt/zero3/all/nccl/2] [--device cpu]

Each row is SET/STRATEGY/EMPTY[/GROUP/WORLD]: models and sizes (planned.py), a strategy, the phases after which empty_cache() is called, and the
process group (default fake/4). DeepSpeed-Chat's set runs on DeepSpeed in float16, the others on FSDP2 in bfloat16. A row runs in processes of its own; several rows share the GPUs. A process of the group "fake" is rank 0 of a group without other ranks: it allocates
what rank 0 allocates, and gathered shards are copies of its own. DIR/rows.jsonl gets a line for each row, DIR/NAME.pickle.xz its memory snapshot
(--keep names for which EMPTY). A row that fails is reported and the others go on. Needs torch, transformers, accelerate, peft and, for its set, DeepSpeed.
"""
import argparse
import datetime
import faulthandler
import json
import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import time
import traceback
import typing

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # CUDA may begin only after the fork
os.environ.setdefault("DS_ACCELERATOR", "cuda" if "cpu" not in sys.argv else "cpu")
os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import transformers  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import planned  # noqa: E402
import rlhf  # noqa: E402
import snapshot as snapshots  # noqa: E402
import stacks  # noqa: E402

# GiB of a GPU set aside for a row: more than it needs.
ROOM = {"deepspeed-opt": {"none": 24, "zero1": 20, "zero2": 20, "zero3": 17, "zero3-offload": 15, "checkpointing": 18, "all": 12},
        "colossal-opt": {"none": 24, "zero3": 22, "zero3-offload": 20, "checkpointing": 16},
        "colossal-gpt2": {"none": 34, "zero3": 32, "zero3-offload": 30, "checkpointing": 20, "all": 18},
        "a100-opt-6.7b": {"none": 70, "zero3": 54}, "a100-llama-2-7b": {"none": 76, "zero3": 58}}
NOT_FORKED = ("initialization error", "forked subprocess")  # CUDA had begun before the fork
STACKS = {name: "deepspeed" if name.startswith("deepspeed") else "fsdp2" for name in planned.SETS}
DTYPES = {"deepspeed": "float16", "fsdp2": "bfloat16"}


def environment(stack):
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "transformers": transformers.__version__, "accelerate": stacks.accelerate.__version__, "peft": rlhf.peft.__version__,
             "python": sys.version.split()[0], "revision": os.environ.get("NEAP_REVISION", "")}
    if stack == "deepspeed":
        import deepspeed
        found["deepspeed"] = deepspeed.__version__
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["total_memory"] = torch.cuda.get_device_properties(0).total_memory
        query = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        found["driver"] = query.stdout.split("\n")[0]
    return found


def copied_own_shard(output, input, *_, **__):
    """A group without other ranks leaves the output as it is; uninitialized gradients would overflow."""
    output.view(-1).copy_(input.reshape(-1)[:output.numel()])
    return Done()


class Done:
    def wait(self, *_):
        return True

    def is_completed(self):
        return True


def begin_group(spec, rank, gpu, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(gpu), WORLD_SIZE=str(spec.world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if spec.group == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore
        torch.distributed.init_process_group("fake", rank=0, world_size=spec.world, store=FakeStore())
        torch.distributed.reduce_scatter_tensor = copied_own_shard
    else:
        torch.distributed.init_process_group(spec.group, rank=rank, world_size=spec.world)


def measure(arguments, spec, rank, gpu, port):
    """One row on one rank; the row's fields."""
    cuda = arguments.device == "cuda"
    device = torch.device("cuda", gpu) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.cuda.init()
        torch.cuda.memory._record_memory_history("all", max_entries=8_000_000, context=None, stacks="python")
    torch.manual_seed(1234 + rank)
    torch.set_num_threads(arguments.threads)
    begun = time.time()
    begin_group(spec, rank, gpu, port)
    dtype = DTYPES[spec.stack()]
    sizes, big, small, _ = planned.SETS[spec.set]
    shape = {key: value // arguments.shorter for key, value in sizes.items() if key != "gpu"}
    shape["generated"] = min(shape["response"], arguments.generated)
    stack = stacks.STACKS[spec.stack()](spec.strategy, device, shape, spec.world, getattr(torch, dtype), arguments.remade)
    names = {"actor": big, "ref": big, "critic": small, "reward": small}
    engines = [stack.engine(role, rlhf.config(name, arguments.small), arguments.lora) for role, name in names.items()]
    phases = rlhf.Phases(device, spec.empty)
    trainer = rlhf.Trainer(stack, engines, phases, shape, rlhf.config(big, arguments.small).vocab_size)
    built = time.time() - begun
    seconds, losses = [], []
    for _ in range(arguments.steps):
        at = time.perf_counter()
        losses.append(trainer.step(device))
        if cuda:
            torch.cuda.synchronize()
        seconds.append(round(time.perf_counter() - at, 3))
    phases.note("outside")
    row = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "stack": spec.stack(), **spec._asdict(),
           "models": names, "lora_rank": arguments.lora, "dtype": dtype, "remade": arguments.remade,
           **shape, "steps": arguments.steps, "jobs": arguments.jobs, "seconds": seconds, "empty_seconds": round(phases.empty_seconds, 4),
           "build_seconds": round(built, 1), "losses": losses, "skipped": [stack.skipped(engines[0]), stack.skipped(engines[2])], "phases": phases.peaks}
    if cuda:
        row |= recorded(arguments, spec, phases, rank)
    return row | {"environment": environment(spec.stack())}


def recorded(arguments, spec, phases, rank):
    stats = torch.cuda.memory_stats()
    whole = snapshots.cut(torch.cuda.memory._snapshot())
    torch.cuda.memory._record_memory_history(None)
    path = pathlib.Path(arguments.out) / f"{spec.name()}.pickle.xz"
    kept = rank == 0 and spec.empty in arguments.keep.split(",")
    if kept:
        snapshots.write(whole, path)
    some = phases.peaks.values()
    return {"peak_reserved": max(phase["peak_reserved"] for phase in some), "peak_allocated": max(phase["peak_allocated"] for phase in some),
            "end_reserved": stats["reserved_bytes.all.current"], "num_device_alloc": stats["num_device_alloc"],
            "num_device_free": stats["num_device_free"], "retries": stats["num_alloc_retries"], **snapshots.figures(whole["device_traces"][-1]),
            "recording": spec.name() if kept else "", "recording_bytes": path.stat().st_size if kept else 0}


def rank_main(arguments, spec, rank, gpu, port, answers):
    try:
        log = open(pathlib.Path(arguments.out) / f"log-{spec.name()}-{rank}.txt", "w")
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        faulthandler.dump_traceback_later(arguments.row_seconds - 5, file=log)  # where a row hangs
        answers.put((rank, measure(arguments, spec, rank, gpu, port)))
    except BaseException as error:  # the row failed; others go on
        traceback.print_exc()
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        answers.put((rank, {"failed": f"{type(error).__name__}: {error}"[:600], "where": [f"{f.filename}:{f.lineno} {f.name}" for f in frames]}))
    sys.stdout.flush()
    answers.close()
    answers.join_thread()
    os._exit(0)


class Spec(typing.NamedTuple):
    set: str
    strategy: str
    empty: str
    group: str = "fake"
    world: int = 4

    def name(self):
        return f"{self.set}-{self.strategy}-{self.empty}" + ("" if self[3:] == ("fake", 4) else f"-{self.group}-{self.world}")

    def stack(self):
        return STACKS[self.set]

    def ranks(self):
        return 1 if self.group == "fake" else self.world

    def room(self):
        return ROOM[self.set][self.strategy]


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


class Row:
    def __init__(self, arguments, context, spec, gpus, port):
        self.spec, self.gpus, self.begun = spec, gpus, time.time()
        self.answers = context.Queue()
        self.found, self.wanted = {}, spec.ranks()
        self.ranks = [context.Process(target=rank_main, args=(arguments, spec, rank, gpu, port, self.answers)) for rank, gpu in enumerate(gpus)]
        for process in self.ranks:
            process.start()

    def poll(self, limit):
        """The row's fields of rank 0, or None while it runs."""
        while not self.answers.empty():
            rank, fields = self.answers.get()
            self.found[rank] = fields
        failed = next((fields for fields in self.found.values() if "failed" in fields), None)
        late = time.time() - self.begun > limit
        dead = all(not process.is_alive() for process in self.ranks) and self.answers.empty() and len(self.found) < self.wanted
        if not failed and not late and not dead and len(self.found) < self.wanted:
            return None
        for process in self.ranks:
            if failed or late:
                process.kill()
            process.join()
        if failed or len(self.found) < self.wanted:
            failed = failed or {"failed": f"no end within {limit:.0f} s" if late else "the process ended without an answer"}
            return {**self.spec._asdict(), **failed}
        return self.found[0] | {"other_ranks": [self.found[rank]["peak_reserved"] for rank in sorted(self.found) if rank and "peak_reserved" in self.found[rank]]}


def wanted_rows(arguments):
    if arguments.rows:
        words = [row.split("/") for row in arguments.rows.split(",")]
        return [Spec(*some[:4], *map(int, some[4:])) for some in words]
    sets = arguments.sets or list(ROOM)
    return [Spec(group, strategy, empty, arguments.group, arguments.world) for group in sets for strategy in ROOM[group] for empty in ("none", "all")]


def free_gpus(spec, room, whole):
    """The GPUs with most room for the ranks of a row, or None."""
    some = sorted(range(len(room)), key=lambda gpu: -room[gpu])[:spec.ranks()]
    if len(some) < spec.ranks() and room == [whole]:  # a rehearsal without GPUs
        some = [0] * spec.ranks()
    return sorted(some) if len(some) == spec.ranks() and all(room[gpu] >= spec.room() for gpu in some) else None


def run(arguments):
    context = multiprocessing.get_context(arguments.start)
    end = time.time() + arguments.seconds
    waiting, running, done = wanted_rows(arguments), [], []
    if any(spec.stack() == "deepspeed" for spec in waiting):
        stacks.import_deepspeed()  # once, before the forks
    room = [arguments.gpu_room] * arguments.gpus
    with open(pathlib.Path(arguments.out) / "rows.jsonl", "a", encoding="utf-8") as log:
        while running or waiting:
            left = end - time.time()
            for spec in list(waiting):
                gpus = free_gpus(spec, room, arguments.gpu_room) if len(running) < arguments.jobs and left > arguments.least else None
                if gpus is None:
                    continue
                waiting.remove(spec)
                running.append(Row(arguments, context, spec, gpus, free_port()))
                for gpu in set(gpus):
                    room[gpu] -= spec.room()
            for row in list(running):
                fields = row.poll(min(arguments.row_seconds, max(1.0, end - row.begun)))
                if fields is not None:
                    running.remove(row)
                    for gpu in set(row.gpus):
                        room[gpu] += row.spec.room()
                    if context.get_start_method() == "fork" and any(words in fields.get("failed", "") for words in NOT_FORKED):
                        context = multiprocessing.get_context("spawn")
                        waiting.insert(0, row.spec)
                        print(f"processes are spawned, not forked: {fields['failed'][:100]}", flush=True)
                        continue
                    done.append(fields)
                    log.write(json.dumps(fields) + "\n")
                    log.flush()
                    print(summary(fields, time.time() - row.begun), flush=True)
            if not running and (left <= arguments.least or len(done) > 3 and all("failed" in fields for fields in done)):
                break
            time.sleep(0.2)
    for spec in waiting:
        print(f"{'/'.join(map(str, spec))}: not run, no time left")
    failed = sum("failed" in fields for fields in done)
    print(f"{len(done) - failed} rows recorded, {failed} failed, {len(waiting)} not run")
    return int(failed > 0 or bool(waiting))


def summary(row, seconds):
    name = "/".join(str(row[key]) for key in Spec._fields)
    if "failed" in row:
        return f"{name} FAILED after {seconds:.0f} s: {row['failed']} {row.get('where', '')}"
    if "peak_reserved" not in row:
        return f"{name} rehearsed in {seconds:.0f} s, steps {row['seconds']}, losses {row['losses']}, skipped {row['skipped']}"
    gib = 2**30
    return (f"{name} reserved {row['peak_reserved'] / gib:.2f} frag {row['fragmentation_at_peak'] / gib:.2f} max {row['fragmentation_max'] / gib:.2f} "
            f"allocated {row['peak_allocated'] / gib:.2f} GiB, steps {row['seconds']} build {row['build_seconds']} all {seconds:.0f} s, "
            f"skipped {row['skipped']} {row['recording_bytes']} B of {row['events']} events")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--gpu-room", type=float, default=78, help="GiB of a GPU that rows share")
    parser.add_argument("--rows", default="", help="SET/STRATEGY/EMPTY[/GROUP/WORLD], separated by commas; default: all")
    parser.add_argument("--sets", nargs="+", choices=ROOM, help="of the rows that --rows does not name")
    parser.add_argument("--group", default="fake", choices=["fake", "nccl", "gloo"], help="likewise")
    parser.add_argument("--world", type=int, default=4, help="likewise")
    parser.add_argument("--keep", default="none,all", help="EMPTY of the rows whose snapshots are written")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--start", default="fork", choices=["fork", "spawn"], help="spawn where CUDA was begun before the fork")
    parser.add_argument("--small", action="store_true", help="small models, for a rehearsal")
    parser.add_argument("--shorter", type=int, default=1, help="rows and tokens divided by this, for a rehearsal")
    parser.add_argument("--generated", type=int, default=10**6, help="tokens of a response that are generated, at most; others are random")
    parser.add_argument("--remade", action="store_true", help="weights of models that were on the host are made anew, not copied")
    parser.add_argument("--lora", type=int, default=128)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="rows at once")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="for all rows")
    parser.add_argument("--row-seconds", type=float, default=300)
    parser.add_argument("--least", type=float, default=30, help="no row begins with fewer seconds left")
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
