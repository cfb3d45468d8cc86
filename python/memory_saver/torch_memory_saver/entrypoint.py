"""TorchMemorySaver: regions by context manager, pause and resume by tag."""

import ctypes
import logging
import os
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Literal, Optional, get_args

try:
    import torch
except ImportError:
    torch = None  # a launcher may need configure_subprocess() only

import neap
from neap import _hooks, _pools

from .binary_wrapper import BinaryWrapper
from .hooks.base import HookMode, HookUtilBase
from .utils import get_binary_path_from_package, is_xpu

logger = logging.getLogger(__name__)

_TAG_DEFAULT = "default"
CpuBackupBackend = Literal["mmap", "pinned"]
_BOOLEANS = ("", "0", "1", "true", "True", "TRUE", "yes", "Yes", "YES",
             "false", "False", "FALSE", "no", "No", "NO")


class TorchMemorySaver:
    """Initialized by its first call."""

    def __init__(self):
        self._impl_ctor_kwargs = {}
        self._impl: Optional[_TorchMemorySaverImpl] = None

    @contextmanager
    def region(self, tag: str = _TAG_DEFAULT, enable_cpu_backup: bool = False,
               enable_disk_backup: bool = False,
               cpu_backup_backend: Optional[CpuBackupBackend] = None):
        """Allocations inside belong to `tag`: pause() releases their memory, resume() restores it.

        With a backup the contents are restored; without one they are undefined after resume.
        """
        self._validate_cpu_backup_backend(enable_cpu_backup, cpu_backup_backend)
        self._ensure_initialized()
        assert not (enable_cpu_backup and enable_disk_backup), (
            "enable_cpu_backup and enable_disk_backup are mutually exclusive")
        with self._impl.region(tag=tag, enable_cpu_backup=enable_cpu_backup,
                               enable_disk_backup=enable_disk_backup,
                               cpu_backup_backend=cpu_backup_backend):
            yield

    @contextmanager
    def cuda_graph(self, cuda_graph, pool=None, stream=None, capture_error_mode="global",
                   tag: str = _TAG_DEFAULT, enable_cpu_backup: bool = False,
                   cpu_backup_backend: Optional[CpuBackupBackend] = None):
        """Like torch.cuda.graph(), but its memory belongs to `tag`. Works in both hook modes."""
        self._validate_cpu_backup_backend(enable_cpu_backup, cpu_backup_backend)
        self._ensure_initialized()
        with self._impl.cuda_graph(cuda_graph=cuda_graph, pool=pool, stream=stream,
                                   capture_error_mode=capture_error_mode, tag=tag,
                                   enable_cpu_backup=enable_cpu_backup,
                                   cpu_backup_backend=cpu_backup_backend):
            yield

    @contextmanager
    def disable(self):
        """Allocations inside do not belong to the surrounding region."""
        self._ensure_initialized()
        with self._impl.disable():
            yield

    def pause(self, tag: Optional[str] = None):
        """Releases the memory of `tag`, or of every tag. Pausing a paused tag does nothing."""
        self._ensure_initialized()
        self._impl.pause(tag)

    def resume(self, tag: Optional[str] = None):
        """Restores the memory of `tag`, or of every tag, at the same addresses. Raises neap.OutOfMemoryError
        and changes nothing if memory is short. Resuming a resident tag does nothing."""
        self._ensure_initialized()
        self._impl.resume(tag)

    @property
    def enabled(self):
        return True

    @property
    def hook_mode(self):
        raise AttributeError("hook_mode can only be set")

    @hook_mode.setter
    def hook_mode(self, hook_mode: HookMode):
        if self._impl is not None:
            raise AttributeError("hook_mode can only be set before the first use")
        self._impl_ctor_kwargs["hook_mode"] = hook_mode

    @property
    def memory_margin_bytes(self):
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int):
        self._ensure_initialized()
        self._impl._binary_wrapper.cdll.set_memory_margin_bytes(value)

    @property
    def retain_cpu_backup(self) -> bool:
        self._ensure_initialized()
        return self._impl._binary_wrapper.cdll.tms_get_retain_cpu_backup()

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool):
        self._ensure_initialized()
        wrapper = self._impl._binary_wrapper
        wrapper.check(wrapper.cdll.tms_set_retain_cpu_backup(bool(value)))

    def get_cpu_backup(self, x, zero_copy: bool = False):
        """The backup of a tensor as a CPU tensor, or None."""
        self._ensure_initialized()
        return self._impl.get_cpu_backup(x, zero_copy=zero_copy)

    def keep_resident(self, x) -> int:
        """Excludes the tensor's allocation from pauses. Returns the bytes that stay, 0 outside of regions."""
        self._ensure_initialized()
        return self._impl.keep_resident(x)

    def set_disk_backup_dir(self, path: str):
        self._ensure_initialized()
        os.makedirs(path, exist_ok=True)
        wrapper = self._impl._binary_wrapper
        wrapper.check(wrapper.cdll.tms_set_disk_backup_dir(os.fsencode(path)))

    def _validate_cpu_backup_backend(self, enable_cpu_backup: bool,
                                     cpu_backup_backend: Optional[CpuBackupBackend]) -> None:
        if cpu_backup_backend is None:
            return
        if not enable_cpu_backup:
            raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")
        if is_xpu():
            raise ValueError("cpu_backup_backend is not supported on XPU")
        if cpu_backup_backend == "mmap" and torch is not None and getattr(torch.version, "hip", None):
            raise ValueError("cpu_backup_backend='mmap' is not supported on ROCm")
        _check_backend("cpu_backup_backend", cpu_backup_backend)

    def _ensure_initialized(self):
        if self._impl is None:
            # Without torch the constructor reports it.
            has_gpu = torch is None or torch.cuda.is_available()
            kind = _TorchMemorySaverImpl if has_gpu else _WithoutGpu
            self._impl = kind(**self._impl_ctor_kwargs)


