"""`neap run -- COMMAND` as a user meets it: a CUDA program over tests/standin, under the hook.

usage: run_test.py NEAP HOOK_LIBRARY STANDIN_DIR CUDA_PROGRAM WORK_DIR
"""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
import neap_program  # noqa: E402

NEAP, HOOK, STANDIN, PROGRAM, WORK = sys.argv[1:6]
ENVIRONMENT = neap_program.environment(["NEAP_"], NEAP_HOOK_LIBRARY=HOOK, LD_LIBRARY_PATH=STANDIN, NEAP_STANDIN_BYTES=str(256 << 20))


def neap(*arguments, **changes):
    return neap_program.run(NEAP, *arguments, env={**ENVIRONMENT, **changes}, timeout=50)


def counts_what_is_passed_on():
    done = neap("run", "--json", "--", PROGRAM, "outside")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == 1 and report["exit"] == 0
    (process,) = report["processes"]
    assert process["outside"]["peak_bytes"] == 15 << 20 and process["outside"]["bytes"] == 0
    assert process["outside"]["calls"] == 8 and process["outside"]["failures"] == 1
    assert "ok" in done.stderr            # the command's own output


def makes_regions_and_a_trace():
    trace = Path(WORK) / "run.trace"
    trace.unlink(missing_ok=True)
    done = neap("run", "--tag", "whole", "--policy", "host", "--trace", str(trace), "--", PROGRAM,
                "inside")
    assert done.returncode == 0 and "ok" in done.stdout, done.stderr
    assert "whole" in done.stderr and "1 pauses, 1 resumes" in done.stderr, done.stderr
    report = neap("report", str(trace), "--json")
    assert report.returncode == 0, report.stderr
    assert "whole" in report.stdout, report.stdout


def prints_a_tag_on_one_line():
    trace = Path(WORK) / "odd.trace"
    done = neap("run", "--tag", "two\nlines\x1b", "--trace", str(trace), "--", PROGRAM, "inside")
    assert "two\\nlines\\x1b " in done.stderr and "two\nlines" not in done.stderr, done.stderr


def gives_the_commands_exit_code_and_signals():
    assert neap("run", "--quiet", "--", "sh", "-c", "exit 7").returncode == 7
    missing = neap("run", "--", "/nowhere/at/all")
    assert missing.returncode == 2 and "/nowhere/at/all" in missing.stderr, missing.stderr
    running = subprocess.Popen([NEAP, "run", "--quiet", "--", "sh", "-c", "echo up; exec sleep 40"],
                               env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "up\n"
    time.sleep(0.3)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=20) == 128 + signal.SIGTERM


# Counts the signals that it gets and says so; ends with code 3 some seconds after the first.
COUNTS = """
import os, signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda n, _: seen.append(signal.Signals(n).name))
os.write(int(sys.argv[1]), f"{os.getpid()}\\n".encode())
end = time.monotonic() + 30
while not seen and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(float(sys.argv[2]))
os.write(int(sys.argv[1]), (" ".join(seen) + "\\n").encode())
sys.exit(3)
"""


def run_counter(seconds=0.4, **options):
    """`neap run` with COUNTS; its own stdin, stdout and stderr may be a terminal."""
    here, there = os.pipe()
    running = subprocess.Popen([NEAP, "run", "--quiet", "--", sys.executable, "-c", COUNTS, str(there), str(seconds)], env=ENVIRONMENT,
                               pass_fds=[there], **options)
    os.close(there)
    words = os.fdopen(here)
    return running, words, int(words.readline())


