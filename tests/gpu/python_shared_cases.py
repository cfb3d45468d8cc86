"""Cases of python_suite.sh with several processes or several cards."""

from python_cases import Case

CASES = [
    Case("hand_over_and_kill_the_guest", """
import neap
IMPORTER = '''
import sys, time, torch, neap
torch.cuda.init()
importer = neap.Importer(sys.argv[1])
begin = time.perf_counter()
lent = importer.take("weights", tag="rollout", wait=20)
took = time.perf_counter() - begin
x = torch.as_tensor(lent, device="cuda")
x[:16].fill_(77)
torch.cuda.synchronize()
print(int(x[4096:8192].sum()), took, flush=True)
time.sleep(60)
'''
size = 15 * 10**9 // (2 * MIB) * (2 * MIB)
weights = neap.allocate(size, tag="trainer", policy="host")
view = torch.as_tensor(weights, device="cuda")
view.fill_(3)
torch.cuda.synchronize()
path = os.path.join(tempfile.mkdtemp(), "socket")
before = free()
with neap.Exporter(path) as exporter:
    exporter.offer("weights", weights, revoke_timeout=20)
    importer = start(IMPORTER, path)
    total, took = line(importer).split()
    assert int(total) == 4096 * 3
    number("hand_over_15gb_ms", float(took) * 1e3)
    assert view[:16].tolist() == [77] * 16     # the same memory
    assert before - free() < 2 * GIB           # no copy: a context at most
    importer.kill(); importer.wait()
    begin = time.perf_counter()
    paused = neap.pause("trainer", policy="discard")
    number("pause_after_kill_ms", (time.perf_counter() - begin) * 1e3)
    assert paused.regions == 1
    assert free() - before > size * 0.95
""", modes=("torch",)),
    Case("kill_the_owner", """
import neap
EXPORTER = '''
import sys, time, torch, neap
weights = neap.allocate(2 << 30, tag="trainer")
torch.as_tensor(weights, device="cuda").fill_(5)
torch.cuda.synchronize()
exporter = neap.Exporter(sys.argv[1])
exporter.offer("weights", weights)
print("ready", flush=True)
time.sleep(60)
'''
path = os.path.join(tempfile.mkdtemp(), "socket")
exporter = start(EXPORTER, path)
assert line(exporter) == "ready"
told = []
importer = neap.Importer(path, on_revoked=lambda name, at, lost: told.append((name, lost)))
lent = importer.take("weights", wait=20)
x = torch.as_tensor(lent, device="cuda")
os.kill(exporter.pid, signal.SIGKILL); exporter.wait()
deadline = time.monotonic() + 10
while not told and time.monotonic() < deadline: time.sleep(0.01)
assert told == [("weights", True)], told
assert int(x.min()) == 5 and int(x.max()) == 5   # the pages outlive their exporter
before = free()
del x
lent.destroy()
assert free() - before >= 2 * GIB - 64 * MIB
importer.close()
""", modes=("preload",)),
    Case("forked_child_is_refused", """
import neap, warnings
with neap.region("w", policy="host"):
    w = noise(MIB)
child = os.fork()
if child == 0:
    try:
        neap.pause("w")
    except neap.UnsupportedError:
        os._exit(0)
    os._exit(3)
assert os.waitpid(child, 0)[1] == 0
neap.pause("w"); neap.resume("w")
""", modes=("torch",)),
    # torch switches peer access on when it copies between cards. Preloaded, Neap sees that; in a
    # MemPool it has to be told.
    Case("peers", """
import neap
driver = ctypes.CDLL("libcuda.so.1")
def fill(tensor, value, card):   # with the engine of another card
    with torch.cuda.device(card):
        stream = torch.cuda.Stream()
        code = driver.cuMemsetD8Async(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_ubyte(value),
                                      ctypes.c_size_t(tensor.numel()),
                                      ctypes.c_void_p(stream.cuda_stream))
        assert code == 0, code
        stream.synchronize()
with neap.region("weights", policy="host"):
    weights = noise(256 * MIB)
copy = weights.cpu()
assert torch.equal(weights.to("cuda:1").cpu(), copy)
with torch.cuda.device(1), neap.region("there", policy="host"):
    there = torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda:1")
if MODE == "torch":
    neap.grant_peer(0, 1)
    neap.grant_peer(1, 0)
else:
    weights[:8].to("cuda:1"), there[:8].to("cuda:0")   # torch enables both directions
for cycle in range(1, 6):
    neap.pause(keep_pages=cycle % 2 == 0)
    neap.resume()
    assert torch.equal(weights.cpu(), copy)
    there.copy_(weights)
    torch.cuda.synchronize(1)
    assert torch.equal(there.cpu(), copy)
    fill(there, cycle, 0)
    assert int(there.min()) == int(there.max()) == cycle
    fill(weights, 17, 1)
    torch.cuda.synchronize(0)
    assert int(weights.min()) == int(weights.max()) == 17
    weights.copy_(copy)
begin = time.monotonic()
for _ in range(20):
    there.copy_(weights)
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
number("copy_gb_per_second", 20 * weights.numel() / (time.monotonic() - begin) / 1e9)
plain = torch.empty_like(weights), torch.empty_like(there)
plain[1].copy_(plain[0]); torch.cuda.synchronize(0); torch.cuda.synchronize(1)
begin = time.monotonic()
for _ in range(20):
    plain[1].copy_(plain[0])
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
number("plain_copy_gb_per_second", 20 * weights.numel() / (time.monotonic() - begin) / 1e9)
""", cards=2),
    # Buffers that NCCL registered in a captured graph. Without a counter-measure, ranks read wrong
    # values. The case records the outcome and does not fail (-1: a rank failed, -2: it hung).
    Case("nccl_graph", """
port = 29600 + (10 if MODE == "torch" else 0)
for how in ("default", "keep_resident", "registered"):
    port += 1
    program = os.path.join(HERE, "nccl_graph_rank.py")
    ranks = [subprocess.Popen([sys.executable, program, str(rank), str(port), how], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    outcome, said = [], ""
    for process in ranks:
        try:
            text, errors = process.communicate(timeout=40)
            outcome.append(int(text.split("wrong ")[1]) if "wrong " in text else -1)
            said += errors[-600:]
        except subprocess.TimeoutExpired:
            outcome.append(-2)
            for other in ranks: other.kill()
    number("wrong_replays_" + how, sum(outcome) if min(outcome) >= 0 else min(outcome))
    if how != "registered":
        assert outcome == [0, 0], (how, outcome, said)
""", cards=2, seconds=130),
]
