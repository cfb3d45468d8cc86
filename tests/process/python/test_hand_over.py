"""Pages between processes: export and import by hand, and the protocol of exporter and importer, with
either of them killed."""

from conftest import run

IMPORTER = '''
import ctypes, os, sys, time
import neap
path, behaviour = sys.argv[1:3]
told = []
importer = neap.Importer(path, on_revoked=lambda name, at, lost: told.append((name, lost)))
lent = importer.take("weights", tag="rollout", wait=60)
ctypes.memset(lent.address, 42, 16)
print(lent.size, lent.exporter_version, neap.info(lent).tag, flush=True)
if behaviour == "until_revoked":
    while not told: time.sleep(0.01)
    while neap.regions(): time.sleep(0.01)
    print(told[0], flush=True)
    again = importer.take("weights", tag="rollout", wait=60)
    print(ctypes.string_at(again.address, 3)[0], again.exporter_version, flush=True)
    importer.close()
elif behaviour == "drop":
    lent.destroy()
    print(len(neap.regions()), flush=True)
    sys.stdin.readline()
elif behaviour == "until_exporter_dies":
    while not told: time.sleep(0.01)
    print(told[0], ctypes.string_at(lent.address, 1)[0], flush=True)
    lent.destroy()
    print(len(neap.regions()), flush=True)
    try:
        importer.take("weights")
    except neap.CancelledError:
        print("gone", flush=True)
    importer.close()
elif behaviour == "closes_in_callback":
    def close_now(name, at, lost):
        try:
            importer.close()
        except neap.BusyError:
            told.append("busy")
    importer._on_revoked = close_now
    print("ready", flush=True)
    while not told: time.sleep(0.01)
    while neap.regions(): time.sleep(0.01)
    again = importer.take("weights", tag="rollout", wait=60)
    print(told, ctypes.string_at(again.address, 1)[0], flush=True)
    again.destroy()
    importer.close()
elif behaviour == "slow":
    importer._on_revoked = lambda name, at, lost: time.sleep(0.5)
    print("ready", flush=True)
    sys.stdin.readline()
    importer.close()
elif behaviour == "stubborn":
    importer._on_revoked = lambda name, at, lost: time.sleep(60)
    print("ready", flush=True)
    time.sleep(60)
'''

EXPORTER = f"""
import neap
IMPORTER = {IMPORTER!r}
folder = tempfile.mkdtemp()
path = os.path.join(folder, "socket")
def start(behaviour):
    return subprocess.Popen([sys.executable, "-c", IMPORTER, path, behaviour], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def line(process):
    text = process.stdout.readline().strip()
    assert text, "the importer ended: " + str(process.wait())
    return text
def refused(words):
    try:
        neap.Exporter(path)
    except neap.NeapError as error:
        assert words in str(error) and path in str(error), error
        return error
    assert False
weights = neap.allocate(6 * MIB, tag="trainer", policy="host")
ctypes.memset(weights.address, 1, 6 * MIB)
"""


def test_a_pause_revokes_and_a_resume_lends_again():
    run(EXPORTER + """
with neap.Exporter(path) as exporter:
    exporter.offer("weights", weights)
    importer = start("until_revoked")
    size, version, tag = line(importer).split()
    assert (int(size), tag) == (6 * MIB, "rollout")
    assert ctypes.string_at(weights.address, 1)[0] == 42      # the importer wrote it: no copy
    assert exporter.importers("weights") == 1
    neap.pause("trainer")
    assert line(importer) == "('weights', False)"
    assert exporter.importers("weights") == 0
    time.sleep(0.2)                                           # the importer waits for the offer
    neap.resume("trainer")
    first_byte, new_version = map(int, line(importer).split())
    assert first_byte == 42 and new_version > int(version)
    assert importer.wait(60) == 0
    assert neap.pause("trainer").regions == 1
""")


