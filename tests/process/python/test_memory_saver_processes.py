"""How programs load the drop-in for torch_memory_saver, and who else is loaded with it."""

import json
import shutil

import pytest

from conftest import DROP_IN, HOOK, run, saver_environment


@pytest.mark.parametrize("mode", ["torch", "preload"])
def test_without_torch_it_says_so(memory_saver_files, mode):
    env = saver_environment(memory_saver_files, mode)
    run(f"MODE = {mode!r}" + """
sys.modules["torch"] = None  # as where it is not installed
from torch_memory_saver import torch_memory_saver as saver
saver.hook_mode = MODE
try:
    with saver.region("weights", enable_cpu_backup=True, cpu_backup_backend="mmap"): pass
except ImportError as error:
    assert "needs torch" in str(error), error
else:
    assert False
""", env)


def test_without_a_preloaded_hook_it_says_how(memory_saver_files):
    run("""
        from torch_memory_saver import torch_memory_saver as saver
        try:
            saver.pause()
            assert False
        except AssertionError as error:
            assert "observes invalid LD_PRELOAD" in str(error) and "configure_subprocess" in str(error)
        """, saver_environment(memory_saver_files))


def test_configure_subprocess_inside_a_configured_process(memory_saver_files):
    """An engine's processes start processes of their own, with what LD_PRELOAD they have."""
    run("""
from torch_memory_saver import configure_subprocess
code = '''
import torch, neap, os
from torch_memory_saver import torch_memory_saver as saver
with saver.region("a"):
    x = torch.empty(1 << 20, device="cuda")
assert neap.info(x).tag == "a" and neap.hook_mode() == "preload"
assert "other.so" not in os.environ["LD_PRELOAD"] or os.environ["LD_PRELOAD"].endswith(":other.so")
'''
before = os.environ["LD_PRELOAD"]
with configure_subprocess():
    subprocess.run([sys.executable, "-c", code], check=True)
    with configure_subprocess():
        subprocess.run([sys.executable, "-c", code], check=True)
os.environ["LD_PRELOAD"] = before.replace("_cu13", "_cu12") + ":" + before + ":other.so"
with configure_subprocess():
    entries = os.environ["LD_PRELOAD"].split(":")
    assert entries[0] == before.split(":")[0] and entries[-1] == "other.so", entries
    assert [e for e in entries if "torch_memory_saver" in e] == entries[:1], entries
    subprocess.run([sys.executable, "-c", code], check=True)
""", saver_environment(memory_saver_files, "preload"))


def test_one_library_named_twice_is_one(memory_saver_files):
    env = saver_environment(memory_saver_files, "preload")
    env["LD_PRELOAD"] += ":" + env["LD_PRELOAD"]
    run("""
        from torch_memory_saver import torch_memory_saver as saver
        saver.pause()
        """, env)


@pytest.mark.parametrize("preloaded", ["nothing", "neap", "another copy"])
def test_regions_are_the_same_to_neap_whoever_was_first(memory_saver_files, tmp_path, preloaded):
    """neap asked first, or another hook in LD_PRELOAD (neap run): mode torch still finds its own."""
    env = {**saver_environment(memory_saver_files), "NEAP_HOOK_LIBRARY": str(HOOK)}
    if preloaded == "neap":
        env["LD_PRELOAD"] = str(HOOK)
    if preloaded == "another copy":
        copy = tmp_path / "torch_memory_saver_hook_mode_preload.abi3.so"
        env["LD_PRELOAD"] = str(shutil.copyfile(DROP_IN, copy.with_name("copy_" + copy.name)))
    run("""
        import neap, torch
        assert neap.device_count() == 1 and neap.regions() == []
        from torch_memory_saver import torch_memory_saver as saver
        saver.hook_mode = "torch"
        with saver.region("weights", enable_cpu_backup=True):
            x = torch.empty(2 * MIB, device="cuda")
        x.write(bytes([3]) * (2 * MIB))
        assert saver.get_cpu_backup(x) is None
        free = torch.cuda.mem_get_info()[0]
        saver.pause("weights")
        assert torch.cuda.mem_get_info()[0] - free == 2 * MIB
        assert saver.get_cpu_backup(x).bytes() == bytes([3]) * (2 * MIB)
        assert [r.tag for r in neap.regions()] == ["weights"] and neap.hook_mode() == "torch"
        saver.resume("weights")
        assert x.bytes() == bytes([3]) * (2 * MIB)
        with neap.region("other"):
            y = torch.empty(2 * MIB, device="cuda")
        assert neap.info(y).tag == "other"
        """, env)


