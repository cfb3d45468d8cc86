"""Starting ranks under mpirun, for the tests beside it."""
import os
import subprocess
import time

NEAP, COLLECTIVES, REVIEWS, MPIRUN = "neap", "collectives", ".", "mpirun"
# Root and more ranks than processors are refused without a word from the user; both are normal in a test.
FLAGS = ("--allow-run-as-root", "--oversubscribe")


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "SLURM_"))}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        clean.pop(name, None)
    return dict(clean, OMP_NUM_THREADS="1", NEAP_PROGRESS="off", **more)


def start(ranks, *command, cwd=None, **more):
    prefix = [MPIRUN, *FLAGS, "-n", str(ranks)] if ranks > 1 else []
    return subprocess.Popen([*prefix, *map(str, command)], cwd=cwd, env=environment(**more), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(ranks, *command, cwd=None, timeout=240, **more):
    process = start(ranks, *command, cwd=cwd, **more)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


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
