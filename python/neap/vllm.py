"""vLLM's sleep mode on regions: an allocator with the interface of vLLM's CuMemAllocator.

NEAP_VLLM=1 makes vLLM use it in all its processes; a program can call install() itself.
"""

import gc
import os
from contextlib import ExitStack, contextmanager

from . import _hooks, _pools
from ._regions import Policy, pause, regions, resume


class CuMemAllocator:
    """Memory of `use_memory_pool(tag)` is released by sleep() and restored by wake_up() at its addresses."""

    instance = None
    default_tag = "default"

    def __init__(self):
        self._tags = set()

    @staticmethod
    def get_instance():
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    @contextmanager
    def use_memory_pool(self, tag=None):
        import torch

        tag = self.default_tag if tag is None else tag
        self._tags.add(tag)
        with ExitStack() as stack:
            stack.enter_context(_hooks._no_expandable_segments(torch))
            stack.enter_context(_pools.use_temporary(torch, _hooks._maker(torch, _hooks.hook_mode())))
            stack.enter_context(_hooks._scope(tag, Policy.DISCARD))
            yield
        torch.cuda.empty_cache()  # what loading freed in the pool

    def sleep(self, offload_tags=None):
        """Releases all memory. The contents of offload_tags, by default of "default", are kept on the host."""
        import torch

        if offload_tags is None:
            offload_tags = (self.default_tag,)
        elif isinstance(offload_tags, str):
            offload_tags = (offload_tags,)
        present = self._present()
        for kept, policy in ((False, Policy.DISCARD), (True, Policy.HOST)):
            tags = [tag for tag in present if (tag in offload_tags) == kept]
            if tags:
                pause(tags, policy=policy)
        gc.collect()
        torch.cuda.empty_cache()

    def wake_up(self, tags=None):
        """Restores the memory of `tags`, or of all. Raises neap.OutOfMemoryError and changes nothing if
        memory is short."""
        coming = [tag for tag in self._present() if tags is None or tag in tags]
        if coming:
            resume(coming)

    def get_current_usage(self):
        """Bytes of the allocator's regions, paused or not."""
        return sum(info.size for info in regions() if info.tag in self._tags)

    def _present(self):
        return sorted({info.tag for info in regions()} & self._tags)


def install():
    """Replaces vLLM's allocator in this process."""
    from vllm.device_allocator import cumem

    cumem.CuMemAllocator = CuMemAllocator


def plugin():
    """vLLM calls this in each of its processes (the entry point in setup.py)."""
    if os.environ.get("NEAP_VLLM") == "1":
        install()