class _TorchMemorySaverImpl:
    def __init__(self, hook_mode: HookMode = "preload"):
        if torch is None:
            raise ImportError("torch_memory_saver needs torch, which cannot be imported here; without "
                              "it only configure_subprocess() works")
        _sanity_checks()
        self._is_xpu = is_xpu()
        self._hook_mode = hook_mode
        self._hook_util = HookUtilBase.create(hook_mode=hook_mode)
        self._binary_wrapper = BinaryWrapper(path_binary=self._hook_util.get_path_binary())
        self._device_module = torch.cuda
        # Keys are (tag, enable_cpu_backup, enable_disk_backup, backend, device), as programs that drop a
        # pool expect. The pool's allocations are freed with it.
        self._mem_pools = _pools.Pools(self._make_pool)

    def _make_pool(self):
        return torch.cuda.MemPool(self._hook_util.get_allocator())

    def _current_device(self) -> int:
        return torch.cuda.current_device()

    @contextmanager
    def region(self, tag: str, enable_cpu_backup: bool, enable_disk_backup: bool = False,
               cpu_backup_backend: Optional[CpuBackupBackend] = None):
        resolved = self._resolve_backend(enable_cpu_backup, cpu_backup_backend)
        kind = (tag, enable_cpu_backup, enable_disk_backup, resolved, self._current_device())
        with _hooks._no_expandable_segments(torch), _pools.use(torch, kind, self._make_pool,
                                                               pools=self._mem_pools):
            with self._with_region_config(tag, enable_cpu_backup, cpu_backup_backend,
                                          enable_disk_backup):
                yield

    @contextmanager
    def cuda_graph(self, cuda_graph, pool, stream, capture_error_mode, tag: str,
                   enable_cpu_backup: bool, cpu_backup_backend: Optional[CpuBackupBackend] = None):
        # In mode "torch" a pool with Neap's allocator provides the memory. Each pool that callers name has
        # its own, so that graphs that share memory still share it.
        kind = ("torch_memory_saver graph", pool, tag, enable_cpu_backup,
                self._resolve_backend(enable_cpu_backup, cpu_backup_backend),
                self._current_device())
        make = self._make_pool if self._hook_mode == "torch" else None
        with ExitStack() as stack:
            stack.enter_context(_hooks._no_expandable_segments(torch))
            own = stack.enter_context(_pools.capture(torch, kind, make))
            stack.enter_context(torch.cuda.graph(
                cuda_graph, pool=own.id if own is not None else pool, stream=stream,
                capture_error_mode=capture_error_mode))
            stack.enter_context(self._with_region_config(tag, enable_cpu_backup,
                                                         cpu_backup_backend))
            yield

    def _resolve_backend(self, enable_cpu_backup, cpu_backup_backend) -> str:
        """The kind of a region's CPU backups; "" without CPU backups."""
        if not enable_cpu_backup:
            return ""
        return (cpu_backup_backend
                or self._binary_wrapper.cdll.tms_get_cpu_backup_backend().decode())

    @contextmanager
    def _with_region_config(self, tag: str, enable_cpu_backup: bool,
                            cpu_backup_backend: Optional[CpuBackupBackend],
                            enable_disk_backup: bool = False):
        before = self._binary_wrapper.get_config()
        inside = dict(tag=tag, interesting_region=True, enable_cpu_backup=enable_cpu_backup,
                      cpu_backup_backend=cpu_backup_backend or before["cpu_backup_backend"],
                      enable_disk_backup=enable_disk_backup)
        self._binary_wrapper.set_config(**inside)
        try:
            yield
            changed = self._binary_wrapper.get_config()
            assert changed == inside, f"the region's settings were changed inside it: {changed}"
        finally:
            self._binary_wrapper.set_config(**before)

    @contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True):
        assert dispose_mem_pool_after_use, "a pool that outlives disable() is not supported"
        cdll = self._binary_wrapper.cdll
        assert cdll.tms_get_interesting_region(), "disable() is only for use inside a region"
        cdll.tms_set_interesting_region(False)
        try:
            with _pools.use_temporary(torch):
                yield
        finally:
            cdll.tms_set_interesting_region(True)

    def pause(self, tag: Optional[str]):
        wrapper = self._binary_wrapper
        wrapper.check(wrapper.cdll.tms_pause(tag.encode() if tag else None))

    def resume(self, tag: Optional[str]):
        wrapper = self._binary_wrapper
        wrapper.check(wrapper.cdll.tms_resume(tag.encode() if tag else None))

    def keep_resident(self, x) -> int:
        if x.nbytes == 0:
            return 0
        wrapper = self._binary_wrapper
        stays = wrapper.cdll.tms_keep_resident(x.data_ptr())
        wrapper.check(max(-stays, 0))
        return stays

    def get_cpu_backup(self, x, zero_copy: bool = False):
        assert x.is_cuda, f"the tensor is on {x.device}"
        assert x.is_contiguous(), f"the tensor is not contiguous: {x.shape} {x.stride()}"
        region = self._binary_wrapper.region_of(x.data_ptr())  # raises if no region contains it
        if x.data_ptr() + x.nbytes > region.address + region.size:
            raise neap.InvalidArgumentError("the tensor exceeds its region")
        pointer = self._binary_wrapper.cdll.tms_get_cpu_backup_pointer(
            ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_uint8)), x.nbytes)
        if not pointer:
            if region.state == neap.State.RESIDENT or region.policy == neap.Policy.DISK:
                return None
            raise neap.NotFoundError(
                f'the region of tag "{region.tag}" was paused without a backup')
        memory = (ctypes.c_uint8 * x.nbytes).from_address(ctypes.addressof(pointer.contents))
        backup = torch.frombuffer(memory, dtype=torch.uint8).view(x.dtype).reshape(x.shape)
        return backup if zero_copy else backup.clone()


