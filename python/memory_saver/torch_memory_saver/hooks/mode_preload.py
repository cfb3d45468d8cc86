"""The library is loaded by LD_PRELOAD and hooks cudaMalloc."""

import os
from contextlib import contextmanager

from ..utils import change_env, get_binary_path_from_package
from .base import HookUtilBase

_MARK = "torch_memory_saver"


def _entries(preload):
    return [path for path in preload.replace(" ", ":").split(":") if path]


class HookUtilModePreload(HookUtilBase):
    def get_path_binary(self) -> str:
        preload = os.environ.get("LD_PRELOAD", "")
        paths = list(dict.fromkeys(path for path in _entries(preload) if _MARK in path))
        assert len(paths) == 1, (
            f"TorchMemorySaver observes invalid LD_PRELOAD: exactly one entry has to name {_MARK}'s "
            f"library. Start the process inside `with configure_subprocess():`, or with "
            f"LD_PRELOAD={get_binary_path_from_package('torch_memory_saver_hook_mode_preload')}. "
            f'(LD_PRELOAD="{preload}" process_id={os.getpid()})'
        )
        return paths[0]


@contextmanager
def configure_subprocess():
    """Processes that are started inside preload this hook instead of other copies of it."""
    path = str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))
    others = [entry for entry in _entries(os.environ.get("LD_PRELOAD", "")) if _MARK not in entry]
    with change_env("LD_PRELOAD", ":".join([path, *others])):
        yield
