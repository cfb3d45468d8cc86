"""Paths of the library files, and small helpers that launchers import."""

import ctypes
import os
from contextlib import contextmanager
from pathlib import Path

_SUPPORTED_CUDA_MAJORS = (13, 12)


def is_xpu() -> bool:
    """Always false: Neap supports NVIDIA devices only."""
    return False


def _detect_cuda_major() -> int:
    """torch's CUDA version, else that of a loadable CUDA runtime, else the newest. The library file is
    the same for all versions."""
    try:
        import torch

        return int(torch.version.cuda.split(".")[0])
    except (ImportError, AttributeError, ValueError):
        pass
    for major in _SUPPORTED_CUDA_MAJORS:
        try:
            ctypes.CDLL(f"libcudart.so.{major}")
            return major
        except OSError:
            continue
    return _SUPPORTED_CUDA_MAJORS[0]


def get_binary_path_from_package(stem: str) -> Path:
    """The library `stem` (torch_memory_saver_hook_mode_preload or _torch) of this installation."""
    package = Path(__file__).resolve().parent
    name = f"{stem}_cu{_detect_cuda_major()}.abi3.so"
    for folder in (package, package.parent):
        for candidate in (folder / name, folder / f"{stem}.abi3.so"):
            if candidate.exists():
                return candidate
    raise RuntimeError(
        f"{name} is neither in {package} nor in {package.parent}; install it with "
        "`pip install ./python` from Neap's repository"
    )


@contextmanager
def change_env(key: str, value: str):
    """Sets an environment variable to `value` inside, and restores it afterwards."""
    before = os.environ.get(key)
    os.environ[key] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = before
