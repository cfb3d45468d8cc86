"""torch's pluggable allocator: two functions of a library, by name."""

import ctypes


class CUDAPluggableAllocator:
    def __init__(self, path, malloc_name, free_name):
        library = ctypes.CDLL(path)
        self._malloc = getattr(library, malloc_name)
        self._malloc.restype = ctypes.c_void_p
        self._malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._free = getattr(library, free_name)
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    def allocator(self):
        return self

    def malloc(self, size, device):
        return self._malloc(size, device, None)

    def free(self, address, size, device):
        self._free(address, size, device, None)