def test_dropping_withdrawing_and_names():
    run(EXPORTER + """
with neap.Exporter(path) as exporter:
    try:
        neap.Exporter(path)
        assert False
    except neap.AlreadyExistsError:
        pass
    assert oct(os.stat(path).st_mode & 0o777) == "0o600"
    exporter.offer("weights", weights)
    for what, name, kind in ((weights, "weights", neap.AlreadyExistsError),
                             (0x1000, "other", neap.NotFoundError),
                             (weights.address + 4096, "other", neap.InvalidArgumentError)):
        try:
            exporter.offer(name, what)
            assert False
        except kind:
            pass
    importer = start("drop")
    line(importer)
    assert line(importer) == "0"
    deadline = time.monotonic() + 60
    while exporter.importers("weights"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    importer.stdin.write("end\\n"); importer.stdin.flush()
    assert importer.wait(60) == 0
    exporter.withdraw("weights")
    try:
        exporter.importers("weights")
        assert False
    except neap.NotFoundError:
        pass
    reader = neap.Importer(path)
    try:
        reader.take("weights", wait=0.1)
        assert False
    except neap.NotFoundError:
        pass
    reader.close()
assert not os.path.exists(path)
""")


def test_a_killed_guest_holds_nothing():
    run(EXPORTER + """
with neap.Exporter(path) as exporter:
    exporter.offer("weights", weights, revoke_timeout=30)
    importer = start("stubborn")
    line(importer); assert line(importer) == "ready"
    assert exporter.importers("weights") == 1
    begin = time.monotonic()
    threading.Timer(0.3, lambda: os.kill(importer.pid, signal.SIGKILL)).start()
    assert neap.pause("trainer").regions == 1                 # goes on once the importer is dead
    assert 0.3 <= time.monotonic() - begin < 30
    importer.wait()
    neap.resume("trainer")
    assert ctypes.string_at(weights.address, 1)[0] == 42
""")


def test_a_stubborn_guest_makes_the_pause_fail_with_everything_as_it_was():
    run(EXPORTER + """
with neap.Exporter(path) as exporter:
    exporter.offer("weights", weights, revoke_timeout=0.3)
    importer = start("stubborn")
    line(importer); assert line(importer) == "ready"
    try:
        neap.pause("trainer")
        assert False
    except neap.BusyError as error:
        assert "weights" in str(error)
    assert weights.info.state == neap.State.RESIDENT
    assert ctypes.string_at(weights.address, 1)[0] == 42
    importer.kill(); importer.wait()
    deadline = time.monotonic() + 60
    while exporter.importers("weights"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert neap.pause("trainer").regions == 1
""")


def test_a_guest_is_not_closed_by_its_own_callback():
    run(EXPORTER + """
with neap.Exporter(path) as exporter:
    exporter.offer("weights", weights, revoke_timeout=30)
    importer = start("closes_in_callback")
    line(importer); assert line(importer) == "ready"
    assert neap.pause("trainer").regions == 1
    neap.resume("trainer")
    assert line(importer) == "['busy'] 42"
    assert importer.wait(60) == 0
""")


def test_an_owner_that_closes_waits_for_its_guests():
    run(EXPORTER + """
exporter = neap.Exporter(path)
exporter.offer("weights", weights)
importer = start("slow")
line(importer); assert line(importer) == "ready"
begin = time.monotonic()
exporter.close(timeout=30)
assert 0.4 < time.monotonic() - begin < 30
importer.stdin.write("end\\n"); importer.stdin.flush()
assert importer.wait(60) == 0
""")


def test_a_killed_owner_leaves_its_pages_to_its_guests():
    run(f"""
IMPORTER = {IMPORTER!r}
EXPORTER = '''
import sys, time, ctypes
import neap
weights = neap.allocate(6 << 20, tag="trainer", policy="host")
exporter = neap.Exporter(sys.argv[1])
exporter.offer("weights", weights)
print("ready", flush=True)
time.sleep(60)
'''
path = os.path.join(tempfile.mkdtemp(), "socket")
exporter = subprocess.Popen([sys.executable, "-c", EXPORTER, path], stdout=subprocess.PIPE, text=True)
assert exporter.stdout.readline().strip() == "ready"
importer = subprocess.Popen([sys.executable, "-c", IMPORTER, path, "until_exporter_dies"],
                         stdout=subprocess.PIPE, text=True)
assert importer.stdout.readline().split()[2] == "rollout"
os.kill(exporter.pid, signal.SIGKILL); exporter.wait()
assert importer.stdout.readline().strip() == "('weights', True) 42"
assert importer.stdout.readline().strip() == "0"
assert importer.stdout.readline().strip() == "gone"
assert importer.wait(60) == 0
import neap
successor = neap.Exporter(path)                                  # a dead socket is replaced
successor.close()
""".replace("\n        ", "\n"))


