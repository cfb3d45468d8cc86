"""torch's memory pools, one per kind of region.

Separate pools keep blocks of one tag from serving another. torch lets only one user at a time use a pool.
If several threads are in regions of one kind, each therefore gets its own pool.

When a thread nests pools, torch is told only the innermost one. The outer ones are deactivated meanwhile.
Otherwise torch would use the outermost pool (up to 2.9), or reject a pool inside itself (every version).
"""

import atexit
import ctypes
import threading
from contextlib import contextmanager

_lock = threading.RLock()
_busy = set()  # ids of pools in use
_shared = {}  # kind -> the one pool of graphs
_uses = 0  # pools in use by torch, and captures
_temporary = []  # dropped when no pool is in use
_thread = threading.local()


def keep(thing):
    """Keeps `thing` alive until the process ends. Up to torch 2.9, a pool that is destroyed with the
    modules may outlive its allocator, and an assertion then ends the process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


class Pools(dict):
    """Maps a kind to its pool. `more` has further pools of a kind, made while the first was in use.

    Works like a defaultdict with `make`: looking up a kind makes its pool.
    """

    def __init__(self, make=None):
        super().__init__()
        self.make = make
        self.more = {}
        atexit.register(self._outlive)

    def __missing__(self, kind):
        pool = self[kind] = self.make()
        return pool

    def _outlive(self):
        for pool in (*self.values(), *(pool for pools in self.more.values() for pool in pools)):
            keep(pool)

    def acquire(self, kind, make):
        """Returns an unused pool. Give it back with release()."""
        with _lock:
            for pool in (self.get(kind), *self.more.get(kind, ())):
                if pool is not None and id(pool) not in _busy:
                    _busy.add(id(pool))
                    return pool
        pool = make()
        with _lock:
            if self.setdefault(kind, pool) is not pool:
                self.more.setdefault(kind, []).append(pool)
            _busy.add(id(pool))
        return pool

    @staticmethod
    def release(pool):
        with _lock:
            _busy.discard(id(pool))


_pools = Pools()


class _Use:
    def __init__(self, torch, kind, pool, device):
        self.torch, self.kind, self.pool, self.device = torch, kind, pool, device

    def begin(self):
        self._context = self.torch.cuda.use_mem_pool(self.pool, device=self.device)
        self._context.__enter__()

    def end(self):
        context, self._context = self._context, None
        context.__exit__(None, None, None)


def _stack():
    return _thread.__dict__.setdefault("uses", [])


@contextmanager
def _told(torch, use):
    """Inside, torch uses `use` instead of this thread's current pool; None: no pool."""
    global _uses
    stack = _stack()
    outer = stack[-1] if stack else None
    with _lock:
        _uses += 1
    try:
        if outer is not None:
            outer.end()
        try:
            if use is not None:
                use.begin()
            stack.append(use)
            try:
                yield
            finally:
                stack.pop()
                if use is not None:
                    use.end()
                    use.pool = None  # do not keep a temporary pool alive
        finally:
            if outer is not None:
                outer.begin()
    finally:
        with _lock:  # held during destruction, so that no thread begins to use a pool
            _uses -= 1
            if _uses == 0 and _temporary and not torch.cuda.is_current_stream_capturing():
                _temporary.clear()


@contextmanager
def use(torch, kind, make, device=None, pools=None):
    """Like torch.cuda.use_mem_pool, with a pool of `kind`. make() makes one if none is free."""
    pools = _pools if pools is None else pools
    mine = next((u.pool for u in reversed(_stack()) if u is not None and u.kind == kind), None)

    def make_on_device():  # a pool's allocator is registered with the device that it is made on
        with torch.cuda.device(torch.cuda.current_device() if device is None else device):
            return make()

    pool = pools.acquire(kind, make_on_device) if mine is None else mine
    try:
        with _told(torch, _Use(torch, kind, pool, device)):
            yield
    finally:
        if mine is None:
            pools.release(pool)


@contextmanager
def use_temporary(torch, make=None):
    """Makes a pool, by default of torch's own memory, which is dropped when no pool is in use. Dropping a pool
    empties it, and torch's allocator asserts that this does not happen while another pool is in use."""
    pool = make() if make is not None else torch.cuda.MemPool()
    with _lock:
        _temporary.append(pool)
    use = _Use(torch, None, pool, None)
    del pool
    with _told(torch, use):
        yield


@contextmanager
def capture(torch, kind, make):
    """For a graph's capture: yields the pool of `kind` (make None: no pool) and deactivates this thread's
    other pools."""
    pool = None
    if make is not None:
        with _lock:
            pool = _shared[kind] = _shared.get(kind) or keep(make())
    # Up to 2.7 torch calls a pool's allocator only if the pool is the thread's active one.
    context = getattr(torch.cuda.memory, "MemPoolContext", None)
    with _told(torch, None):
        active = context(pool) if context is not None and pool is not None else None
        try:
            yield pool
        finally:
            del active


def catches_all_threads(torch):
    """Whether a pool in use also gets allocations of other threads (2.6)."""
    return (hasattr(torch._C, "_cuda_beginAllocateToPool")
            and not hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool"))
