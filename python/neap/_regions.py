"""Regions, their moves, and related functions. This file does not use torch."""

import ctypes
import enum
import json
import os
from contextlib import contextmanager
from ctypes import byref, c_int32, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass

from . import _library as lib
from ._errors import InvalidArgumentError


class Policy(enum.IntEnum):
    """How a tag's contents are kept while it is paused."""

    DISCARD = 0  #: undefined after resume
    HOST = 1  #: kept in host memory
    DISK = 2  #: kept in a file
    ZERO = 3  #: zeros after resume


class State(enum.IntEnum):
    RESIDENT = 0
    PAUSING = 1
    PAUSED = 2
    RESUMING = 3


def as_policy(policy):
    if isinstance(policy, str):
        try:
            return Policy[policy.upper()]
        except KeyError:
            raise InvalidArgumentError(
                f'"{policy}" is not a policy; use discard, host, disk or zero') from None
    return Policy(policy)


@dataclass(frozen=True)
class Move:
    """Result of a pause, resume or exchange."""

    bytes: int  #: bytes that left or entered the device
    copied: int  #: part of `bytes` copied to or from the host or a disk
    regions: int
    seconds: float

    @classmethod
    def of(cls, info):
        return cls(info.bytes, info.copied, info.regions, info.seconds)


def address_of(what):
    """The address of a Region, a tensor (data_ptr) or an integer."""
    if isinstance(what, Region):
        return what.address
    data_ptr = getattr(what, "data_ptr", None)
    return int(data_ptr()) if data_ptr is not None else int(what)


