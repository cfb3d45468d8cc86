"""The drop-in for torch_memory_saver, over the stand-in CUDA libraries and the stand-in torch.

What the peer defines is asked here as its users ask it, private parts included.
"""


import pytest

from conftest import run, saver_environment


BODY = """
import torch, torch_memory_saver as package, neap
from torch_memory_saver import torch_memory_saver as saver
assert isinstance(saver, package.TorchMemorySaver) and saver.enabled is True
if MODE == "torch": saver.hook_mode = "torch"
with saver.region(tag="weights", enable_cpu_backup=True):
    weights = torch.empty(4 * MIB, device="cuda")
    with saver.region(tag="inner"):
        inner = torch.empty(2 * MIB, device="cuda")
    with saver.disable():
        loose = torch.empty(2 * MIB, device="cuda")
    later = torch.empty(2 * MIB, device="cuda")
with saver.region("kv"):
    kv = torch.empty(6 * MIB, device="cuda")
with saver.region("disk", enable_disk_backup=True):
    disk = torch.empty(2 * MIB, device="cuda")
assert sorted(r.tag for r in neap.regions()) == ["disk", "inner", "kv", "weights", "weights"]
assert neap.info(later).policy == neap.Policy.HOST
try:
    neap.info(loose); assert False
except neap.NotFoundError: pass

address = weights.data_ptr()
weights.write(bytes([3]) * (4 * MIB)); disk.write(bytes([4]) * (2 * MIB))
assert saver.get_cpu_backup(weights) is None              # resident, nothing kept
free_before = torch.cuda.mem_get_info()[0]
saver.pause()
saver.pause("kv")                                          # the peer ends the process here
assert torch.cuda.mem_get_info()[0] - free_before == 16 * MIB   # all of it is the driver's again
backup = saver.get_cpu_backup(weights)
assert backup.bytes() == bytes([3]) * (4 * MIB) and backup.shape == (4 * MIB,)
view = saver.get_cpu_backup(weights, zero_copy=True)
assert view.bytes()[:2] == bytes([3, 3])
assert saver.get_cpu_backup(disk) is None
try:
    saver.get_cpu_backup(kv); assert False                # and here
except neap.NotFoundError: pass
try:
    saver.get_cpu_backup(loose); assert False             # and here
except neap.NotFoundError: pass
hog = torch.empty(58 * MIB, device="cuda")
try:
    saver.resume("weights"); assert False                 # and here
except torch.OutOfMemoryError as error:
    assert error.need > error.free
del hog
torch.cuda.empty_cache()
saver.resume("weights"); saver.resume("weights"); saver.resume(None); saver.resume("")
assert weights.data_ptr() == address and weights.bytes() == bytes([3]) * (4 * MIB)
assert disk.bytes() == bytes([4]) * (2 * MIB)
saver.pause("inner"); del inner; torch.cuda.empty_cache()  # freed while paused
assert "inner" not in [r.tag for r in neap.regions()]

graph = torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="graph"):
    captured = torch.empty(MIB, device="cuda")
assert neap.info(captured).tag == "graph"

for settings, kind in ((dict(enable_cpu_backup=True, enable_disk_backup=True), AssertionError),
                       (dict(cpu_backup_backend="mmap"), ValueError),
                       (dict(enable_cpu_backup=True, cpu_backup_backend="tape"), ValueError)):
    try:
        with saver.region("bad", **settings): pass
        assert False
    except kind: pass
with saver.region("mapped", enable_cpu_backup=True, cpu_backup_backend="mmap"): pass
try:
    saver.hook_mode; assert False
except AttributeError: pass
try:
    saver.hook_mode = "preload"; assert False
except AttributeError: pass
try:
    saver.memory_margin_bytes; assert False
except NotImplementedError: pass
saver.memory_margin_bytes = 60 * MIB
with saver.region("margin"):
    try:
        torch.empty(8 * MIB, device="cuda"); assert False
    except torch.OutOfMemoryError: pass
saver.memory_margin_bytes = 0
assert saver.retain_cpu_backup is False

# Pauses pass by what others hold on to.
with saver.region("mixed", enable_cpu_backup=True):
    stays = torch.empty(2 * MIB, device="cuda")
    goes = torch.empty(2 * MIB, device="cuda")
stays.write(bytes([5]) * (2 * MIB))
assert saver.keep_resident(stays) == 2 * MIB and saver.keep_resident(loose) == 0
saver.pause("mixed")
assert stays.bytes() == bytes([5]) * (2 * MIB) and neap.info(goes).mapped == 0
try:
    saver.keep_resident(goes); assert False               # the peer ends the process here
except neap.BusyError: pass
saver.resume("mixed")
assert neap.info(stays).kept and neap.info(stays).version == 1 < neap.info(goes).version

# What slime reaches for.
cdll = saver._impl._binary_wrapper.cdll
assert cdll.tms_get_interesting_region() is False
cdll.tms_set_interesting_region(True)
assert cdll.tms_get_interesting_region() is True
cdll.tms_set_interesting_region(False)
saver._impl._binary_wrapper.set_config(tag="x", interesting_region=False, enable_cpu_backup=False)
assert cdll.tms_pause(b"kv") == 0 and cdll.tms_resume(b"kv") == 0
path = package.utils.get_binary_path_from_package("torch_memory_saver_hook_mode_preload")
assert path.name == "torch_memory_saver_hook_mode_preload_cu13.abi3.so", path
from torch_memory_saver.utils import change_env, is_xpu
from torch_memory_saver.testing_utils import get_and_print_gpu_memory, empty_cache, get_device
assert is_xpu() is False and get_device() == "cuda" and get_and_print_gpu_memory("now") > 0
# The package neap speaks of the same regions.
assert neap.stats()["devices"][0]["tags"]
"""


