"""For tests of programs that use the package; not an interface for anyone else."""


def get_device() -> str:
    return "cuda"


def empty_cache():
    import torch

    torch.cuda.empty_cache()


def get_and_print_gpu_memory(message: str, gpu_id: int = 0) -> int:
    """Used bytes of a whole GPU, by all processes."""
    import torch

    free, total = torch.cuda.mem_get_info(gpu_id)
    used = total - free
    print(f"GPU {gpu_id} memory: {used / 2**30:.2f} GB ({message})")
    return used
