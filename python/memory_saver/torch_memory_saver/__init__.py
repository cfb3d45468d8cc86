"""torch_memory_saver's interface on Neap. docs/python.md lists the differences: failures are exceptions,
never the end of the process."""

from .entrypoint import TorchMemorySaver
from .hooks.mode_preload import configure_subprocess

torch_memory_saver = TorchMemorySaver()

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]
