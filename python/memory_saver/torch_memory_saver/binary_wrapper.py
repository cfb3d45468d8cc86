"""The hook library under the names that torch_memory_saver's users know."""

import ctypes
import logging
from typing import Optional

from neap import RegionInfo, _library

logger = logging.getLogger(__name__)

_SIGNATURES = {
    "tms_set_interesting_region": ([ctypes.c_bool], None),
    "tms_get_interesting_region": ([], ctypes.c_bool),
    "tms_set_current_tag": ([ctypes.c_char_p], None),
    "tms_get_current_tag": ([], ctypes.c_char_p),
    "tms_set_enable_cpu_backup": ([ctypes.c_bool], None),
    "tms_get_enable_cpu_backup": ([], ctypes.c_bool),
    "tms_set_enable_disk_backup": ([ctypes.c_bool], None),
    "tms_get_enable_disk_backup": ([], ctypes.c_bool),
    "tms_set_cpu_backup_backend": ([ctypes.c_char_p], None),
    "tms_get_cpu_backup_backend": ([], ctypes.c_char_p),
    "tms_set_retain_cpu_backup": ([ctypes.c_bool], ctypes.c_int),
    "tms_get_retain_cpu_backup": ([], ctypes.c_bool),
    "tms_set_disk_backup_dir": ([ctypes.c_char_p], ctypes.c_int),
    "tms_pause": ([ctypes.c_char_p], ctypes.c_int),
    "tms_resume": ([ctypes.c_char_p], ctypes.c_int),
    "tms_keep_resident": ([ctypes.c_void_p], ctypes.c_int64),
    "tms_get_cpu_backup_pointer": (
        [ctypes.POINTER(ctypes.c_uint8), ctypes.c_uint64],
        ctypes.POINTER(ctypes.c_uint8),
    ),
    "set_memory_margin_bytes": ([ctypes.c_uint64], None),
}


class _HookLibrary(ctypes.CDLL):
    """The peer's library is linked with the CUDA runtime, so programs also call the runtime through it."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if not name.startswith("cuda"):
                raise
        function = getattr(_cuda_runtime(), name)
        setattr(self, name, function)
        return function


def _cuda_runtime():
    """The CUDA runtime that torch has loaded."""
    process = ctypes.CDLL(None)
    if hasattr(process, "cudaGetLastError"):
        return process
    from .utils import _detect_cuda_major

    return ctypes.CDLL(f"libcudart.so.{_detect_cuda_major()}")


def _setup_function_signatures(cdll):
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(cdll, name)
        function.argtypes = arguments
        function.restype = result


class BinaryWrapper:
    """Loads the library as `cdll` from the path that the hook mode found."""

    def __init__(self, path_binary: str):
        try:
            self.cdll = _HookLibrary(str(path_binary))
        except OSError as error:
            logger.error("%s cannot be loaded: %s", path_binary, error)
            raise
        _setup_function_signatures(self.cdll)
        self._library = _library.adopt(self.cdll)

    def set_config(
        self,
        *,
        tag: str,
        interesting_region: bool,
        enable_cpu_backup: bool,
        cpu_backup_backend: Optional[str] = None,
        enable_disk_backup: bool = False,
    ):
        """Sets the calling thread's settings for later allocations. cpu_backup_backend None: unchanged."""
        self.cdll.tms_set_current_tag(tag.encode())
        self.cdll.tms_set_interesting_region(interesting_region)
        self.cdll.tms_set_enable_cpu_backup(enable_cpu_backup)
        if cpu_backup_backend is not None:
            self.cdll.tms_set_cpu_backup_backend(cpu_backup_backend.encode())
        self.cdll.tms_set_enable_disk_backup(enable_disk_backup)

    def get_config(self) -> dict:
        """The current arguments of set_config()."""
        return dict(
            tag=self.cdll.tms_get_current_tag().decode(),
            interesting_region=self.cdll.tms_get_interesting_region(),
            enable_cpu_backup=self.cdll.tms_get_enable_cpu_backup(),
            cpu_backup_backend=self.cdll.tms_get_cpu_backup_backend().decode(),
            enable_disk_backup=self.cdll.tms_get_enable_disk_backup(),
        )

    def region_of(self, address: int) -> RegionInfo:
        """The region that contains an address. Raises if none does."""
        raw = _library.RegionInfo()
        self._library.call("neap_region_find", address, ctypes.byref(raw))
        return RegionInfo.of(raw)

    def check(self, status: int):
        """Raises the exception for a failed call."""
        if status != 0:
            self._library.raise_last(status)
