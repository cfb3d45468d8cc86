"""Both packages with a real torch over the stand-in CUDA libraries, no GPU: what torch's own Python, caching
allocator, memory pools and captures do with them. Kernels do nothing here; copies do copy.

    NEAP_TEST_TORCH=SITE-PACKAGES NEAP_TEST_BUILD_DIR=build/core PYTHON -m pytest tests/process/python/test_torch.py

PYTHON has what torch imports. docs/python.md says with which versions this was run.
"""

import os
import sys
from pathlib import Path

import pytest

from conftest import HOOK, SOURCE, STANDIN, run, saver_environment, standin_environment

SITE = os.environ.get("NEAP_TEST_TORCH")
pytestmark = pytest.mark.skipif(not SITE, reason="NEAP_TEST_TORCH names no folder with torch/")
MODES = pytest.mark.parametrize("mode", ["torch", "preload"])
HELPERS = """
import torch, neap
def empty(mib=30): return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
def write(x, byte): ctypes.memset(x.data_ptr(), byte, x.nbytes)
def first(x): return ctypes.string_at(x.data_ptr(), 1)[0]
def tag(x):
    try: return neap.info(x).tag
    except neap.NotFoundError: return None
def tags(*tensors): return [tag(x) for x in tensors]
def free(): return torch.cuda.mem_get_info()[0]
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    sys.path.insert(0, str(SOURCE / "tests" / "standin"))
    from real_torch import prepare

    out = tmp_path_factory.mktemp("cuda")
    return out, prepare(Path(SITE), STANDIN, out)


def with_torch(env, libraries, **changes):
    """The stand-in torch's place is the real one's."""
    out, preload = libraries
    env = {**env, "LD_LIBRARY_PATH": f"{out}:{STANDIN}", "NEAP_STANDIN_BYTES": str(512 << 20), **changes}
    env["PYTHONPATH"] = env["PYTHONPATH"].replace(str(SOURCE / "tests" / "standin" / "python"), SITE)
    env["LD_PRELOAD"] = ":".join(filter(None, [env.get("LD_PRELOAD"), *preload]))
    return env


def run_neap(code, mode, libraries, **changes):
    env = standin_environment(LD_PRELOAD=str(HOOK) if mode == "preload" else None)
    run(f"MODE = {mode!r}\n" + HELPERS + code, with_torch(env, libraries, **changes))


def run_saver(code, mode, files, libraries, **changes):
    begin = "from torch_memory_saver import torch_memory_saver as saver\n"
    if mode == "torch":
        begin += "saver.hook_mode = 'torch'\n"
    run(f"MODE = {mode!r}\n" + HELPERS + begin + code,
        with_torch(saver_environment(files, mode), libraries, **changes))


@MODES
def test_regions_nest(mode, libraries):
    run_neap("""
outside = empty()
with neap.region("a", policy="host"):
    a = empty()
    with neap.region("b"): b = empty()
    with neap.disabled(): loose = empty()
    dead = empty(); del dead                     # a's pool keeps it
    with neap.region("b"): b2 = empty()
    with neap.disabled(): loose2 = empty()
    with neap.region("a", policy="host"): a2 = empty()
    with neap.region("b"), neap.region("a", policy="host"): a3 = empty()
    try:
        with neap.region("b"): raise KeyError
    except KeyError: pass
    a4 = empty()
assert tags(a, b, loose, b2, loose2, a2, a3, a4) == ["a", "b", None, "b", None, "a", "a", "a"]
assert tags(outside, empty()) == [None, None]
write(a, 7)
neap.pause(); neap.resume()
assert first(a) == 7
""", mode, libraries)


@MODES
def test_threads(mode, libraries):
    run_neap("""
def in_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work())); thread.start(); thread.join()
    return found[0]
with neap.region("a"):
    alone = in_thread(empty)
every_thread = neap._pools.catches_all_threads(torch)
version = tuple(map(int, torch.__version__.split(".")[:2]))
assert every_thread or version > (2, 6)
assert not every_thread or version < (2, 8)
assert tag(alone) == ("a" if every_thread and MODE == "preload" else None)
if every_thread: raise SystemExit                # regions in one thread at a time
both, found = threading.Barrier(2), []
def work():
    for _ in range(5):
        with neap.region("b"):
            both.wait(60); found.append(empty(20)); both.wait(60)
