"""A run's ranks as processes: under torchrun's variables, one a GPU, or under mpirun on CPUs."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import plan_check


def commands(command, ranks, port, mpirun=""):
    """What starts each process, with its environment."""
    base = dict(os.environ, NEAP_PROGRESS="off", NCCL_NVLS_ENABLE="0")
    command = [str(word) for word in command]
    if ranks == 1:
        return [(command, base)]
    if mpirun:
        return [([mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *command], dict(base, OMP_NUM_THREADS="1"))]
    return [(command, dict(base, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))) for r in range(ranks)]


def end(process, mpirun=""):
    """mpirun ends its ranks when it is asked to; it is the only one that may be asked."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM if mpirun else signal.SIGKILL)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_until_logged(started, folder, errors, seconds, steps, mpirun="", at=None):
    """Ends the processes, groups of their own, when enough steps are logged: nobody wants the checkpoint. Returns the rows and messages."""
    def give_up(*_):  # a time limit ends the ranks as well; a second signal must not stop that
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(143)

    signal.signal(signal.SIGTERM, give_up)
    processes = []
    deadline = time.monotonic() + seconds
    try:
        for i, (command, environment) in enumerate(started):
            with open(f"{errors}.{i}", "w") as err:
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, env=environment, cwd=at, start_new_session=True))
        while time.monotonic() < deadline and all(p.poll() is None for p in processes):
            if len(plan_check.json_lines(folder / "metrics.jsonl")) >= steps:
                break
            time.sleep(0.05)
    finally:
        ended = [p.poll() for p in processes]
        for p in processes:
            end(p, mpirun)
    words = [pathlib.Path(f"{errors}.{i}").read_text() for i in range(len(processes))]
    metrics = plan_check.json_lines(folder / "metrics.jsonl")[:steps]
    if len(metrics) < steps:
        raise RuntimeError(f"exit {ended} after {len(metrics)} of {steps} steps: " + " | ".join(w[-900:] for w in words))
    return metrics, words


def of_ranks(folder, ranks):
    """The folder of each rank's results."""
    return [folder / "ranks" / str(rank) if rank else folder for rank in range(ranks)]