@pytest.mark.parametrize("mode", ["torch", "preload"])
def test_numbers_under_neap_run(memory_saver_files, tmp_path, mode):
    """neap run's hook and the drop-in in one process: each region and each foreign block is told once."""
    live, trace = tmp_path / "live", tmp_path / "trace"
    live.mkdir()
    env = saver_environment(memory_saver_files, mode, NEAP_LIVE=str(live), NEAP_TRACE=str(trace))
    env["LD_PRELOAD"] = ":".join(filter(None, [env.get("LD_PRELOAD"), str(HOOK)]))
    run(f"MODE = {mode!r}" + """
import torch
from torch_memory_saver import torch_memory_saver as saver
if MODE == "torch": saver.hook_mode = "torch"
outside = torch.empty(4 * MIB, device="cuda")
for tag in ("weights", "kv"):
    with saver.region(tag): kept = torch.empty(2 * MIB, device="cuda")
""", env)
    reports = [json.loads(file.read_text()) for file in live.iterdir()]
    tags = [tag["tag"] for report in reports for device in report["devices"] for tag in device["tags"]]
    assert sorted(tags) == ["kv", "weights"]
    assert sum(report["outside"]["peak_bytes"] for report in reports) == 4 << 20
    assert len(reports) == (2 if mode == "torch" else 1) and trace.exists()


def test_graphs_with_a_pool_of_torchs(memory_saver_files):
    """Engines share one graph_pool_handle() between graphs; in mode torch it has no allocator of ours."""
    run("""
        import neap, torch
        from torch_memory_saver import torch_memory_saver as saver
        saver.hook_mode = "torch"
        handle = torch.cuda.graph_pool_handle()
        kept = []
        for _ in range(2):
            with saver.cuda_graph(cuda_graph=torch.cuda.CUDAGraph(), pool=handle, stream=None, tag="cuda_graph"):
                kept.append(torch.empty(2 * MIB, device="cuda"))
        assert [neap.info(x).tag for x in kept] == ["cuda_graph"] * 2
        """, saver_environment(memory_saver_files))


def test_regions_inside_regions_of_the_same_kind_and_in_several_threads(memory_saver_files):
    run("""
        import neap, torch
        from torch_memory_saver import torch_memory_saver as saver
        saver.hook_mode = "torch"
        with saver.region("a", enable_cpu_backup=True):
            with saver.region("a", enable_cpu_backup=True):
                first = torch.empty(2 * MIB, device="cuda")
            with saver.region("b"), saver.region("a", enable_cpu_backup=True):
                second = torch.empty(2 * MIB, device="cuda")
            with saver.disable():
                with saver.region("a", enable_cpu_backup=True):
                    third = torch.empty(2 * MIB, device="cuda")
        assert [neap.info(x).tag for x in (first, second, third)] == ["a"] * 3
        both, found = threading.Barrier(2), []
        def work():
            with saver.region("a"):
                both.wait(60)
                found.append(torch.empty(2 * MIB, device="cuda"))
                both.wait(60)
        threads = [threading.Thread(target=work) for _ in range(2)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert [neap.info(x).tag for x in found] == ["a"] * 2
        """, saver_environment(memory_saver_files))


def test_configure_subprocess_preloads_and_restores(memory_saver_files):
    run("""
from torch_memory_saver import configure_subprocess
code = '''
import torch, neap
from torch_memory_saver import torch_memory_saver as saver
with saver.region("a"):
    x = torch.empty(1 << 20, device="cuda")
assert neap.info(x).tag == "a" and neap.hook_mode() == "preload"
'''
before = os.environ.get("LD_PRELOAD")
with configure_subprocess():
    assert "torch_memory_saver_hook_mode_preload_cu13" in os.environ["LD_PRELOAD"]
    subprocess.run([sys.executable, "-c", code], check=True)
assert os.environ.get("LD_PRELOAD") == before
""", saver_environment(memory_saver_files))


def test_a_whole_process_by_environment(memory_saver_files):
    run("""
        import torch
        from torch_memory_saver import torch_memory_saver as saver
        x = torch.empty(2 * MIB, device="cuda")
        x.write(bytes([1]) * (2 * MIB))
        saver.pause()
        saver.resume()
        assert x.bytes() == bytes([1]) * (2 * MIB)
        assert saver.retain_cpu_backup is True
        with saver.disable():
            y = torch.empty(2 * MIB, device="cuda")
        import neap
        assert len(neap.regions()) == 1
        """, saver_environment(memory_saver_files, "preload", TMS_INIT_ENABLE="1",
                               TMS_INIT_ENABLE_CPU_BACKUP="true", TMS_RETAIN_CPU_BACKUP="yes"))


def test_files_have_the_names_that_launchers_write_down(memory_saver_files):
    assert DROP_IN.exists()
    for name in ("_cu13", "_cu12", ""):
        path = memory_saver_files / f"torch_memory_saver_hook_mode_preload{name}.abi3.so"
        assert path.exists(), path