threads = [threading.Thread(target=work) for _ in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
assert tags(*found) == ["b"] * 10
if MODE == "preload":
    with neap.region("c", all_threads=True): covered = in_thread(empty)
    assert tag(covered) == "c"
""", mode, libraries)


@MODES
def test_two_devices(mode, libraries):
    run_neap("""
def on(device): return torch.empty(30 * MIB, dtype=torch.uint8, device=f"cuda:{device}")
def where(x): return tag(x), neap.info(x).device
with neap.region("a", device=1): x = on(1)
assert torch.cuda.current_device() == 0 and where(x) == ("a", 1)
with torch.cuda.device(1):
    with neap.region("b", policy="host"): y = on(1)
    with neap.region("b", policy="host", device=0): y0 = on(0)
    with neap.disabled(): loose = on(1)
assert (where(y), where(y0), tag(loose)) == (("b", 1), ("b", 0), None)
with neap.region("a", device=0):
    with neap.region("b", device=1): inner = on(1)
    outer = on(0)
assert (where(inner), where(outer)) == (("b", 1), ("a", 0))
write(y, 3); write(y0, 4)
neap.pause(); neap.resume()
assert (first(y), first(y0)) == (3, 4)
""", mode, libraries, NEAP_STANDIN_DEVICES="2")


@MODES
def test_out_of_memory_is_torchs(mode, libraries):
    run_neap("""
with neap.region("weights", policy="host"): weights = empty(100)
write(weights, 3)
try:
    with neap.region("weights", policy="host"):
        hog = []
        while True: hog.append(empty(100))
except torch.OutOfMemoryError:
    assert len(hog) >= 2
del hog
neap.pause("weights")
hog = empty(440)
try:
    neap.resume("weights"); assert False
except torch.OutOfMemoryError as error:
    assert isinstance(error, neap.OutOfMemoryError) and error.need > error.free
    import pickle
    assert isinstance(pickle.loads(pickle.dumps(error)), torch.OutOfMemoryError)
del hog
torch.cuda.empty_cache()
neap.resume("weights")
assert first(weights) == 3
""", mode, libraries)


@MODES
def test_empty_cache_and_the_end_of_tensors(mode, libraries):
    run_neap("""
with neap.region("kv"):
    a, b = empty(60), empty(60)
    del a
    torch.cuda.empty_cache()
before = free()
torch.cuda.empty_cache()
neap.pause("kv")
assert free() - before >= 60 * MIB               # what torch's pool keeps is free as well
del b
torch.cuda.empty_cache()
neap.resume("kv")
with neap.region("kv"): c = empty(60)
assert tag(c) == "kv"
neap.pause("kv")                                 # and the process ends with paused pools
""", mode, libraries)


@MODES
def test_graphs(mode, libraries):
    run_neap("""
graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
with neap.graph(graphs[0], tag="g", policy="host"): x = empty()
with neap.region("a"):
    with neap.graph(graphs[1], tag="g", policy="host"):
        y = empty()
        with neap.disabled(): pass               # its pool must not be dropped in a capture
    z = empty()
assert tags(x, y, z) == ["g", "g", "a"]
write(x, 4)
for _ in range(3): neap.pause(); neap.resume()
assert first(x) == 4
""", mode, libraries)


@MODES
@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments(mode, variable, libraries):
    run_neap("""
with neap.region("a"):
    with neap.region("b"): b = empty()
    a = empty()
    with neap.disabled(): pass
    a2 = empty()
assert tags(a, b, a2) == ["a", "b", "a"]
neap.pause(); neap.resume()
with neap.graph(torch.cuda.CUDAGraph(), tag="g"): x = empty()
assert tag(x) == "g"
""", mode, libraries, **{variable: "expandable_segments:True,max_split_size_mb:64"})


@MODES
def test_drop_in(mode, memory_saver_files, libraries):
    run_saver("""
with saver.region(tag="weights", enable_cpu_backup=True):
    w = empty()
    with saver.region(tag="kv"): kv = empty()
    with saver.disable(): loose = empty()
    later = empty()
assert tags(w, kv, loose, later) == ["weights", "kv", None, "weights"]
write(w, 5)
later.copy_(torch.full((30 * MIB,), 9, dtype=torch.uint8))
assert saver.get_cpu_backup(w) is None
before = free()
saver.pause(); saver.pause("kv")
assert free() - before == 90 * MIB
backup = saver.get_cpu_backup(w)
assert backup.device.type == "cpu" and backup.shape == w.shape and backup.dtype == w.dtype
assert int(backup.min()) == int(backup.max()) == 5
part = saver.get_cpu_backup(later[8:24].view(torch.bfloat16), zero_copy=True)
assert part.dtype == torch.bfloat16 and part.view(torch.uint8).tolist() == [9] * 16
saver.resume("weights"); saver.resume("weights"); saver.resume()
assert first(w) == 5 and later[:3].cpu().tolist() == [9] * 3
handle, kept = torch.cuda.graph_pool_handle(), []
for _ in range(2):                               # as engines capture: one pool for all sizes
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(cuda_graph=graph, pool=handle, stream=torch.cuda.Stream(), tag="cuda_graph"):
        kept.append((graph, empty()))
assert [tag(x) for _, x in kept] == ["cuda_graph"] * 2
saver.pause("cuda_graph"); saver.resume("cuda_graph")
with saver.region("weights", enable_cpu_backup=True):
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="cuda_graph"): x = empty()
    y = empty()
assert tags(x, y) == ["cuda_graph", "weights"]
del w, kv, loose, later, x, y, kept, graph
saver.pause(); torch.cuda.empty_cache(); saver.resume()
""", mode, memory_saver_files, libraries)


def test_drop_in_for_a_whole_process(memory_saver_files, libraries):
    run_saver("""
x = empty()
write(x, 6)
before = free()
saver.pause()
assert free() - before == 30 * MIB
with saver.disable(): y = empty()
saver.resume()
assert first(x) == 6 and tags(x, y) == ["default", None]
""", "preload", memory_saver_files, libraries, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1")


@MODES
def test_vllm_allocator(mode, libraries):
    run_neap("""
import neap.vllm
allocator = neap.vllm.CuMemAllocator.get_instance()
for engine in range(2):                          # the second after the first has ended
    before = free()
    with allocator.use_memory_pool("weights"):
        wide = empty(60)
        weights = empty(30)
        del wide
    assert allocator.get_current_usage() == 30 * MIB
    with allocator.use_memory_pool("kv_cache"): cache = empty(40)
    write(weights, 7)
    for _ in range(3):
        allocator.sleep(("weights",))
        assert free() == before
        allocator.wake_up(["weights"]); allocator.wake_up(["kv_cache"])
        assert first(weights) == 7 and tags(weights, cache) == ["weights", "kv_cache"]
    del weights, cache
    torch.cuda.empty_cache()
    assert allocator.get_current_usage() == 0
""", mode, libraries)