def test_a_path_has_one_owner():
    run(EXPORTER + """
import stat
first = neap.Exporter(path)
os.unlink(path)                                               # as a cleaner of temporary files does
error = refused("Close that exporter or use another path")
assert isinstance(error, neap.AlreadyExistsError) and not os.path.exists(path)
os.unlink(path + ".lock")
second = neap.Exporter(path)
first.close()                                                 # removes nothing of the second's
assert stat.S_ISSOCK(os.stat(path).st_mode)
neap.Importer(path).close()
refused("Another exporter")
second.close()
assert os.listdir(folder) == []
""")


def test_an_owner_replaces_nothing_that_is_not_its_own():
    run(EXPORTER + """
for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):      # of another program
    other = socket.socket(socket.AF_UNIX, kind)
    other.bind(path); other.listen()
    refused("Another program" if kind == socket.SOCK_SEQPACKET else "Cannot connect to")
    assert os.listdir(folder) == ["socket"]
    other.close(); os.unlink(path)
target = os.path.join(folder, "target")
os.symlink(target, path + ".lock")
refused("Cannot open")
assert not os.path.exists(target)
os.unlink(path + ".lock")
os.chdir(folder)
exporter = neap.Exporter("socket")
os.chdir("/")
exporter.close()
assert os.listdir(folder) == []
""")


def test_messages_that_break_the_protocol_do_not_harm_the_owner():
    run(EXPORTER + """
with neap.Exporter(path) as exporter:
    exporter.offer("weights", weights)
    for message in (b"", b"{", b"[]", b"null", b'{"type":7}', b'{"type":"take","name":"weights"}',
                    b'{"type":"hello","version":99}', b'{"type":"hello","version":"1"}',
                    b"x" * 70000):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(path); s.settimeout(60)
        try:
            if message: s.send(message)
            else: s.close(); continue
            assert s.recv(65536) == b"", message              # the exporter hung up
        except (ConnectionResetError, BrokenPipeError):
            pass
        s.close()
    # An importer that says hello and then nonsense about its loans.
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(path); s.settimeout(60)
    s.send(b'{"type":"hello","version":1}')
    assert b"welcome" in s.recv(65536)
    s.send(b'{"type":"drop","name":"never lent"}')
    s.send(b'{"type":"take","name":"weights","wait_ms":-5}')
    data, fds, _, _ = socket.recv_fds(s, 65536, 128)
    assert b"lend" in data and fds
    for fd in fds: os.close(fd)
    s.close()
    importer = start("drop")
    line(importer); assert line(importer) == "0"
    importer.kill(); importer.wait()
""")


def test_export_and_receive_over_any_socket():
    run("""
import neap
mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
READER = '''
import socket, sys, ctypes
import neap
connection = socket.socket(fileno=int(sys.argv[1]))
region = neap.receive(connection, tag="received")
assert ctypes.string_at(region.address, 3) == b"abc"
ctypes.memmove(region.address, b"xyz", 3)
connection.sendall(b"done")
'''
region = neap.allocate(10 * MIB, tag="sent")
ctypes.memmove(region.address, b"abc", 3)
reader = subprocess.Popen([sys.executable, "-c", READER, str(theirs.fileno())],
                          pass_fds=[theirs.fileno()])
before = len(os.listdir("/proc/self/fd"))
with neap.export_region(region) as export:
    export.send(mine)
assert len(os.listdir("/proc/self/fd")) == before
assert mine.recv(4) == b"done"
assert reader.wait(60) == 0
assert ctypes.string_at(region.address, 3) == b"xyz"
mine.close()
""")


def test_a_forgotten_guest_is_still_told():
    run(EXPORTER + """
import gc
FORGETFUL = '''
import gc, sys, neap
def take():
    importer = neap.Importer(sys.argv[1], on_revoked=lambda name, at, lost: print("told", flush=True))
    importer.take("weights", tag="rollout", wait=60)
take()
gc.collect()
kept = [neap._library.REVOKED(lambda *_: None) for _ in range(1000)]   # takes what was freed
print("ready", flush=True)
sys.stdin.readline()
'''
with neap.Exporter(path) as exporter:
    exporter.offer("weights", weights, revoke_timeout=30)
    importer = subprocess.Popen([sys.executable, "-c", FORGETFUL, path], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert line(importer) == "ready"
    assert neap.pause("trainer").regions == 1
    assert line(importer) == "told"
    importer.stdin.write("end\\n"); importer.stdin.flush()
    assert importer.wait(60) == 0
""")
