"""Shares pages with other processes, without a copy."""

import ctypes
import os
import socket
import struct
from ctypes import byref, c_size_t, c_uint64, c_void_p

from . import _library as lib
from ._errors import InvalidArgumentError
from ._regions import Region, address_of, info

_HEADER = struct.Struct("<8sQQ")  # mark, pages, size of the region
_PAGE = struct.Struct("<QQQ")  # offset, size, lead
_MARK = b"NEAPPAGE"
_FDS_A_MESSAGE = 100
_MOST_PAGES = 1 << 20


class Export:
    """Descriptors of a region's pages. Close it, or use it in a `with` statement."""

    def __init__(self, pages, size):
        self.pages = pages  #: (descriptor, offset, size, lead)
        self.size = size

    def send(self, connection):
        """Sends the pages over a connected Unix socket; the other process calls receive()."""
        connection.sendall(_HEADER.pack(_MARK, len(self.pages), self.size))
        for begin in range(0, len(self.pages), _FDS_A_MESSAGE):
            part = self.pages[begin : begin + _FDS_A_MESSAGE]
            data = b"".join(_PAGE.pack(*numbers) for _, *numbers in part)
            socket.send_fds(connection, [data], [page[0] for page in part])

    def close(self):
        pages, self.pages = self.pages, []
        for page in pages:
            os.close(page[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def export_region(what):
    """Exports the pages of the resident region that contains a tensor, Region or address."""
    region = info(what)
    count = c_size_t()
    capacity = 1024
    while True:
        raw = (lib.Page * capacity)()
        status = lib.library().cdll.neap_export(region.address, raw, capacity, byref(count))
        if status == 0:
            break
        if count.value <= capacity:
            lib.library().raise_last(status)
        capacity = count.value
    pages = [(page.descriptor, page.offset, page.size, page.lead) for page in raw[: count.value]]
    return Export(pages, region.size)


def import_region(pages, tag, *, device=0):
    """Makes a Region over pages of another process. `pages` is an Export, or its pages."""
    pages = getattr(pages, "pages", pages)
    raw = (lib.Page * max(len(pages), 1))()
    for i, (descriptor, offset, size, lead) in enumerate(pages):
        raw[i] = lib.Page(descriptor, 0, offset, size, lead)
    address = c_void_p()
    lib.library().call("neap_import", lib.ordinal(device), lib.encoded(tag, "a tag"), raw,
                       len(pages), byref(address))
    return Region(address.value)


def _receive_exactly(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the connection ended in the middle of a hand-over")
        data += part
    return data


def receive(connection, tag, *, device=0):
    """Receives the pages of Export.send() and makes a Region over them."""
    mark, count, _ = _HEADER.unpack(_receive_exactly(connection, _HEADER.size))
    if mark != _MARK or not 0 < count <= _MOST_PAGES:
        raise InvalidArgumentError("the message is not an export of Neap")
    pages = []
    try:
        while len(pages) < count:
            expected = min(count - len(pages), _FDS_A_MESSAGE)
            data, descriptors, _, _ = socket.recv_fds(connection, expected * _PAGE.size, expected)
            for descriptor in descriptors:
                pages.append((descriptor, 0, 0, 0))
            if len(descriptors) != expected:
                raise EOFError("an export has too few descriptors")
            data += _receive_exactly(connection, expected * _PAGE.size - len(data))
            for i in range(expected):
                at = len(pages) - expected + i
                pages[at] = (pages[at][0], *_PAGE.unpack_from(data, i * _PAGE.size))
        return import_region(pages, tag, device=device)
    finally:
        for page in pages:
            os.close(page[0])


_open_importers = set()  # their threads call Python until they are closed


class Exporter:
    """Shares regions with other processes at a Unix socket; docs/hand-over.md.

    Before a shared region is paused, its importers are asked to unmap it. The pause waits for them.
    """

    def __init__(self, path):
        handle = c_void_p()
        lib.library().call("neap_exporter_open", os.fsencode(path), byref(handle))
        self._handle = handle

    def offer(self, name, what, *, revoke_timeout=10.0):
        """Lets importers map the region of a tensor, Region or address under `name`."""
        region = info(what)
        if region.address != address_of(what):
            raise InvalidArgumentError(
                f"the address lies {address_of(what) - region.address} bytes inside a region of "
                f'tag "{region.tag}"; offer the region itself')
        lib.library().call("neap_exporter_offer", self._handle, lib.encoded(name, "a name"),
                           region.address, lib.milliseconds(revoke_timeout))

    def withdraw(self, name, *, timeout=10.0):
        lib.library().call("neap_exporter_withdraw", self._handle, lib.encoded(name, "a name"),
                           lib.milliseconds(timeout))

    def importers(self, name):
        count = c_uint64()
        lib.library().call("neap_exporter_importers", self._handle, lib.encoded(name, "a name"),
                           byref(count))
        return count.value

    def close(self, *, timeout=10.0):
        if self._handle is not None:
            handle, self._handle = self._handle, None
            lib.library().call("neap_exporter_close", handle, lib.milliseconds(timeout))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Importer:
    """Maps what an Exporter offers.

    on_revoked(name, address, lost) is called on a thread of the importer before a region is unmapped.
    It must return only when the memory is no longer used. If `lost` is true, the exporter is gone,
    and the region stays mapped until drop().
    """

    def __init__(self, path, on_revoked=None):
        self._on_revoked = on_revoked
        self.error = None  #: the last exception of on_revoked
        self._callback = lib.REVOKED(self._revoked)
        handle = c_void_p()
        lib.library().call("neap_importer_open", os.fsencode(path), self._callback, None,
                           byref(handle))
        self._handle = handle
        _open_importers.add(self)

    def _revoked(self, name, address, lost, _):
        if self._on_revoked is None:
            return
        try:
            self._on_revoked(name.decode(), address, bool(lost))
        except BaseException as error:  # C code must not see it
            self.error = error

    def take(self, name, tag=None, *, device=0, wait=0.0):
        """Maps the region offered under `name` and returns a Region. Its `version` is the exporter's."""
        address, size, version = c_void_p(), c_uint64(), c_uint64()
        lib.library().call("neap_importer_take", self._handle, lib.encoded(name, "a name"), lib.ordinal(device),
                           lib.encoded(tag or name, "a tag"), lib.milliseconds(wait), byref(address),
                           byref(size), byref(version))
        region = Region(address.value, on_destroy=lambda: self.drop(name))
        region.exporter_version = version.value
        return region

    def drop(self, name):
        lib.library().call("neap_importer_drop", self._handle, lib.encoded(name, "a name"))

    def close(self):
        if self._handle is not None:
            lib.library().call("neap_importer_close", self._handle)
            self._handle = None
            _open_importers.discard(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
