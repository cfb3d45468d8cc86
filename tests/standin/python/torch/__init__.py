"""As much of torch as Neap's Python packages touch, over the stand-in CUDA libraries.

Allocations go where torch would send them: to the pool that the thread uses (its pluggable
allocator, or cudaMalloc), cached in that pool until empty_cache() or the pool's end. Tensors are
ranges of that memory. Tests on a GPU use the real torch.
"""

import ctypes

from . import cuda, memory_calls

uint8 = "uint8"
float32 = "float32"
_ITEM = {"uint8": 1, "float32": 4}


class OutOfMemoryError(RuntimeError):
    pass


class version:
    cuda = "13.0"
    hip = None


class device:
    def __init__(self, text, index=None):
        kind, _, number = str(text).partition(":")
        self.type = kind
        self.index = int(number) if number else index


class Tensor:
    """A range of device memory (with an owner that frees it) or of host memory."""

    def __init__(self, address, nbytes, dtype, shape, owner=None, is_cuda=True):
        self._address, self.nbytes, self.dtype, self.shape = address, nbytes, dtype, shape
        self._owner = owner
        self.is_cuda = is_cuda
        self.device = "cuda:0" if is_cuda else "cpu"

    def data_ptr(self):
        return self._address

    def is_contiguous(self):
        return True

    def stride(self):
        return (1,)

    def view(self, dtype):
        return Tensor(self._address, self.nbytes, dtype, (self.nbytes // _ITEM[dtype],),
                      self._owner or self, self.is_cuda)

    def reshape(self, shape):
        return Tensor(self._address, self.nbytes, self.dtype, shape, self._owner or self,
                      self.is_cuda)

    def clone(self):
        copy = ctypes.create_string_buffer(self.bytes(), self.nbytes)
        return Tensor(ctypes.addressof(copy), self.nbytes, self.dtype, self.shape, copy, False)

    def bytes(self):
        return ctypes.string_at(self._address, self.nbytes)

    def write(self, data):
        assert len(data) == self.nbytes
        ctypes.memmove(self._address, data, self.nbytes)


def empty(count, dtype=uint8, device="cpu"):
    nbytes = count * _ITEM[dtype]
    assert str(device).startswith("cuda")
    block = cuda.Block(nbytes)
    return Tensor(block.address, nbytes, dtype, (count,), block)


def frombuffer(buffer, dtype):
    return Tensor(ctypes.addressof(buffer), len(buffer), dtype, (len(buffer),), buffer, False)


class _C:
    settings = []

    @staticmethod
    def _accelerator_setAllocatorSettings(text):
        _C.settings.append(text)


memory_calls.out_of_memory = OutOfMemoryError