class _WithoutGpu(_TorchMemorySaverImpl):
    """For machines without a GPU: calls have no effect."""

    def __init__(self, hook_mode: HookMode = "preload"):
        _sanity_checks()
        logger.warning(
            "torch_memory_saver: torch finds no GPU (torch.cuda.is_available() is False). Regions "
            "have no effect, pause() and resume() do nothing, and tensors stay in host memory. If "
            "this machine has a GPU, check nvidia-smi, CUDA_VISIBLE_DEVICES, and that torch is a "
            "CUDA build (torch.version.cuda)")
        self._is_xpu = is_xpu()
        self._hook_mode = hook_mode
        # Any copy of the library stores the settings, also one that is not preloaded.
        self._binary_wrapper = BinaryWrapper(
            path_binary=get_binary_path_from_package("torch_memory_saver_hook_mode_torch"))
        self._device_module = torch.cuda

    @contextmanager
    def region(self, tag: str, enable_cpu_backup: bool, enable_disk_backup: bool = False,
               cpu_backup_backend: Optional[CpuBackupBackend] = None):
        with self._with_region_config(tag, enable_cpu_backup, cpu_backup_backend,
                                      enable_disk_backup):
            yield

    def cuda_graph(self, **settings):
        raise RuntimeError("torch_memory_saver: cuda_graph() needs a GPU; torch finds none")

    def disable(self, dispose_mem_pool_after_use: bool = True):
        return nullcontext()

    def pause(self, tag: Optional[str]):
        pass

    def resume(self, tag: Optional[str]):
        pass

    def keep_resident(self, x) -> int:
        return 0

    def get_cpu_backup(self, x, zero_copy: bool = False):
        return None


def _check_backend(what: str, word: str) -> None:
    known = get_args(CpuBackupBackend)
    if word not in known:
        raise ValueError(f'{what} is "{word}"; it can be {" or ".join(known)}')


def _sanity_checks():
    for name in ("TMS_INIT_ENABLE", "TMS_INIT_ENABLE_CPU_BACKUP", "TMS_INIT_ENABLE_DISK_BACKUP",
                 "TMS_RETAIN_CPU_BACKUP"):
        value = os.environ.get(name, "")
        if value not in _BOOLEANS:
            raise ValueError(f'{name} is "{value}"; it can be 1, true, yes, 0, false or no')
    _check_backend("TMS_INIT_CPU_BACKUP_BACKEND",
                   os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND") or "pinned")