class Region:
    """Memory with a fixed address, made by allocate(), alias(), receive() or an Importer.

    Destroyed by destroy() or at the end of a `with`. Garbage collection does not destroy it, because
    other code may use its address.
    """

    def __init__(self, address, on_destroy=None):
        self.address = address
        self._on_destroy = on_destroy

    @property
    def info(self):
        """A snapshot: tag, size, mapped, state, policy, version, device, requested."""
        return info(self.address)

    @property
    def tag(self):
        return self.info.tag

    @property
    def size(self):
        return self.info.size

    @property
    def __cuda_array_interface__(self):
        """Bytes, for torch.as_tensor, CuPy and Numba: no copy."""
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False),
                "version": 3}

    def shrink(self, offset, size):
        """Releases the memory of [offset, offset+size). The address range stays."""
        return _move("neap_shrink", self.address, lib.byte_count(offset, "an offset"),
                     lib.byte_count(size))

    def grow(self, offset, size):
        """Restores the memory of [offset, offset+size)."""
        return _move("neap_grow", self.address, lib.byte_count(offset, "an offset"),
                     lib.byte_count(size))

    def destroy(self):
        if self.address is None:
            return
        address, self.address = self.address, None
        if self._on_destroy is not None:
            self._on_destroy()
        else:
            lib.library().call("neap_region_destroy", address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()

    def __repr__(self):
        if self.address is None:
            return "Region(destroyed)"
        return f"Region(0x{self.address:x}, tag={self.tag!r}, size={self.size})"


@dataclass(frozen=True)
class RegionInfo:
    tag: str
    address: int
    requested: int
    size: int
    mapped: int
    version: int
    state: State
    policy: Policy
    device: int
    kept: bool

    @classmethod
    def of(cls, raw):
        return cls(raw.tag.decode("utf-8", "replace"), raw.address, raw.requested, raw.size,
                   raw.mapped, raw.version, State(raw.state), Policy(raw.policy), raw.device,
                   bool(raw.kept))


def device_count():
    """Number of devices on which regions can be made; 0 without a GPU."""
    count = c_int32()
    lib.library().call("neap_device_count", byref(count))
    return count.value


def configure(*, page_store_budget=None, host_budget=None, keep_host_buffers=True,
              touch_threads=0, disk_folder=None, margin=0):
    """Changes settings at any time, for moves that begin later. Settings that are not named get their default.

    Existing backups stay where they are until their region resumes. Without keep_host_buffers, those of
    resident regions are released now. Only touch_threads is fixed once a device is open (BusyError).
    """
    options = lib.Options(
        page_store_budget=lib.NO_LIMIT if page_store_budget is None else page_store_budget,
        host_budget=lib.NO_LIMIT if host_budget is None else host_budget,
        keep_host_buffers=int(keep_host_buffers), touch_threads=touch_threads,
        disk_folder=os.fsencode(disk_folder) if disk_folder else None, margin=margin)
    lib.library().call("neap_configure", byref(options))


def allocate(size, tag="default", policy=Policy.DISCARD, *, device=0, paused=False):
    """Makes a Region of `size` bytes, resident unless `paused`. Needs neither torch nor the hook."""
    address = c_void_p()
    name = "neap_region_create_paused" if paused else "neap_region_create"
    lib.library().call(name, lib.ordinal(device), lib.encoded(tag, "a tag"), lib.byte_count(size),
                       as_policy(policy), byref(address))
    return Region(address.value)


def alias(source, tag):
    """Makes a second Region, with its own tag and address, over the same pages."""
    address = c_void_p()
    lib.library().call("neap_region_alias", lib.encoded(tag, "a tag"), address_of(source),
                       byref(address))
    return Region(address.value)


def grant_peer(device, peer):
    """Lets GPU `peer` read and write the regions of GPU `device`, also after every resume."""
    lib.library().call("neap_grant_peer", lib.ordinal(device), lib.ordinal(peer))


def keep_resident(what, keep=True):
    """Excludes the region of a tensor, Region or address from pauses; keep False ends that.

    For memory whose pages others use, such as buffers that NCCL registered in a captured CUDA graph.
    Returns the bytes that stay: whole pages, including small regions that share them.
    """
    stays = c_uint64()
    lib.library().call("neap_keep_resident", address_of(what), int(keep), byref(stays))
    return stays.value


def info(what):
    """RegionInfo of the region that contains a tensor, Region or address."""
    raw = lib.RegionInfo()
    lib.library().call("neap_region_find", address_of(what), byref(raw))
    return RegionInfo.of(raw)


def regions(tag=None):
    """RegionInfo of every region, or of those of one tag."""
    count = c_size_t()
    name = lib.encoded(tag, "a tag") if tag is not None else None
    capacity = 64
    while True:
        raw = (lib.RegionInfo * capacity)()
        raw[0].struct_size = ctypes.sizeof(lib.RegionInfo)
        lib.library().call("neap_regions", name, raw, capacity, byref(count))
        if count.value <= capacity:
            return [RegionInfo.of(raw[i]) for i in range(count.value)]
        capacity = count.value + 16


def _move(name, *arguments):
    move = lib.MoveInfo()
    lib.library().call(name, *arguments, byref(move))
    return Move.of(move)


def _pause_options(policy, streams, synchronize, keep_pages, unchanged):
    options = lib.PauseOptions(policy=-1 if policy is None else as_policy(policy),
                               release_pages=int(not keep_pages), unchanged=int(unchanged))
    if streams is not None:
        raw = [int(getattr(stream, "cuda_stream", stream)) for stream in streams]
        options.fence = 1
        options.streams = (c_void_p * max(len(raw), 1))(*raw)
        options.stream_count = len(raw)
    elif not synchronize:
        options.fence = 2
    return options


def pause(tags=None, *, policy=None, streams=None, synchronize=True, keep_pages=False,
          unchanged=False):
    """Releases the memory of all regions of `tags` (a string, several, None: every tag).

    policy       overrides the tags' own policy, now and later.
    streams      waits for these streams only; default: for the whole device.
    synchronize  False: the caller has already waited.
    keep_pages   True: this process keeps the memory for the next resume or region, which is ten times
                 faster. False: the driver gets the memory, for torch and other processes.
    unchanged    the tags were not written since the last backup, which is reused.
    """
    array, count = lib.tag_list(tags)
    options = _pause_options(policy, streams, synchronize, keep_pages, unchanged)
    return _move("neap_pause", array, count, byref(options))


def resume(tags=None, *, wait=0.0):
    """Restores memory at the same addresses. Waits up to `wait` seconds for other processes to free memory."""
    array, count = lib.tag_list(tags)
    options = lib.ResumeOptions(wait_ms=lib.milliseconds(wait))
    return _move("neap_resume", array, count, byref(options))


def exchange(out, in_, *, policy=None, streams=None, synchronize=True, keep_pages=False,
             unchanged=False):
    """Pauses the tags `out` while it resumes `in_`, which reuses the pages of `out`.

    keep_pages applies to the remaining pages.
    """
    leaving, leaving_count = lib.tag_list(out)
    coming, coming_count = lib.tag_list(in_)
    options = _pause_options(policy, streams, synchronize, keep_pages, unchanged)
    return _move("neap_exchange", leaving, leaving_count, coming, coming_count, byref(options))


def prepare(tags=None):
    """Allocates the host memory of the tags' next pause in advance."""
    lib.library().call("neap_prepare", *lib.tag_list(tags))


def release_store(keep=0, *, device=-1):
    """Releases kept pages to the driver until at most `keep` bytes are kept. Returns the bytes released."""
    released = c_uint64()
    lib.library().call("neap_release_store", lib.ordinal(device), lib.byte_count(keep),
                       byref(released))
    return released.value


def host_copy(what, size=None):
    """The host copy of a region's bytes as a memoryview, without a copy.

    `what` is a tensor, Region or address. The view is valid until the region resumes or is destroyed.
    Raises NotFoundError without a host copy.
    """
    address = address_of(what)
    if size is None:
        nbytes = getattr(what, "nbytes", None)
        if nbytes is None:
            region = info(address)
            nbytes = region.requested - (address - region.address)
        size = nbytes
    host = c_void_p()
    lib.library().call("neap_host_copy", address, lib.byte_count(size), byref(host))
    return memoryview((ctypes.c_ubyte * size).from_address(host.value)).toreadonly()


_thunks = []  # called from C; never freed, because a running move may call a removed one


class Callbacks:
    """Functions that are called at moves, until remove()."""

    def __init__(self, tag, before_unmap, after_map):
        self.error = None  #: last exception of the functions
        self._functions = [before_unmap, after_map]
        thunks = [self._thunk(i) for i in range(2)]
        number = c_uint64()
        lib.library().call("neap_add_callbacks",
                           lib.encoded(tag, "a tag") if tag is not None else None,
                           *thunks, None, byref(number))
        _thunks.extend(thunks)
        self._id = number.value

    def _thunk(self, index):
        if self._functions[index] is None:
            return ctypes.cast(None, lib.CALLBACK)

        def call(raw, _):
            function = self._functions[index]
            try:
                if function is not None:
                    function(RegionInfo.of(raw.contents))
                return 0
            except BaseException as error:  # must not reach C code; the pause fails instead
                self.error = error
                return 1

        return lib.CALLBACK(call)

    def remove(self):
        if self._id is not None:
            number, self._id = self._id, None
            lib.library().call("neap_remove_callbacks", number)
            self._functions = [None, None]


def add_callbacks(tag=None, *, before_unmap=None, after_map=None):
    """Calls before_unmap(RegionInfo) before memory is released and after_map(RegionInfo) after it is mapped.

    For code that registered addresses elsewhere (NCCL, RDMA, IPC). An exception in before_unmap stops
    the pause and restores the former state. Ends with remove() of the returned object.
    """
    return Callbacks(tag, before_unmap, after_map)


def stats():
    """All statistics as a dictionary; docs/json.md has the fields."""
    return json.loads(lib.library().text("neap_stats_json"))


def prometheus():
    """All statistics in Prometheus' text format."""
    return lib.library().text("neap_stats_prometheus")


@contextmanager
def trace(path):
    """Records allocations and moves to a trace file that `neap report` draws."""
    lib.library().call("neap_trace_start", os.fsencode(path))
    try:
        yield
    finally:
        lib.library().call("neap_trace_stop")


@contextmanager
def phase(name):
    """Marks a phase in the trace. Does nothing without a trace."""
    encoded = lib.encoded(name, "a phase")
    lib.library().call("neap_phase_begin", encoded)
    try:
        yield
    finally:
        lib.library().call("neap_phase_end", encoded)


def mark(text):
    lib.library().call("neap_mark", lib.encoded(text, "a mark"))
