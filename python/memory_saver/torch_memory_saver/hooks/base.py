"""A hook mode: its library, and the allocator of torch's pools."""

from abc import ABC, abstractmethod
from typing import Literal

HookMode = Literal["preload", "torch"]


class HookUtilBase(ABC):
    @staticmethod
    def create(hook_mode: HookMode) -> "HookUtilBase":
        from .mode_preload import HookUtilModePreload
        from .mode_torch import HookUtilModeTorch

        modes = {"preload": HookUtilModePreload, "torch": HookUtilModeTorch}
        if hook_mode not in modes:
            raise ValueError(f'hook_mode is "{hook_mode}"; it can be preload or torch')
        return modes[hook_mode]()

    @abstractmethod
    def get_path_binary(self) -> str:
        ...

    def get_allocator(self):
        """None: torch's own allocator, whose cudaMalloc is hooked."""
        return None