def forwards_what_the_child_did_not_get_and_only_that():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        running, words, _ = run_counter()
        running.send_signal(number)
        assert words.readline() == number.name + "\n"
        assert running.wait(timeout=20) == 3

    def on_terminal():
        here, there = pty.openpty()
        running, words, _ = run_counter(stdin=there, stdout=there, stderr=there, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(there)
        return here, running, words

    here, running, words = on_terminal()
    os.write(here, b"\x03")  # Ctrl-C
    assert words.readline() == "SIGINT\n"
    assert running.wait(timeout=20) == 3
    os.close(here)
    here, running, words = on_terminal()
    os.close(here)  # the terminal goes away: only the session's leader is told
    assert words.readline() == "SIGHUP\n"
    assert running.wait(timeout=20) == 3


def members(group):
    """The processes of a process group."""
    found = []
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            found += [process] if os.getpgid(process) == group else []
        except ProcessLookupError:
            pass
    return found


def forwards_nothing_that_the_whole_group_got():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        running, words, _ = run_counter(start_new_session=True)
        os.killpg(running.pid, number)
        assert words.readline() == number.name + "\n"
        assert running.wait(timeout=20) == 3
    for order in (1, -1):  # one process after the other, as systemd and Slurm do
        for attempt in range(20):
            running, words, _ = run_counter(start_new_session=True)
            processes = sorted(members(running.pid))[::order]
            start = time.monotonic()
            for process in processes:
                os.kill(process, signal.SIGTERM)
            in_time = time.monotonic() - start < 0.025  # `neap run` gives the sender 0.05 s; this process may have to wait
            got = words.readline()
            assert running.wait(timeout=20) == 3
            if in_time:
                break
        assert in_time and got == "SIGTERM\n", (attempt, in_time, got)
    # Later ones to `neap run` alone are forwarded.
    running, words, _ = run_counter(seconds=2, start_new_session=True)
    os.killpg(running.pid, signal.SIGUSR1)
    time.sleep(0.4)
    running.send_signal(signal.SIGUSR1)
    running.send_signal(signal.SIGTERM)
    assert sorted(words.readline().split()) == ["SIGTERM", "SIGUSR1", "SIGUSR1"]
    assert running.wait(timeout=20) == 3


def leaves_no_child_behind_however_early_a_signal_comes():
    for trial in range(30):
        here, there = os.pipe()
        running = subprocess.Popen([NEAP, "run", "--quiet", "--", "sh", "-c", f"echo $$ >&{there}; exec sleep 40"], env=ENVIRONMENT, pass_fds=[there])
        os.close(there)
        time.sleep(trial * 0.001)
        running.send_signal(signal.SIGTERM)
        running.wait(timeout=20)
        words = os.fdopen(here)
        assert words.read() is not None  # ends only when no child has the pipe


def ends_with_the_command():
    here, there = pty.openpty()  # with a live line, which is drawn every 250 ms
    least = {there: 60.0, subprocess.DEVNULL: 60.0}
    for stderr in list(least) * 8:
        start = time.monotonic()
        running = subprocess.Popen([NEAP, "run", "--", "sleep", "0.02"], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=stderr)
        assert running.wait(timeout=20) == 0
        least[stderr] = min(least[stderr], time.monotonic() - start)
    os.close(here)
    os.close(there)
    assert least[there] < least[subprocess.DEVNULL] + 0.15, least


def says_what_is_missing():
    done = neap("run", "--", "true", NEAP_HOOK_LIBRARY="/nowhere/libneap_hook.so")
    assert done.returncode == 2 and "/nowhere/libneap_hook.so" in done.stderr, done.stderr
    assert neap("run").returncode == 2
    for trace in ("/nowhere/x", WORK, "/proc/nowhere/x"):
        done = neap("run", "--trace", trace, "--", "sh", "-c", "echo started")
        assert done.returncode == 2 and trace in done.stderr and "started" not in done.stdout, done
    empty = neap("run", "--trace", str(Path(WORK) / "none.trace"), "--", "true")
    assert empty.returncode == 0 and "no trace was written" in empty.stderr, empty.stderr
    done = neap("run", "--tag", "caf\udce9", "--", "sh", "-c", "echo started")
    assert done.returncode == 2 and "tag" in done.stderr and "started" not in done.stdout, done
    nothing = neap("run", "--", "true")
    assert nothing.returncode == 0 and "the hook saw no allocation" in nothing.stderr


def shows_a_live_line_on_a_terminal():
    here, there = pty.openpty()
    running = subprocess.Popen([NEAP, "run", "--", "sh", "-c", f"{PROGRAM} outside; sleep 1"], env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                               stderr=there)
    os.close(there)
    shown = b""
    try:
        while part := os.read(here, 4096):
            shown += part
    except OSError:  # the terminal's other end is closed
        pass
    os.close(here)
    assert running.wait(timeout=20) == 0
    assert b"\r\x1b[2Kneap: outside " in shown, shown
    assert b"calls passed on, peak 15 MiB" in shown, shown


def removes_what_killed_runs_left():
    def start():
        running = subprocess.Popen([NEAP, "run", "--quiet", "--", "sh", "-c", "echo $NEAP_LIVE $$; exec sleep 40"], env=ENVIRONMENT,
                                   stdout=subprocess.PIPE, text=True)
        folder, program = running.stdout.readline().split()
        return running, folder, int(program)

    killed, left, orphan = start()
    killed.kill()
    killed.wait(timeout=20)
    os.kill(orphan, signal.SIGKILL)
    alive, used, program = start()
    assert os.path.isdir(left) and os.path.isdir(used)  # too young to be taken for left
    for folder in (left, used):
        os.utime(folder, (1, 1))
    assert neap("run", "--quiet", "--", "true").returncode == 0
    assert not os.path.exists(left) and os.path.isdir(used)
    os.kill(program, signal.SIGTERM)
    alive.wait(timeout=20)
    assert not os.path.exists(used)


def skips_what_is_no_report():
    files = "echo '{}' > $NEAP_LIVE/other.json; echo '{' > $NEAP_LIVE/7.json; echo '[]' > $NEAP_LIVE/8.json; mkdir $NEAP_LIVE/9.json"
    done = neap("run", "--json", "--", "sh", "-c", files)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["processes"] == [], done.stdout


for case in (counts_what_is_passed_on, makes_regions_and_a_trace, prints_a_tag_on_one_line,
             gives_the_commands_exit_code_and_signals, says_what_is_missing, shows_a_live_line_on_a_terminal, skips_what_is_no_report,
             removes_what_killed_runs_left, forwards_what_the_child_did_not_get_and_only_that,
             forwards_nothing_that_the_whole_group_got, leaves_no_child_behind_however_early_a_signal_comes, ends_with_the_command):
    case()
    print("passed", case.__name__, flush=True)
