"""Pools as torch has them: a thread's allocations go to the pool that it uses, what a pool frees it
keeps for itself, and no pool is used twice at a time. Of nested pools the outermost is asked, as up to
torch 2.9. A pool that nobody refers to gives its memory back."""

import threading
import weakref
from contextlib import contextmanager

from .. import memory_calls
from . import memory

_local = threading.local()
_next_id = 0


class MemPool:
    def __init__(self, allocator=None):
        global _next_id
        _next_id += 1
        self.id = (0, _next_id)
        self.allocator = allocator
        self.cached = []
        self.in_use = False
        self.device = memory_calls.device()
        _pools[self.id] = self

    def allocate(self, size):
        if self.allocator is not None:
            return self.allocator.malloc(size, memory_calls.device())
        return memory_calls.allocate(size)

    def release(self):
        for size, address in self.cached:
            if self.allocator is not None:
                self.allocator.free(address, size, memory_calls.device())
            else:
                memory_calls.free(address)
        self.cached.clear()

    def __del__(self):
        self.release()


_pools = weakref.WeakValueDictionary()
_default = MemPool()
_handles = []


def is_available():
    return True


def current_device():
    return memory_calls.device()


def set_device(index):
    memory_calls.set_device(index)


@contextmanager
def device(index):
    before = memory_calls.device()
    memory_calls.set_device(index)
    try:
        yield
    finally:
        memory_calls.set_device(before)


def mem_get_info(device=None):
    return memory_calls.mem_get_info()


def empty_cache():
    for pool in list(_pools.values()):
        pool.release()


@contextmanager
def use_mem_pool(pool, device=None):
    assert device in (None, pool.device), "made on another device, where its allocator stays behind"
    stack = _local.__dict__.setdefault("pools", [])
    if pool.in_use:
        raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
    pool.in_use = True
    stack.append(pool)
    try:
        yield
    finally:
        stack.pop()
        pool.in_use = False


def is_current_stream_capturing():
    return False


def graph_pool_handle():
    _handles.append(MemPool())
    return _handles[-1].id


class CUDAGraph:
    pass


@contextmanager
def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
    chosen = _pools[pool] if pool is not None else MemPool()
    with use_mem_pool(chosen):
        yield


class Block:
    """Memory of one tensor; goes back to its pool with the last reference."""

    def __init__(self, size):
        stack = _local.__dict__.get("pools")
        self.pool = stack[0] if stack else _default
        self.size = size
        for entry in self.pool.cached:
            if entry[0] == size:
                self.pool.cached.remove(entry)
                self.address = entry[1]
                return
        self.address = self.pool.allocate(size)
        if self.address is None:
            empty_cache()
            self.address = self.pool.allocate(size)
        if self.address is None:
            raise memory_calls.out_of_memory(f"CUDA out of memory: {size} bytes")

    def __del__(self):
        if getattr(self, "address", None) is not None:
            self.pool.cached.append((self.size, self.address))
