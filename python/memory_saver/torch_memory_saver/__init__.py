"""torch_memory_saver's interface on Neap. docs/memory-saver.md lists the differences."""

from .entrypoint import TorchMemorySaver
from .hooks.mode_preload import configure_subprocess

torch_memory_saver = TorchMemorySaver()

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]
