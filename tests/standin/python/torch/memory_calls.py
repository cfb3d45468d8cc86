"""cudaMalloc and cudaFree, called from a library as torch calls them."""

import ctypes
import os

_calls = ctypes.CDLL(os.path.join(os.environ["NEAP_STANDIN_DIR"], "libstandin_torch.so"))
out_of_memory = RuntimeError


def device():
    return _calls.standin_torch_device()


def set_device(index):
    assert _calls.standin_torch_set_device(index) == 0


def allocate(size):
    """The address, or None when cudaMalloc says that the device is full."""
    at = ctypes.c_void_p()
    result = _calls.standin_torch_malloc(ctypes.byref(at), ctypes.c_size_t(size))
    assert result in (0, 2), f"cudaMalloc failed with {result}"
    return at.value if result == 0 else None


def free(address):
    result = _calls.standin_torch_free(ctypes.c_void_p(address))
    assert result == 0, f"cudaFree failed with {result}"


def mem_get_info():
    free_bytes, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert _calls.standin_torch_memory(ctypes.byref(free_bytes), ctypes.byref(total)) == 0
    return free_bytes.value, total.value
