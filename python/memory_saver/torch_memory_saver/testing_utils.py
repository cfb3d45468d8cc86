"""For tests of programs that use the package; not a public interface."""

from .utils import is_xpu


def get_device() -> str:
    return "xpu" if is_xpu() else "cuda"


def empty_cache():
    import torch

    torch.cuda.empty_cache()


def get_and_print_gpu_memory(message: str, gpu_id: int = 0) -> int:
    """Used bytes of a whole GPU, by all processes. From NVML if torch can query it."""
    import torch

    try:
        used = torch.cuda.device_memory_used(gpu_id)
    except (AttributeError, ModuleNotFoundError):
        free, total = torch.cuda.mem_get_info(gpu_id)
        used = total - free
    print(f"GPU {gpu_id} memory: {used / 1024 ** 3:.2f} GB ({message})")
    return used
