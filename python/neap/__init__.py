"""Neap: GPU memory in tagged regions. A region keeps its address while its memory is released and restored.

    with neap.region("weights", policy="host"):
        model = build_model()
    neap.pause("weights")      # others can use the memory; contents are on the host
    neap.resume("weights")     # same addresses, same contents

Works with torch 2.6 and newer, and without torch. docs/python.md has the details.
"""

from ._errors import (AlreadyExistsError, BusyError, CancelledError, DeviceLostError, DriverError,
                      InvalidArgumentError, IoError, NeapError, NotFoundError,
                      OutOfHostMemoryError, OutOfMemoryError, TimeoutExpired, UnsupportedError)
from ._hand_over import Export, Exporter, Importer, export_region, import_region, receive
from ._hooks import disabled, graph, hook_mode, preload, region, set_hook_mode, torch_allocator
from ._library import library, library_path
from ._regions import (Callbacks, Move, Policy, Region, RegionInfo, State, add_callbacks, alias,
                       allocate, configure, device_count, exchange, grant_peer, host_copy, info,
                       keep_resident, mark, pause, phase, prepare, prometheus, regions,
                       release_store, resume, stats, trace)

__version__ = "0.1.0"

__all__ = [name for name in dir() if not name.startswith("_")]
