"""torch_memory_saver's interface, served by Neap. docs/python.md says what is the same and what is
better: failures are exceptions here, never the end of the process."""

from .entrypoint import TorchMemorySaver
from .hooks.mode_preload import configure_subprocess

torch_memory_saver = TorchMemorySaver()

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]