@pytest.mark.parametrize("mode", ["torch", "preload"])
def test_the_whole_interface(memory_saver_files, mode):
    run(f"MODE = {mode!r}\n{BODY}", saver_environment(memory_saver_files, mode))


def test_retained_backups_and_the_disk_folder(memory_saver_files, tmp_path):
    run(f"""
        import torch
        from torch_memory_saver import torch_memory_saver as saver
        saver.hook_mode = "torch"
        folder = {str(tmp_path / "new" / "folder")!r}
        saver.set_disk_backup_dir(folder)
        saver.retain_cpu_backup = True
        assert saver.retain_cpu_backup is True and os.path.isdir(folder)
        with saver.region(enable_cpu_backup=True):
            x = torch.empty(2 * MIB, device="cuda")
        x.write(bytes([9]) * (2 * MIB))
        saver.pause(); saver.resume()
        assert saver.get_cpu_backup(x).bytes() == bytes([9]) * (2 * MIB)
        first = saver.get_cpu_backup(x, zero_copy=True).data_ptr()
        # Read by resumes only: what is retained stays, and serves the next pause.
        saver.retain_cpu_backup = False
        saver.set_disk_backup_dir(os.path.join(folder, "later"))
        assert saver.retain_cpu_backup is False
        assert saver.get_cpu_backup(x, zero_copy=True).data_ptr() == first
        x.write(bytes([10]) * (2 * MIB))
        saver.pause()
        saver.retain_cpu_backup = True
        saver.resume()
        assert saver.get_cpu_backup(x).bytes() == x.bytes() == bytes([10]) * (2 * MIB)
        assert saver.get_cpu_backup(x, zero_copy=True).data_ptr() == first
        saver.pause()
        saver.retain_cpu_backup = False
        saver.resume()
        assert saver.get_cpu_backup(x) is None and x.bytes() == bytes([10]) * (2 * MIB)
        """, saver_environment(memory_saver_files))


@pytest.mark.parametrize("mode", ["torch", "preload"])
def test_a_resume_that_does_not_retain_returns_host_memory(memory_saver_files, mode):
    run(f"MODE = {mode!r}" + """
import torch
from torch_memory_saver import torch_memory_saver as saver
if MODE == "torch": saver.hook_mode = "torch"
def resident():
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) * 1024 for l in status if l.startswith("RssAnon:"))
for backend in ("mmap", "pinned", None):
    with saver.region(backend or "default", enable_cpu_backup=True, cpu_backup_backend=backend):
        x = torch.empty(64 * MIB, device="cuda")
    before = resident()
    saver.pause(backend or "default")
    paused = resident()
    saver.resume(backend or "default")
    after = resident()
    assert paused - before > 48 * MIB and paused - after > 48 * MIB, (before, paused, after)
""", saver_environment(memory_saver_files, mode, NEAP_STANDIN_BYTES=str(512 << 20)))


