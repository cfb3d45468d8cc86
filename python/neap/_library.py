"""Calls libneap_hook.so through its C interface (include/neap/neap.h), with ctypes."""

import ctypes
import operator
import os
import threading
from collections.abc import Iterable
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

from ._errors import InvalidArgumentError, UnsupportedError, make_error

# NCCL registers the buffers of captured graphs by their pages, and a pause releases pages. The variable is set at
# import, because later other threads may read the environment.
os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")

ABI_VERSION = 1
NO_LIMIT = 2**64 - 1
LIBRARY_NAME = "libneap_hook.so"


class _Struct(ctypes.Structure):
    """A struct of the interface. struct_size is the first field and is always set."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Shortage(_Struct):
    _fields_ = [("struct_size", c_size_t), ("need", c_uint64), ("free", c_uint64),
                ("capacity", c_uint64), ("holders", c_uint64)]


class Options(_Struct):
    _fields_ = [("struct_size", c_size_t), ("page_store_budget", c_uint64),
                ("host_budget", c_uint64), ("keep_host_buffers", c_int32),
                ("touch_threads", c_uint32), ("disk_folder", c_char_p), ("margin", c_uint64)]


class Scope(_Struct):
    _fields_ = [("struct_size", c_size_t), ("tag", c_char_p), ("policy", c_int32),
                ("enabled", c_int32), ("all_threads", c_int32)]


class RegionInfo(_Struct):
    _fields_ = [("struct_size", c_size_t), ("tag", c_char_p), ("address", c_void_p),
                ("requested", c_uint64), ("size", c_uint64), ("mapped", c_uint64),
                ("version", c_uint64), ("state", c_int32), ("policy", c_int32),
                ("device", c_int32), ("kept", c_int32)]


class PauseOptions(_Struct):
    _fields_ = [("struct_size", c_size_t), ("policy", c_int32), ("fence", c_int32),
                ("streams", POINTER(c_void_p)), ("stream_count", c_size_t),
                ("release_pages", c_int32), ("unchanged", c_int32)]


class ResumeOptions(_Struct):
    _fields_ = [("struct_size", c_size_t), ("wait_ms", c_uint64)]


class MoveInfo(_Struct):
    _fields_ = [("struct_size", c_size_t), ("bytes", c_uint64), ("copied", c_uint64),
                ("regions", c_uint64), ("seconds", c_double)]


class Page(ctypes.Structure):
    _fields_ = [("descriptor", c_int32), ("reserved", c_int32), ("offset", c_uint64),
                ("size", c_uint64), ("lead", c_uint64)]


CALLBACK = ctypes.CFUNCTYPE(c_int32, POINTER(RegionInfo), c_void_p)
REVOKED = ctypes.CFUNCTYPE(None, c_char_p, c_void_p, c_int32, c_void_p)

_TAGS = POINTER(c_char_p)
_MOVE = POINTER(MoveInfo)
_SIGNATURES = {
    "neap_last_shortage": [POINTER(Shortage)],
    "neap_last_holder": [c_uint64, POINTER(c_char_p), POINTER(c_uint64)],
    "neap_configure": [POINTER(Options)],
    "neap_device_count": [POINTER(c_int32)],
    "neap_scope_enter": [POINTER(Scope)],
    "neap_scope_exit": [],
    "neap_scope_current": [POINTER(Scope)],
    "neap_region_create": [c_int32, c_char_p, c_uint64, c_int32, POINTER(c_void_p)],
    "neap_region_create_paused": [c_int32, c_char_p, c_uint64, c_int32, POINTER(c_void_p)],
    "neap_grant_peer": [c_int32, c_int32],
    "neap_keep_resident": [c_void_p, c_int32, POINTER(c_uint64)],
    "neap_region_alias": [c_char_p, c_void_p, POINTER(c_void_p)],
    "neap_region_destroy": [c_void_p],
    "neap_region_find": [c_void_p, POINTER(RegionInfo)],
    "neap_regions": [c_char_p, POINTER(RegionInfo), c_size_t, POINTER(c_size_t)],
    "neap_pause": [_TAGS, c_size_t, POINTER(PauseOptions), _MOVE],
    "neap_resume": [_TAGS, c_size_t, POINTER(ResumeOptions), _MOVE],
    "neap_exchange": [_TAGS, c_size_t, _TAGS, c_size_t, POINTER(PauseOptions), _MOVE],
    "neap_shrink": [c_void_p, c_uint64, c_uint64, _MOVE],
    "neap_grow": [c_void_p, c_uint64, c_uint64, _MOVE],
    "neap_prepare": [_TAGS, c_size_t],
    "neap_release_store": [c_int32, c_uint64, POINTER(c_uint64)],
    "neap_host_copy": [c_void_p, c_uint64, POINTER(c_void_p)],
    "neap_add_callbacks": [c_char_p, CALLBACK, CALLBACK, c_void_p, POINTER(c_uint64)],
    "neap_remove_callbacks": [c_uint64],
    "neap_export": [c_void_p, POINTER(Page), c_size_t, POINTER(c_size_t)],
    "neap_import": [c_int32, c_char_p, POINTER(Page), c_size_t, POINTER(c_void_p)],
    "neap_exporter_open": [c_char_p, POINTER(c_void_p)],
    "neap_exporter_offer": [c_void_p, c_char_p, c_void_p, c_uint64],
    "neap_exporter_withdraw": [c_void_p, c_char_p, c_uint64],
    "neap_exporter_importers": [c_void_p, c_char_p, POINTER(c_uint64)],
    "neap_exporter_close": [c_void_p, c_uint64],
    "neap_importer_open": [c_char_p, REVOKED, c_void_p, POINTER(c_void_p)],
    "neap_importer_take": [c_void_p, c_char_p, c_int32, c_char_p, c_uint64, POINTER(c_void_p),
                        POINTER(c_uint64), POINTER(c_uint64)],
    "neap_importer_drop": [c_void_p, c_char_p],
    "neap_importer_close": [c_void_p],
    "neap_stats_json": [c_void_p, c_size_t, POINTER(c_size_t)],
    "neap_stats_prometheus": [c_void_p, c_size_t, POINTER(c_size_t)],
    "neap_trace_start": [c_char_p],
    "neap_trace_stop": [],
    "neap_phase_begin": [c_char_p],
    "neap_phase_end": [c_char_p],
    "neap_mark": [c_char_p],
}


def _preloaded():
    """The hook that LD_PRELOAD loaded into this process, or None."""
    process = ctypes.CDLL(None)
    return process if hasattr(process, "neap_abi_version") else None


def library_path():
    """Path of the library: NEAP_HOOK_LIBRARY, or the file in this package."""
    chosen = os.environ.get("NEAP_HOOK_LIBRARY")
    if chosen:
        return chosen
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY_NAME)


def file_of(symbol):
    """Path of the loaded library that contains a function."""

    class DlInfo(ctypes.Structure):
        _fields_ = [("dli_fname", c_char_p), ("dli_fbase", c_void_p), ("dli_sname", c_char_p),
                    ("dli_saddr", c_void_p)]

    found = DlInfo()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = [c_void_p, POINTER(DlInfo)]
    if not dladdr(ctypes.cast(symbol, c_void_p), byref(found)) or not found.dli_fname:
        return None
    return os.fsdecode(found.dli_fname)


class Library:
    """The loaded library with its signatures set."""

    def __init__(self, cdll, preloaded):
        self.cdll = cdll
        self.preloaded = preloaded
        cdll.neap_abi_version.restype = c_uint32
        version = cdll.neap_abi_version()
        if version != ABI_VERSION:
            raise UnsupportedError(
                f"libneap_hook.so speaks version {version} of its interface, this package "
                f"version {ABI_VERSION}; install both from one source")
        for name in ("neap_version", "neap_last_error", "neap_status_name"):
            getattr(cdll, name).restype = c_char_p
        for name, arguments in _SIGNATURES.items():
            function = getattr(cdll, name)
            function.argtypes = arguments
            function.restype = c_int32
        self.path = file_of(cdll.neap_abi_version)

    def call(self, name, *arguments):
        """Calls a function that returns neap_status; raises an exception if it fails."""
        status = getattr(self.cdll, name)(*arguments)
        if status != 0:
            self.raise_last(status)

    def raise_last(self, status):
        message = self.cdll.neap_last_error().decode("utf-8", "replace")
        raise make_error(status, self.cdll.neap_status_name(status).decode(), message,
                         self._shortage() if status == 4 else None)

    def has_regions(self):
        count = c_size_t()
        self.call("neap_regions", None, None, 0, byref(count))
        return count.value > 0

    def _shortage(self):
        shortage = Shortage()
        if self.cdll.neap_last_shortage(byref(shortage)) != 0:
            return None
        holders = []
        for index in range(shortage.holders):
            tag, size = c_char_p(), c_uint64()
            if self.cdll.neap_last_holder(index, byref(tag), byref(size)) == 0:
                holders.append((tag.value.decode("utf-8", "replace"), size.value))
        return shortage.need, shortage.free, shortage.capacity, tuple(holders)

    def text(self, name):
        """Returns the text that a function writes. Calls it again if the text has grown."""
        length = c_size_t()
        capacity = 4096
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            self.call(name, buffer, capacity, byref(length))
            if length.value < capacity:
                return buffer.raw[: length.value].decode("utf-8", "replace")
            capacity = length.value + 1024


_lock = threading.Lock()
_library = None


def library():
    """Loads the library at first use, or uses the preloaded one."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                preloaded = _preloaded()
                if preloaded is not None:
                    _library = Library(preloaded, True)
                else:
                    try:
                        _library = Library(ctypes.CDLL(library_path()), False)
                    except OSError as error:
                        raise UnsupportedError(
                            f"{library_path()} cannot be loaded ({error}); build it with "
                            f"`pip install ./python`, or set NEAP_HOOK_LIBRARY") from error
    return _library


