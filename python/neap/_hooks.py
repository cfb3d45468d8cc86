"""Scopes: which allocations become regions. Works with torch, and without it under LD_PRELOAD."""

import os
import sys
import threading
from contextlib import ExitStack, contextmanager
from ctypes import byref

from . import _library as lib
from . import _pools
from ._errors import InvalidArgumentError, UnsupportedError
from ._regions import Policy, as_policy

_MODES = ("auto", "preload", "torch")
_mode = "auto"
_allocators = {}  # by the library's path
_settings_lock = threading.Lock()
_regions_without_expandable = 0


def set_hook_mode(mode):
    """How torch's allocations reach Neap.

    "preload"  this process was started with LD_PRELOAD (see preload()): cudaMalloc is hooked.
    "torch"    torch.cuda.MemPool with Neap's allocator; nothing needs to be preloaded.
    "auto"     preload if the hook is preloaded, else torch.
    """
    global _mode
    if mode not in _MODES:
        raise InvalidArgumentError(f'"{mode}" is not a hook mode; use one of {", ".join(_MODES)}')
    if mode == "preload" and not lib.library().preloaded:
        raise UnsupportedError(
            "hook mode preload needs this process to be started with LD_PRELOAD; start it inside "
            f"`with neap.preload():` or with LD_PRELOAD={lib.library_path()}")
    _mode = mode


def hook_mode():
    """"preload" or "torch": the mode of region() in this process."""
    if _mode != "auto":
        return _mode
    return "preload" if lib.library().preloaded else "torch"


@contextmanager
def preload():
    """Processes that are started inside preload the hook."""
    path = lib.library_path()
    before = os.environ.get("LD_PRELOAD")
    os.environ["LD_PRELOAD"] = f"{path}:{before}" if before else path
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = before


@contextmanager
def _scope(tag, policy, enabled=True, all_threads=False):
    scope = lib.Scope(tag=lib.encoded(tag, "a tag"), policy=as_policy(policy), enabled=int(enabled),
                      all_threads=int(all_threads))
    lib.library().call("neap_scope_enter", byref(scope))
    try:
        yield
    finally:
        lib.library().call("neap_scope_exit")


def _torch():
    """The module torch if the program uses it on a GPU. Neap never imports it on its own."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return torch
    return None


def _configured_expandable(environment=os.environ):
    """The allocator's settings if they turn expandable segments on, else None."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        settings = environment.get(name, "")
        for item in settings.split(","):
            key, _, value = item.partition(":")
            if key.strip() == "expandable_segments" and value.strip() in ("True", "1", "true"):
                return settings
    return None


def without_expandable(settings):
    """The same settings with expandable segments off: torch resets settings that are not given."""
    kept = [item for item in settings.split(",")
            if item.strip() and item.partition(":")[0].strip() != "expandable_segments"]
    return ",".join(kept + ["expandable_segments:False"])


@contextmanager
def _no_expandable_segments(torch):
    """Turns expandable segments off, because they bypass cudaMalloc and a preloaded hook does not see
    them. The setting is process-wide: the first region turns it off, the last one turns it on again."""
    global _regions_without_expandable
    settings = _configured_expandable()
    if settings is None:
        yield
        return
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if change is None:
        change = torch.cuda.memory._set_allocator_settings
    with _settings_lock:
        if _regions_without_expandable == 0:
            change(without_expandable(settings))
        _regions_without_expandable += 1
    try:
        yield
    finally:
        with _settings_lock:
            _regions_without_expandable -= 1
            if _regions_without_expandable == 0:
                change(settings)


def torch_allocator():
    """Neap's pluggable allocator for torch.cuda.MemPool(allocator)."""
    path = lib.library().path
    if path not in _allocators:
        _allocators[path] = pluggable_allocator(path, "neap_torch_malloc", "neap_torch_free")
    return _allocators[path]


def pluggable_allocator(path, malloc, free):
    """Makes an allocator for torch.cuda.MemPool from two functions of a library."""
    from torch.cuda.memory import CUDAPluggableAllocator

    return _pools.keep(CUDAPluggableAllocator(path, malloc, free).allocator())


def _maker(torch, mode):
    """Returns a function that makes a pool whose memory comes from Neap in this hook mode."""
    if mode == "torch":
        return lambda: torch.cuda.MemPool(torch_allocator())
    return torch.cuda.MemPool


def _device_index(torch, device):
    if isinstance(device, int):
        return device
    index = torch.device(device).index if device is not None else None
    return torch.cuda.current_device() if index is None else index


@contextmanager
def region(tag="default", policy=Policy.DISCARD, *, device=None, all_threads=False):
    """Allocations inside belong to `tag` and move with it.

    device       torch's current device by default.
    all_threads  also allocations of threads without a scope, such as autograd's. With torch this
                 covers their allocations from the driver, not those from torch's cache.
    """
    policy = as_policy(policy)
    with ExitStack() as stack:
        torch = _torch()
        if torch is not None:
            mode = hook_mode()
            index = _device_index(torch, device)
            stack.enter_context(_no_expandable_segments(torch))
            stack.enter_context(_pools.use(torch, ("region", tag, policy, index, lib.library().path),
                                           _maker(torch, mode), index))
            # Otherwise memory of other threads would be in the region's pool without belonging to the region.
            all_threads = all_threads or _pools.catches_all_threads(torch)
        elif not lib.library().preloaded:
            raise UnsupportedError(
                "region() needs torch with a GPU, or a hook that is preloaded (neap.preload()); "
                "neap.allocate() needs neither")
        stack.enter_context(_scope(tag, policy, True, all_threads))
        yield


@contextmanager
def disabled():
    """Allocations inside do not become regions, whatever the outer region is."""
    with ExitStack() as stack:
        torch = _torch()
        if torch is not None:
            stack.enter_context(_pools.use_temporary(torch))
        stack.enter_context(_scope("default", Policy.DISCARD, enabled=False))
        yield


@contextmanager
def graph(cuda_graph, tag="default", policy=Policy.DISCARD, *, pool=None, stream=None,
          capture_error_mode="global"):
    """Like torch.cuda.graph(), but its memory belongs to `tag`. Works in both hook modes.

    Graphs of one tag share a pool, unless `pool` names another.
    """
    policy = as_policy(policy)
    torch = _torch()
    if torch is None:
        raise UnsupportedError("graph() needs torch with a GPU")
    with ExitStack() as stack:
        stack.enter_context(_no_expandable_segments(torch))
        mode = hook_mode()
        kind = ("graph", tag, policy, torch.cuda.current_device(), mode)
        own = stack.enter_context(
            _pools.capture(torch, kind, _maker(torch, mode) if pool is None else None))
        stack.enter_context(torch.cuda.graph(cuda_graph, pool=own.id if own is not None else pool,
                                             stream=stream,
                                             capture_error_mode=capture_error_mode))
        stack.enter_context(_scope(tag, policy))
        yield
