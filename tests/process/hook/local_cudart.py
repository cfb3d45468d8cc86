"""Under the hook, a CUDA runtime that was loaded with RTLD_LOCAL, as by an extension module of Python: the hook finds its functions, and not its
own. usage: FILE"""
import ctypes

MIB = 1 << 20
ctypes.CDLL("libcudart.so.12", ctypes.RTLD_LOCAL)
program = ctypes.CDLL(None)
address = ctypes.c_void_p()
assert program.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(MIB)) == 0 and address.value
assert program.cudaFree(address) == 0
with open("/proc/self/maps") as maps:
    loaded = maps.read()
assert "libcudart.so.12" in loaded and "libcudart.so.13" not in loaded
