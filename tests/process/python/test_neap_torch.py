"""The package neap with torch, over the stand-in CUDA libraries and the stand-in torch."""

import textwrap

import pytest

from conftest import HOOK, run, standin_environment


REGIONS_WITH_TORCH = """
    import torch, neap
    assert neap.hook_mode() == MODE, neap.hook_mode()
    outside = torch.empty(2 * MIB, device="cuda")
    with neap.region("weights", policy="host"):
        weights = torch.empty(4 * MIB, device="cuda")
        with neap.disabled():
            loose = torch.empty(2 * MIB, device="cuda")
    with neap.region("kv"):
        kv = torch.empty(6 * MIB, device="cuda")
    tags = sorted(r.tag for r in neap.regions())
    assert tags == ["kv", "weights"], tags
    weights.write(bytes([5]) * (4 * MIB))
    outside.write(bytes([6]) * (2 * MIB))
    address = weights.data_ptr()
    assert neap.pause().regions == 2
    outside.bytes(); loose.bytes()              # not touched by the pause
    assert bytes(neap.host_copy(weights))[:2] == bytes([5, 5])
    neap.resume()
    assert weights.bytes() == bytes([5]) * (4 * MIB) and weights.data_ptr() == address
    # empty_cache: what is cached goes, paused or not; live memory stays.
    del kv
    neap.pause("kv")
    torch.cuda.empty_cache()
    assert [r.tag for r in neap.regions()] == ["weights"]
    with neap.region("weights", policy="host"):
        again = torch.empty(MIB, device="cuda")
        torch.cuda.empty_cache()
    assert neap.info(again).tag == "weights"
    # Full: torch empties its cache and tries again; then its own exception.
    with neap.region("weights", policy="host"):
        blocks = [torch.empty(16 * MIB, device="cuda") for _ in range(2)]
        blocks.clear()
        big = torch.empty(40 * MIB, device="cuda")
        try:
            torch.empty(40 * MIB, device="cuda")
            assert False
        except torch.OutOfMemoryError:
            pass
    neap.pause("weights", keep_pages=MODE == "preload")   # the hook gives up kept pages by itself
    hog = torch.empty(50 * MIB, device="cuda")
    try:
        neap.resume("weights")
        assert False
    except torch.OutOfMemoryError as error:
        assert isinstance(error, neap.OutOfMemoryError) and error.need > error.free
    del hog
    torch.cuda.empty_cache()
    neap.resume("weights")
    assert weights.bytes() == bytes([5]) * (4 * MIB)
    graph = torch.cuda.CUDAGraph()
    with neap.graph(graph, tag="graphs"):
        inside = torch.empty(MIB, device="cuda")
    assert neap.info(inside).tag == "graphs"
    # A thread without a scope of its own follows an all_threads region.
    found = []
    pool = torch.cuda.MemPool(neap.torch_allocator() if MODE == "torch" else None)
    def other():
        with torch.cuda.use_mem_pool(pool):
            found.append(torch.empty(3 * MIB, device="cuda"))
    with neap.region("backward", all_threads=True):
        thread = threading.Thread(target=other); thread.start(); thread.join()
    assert neap.info(found[0]).tag == "backward"
"""


def test_regions_with_torch_in_hook_mode_torch():
    run('MODE = "torch"\n' + textwrap.dedent(REGIONS_WITH_TORCH),
        standin_environment())


def test_regions_with_torch_in_hook_mode_preload():
    run('MODE = "preload"\n' + textwrap.dedent(REGIONS_WITH_TORCH),
        standin_environment(LD_PRELOAD=str(HOOK)))


@pytest.mark.parametrize("preload", [None, str(HOOK)])
def test_regions_nest_and_threads_share_a_tag(preload):
    run("""
        import torch, neap
        def empty(): return torch.empty(2 * MIB, device="cuda")
        def tags(*tensors): return [neap.info(x).tag for x in tensors]
        with neap.region("a"):
            with neap.region("a"): first = empty()
            with neap.region("b"), neap.region("a"): second = empty()
            dead = empty(); del dead              # a's pool keeps it
            with neap.region("b"): third = empty()
            with neap.disabled():
                with neap.region("a"): fourth = empty()
            try:
                with neap.region("b"): raise KeyError
            except KeyError: pass
            fifth = empty()
        assert tags(first, second, third, fourth, fifth) == ["a", "a", "b", "a", "a"]
        with neap.region("a"):
            with neap.graph(torch.cuda.CUDAGraph(), tag="g"): captured = empty()
            after = empty()
        assert tags(captured, after) == ["g", "a"]
        both, found = threading.Barrier(2), []
        def work():
            with neap.region("a"):
                both.wait(60); found.append(empty()); both.wait(60)
        threads = [threading.Thread(target=work) for _ in range(2)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert tags(*found) == ["a", "a"]
        """, standin_environment(LD_PRELOAD=preload))


def test_a_region_on_another_device():
    run("""
        import torch, neap
        with neap.region("a", device=1):
            assert torch.cuda.current_device() == 0
            with torch.cuda.device(1): x = torch.empty(2 * MIB, device="cuda:1")
        assert (neap.info(x).tag, neap.info(x).device) == ("a", 1)
        """, standin_environment(NEAP_STANDIN_DEVICES="2"))


def test_exceptions_travel_between_processes():
    run("""
        import pickle, copy, neap
        for torch_loaded in (False, True):
            if torch_loaded: import torch
            try:
                neap.allocate(1 << 40, tag="big")
                assert False
            except neap.OutOfMemoryError as error: first = error
            for again in (pickle.loads(pickle.dumps(first)), copy.copy(first)):
                assert type(again) is type(first) and str(again) == str(first)
                assert (again.need, again.free, again.holders) == (first.need, first.free, first.holders)
                assert (again.code, again.name) == (4, "out of device memory")
        assert isinstance(again, torch.OutOfMemoryError)
        for call in (lambda: neap.info(1), lambda: neap.allocate(0)):
            try:
                call(); assert False
            except neap.NeapError as error:
                again = pickle.loads(pickle.dumps(error))
                assert type(again) is type(error) and again.code == error.code and str(again) == str(error)
        """, standin_environment())


def test_expandable_segments_are_switched_off_inside_and_restored():
    run("""
        import torch, neap
        with neap.region("a"):
            kept = torch.empty(MIB, device="cuda")
            assert torch._C.settings == ["max_split_size_mb:64,expandable_segments:False"]
        assert torch._C.settings[1:] == ["expandable_segments:True,max_split_size_mb:64"]
        assert neap.info(kept).tag == "a"
        torch._C.settings.clear()
        with neap.region("a"):
            with neap.region("b"): pass
            with neap.region("a"): pass
            with neap.disabled(): pass
            assert torch._C.settings == ["max_split_size_mb:64,expandable_segments:False"]
        assert torch._C.settings[1:] == ["expandable_segments:True,max_split_size_mb:64"]
        """, standin_environment(
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,max_split_size_mb:64"))
