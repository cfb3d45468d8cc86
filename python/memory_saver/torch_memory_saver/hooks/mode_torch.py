"""The library is torch's pluggable allocator inside a MemPool; nothing is preloaded."""

from neap._hooks import pluggable_allocator

from ..utils import get_binary_path_from_package
from .base import HookUtilBase


class HookUtilModeTorch(HookUtilBase):
    def __init__(self):
        self._allocator = pluggable_allocator(self.get_path_binary(), "tms_torch_malloc",
                                              "tms_torch_free")

    def get_path_binary(self) -> str:
        return str(get_binary_path_from_package("torch_memory_saver_hook_mode_torch"))

    def get_allocator(self):
        return self._allocator
