"""Starting ranks under mpirun, for the tests beside it."""
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train"))
import neap_program  # noqa: E402
import resident  # noqa: E402

NEAP, COLLECTIVES, REVIEWS, MPIRUN = "neap", "collectives", ".", "mpirun"
# Root and more ranks than processors are refused without a word from the user; both are normal in a test.
FLAGS = ("--allow-run-as-root", "--oversubscribe")


def environment(**more):
    launched = ("OMPI_", "PMI", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return neap_program.environment(launched, **{"OMP_NUM_THREADS": "1", **more})


def start(ranks, *command, cwd=None, **more):
    prefix = [MPIRUN, *FLAGS, "-n", str(ranks)] if ranks > 1 else []
    return neap_program.start(*prefix, *command, cwd=cwd, env=environment(**more))


def run(ranks, *command, cwd=None, timeout=240, **more):
    if resident.PROGRAM and command[:2] == (NEAP, "plan") and not more:
        return resident.run(("neap", *command[1:]), environment=environment(), cwd=cwd, timeout=timeout)
    return neap_program.outcome(start(ranks, *command, cwd=cwd, **more), timeout)


def train(ranks, *words, cwd, timeout=240):
    """`neap train WORDS`, which must succeed."""
    if not resident.PROGRAM:
        return run(ranks, NEAP, "train", *words, cwd=cwd, timeout=timeout)
    prefix = (MPIRUN, *FLAGS, "-n", str(ranks)) if ranks > 1 else ()
    return resident.run(("neap", "train", *words), ranks=ranks, prefix=prefix, environment=environment(), cwd=cwd, timeout=timeout)


def rank_process(parent, rank, deadline=60):
    """Process id of a rank of the mpirun `parent`."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat") as f:
                    if int(f.read().rsplit(")", 1)[1].split()[1]) != parent:
                        continue
                with open(f"/proc/{entry}/environ", "rb") as f:
                    if f"OMPI_COMM_WORLD_RANK={rank}".encode() in f.read().split(b"\0"):
                        return int(entry)
            except (OSError, IndexError, ValueError):
                continue
        time.sleep(0.01)
    raise AssertionError(f"rank {rank} of {parent} did not start")


def kill_rank(process, rank, ranks, timeout=60):
    """Kills a rank of the run `process`, and waits for the other ranks: mpirun may end before them."""
    all_ranks = [rank_process(process.pid, each) for each in range(ranks)]
    os.kill(all_ranks[rank], signal.SIGKILL)
    process.communicate(timeout=timeout)
    end = time.monotonic() + timeout
    while any(os.path.exists(f"/proc/{each}") for each in all_ranks):
        if time.monotonic() > end:
            raise AssertionError(f"a rank of {all_ranks} outlives its run")
        time.sleep(0.01)
