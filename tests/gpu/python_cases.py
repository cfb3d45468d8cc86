"""The cases of python_suite.sh: programs that use torch and Neap as users do, on a real GPU."""

from dataclasses import dataclass, field

BOTH = ("torch", "preload")

PRELUDE = """
import ctypes, gc, os, signal, subprocess, sys, tempfile, threading, time
import torch
GIB, MIB = 1 << 30, 1 << 20
SLACK = 64 * MIB   # pinning host memory and growing page tables take a little of the card

def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]

def number(key, value):
    print("number", key, value, flush=True)

def noise(count, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 255, (count,), dtype=torch.uint8, device="cuda", generator=g)

def start(code, *arguments):
    env = {k: v for k, v in os.environ.items()}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=env, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def line(process):
    text = process.stdout.readline().strip()
    assert text, f"the other process ended: {process.wait()}"
    return text
"""


@dataclass
class Case:
    name: str
    code: str
    modes: tuple = BOTH
    drop_in: bool = False
    environment: dict = field(default_factory=dict)
    cards: int = 1  # skipped on a machine with fewer
    seconds: int = 60


CASES = [
    Case("regions", """
import neap
assert neap.hook_mode() == MODE
with neap.region("weights", policy="host"):
    weights = noise(GIB)
with neap.region("kv"):
    kv = torch.zeros(4 * GIB, dtype=torch.uint8, device="cuda")
with neap.region("small", policy="host"):
    small = [noise(4096 + i, i) for i in range(64)]
copies = [t.clone() for t in small]
outside = weights.clone()
address, before = weights.data_ptr(), free()
moved = neap.pause()
assert free() - before >= 5 * GIB - SLACK, (free() - before) / GIB
assert bytes(neap.host_copy(weights))[:1024] == bytes(outside[:1024].cpu().numpy())
number("first_pause_seconds", moved.seconds)
number("first_resume_seconds", neap.resume().seconds)
assert weights.data_ptr() == address and torch.equal(weights, outside)
assert all(torch.equal(a, b) for a, b in zip(small, copies))
for _ in range(5):
    paused = neap.pause("weights"); resumed = neap.resume("weights")
number("pause_gb_per_second", paused.copied / paused.seconds / 1e9)
number("resume_gb_per_second", resumed.copied / resumed.seconds / 1e9)
assert torch.equal(weights, outside)
for _ in range(5):
    paused = neap.pause("kv", keep_pages=True); resumed = neap.resume("kv")
number("kv_4gib_pause_ms_kept", paused.seconds * 1e3)
number("kv_4gib_resume_ms_kept", resumed.seconds * 1e3)
neap.pause("weights"); neap.resume("weights")
"""),
    Case("policies", """
import neap
tensors = {}
for policy in ("host", "disk", "zero", "discard"):
    with neap.region(policy, policy=policy):
        tensors[policy] = noise(64 * MIB, 3)
want = tensors["host"].clone()
neap.pause()
neap.resume()
assert torch.equal(tensors["host"], want) and torch.equal(tensors["disk"], want)
assert int(tensors["zero"].count_nonzero()) == 0
""", modes=("torch",)),
    Case("empty_cache", """
import neap
with neap.region("kv"):
    a = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    b = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    del a
    torch.cuda.empty_cache()                 # torch does nothing inside a pool
before = free()
torch.cuda.empty_cache()
gc.collect()
b.fill_(3)
neap.pause("kv")
paused = free()
del b
torch.cuda.empty_cache()                     # frees what is paused
neap.resume("kv")
assert free() >= before
with neap.region("kv"):
    c = torch.ones(GIB, dtype=torch.uint8, device="cuda")
neap.pause("kv"); torch.cuda.empty_cache(); neap.resume("kv")
c.fill_(2)
assert int(c.min()) == 2
"""),
    Case("expandable_segments", """
import neap
grown = torch.zeros(300 * MIB, dtype=torch.uint8, device="cuda")
with neap.region("weights", policy="host"):
    weights = noise(512 * MIB)
assert neap.info(weights).tag == "weights"
want = weights.clone()
more = torch.ones(300 * MIB, dtype=torch.uint8, device="cuda")
neap.pause("weights"); neap.resume("weights")
assert torch.equal(weights, want) and int(more.min()) == 1
assert any(s["is_expandable"] for s in torch.cuda.memory_snapshot()), "expandable is still on outside"
""", environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    Case("autograd_threads", """
import neap
torch.manual_seed(0)
with neap.region("model", policy="host"):
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
x = torch.randn(256, 1024, device="cuda")
def step():
    model.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    with neap.region("grads", policy="discard", all_threads=True):
        loss.backward()                       # autograd's own thread allocates here
    return loss.item(), [p.grad.clone() for p in model.parameters()]
loss, grads = step()
for _ in range(3):
    neap.pause("model"); neap.resume("model")
    again, new = step()
    assert again == loss and all(torch.equal(a, b) for a, b in zip(grads, new))
failures = []
def worker(i):
    try:
        for _ in range(5):
            with neap.region(f"t{i}", policy="host"):
                t = noise(8 * MIB, i)
            want = t.clone()
            neap.pause(f"t{i}"); neap.resume(f"t{i}")
            assert torch.equal(t, want)
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert not failures, failures
"""),
    Case("graph_100_cycles", """
import neap
torch.manual_seed(0)
with neap.region("weights", policy="host"):
    weight = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3): (x @ weight).relu() @ weight
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with neap.graph(graph, tag="graphs", policy="host"):
    y = (x @ weight).relu() @ weight
assert neap.info(y).tag == "graphs", neap.info(y)
graph.replay(); torch.cuda.synchronize()
want, address = y.clone(), y.data_ptr()
for cycle in range(100):
    neap.pause(["graphs", "weights"], keep_pages=cycle % 2 == 0)
    neap.resume()
    if cycle % 10 == 0:
        y.zero_()
        graph.replay(); torch.cuda.synchronize()
        assert torch.equal(y, want), cycle
graph.replay(); torch.cuda.synchronize()
assert torch.equal(y, want) and y.data_ptr() == address
"""),
    Case("out_of_memory_at_resume_then_success", """
import neap
with neap.region("weights", policy="host"):
    weights = noise(2 * GIB)
want = bytes(weights[:4096].cpu().numpy())
neap.pause("weights")
HOLDER = '''
import sys, torch
left = torch.cuda.mem_get_info()[0] - (1 << 30)
hold = torch.empty(left, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.readline()
'''
env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
holder = subprocess.Popen([sys.executable, "-c", HOLDER], env=env, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert line(holder) == "held"
try:
    neap.resume("weights")
    assert False, "there was room?"
except torch.OutOfMemoryError as error:
    assert isinstance(error, neap.OutOfMemoryError)
    assert error.need >= 2 * GIB > error.free, (error.need, error.free)
assert neap.info(weights).state == neap.State.PAUSED
threading.Timer(1.0, lambda: (holder.stdin.write("go\\n"), holder.stdin.flush())).start()
begin = time.monotonic()
neap.resume("weights", wait=30)
number("waited_seconds", time.monotonic() - begin)
holder.wait()
assert bytes(weights[:4096].cpu().numpy()) == want
x = torch.ones(1024, device="cuda")          # nothing sticks
assert float(x.sum()) == 1024
"""),
    Case("torch_cache_gives_way", """
import neap
total = torch.cuda.mem_get_info()[1]
with neap.region("kv"):
    kv = torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
neap.pause("kv", keep_pages=MODE == "preload")
other = torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
del other                                     # cached by torch
def second():
    with neap.region("kv2"):
        return torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
kept = 0                                      # some versions of torch keep their cache inside a pool
try:
    kv2 = second()
except torch.OutOfMemoryError:
    kept = 1
    torch.cuda.empty_cache()
    kv2 = second()
number("torch_kept_its_cache", kept)
kv2[:16].fill_(1)
neap.pause("kv2")
neap.resume("kv")
kv[:16].fill_(1)
""", modes=("preload",)),
    Case("no_growth_over_1000_cycles", """
import neap
with neap.region("w", policy="host"):
    w = noise(64 * MIB)
want = w.clone()
for _ in range(10): neap.pause("w"); neap.resume("w")
assert torch.equal(w, want)                  # torch loads this kernel now: 156 MiB of the card, 54 of the host
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096
device, host, maps = free(), resident(), sum(1 for _ in open("/proc/self/maps"))
for _ in range(1000):
    neap.pause("w"); neap.resume("w")
assert torch.equal(w, want)
assert device - free() <= 4 * MIB and resident() - host < 32 * MIB, ((device - free()) / MIB, (resident() - host) / MIB)
assert sum(1 for _ in open("/proc/self/maps")) - maps < 50, sum(1 for _ in open("/proc/self/maps")) - maps
""", modes=("torch",)),
    Case("allocation_cost", """
import neap
lookups = 20000
with neap.region("many"):
    blocks = [torch.empty(2 * MIB + 1, dtype=torch.uint8, device="cuda") for _ in range(200)]
call = neap.library().cdll.neap_region_find
from neap import _library
raw = _library.RegionInfo()
address = blocks[100].data_ptr()
begin = time.perf_counter()
for _ in range(lookups): call(address, ctypes.byref(raw))
number("find_ns_with_ctypes", (time.perf_counter() - begin) / lookups * 1e9)
assert raw.tag == b"many"
""", modes=("torch",)),
    Case("drop_in", """
from torch_memory_saver import torch_memory_saver as saver
import neap
if MODE == "torch": saver.hook_mode = "torch"
with saver.region("weights", enable_cpu_backup=True):
    weights = noise(GIB)
    with saver.disable():
        loose = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
with saver.region("kv"):
    kv = torch.zeros(2 * GIB, dtype=torch.uint8, device="cuda")
want, before = weights.clone(), free()
saver.pause(); saver.pause("kv")
assert free() - before >= 3 * GIB - SLACK
assert torch.equal(saver.get_cpu_backup(weights), want.cpu())
assert int(loose.min()) == 1
saver.resume("weights"); saver.resume(); saver.resume()
assert torch.equal(weights, want)
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
    y = want.float().sum()
graph.replay(); torch.cuda.synchronize()
result = y.clone()
assert neap.info(y).tag == "graph"
for _ in range(10):
    saver.pause("graph"); saver.resume("graph")
y.zero_()
graph.replay(); torch.cuda.synchronize()
assert torch.equal(y, result)
del kv
torch.cuda.empty_cache()
""", drop_in=True),
    Case("drop_in_whole_process", """
x = noise(256 * MIB)
want = x.cpu()
from torch_memory_saver import torch_memory_saver as saver
before = free()
saver.pause()
assert free() - before >= 256 * MIB - SLACK, (free() - before) / MIB
saver.resume()
assert torch.equal(x.cpu(), want)
""", modes=("preload",), drop_in=True,
         environment={"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}),
    Case("mem_pool_by_hand", """
import neap
pool = torch.cuda.MemPool(neap.torch_allocator())
with torch.cuda.use_mem_pool(pool):
    x = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
assert neap.info(x).tag == "default"
neap.pause("default", policy="host"); neap.resume("default")
assert int(x.min()) == 1
try:
    with torch.cuda.use_mem_pool(pool):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert False
except torch.OutOfMemoryError:
    pass
torch.empty(MIB, device="cuda")
""", modes=("torch",)),
]