def test_disk_backups_show_a_file_for_each_allocation(memory_saver_files, tmp_path):
    run(f"""
        import torch
        from torch_memory_saver import torch_memory_saver as saver
        saver.hook_mode = "torch"
        folder = {str(tmp_path / "backups")!r}
        with saver.region(enable_disk_backup=True):
            large, small = torch.empty(6 * MIB, device="cuda"), torch.empty(2 * MIB, device="cuda")
        with saver.region():
            torch.empty(4 * MIB, device="cuda")
        sizes = []
        for value in range(3):
            large.write(bytes([value]) * (6 * MIB))
            saver.pause()
            files = [os.path.join(folder, name) for name in os.listdir(folder)]
            assert len(files) == 2, files
            sizes.append(sum(map(os.path.getsize, files)))
            saver.resume()
            assert large.bytes() == bytes([value]) * (6 * MIB)
        assert sizes == [8 * MIB] * 3, sizes
        """, saver_environment(memory_saver_files, TMS_DISK_BACKUP_DIR=str(tmp_path / "backups")))
    assert list((tmp_path / "backups").iterdir()) == [], "a process that ends leaves no file"


@pytest.mark.parametrize("word", [None, "mmap", "pinned"])
def test_the_backend_answers_as_set(memory_saver_files, word):
    run(f"WORD = {(word or 'pinned').encode()!r}" + """
import torch
from torch_memory_saver import torch_memory_saver as saver
saver.hook_mode = "torch"
saver._ensure_initialized()
backend = saver._impl._binary_wrapper.cdll.tms_get_cpu_backup_backend
assert backend() == WORD
with saver.region("grads"):
    assert backend() == WORD
for name in ("mmap", "pinned"):
    with saver.region(name, enable_cpu_backup=True, cpu_backup_backend=name):
        assert backend() == name.encode()
        with saver.region("inner", enable_cpu_backup=True):
            assert backend() == name.encode()
    assert backend() == WORD
""", saver_environment(memory_saver_files, TMS_INIT_CPU_BACKUP_BACKEND=word))


@pytest.mark.parametrize("mode", ["torch", "preload"])
def test_without_a_gpu_it_says_so_once_and_goes_on(memory_saver_files, mode):
    done = run("""
        import torch
        torch.cuda.is_available = lambda: False
        def none(*_, **__): raise RuntimeError("Found no NVIDIA driver on your system")
        torch.cuda.current_device = torch.cuda.MemPool = none
        from torch_memory_saver import torch_memory_saver as saver
        saver.hook_mode = os.environ["MODE"]
        for _ in range(2):
            with saver.region("weights", enable_cpu_backup=True):
                with saver.disable():
                    pass
            saver.pause("weights"); saver.resume("weights")
        saver.pause(); saver.resume()
        x = object()
        assert saver.get_cpu_backup(x) is None and saver.keep_resident(x) == 0
        saver.retain_cpu_backup = True
        assert saver.retain_cpu_backup is True
        saver.memory_margin_bytes = 1 << 20
        assert saver._impl._binary_wrapper.cdll.tms_get_interesting_region() is False
        try:
            with saver.cuda_graph(None): assert False
        except RuntimeError as error:
            assert "needs a GPU" in str(error)
        try:
            with saver.region(cpu_backup_backend="mmap"): assert False
        except ValueError: pass
        """, saver_environment(memory_saver_files, MODE=mode, LD_LIBRARY_PATH=None))
    assert done.stderr.count("no GPU") == 1, done.stderr
    assert "pause() and resume() do nothing" in done.stderr


