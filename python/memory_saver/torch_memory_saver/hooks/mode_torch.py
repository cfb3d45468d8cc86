"""The library is torch's pluggable allocator inside a MemPool; nothing is preloaded."""

from ..utils import get_binary_path_from_package
from .base import HookUtilBase


class HookUtilModeTorch(HookUtilBase):
    def __init__(self):
        from torch.cuda.memory import CUDAPluggableAllocator

        self.allocator = CUDAPluggableAllocator(
            self.get_path_binary(), "tms_torch_malloc", "tms_torch_free"
        )

    def get_path_binary(self) -> str:
        return str(get_binary_path_from_package("torch_memory_saver_hook_mode_torch"))

    def get_allocator(self):
        return self.allocator.allocator()