def adopt(cdll):
    """Makes a Library of a hook that other code has loaded. This package then uses it, unless the current
    one already has regions."""
    global _library
    theirs = Library(cdll, False)
    preloaded = _preloaded()
    theirs.preloaded = preloaded is not None and file_of(preloaded.neap_abi_version) == theirs.path
    with _lock:
        if _library is None or (_library.path != theirs.path and not _library.has_regions()):
            _library = theirs
        return theirs


def milliseconds(seconds):
    """Converts seconds to milliseconds. The interface treats a day as infinite."""
    return int(min(max(seconds, 0), 86400) * 1000)


def encoded(text, what):
    """Encodes a str for C. Rejects NUL, which would end the text."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidArgumentError(f"{what} holds a NUL character: {text!r}")
    return text.encode()


def _integer(value, what, least, most):
    """Checks the range, because ctypes silently truncates."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is an int, not {type(value).__name__}") from None
    if not least <= number <= most:
        raise InvalidArgumentError(f"{what} is {number}; it can be {least} to {most}")
    return number


def byte_count(value, what="a size in bytes"):
    return _integer(value, what, 0, NO_LIMIT)


def ordinal(value):
    """Checks a device number; in some calls -1 means all devices."""
    return _integer(value, "a device", -1, 2**31 - 1)


def tag_list(tags):
    """Returns (array, count) for one tag, several tags, or None (every tag)."""
    if tags is None:
        tags = ()
    elif isinstance(tags, str):
        tags = (tags,)
    elif not isinstance(tags, Iterable) or isinstance(tags, bytes):
        raise TypeError(f"tags are a str, several or None, not {type(tags).__name__}")
    names = [encoded(tag, "a tag") for tag in tags]
    return (c_char_p * max(len(names), 1))(*names), len(names)
