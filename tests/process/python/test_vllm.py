"""neap.vllm in the place of vLLM's allocator, over the stand-in CUDA libraries and torch."""

import pytest

from conftest import HOOK, run, standin_environment

VLLM = """
import torch, neap, neap.vllm
def empty(mib): return torch.empty(mib * MIB, device="cuda")
def write(x, byte): ctypes.memset(x.data_ptr(), byte, x.nbytes)
def first(x): return ctypes.string_at(x.data_ptr(), 1)[0]
def free(): return torch.cuda.mem_get_info()[0] // MIB
allocator = neap.vllm.CuMemAllocator.get_instance()
assert allocator is neap.vllm.CuMemAllocator.get_instance()
"""
MODES = pytest.mark.parametrize("mode", ["torch", "preload"])


def run_vllm(code, mode="torch", **changes):
    run(VLLM + code, standin_environment(LD_PRELOAD=str(HOOK) if mode == "preload" else None, **changes))


@MODES
def test_an_engine_sleeps_and_wakes(mode):
    run_vllm("""
before = free()
with allocator.use_memory_pool("weights"): weights = empty(8)
with allocator.use_memory_pool("kv_cache"): cache = empty(16)
assert allocator.get_current_usage() == 24 * MIB and free() == before - 24
addresses = weights.data_ptr(), cache.data_ptr()
write(weights, 7); write(cache, 8)
for level in 1, 1:
    allocator.sleep(("weights",))
    allocator.sleep(("weights",))                # a second one changes nothing
    assert free() == before
    allocator.wake_up(["weights"])
    assert free() == before - 8 and first(weights) == 7
    allocator.wake_up(["kv_cache"])
    assert free() == before - 24
    write(cache, 8)
    assert addresses == (weights.data_ptr(), cache.data_ptr())
allocator.sleep(())                              # level 2: nothing is kept
assert free() == before
assert {info.policy.name for info in neap.regions()} == {"DISCARD"}
allocator.wake_up()
assert free() == before - 24
""", mode)


def test_memory_without_a_tag_is_kept_and_other_regions_stay():
    run_vllm("""
with neap.region("mine"): mine = empty(4)
with allocator.use_memory_pool(): kept = empty(4)
with allocator.use_memory_pool("discard"): lost = empty(4)
write(kept, 9)
full = free()
allocator.sleep()
assert free() == full + 8
allocator.wake_up()
assert first(kept) == 9 and free() == full
""")


def test_waking_without_room_raises_and_changes_nothing():
    run_vllm("""
with allocator.use_memory_pool(): kept = empty(40)
write(kept, 5)
allocator.sleep()
other = empty(40)
for _ in range(2):
    try: allocator.wake_up()
    except RuntimeError as error: assert isinstance(error, neap.OutOfMemoryError)
    else: raise AssertionError
del other
torch.cuda.empty_cache()
allocator.wake_up()
assert first(kept) == 5
""")


def test_what_loading_freed_is_released():
    run_vllm("""
before = free()
with allocator.use_memory_pool("weights"):
    wide = empty(16)
    narrow = empty(8)
    del wide
assert allocator.get_current_usage() == 8 * MIB
write(narrow, 3)
with allocator.use_memory_pool("weights"): more = empty(16)
write(more, 4)
allocator.sleep("weights")
assert free() == before
allocator.wake_up()
assert (first(narrow), first(more)) == (3, 4) and free() == before - 24
del narrow, more                                 # the engine ends
torch.cuda.empty_cache()
assert allocator.get_current_usage() == 0
""")


@pytest.mark.parametrize("setting", ["1", "0", None])
def test_the_plugin_needs_its_variable(tmp_path, setting):
    package = tmp_path / "vllm" / "device_allocator"
    package.mkdir(parents=True)
    (package / "cumem.py").write_text("CuMemAllocator = None\n")
    env = standin_environment(NEAP_VLLM=setting)
    env["PYTHONPATH"] += f":{tmp_path}"
    run(f"""
        import neap.vllm
        from vllm.device_allocator import cumem
        neap.vllm.plugin()
        assert (cumem.CuMemAllocator is neap.vllm.CuMemAllocator) == ({setting!r} == "1")
        """, env)
