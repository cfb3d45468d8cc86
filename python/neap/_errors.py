"""Exceptions: one class per kind of failure, all derived from NeapError."""

import sys


class NeapError(RuntimeError):
    """A call that failed. `code` is its number in neap.h, `name` its name."""

    code = 15
    name = "internal error"

    def __init__(self, message="", code=None, name=None):
        super().__init__(message)
        if code is not None:
            self.code = code
        if name is not None:
            self.name = name


class InvalidArgumentError(NeapError, ValueError):
    pass


class NotFoundError(NeapError, LookupError):
    pass


class AlreadyExistsError(NeapError):
    pass


class OutOfMemoryError(NeapError):
    """Out of device memory.

    need, free, capacity: bytes, or None if unknown.
    holders: the remaining memory as (tag, bytes), largest first.

    If torch is loaded, this is also a torch.OutOfMemoryError.
    """

    need = None
    free = None
    capacity = None
    holders = ()

    def __reduce__(self):
        shortage = self.need, self.free, self.capacity, self.holders
        return make_error, (self.code, self.name, str(self), shortage)


class OutOfHostMemoryError(NeapError, MemoryError):
    pass


class BusyError(NeapError):
    """In use now; the same call may succeed later."""


class DeviceLostError(NeapError):
    """The GPU's context is lost; no later call on it can succeed."""


class DriverError(NeapError):
    pass


class UnsupportedError(NeapError):
    pass


class IoError(NeapError, OSError):
    pass


class CancelledError(NeapError):
    """A callback returned an error, or the other process of a shared region is gone."""


class TimeoutExpired(NeapError, TimeoutError):
    pass


_BY_CODE = {
    1: InvalidArgumentError,
    2: NotFoundError,
    3: AlreadyExistsError,
    4: OutOfMemoryError,
    5: OutOfHostMemoryError,
    6: BusyError,
    8: DeviceLostError,
    9: DriverError,
    10: UnsupportedError,
    11: IoError,
    12: CancelledError,
    13: TimeoutExpired,
}

_torch_out_of_memory = None


def _out_of_memory_class():
    """OutOfMemoryError, also caught by `except torch.OutOfMemoryError` once torch is loaded."""
    global _torch_out_of_memory
    if _torch_out_of_memory is None:
        torch = sys.modules.get("torch")
        theirs = getattr(torch, "OutOfMemoryError", None) if torch is not None else None
        if not isinstance(theirs, type) or not issubclass(theirs, Exception):
            return OutOfMemoryError
        _torch_out_of_memory = type("OutOfMemoryError", (OutOfMemoryError, theirs), {})
        _torch_out_of_memory.__module__ = "neap"
    return _torch_out_of_memory


def make_error(code, name, message, shortage=None):
    """The exception for a status; shortage is (need, free, capacity, holders) or None."""
    if code == 4:
        error = _out_of_memory_class()(message, code, name)
        if shortage is not None:
            error.need, error.free, error.capacity, error.holders = shortage
        return error
    return _BY_CODE.get(code, NeapError)(message, code, name)