def test_settings_are_checked_before_the_hook_is_looked_for(memory_saver_files):
    run("""
        import torch
        from torch_memory_saver import entrypoint, TorchMemorySaver
        def refused(**settings):
            try:
                with TorchMemorySaver().region(**settings): pass
            except ValueError as error:
                return str(error)
        assert "requires enable_cpu_backup" in refused(cpu_backup_backend="mmap")
        torch.version.hip = "6.2.0"
        assert "not supported on ROCm" in refused(enable_cpu_backup=True, cpu_backup_backend="mmap")
        entrypoint.is_xpu = lambda: True
        assert "not supported on XPU" in refused(enable_cpu_backup=True, cpu_backup_backend="pinned")
        """, saver_environment(memory_saver_files))


@pytest.mark.parametrize("variable, value", [("TMS_INIT_CPU_BACKUP_BACKEND", "tape"), ("TMS_RETAIN_CPU_BACKUP", "maybe")])
def test_a_bad_value_in_the_environment_is_an_exception(memory_saver_files, variable, value):
    run(f"""
        from torch_memory_saver import torch_memory_saver as saver
        saver.hook_mode = "torch"
        try:
            saver.pause()
            assert False
        except ValueError as error:
            assert "{variable}" in str(error)
        """, saver_environment(memory_saver_files, **{variable: value}))


@pytest.mark.parametrize("mode", ["torch", "preload"])
def test_a_pool_that_is_dropped_frees_its_allocations_and_backups(memory_saver_files, mode):
    run(f"MODE = {mode!r}" + """
import gc, neap, torch
from torch_memory_saver import torch_memory_saver as saver
if MODE == "torch": saver.hook_mode = "torch"
saver.retain_cpu_backup = True
for paused in (False, True):
    with saver.region("dropped", enable_cpu_backup=True):
        x = torch.empty(2 * MIB, device="cuda")
    saver.pause("dropped")
    if not paused: saver.resume("dropped")
    assert neap.stats()["devices"][0]["host_buffers"] == 2 * MIB
    pool = saver._impl._mem_pools.pop(("dropped", True, False, "pinned", 0))
    with saver._impl._with_region_config(tag="dropped", enable_cpu_backup=True, cpu_backup_backend="pinned"):
        del x, pool
        gc.collect()
        torch.cuda.empty_cache()
    assert neap.regions() == [] and neap.stats()["devices"][0]["host_buffers"] == 0
""", saver_environment(memory_saver_files, mode))


def test_names_that_programs_reach_for(memory_saver_files):
    run("""
        import torch
        from torch_memory_saver import binary_wrapper, entrypoint, hooks, testing_utils, utils
        from torch_memory_saver.hooks import base, mode_preload, mode_torch
        for module, names in {
            entrypoint: "torch is_xpu logger _TAG_DEFAULT CpuBackupBackend BinaryWrapper HookMode HookUtilBase "
                        "TorchMemorySaver _TorchMemorySaverImpl _sanity_checks",
            testing_utils: "is_xpu get_device empty_cache get_and_print_gpu_memory",
            utils: "is_xpu change_env get_binary_path_from_package _detect_cuda_major _SUPPORTED_CUDA_MAJORS",
            binary_wrapper: "BinaryWrapper _setup_function_signatures logger",
            base: "HookMode HookUtilBase", mode_preload: "HookUtilModePreload configure_subprocess",
            mode_torch: "HookUtilModeTorch",
        }.items():
            for name in names.split():
                assert hasattr(module, name), (module.__name__, name)
        saver = entrypoint.TorchMemorySaver()
        saver.hook_mode = "torch"
        saver._ensure_initialized()
        impl = saver._impl
        assert impl._is_xpu is False and impl._hook_mode == "torch" and impl._current_device() == 0
        with saver.region("a", enable_cpu_backup=True):
            x = torch.empty(2 * MIB, device="cuda")
        assert list(impl._mem_pools) == [("a", True, False, "pinned", 0)]
        assert impl._mem_pools[("b", False, False, "", 0)].allocator is impl._hook_util.get_allocator()
        # The peer's library is linked with the CUDA runtime.
        assert impl._binary_wrapper.cdll.cudaGetLastError() == 0
        try:
            impl._binary_wrapper.cdll.tms_xpu_prewarm_devices
            assert False
        except AttributeError:
            pass
        """, saver_environment(memory_saver_files))
