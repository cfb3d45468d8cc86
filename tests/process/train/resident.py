"""Plans and commands of the trainer in processes that stay for the next: loading libtorch and joining ranks take longer than most of
these trainings. Ranks of which one fails end.

NEAP_TEST_RESIDENT names the program. Without it, as under NEAP_TEST_SLOW=1, each command has processes of its own; so has one that gets
signals, an environment or another input, by neap_program.
"""
import atexit
import os
import pathlib
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import time

import neap_program

PROGRAM = os.environ.get("NEAP_TEST_RESIDENT")
COMMANDS = ("plan", "train", "generate", "eval", "merge")
MOST = 12  # processes that stay, at most
kept = {}  # how they were started -> Resident; those used last stand last


class Ended(Exception):
    """A process ended in the middle."""


class Resident:
    def __init__(self, prefix, ranks, environment):
        self.ranks, self.runs = ranks, 0
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="neap-resident-"))
        self.log = (self.folder / "log").open("w+")
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(self.folder / "socket"))
            door.listen(ranks)
            self.process = subprocess.Popen([*prefix, PROGRAM, str(self.folder / "socket")], env=environment, stdin=subprocess.DEVNULL,
                                            stdout=self.log, stderr=self.log)
            door.settimeout(0.5)
            self.sockets = {}
            end = time.monotonic() + 120
            while len(self.sockets) < ranks:
                try:
                    one, _ = door.accept()
                except TimeoutError:
                    if self.process.poll() is not None or time.monotonic() > end:
                        raise AssertionError(f"ranks did not start: {self.said()}") from None
                    continue
                one.settimeout(60)
                self.sockets[self.number_from(one)] = one

    def said(self):
        return (self.folder / "log").read_text()

    @staticmethod
    def number_from(one):
        data = b""
        while len(data) < 4:
            more = one.recv(4 - len(data))
            if not more:
                raise Ended
            data += more
        return struct.unpack("<i", data)[0]

    def run(self, words, cwd, timeout):
        """The first exit code that is not 0 ends all, as under mpirun."""
        self.runs += 1
        files = {rank: (self.folder / f"{self.runs}-{rank}.out", self.folder / f"{self.runs}-{rank}.err") for rank in self.sockets}
        code, waiting = 0, dict(self.sockets)
        try:
            for rank, one in self.sockets.items():
                text = b"".join(str(word).encode() + b"\0" for word in (cwd, *files[rank], *words))
                one.sendall(struct.pack("<i", len(text)) + text)
            end = time.monotonic() + timeout
            while waiting and code == 0:
                ready = select.select(list(waiting.values()), [], [], max(0, end - time.monotonic()))[0]
                if not ready:
                    self.process.kill()
                    raise subprocess.TimeoutExpired(words, timeout)
                for rank in [rank for rank, one in waiting.items() if one in ready]:
                    code = code or self.number_from(waiting.pop(rank))
        except (Ended, OSError):
            code = self.process.wait(60) or 1
        out, err = ("".join(files[rank][i].read_text() for rank in sorted(files) if files[rank][i].exists()) for i in (0, 1))
        for file in (file for pair in files.values() for file in pair):
            file.unlink(missing_ok=True)
        return subprocess.CompletedProcess(words, code, out, err + self.said())

    def end(self, calm=True):
        """Ends the processes. `calm`: all runs have ended, and the processes must end without an error."""
        if not calm:
            self.process.terminate()
        for one in self.sockets.values():
            one.close()
        code = self.process.wait(60)
        said = self.said()
        self.log.close()
        shutil.rmtree(self.folder)
        if calm and code != 0:
            raise AssertionError(f"resident ranks ended with {code}: {said}")


def neap(program, *words, cwd, timeout=900):
    """The outcome of the program's command."""
    if not PROGRAM or words[0] not in COMMANDS:
        return neap_program.run(program, *words, cwd=cwd, timeout=timeout)
    return run(("neap", *words), environment=neap_program.environment(), cwd=cwd, timeout=timeout)


def run(words, *, ranks=1, prefix=(), environment, cwd, timeout=900):
    """The outcome of `neap WORDS` on `ranks` ranks, which PREFIX starts. Only with PROGRAM."""
    key = (ranks, *prefix, *sorted(environment.items()))
    one = kept.pop(key, None) or make(prefix, ranks, environment)
    result = None
    try:
        result = one.run(words, cwd, timeout)
    finally:
        # The other ranks wait for the one that failed.
        if result and one.process.poll() is None and (ranks == 1 or result.returncode == 0):
            kept[key] = one
        else:
            one.end(calm=False)
    return result


def make(prefix, ranks, environment):
    while kept and ranks + sum(one.ranks for one in kept.values()) > MOST:
        kept.pop(next(iter(kept))).end()
    return Resident(prefix, ranks, environment)


@atexit.register
def end_all():
    try:
        while kept:
            kept.popitem()[1].end()
    except AssertionError as e:
        print(e, flush=True)
        os._exit(1)
