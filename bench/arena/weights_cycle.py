#!/usr/bin/env python3
"""What the driver takes to move 14 GiB of weights to the host and back, by the order of its calls.

    bench/arena/weights_cycle.py [OUT.jsonl] [--gib N] [--cycles N] [--only CASE]

The order of the arena's steps in a pause and a resume (src/arena/pause_resume.cpp) comes from these
figures. Plain driver calls, no arena. Needs a GPU with 80 GiB free and as much host memory as --gib, no
torch. Each line has the median and the range of its cycles in milliseconds.
"""

import argparse
import ctypes
import json
import mmap
import queue
import statistics
import sys
import threading
import time

GIB, MIB = 1 << 30, 1 << 20
PAGE = 512 * MIB      # a device page, as the arena makes them for contents that are copied
CHUNK = 128 * MIB     # host memory pinned at once
HUGE = 2 * MIB

cuda = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None, use_errno=True)
u64, size_t, pointer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
libc.mmap.restype = pointer
libc.mmap.argtypes = [pointer, size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [pointer, size_t, ctypes.c_int]
libc.munmap.argtypes = [pointer, size_t]
DONTNEED, HUGEPAGE = 4, 14


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("where", ctypes.c_int),
                ("id", ctypes.c_int), ("windows", pointer), ("compression", ctypes.c_ubyte),
                ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]


class Access(ctypes.Structure):
    _fields_ = [("where", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise RuntimeError(f"{name} failed with {code}")


def now():
    return time.perf_counter() * 1e3


class Pages:
    """A reserved range of device memory with its pages."""

    def __init__(self, size, page, handle_types=1):
        self.size, self.page = size, page
        self.base = u64()
        call("cuMemAddressReserve", ctypes.byref(self.base), size_t(size), size_t(0), u64(0), u64(0))
        self.handles = [u64() for _ in range(size // page)]
        self.properties = Properties(type=1, handle_types=handle_types, where=1, id=0, rdma=1)
        self.access = Access(1, 0, 3)

    def at(self, i):
        return u64(self.base.value + i * self.page)

    def create(self, i):
        call("cuMemCreate", ctypes.byref(self.handles[i]), size_t(self.page),
             ctypes.byref(self.properties), u64(0))

    def map(self, i):
        call("cuMemMap", self.at(i), size_t(self.page), size_t(0), self.handles[i], u64(0))
        call("cuMemSetAccess", self.at(i), size_t(self.page), ctypes.byref(self.access), size_t(1))

    def unmap(self, i):
        call("cuMemUnmap", self.at(i), size_t(self.page))

    def release(self, i):
        call("cuMemRelease", self.handles[i])

    def all(self, *steps):
        for step in steps:
            for i in range(len(self.handles)):
                step(i)


def in_threads(count, jobs, work):
    """work(job) for every job, by `count` threads; ctypes calls run at the same time."""
    todo = iter(jobs)
    lock = threading.Lock()

    def run():
        while True:
            with lock:
                job = next(todo, None)
            if job is None:
                return
            work(job)

    threads = [threading.Thread(target=run) for _ in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]


class Host:
    """Host memory in huge pages, touched by threads and pinned in chunks."""

    def __init__(self, size):
        self.size = size
        start = libc.mmap(None, size + HUGE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)
        self.start = start
        self.base = -(-start // HUGE) * HUGE
        libc.madvise(self.base, size, HUGEPAGE)

    def touch(self, threads):
        in_threads(threads, range(0, self.size, 16 * MIB),
                   lambda at: ctypes.memset(self.base + at, 0, min(16 * MIB, self.size - at)))

    def chunks(self):
        return range(0, self.size, CHUNK)

    def pin(self, at):
        call("cuCtxSetCurrent", context)
        call("cuMemHostRegister_v2", pointer(self.base + at), size_t(CHUNK), ctypes.c_uint(1))

    def unpin(self, at):
        call("cuCtxSetCurrent", context)
        call("cuMemHostUnregister", pointer(self.base + at))

    def discard(self, threads):
        in_threads(threads, self.chunks(), lambda at: libc.madvise(self.base + at, CHUNK, DONTNEED))

    def unmap(self):
        libc.munmap(self.start, self.size + HUGE)


context = pointer()
CREATE = {False: "at the beginning", True: "before each copy", "map first": "and map at the beginning"}


class Bench:
    def __init__(self, arguments):
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)
        self.size, self.cycles, self.only = arguments.gib * GIB, arguments.cycles, arguments.only
        self.stream = pointer()
        call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.events = [pointer() for _ in range(self.size // PAGE)]
        for event in self.events:
            call("cuEventCreate", ctypes.byref(event), 2)
        self.lines = []

    def line(self, name, times):
        found = {"case": name}
        for key, values in times.items():
            found[key] = [round(statistics.median(values), 2), round(min(values), 2), round(max(values), 2)]
        self.lines.append(found)
        print(json.dumps(found), flush=True)

    def repeat(self, name, cycle):
        """cycle(clock): clock("name") ends a lap."""
        times = {}
        for _ in range(self.cycles):
            begin = last = now()

            def clock(key, restart=False):
                nonlocal last
                if not restart:
                    times.setdefault(key, []).append(now() - last)
                last = now()

            cycle(clock)
            times.setdefault("whole", []).append(now() - begin)
        self.line(name, times)

    def copy(self, i, to_host):
        at, host = self.pages.base.value + i * PAGE, self.host.base + i * PAGE
        for offset in range(0, PAGE, CHUNK):
            if to_host:
                call("cuMemcpyDtoHAsync_v2", pointer(host + offset), u64(at + offset), size_t(CHUNK), self.stream)
            else:
                call("cuMemcpyHtoDAsync_v2", u64(at + offset), pointer(host + offset), size_t(CHUNK), self.stream)
        call("cuEventRecord", self.events[i], self.stream)

    def wait(self, i):
        call("cuEventSynchronize", self.events[i])

    def drain(self, _=None):
        call("cuStreamSynchronize", self.stream)

    # --- cases -----------------------------------------------------------------------------------
    def pause(self, clock, early_release=False, keep=False):
        pages = self.pages
        pages.all(lambda i: self.copy(i, True))
        for i in range(len(self.events)):
            self.wait(i)
            pages.unmap(i)
            if early_release:
                pages.release(i)
        clock("pause: copy, unmap" + (", release" if early_release else ""))
        if not early_release and not keep:
            pages.all(pages.release)
            clock("pause: release")

    def resume(self, clock, pipelined=False, keep=False):
        pages = self.pages
        if not pipelined and not keep:
            pages.all(pages.create)
            clock("resume: create")
        if pipelined == "map first":
            pages.all(pages.create, pages.map)
            clock("resume: create, map")
        for i in range(len(self.events)):
            if pipelined is True and not keep:
                pages.create(i)
            if pipelined != "map first":
                pages.map(i)
            self.copy(i, False)
            if i == 0:
                clock("resume: first page")
        clock("resume: " + ("create, " if pipelined is True and not keep else "") + "map, ask for copies")
        self.drain()
        clock("resume: rest of the copies")

    def moves(self):
        for early in (False, True):
            for pipelined in (False, True, "map first"):
                for rest in (0, 0.3):
                    def cycle(clock):
                        self.pause(clock, early)
                        time.sleep(rest)
                        clock("", restart=True)
                        self.resume(clock, pipelined)
                        time.sleep(0.2)
                    self.repeat(f"release {'behind each copy' if early else 'at the end'}, create "
                                f"{CREATE[pipelined]}, rest {rest} s", cycle)
        def kept(clock):
            self.pause(clock, keep=True)
            self.resume(clock, keep=True)
        self.repeat("pages kept", kept)

    def discarded(self):
        """64 GiB without contents, released and created again."""
        other = Pages(64 * GIB, GIB)
        other.all(other.create, other.map)
        call("cuMemsetD8_v2", other.base, ctypes.c_ubyte(1), size_t(64 * GIB))
        call("cuCtxSynchronize")

        def cycle(order, rest):
            def run(clock):
                if order == "each":
                    for i in range(len(other.handles)):
                        other.unmap(i)
                        other.release(i)
                else:
                    call("cuMemUnmap", other.base, size_t(other.size))
                    other.all(other.release)
                clock("unmap, release")
                time.sleep(rest)
                clock("", restart=True)
                if order == "each":
                    for i in range(len(other.handles)):
                        other.create(i)
                        other.map(i)
                    clock("create, map, access each")
                else:
                    other.all(other.create)
                    clock("create")
                    for i in range(len(other.handles)):
                        call("cuMemMap", other.at(i), size_t(other.page), size_t(0), other.handles[i], u64(0))
                    clock("map")
                    if order == "all":
                        call("cuMemSetAccess", other.base, size_t(other.size), ctypes.byref(other.access), size_t(1))
                    else:
                        for i in range(len(other.handles)):
                            call("cuMemSetAccess", other.at(i), size_t(other.page), ctypes.byref(other.access), size_t(1))
                    clock("access")
                time.sleep(0.3)
                clock("", restart=True)
            return run
        for rest in (0, 0.1, 0.3):
            for order in ("all", "each", "access each"):
                self.repeat(f"64 GiB, {order}, rest {rest} s", cycle(order, rest))
        other.all(other.unmap, other.release)

    def kinds(self):
        """64 GiB without contents in turns, because a process's cycles drift by more than these differ: pages that
        can be exported as descriptors or not; all released behind the last unmap, each behind its own, or by a second
        thread while the first goes on; taken again by one call for all or page by page; with the question for free
        memory before, as the arena asks it."""
        times = {}

        def cycle(handle_types, order, ask=False):
            pages = Pages(64 * GIB, GIB, handle_types)
            pages.all(pages.create, pages.map)
            call("cuMemsetD8_v2", pages.base, ctypes.c_ubyte(1), size_t(pages.size))
            call("cuCtxSynchronize")
            time.sleep(0.2)
            found = times.setdefault(f"{'descriptors' if handle_types else 'private'}, {order}{', asks' if ask else ''}", {})
            begin = now()
            if order == "two threads":
                unmapped = queue.SimpleQueue()

                def release():
                    call("cuCtxSetCurrent", context)
                    for i in iter(unmapped.get, None):
                        pages.release(i)
                thread = threading.Thread(target=release)
                thread.start()
                for i in range(len(pages.handles)):
                    pages.unmap(i)
                    unmapped.put(i)
                unmapped.put(None)
                thread.join()
            elif order == "all":
                pages.all(pages.unmap, pages.release)
            else:
                for i in range(len(pages.handles)):
                    pages.unmap(i)
                    pages.release(i)
            found.setdefault("pause", []).append(now() - begin)
            begin = now()
            if ask:
                free, whole = size_t(), size_t()
                call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole))
                found.setdefault("asking", []).append(now() - begin)
            if order == "all":
                pages.all(pages.create, pages.map)
            else:
                for i in range(len(pages.handles)):
                    pages.create(i)
                    pages.map(i)
            found.setdefault("resume", []).append(now() - begin)
            pages.all(pages.unmap, pages.release)
            call("cuMemAddressFree", pages.base, size_t(pages.size))
            time.sleep(0.2)

        cases = [(types, order) for order in ("each", "all", "two threads") for types in (0, 1)]
        for _ in range(2 * self.cycles):
            for types, order in cases:
                cycle(types, order)
            cycle(1, "each", ask=True)
        for name, found in times.items():
            self.line(f"64 GiB, {name}", found)

    def scrubbing(self):
        """Copies while the driver clears 64 GiB that another tag released."""
        other = Pages(64 * GIB, GIB)
        other.all(other.create, other.map)
        call("cuMemsetD8_v2", other.base, ctypes.c_ubyte(1), size_t(GIB))
        call("cuCtxSynchronize")

        def cycle(clock):
            other.all(other.unmap, other.release)
            clock("release 64 GiB")
            self.pages.all(lambda i: self.copy(i, True))
            self.drain()
            clock("to the host right after")
            other.all(other.create, other.map)
            clock("create 64 GiB")
            time.sleep(0.3)
            clock("", restart=True)
            self.pages.all(lambda i: self.copy(i, True))
            self.drain()
            clock("to the host after a rest")
        self.repeat("copies beside the clearing of released memory", cycle)
        other.all(other.unmap, other.release)

    def unpinning(self):
        host, pages = self.host, self.pages

        def pin_again(clock):
            for at in host.chunks():
                host.pin(at)
            clock("pin all")
            time.sleep(0.1)
            clock("", restart=True)

        def behind(clock):
            pages.all(lambda i: self.copy(i, False))
            clock("ask for copies")
            for i in range(len(self.events)):
                self.wait(i)
                for at in range(i * PAGE, (i + 1) * PAGE, CHUNK):
                    host.unpin(at)
                if i == 0:
                    clock("first page copied and unpinned")
            clock("others copied and unpinned")
            pin_again(clock)

        def after(threads):
            def cycle(clock):
                pages.all(lambda i: self.copy(i, False))
                self.drain()
                clock("copy all")
                in_threads(threads, host.chunks(), host.unpin)
                clock("unpin all")
                pin_again(clock)
            return cycle

        self.repeat("to the device, unpin behind the copies", behind)
        for threads in (1, 4, 8):
            self.repeat(f"to the device, unpin afterwards, threads {threads}", after(threads))

    def host_memory(self):
        def fresh(touching, discarding):
            def cycle(clock):
                host = Host(self.size)
                clock("mmap")
                host.touch(touching)
                clock("touch")
                in_threads(1, host.chunks(), host.pin)
                clock("pin")
                in_threads(1, host.chunks(), host.unpin)
                clock("unpin")
                if discarding:
                    host.discard(discarding)
                    clock("discard")
                host.unmap()
                clock("munmap")
            return cycle
        for touching, discarding in ((8, 0), (12, 8), (16, 16)):
            self.repeat(f"fresh memory, touched by {touching} threads, discarded by {discarding}",
                        fresh(touching, discarding))

    def flags(self):
        """Whether cudaHostGetFlags knows registered memory, as it knows allocated memory."""
        runtime = None
        for major in (13, 12):
            try:
                runtime = ctypes.CDLL(f"libcudart.so.{major}")
                break
            except OSError:
                continue
        value = ctypes.c_uint()
        driver = cuda.cuMemHostGetFlags(ctypes.byref(value), pointer(self.host.base))
        found = {"case": "flags of registered memory", "cuMemHostGetFlags": driver, "flags": value.value}
        if runtime is not None:
            found["cudaHostGetFlags"] = runtime.cudaHostGetFlags(ctypes.byref(value), pointer(self.host.base))
            found["inside a chunk"] = runtime.cudaHostGetFlags(ctypes.byref(value), pointer(self.host.base + 4096))
            plain = Host(4 * MIB)
            plain.touch(1)
            found["plain memory"] = runtime.cudaHostGetFlags(ctypes.byref(value), pointer(plain.base))
        self.lines.append(found)
        print(json.dumps(found), flush=True)

    def run(self):
        self.host = Host(self.size)
        self.host.touch(8)
        for at in self.host.chunks():
            self.host.pin(at)
        self.pages = Pages(self.size, PAGE)
        self.pages.all(self.pages.create, self.pages.map)
        for case in (self.flags, self.moves, self.discarded, self.kinds, self.scrubbing, self.unpinning, self.host_memory):
            if self.only not in ("", case.__name__):
                continue
            try:
                case()
            except (RuntimeError, AttributeError) as error:
                self.lines.append({"case": case.__name__, "failed": str(error)})
                print(self.lines[-1], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?")
    parser.add_argument("--gib", type=int, default=14)
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--only", default="", help="one of the cases, as flags, moves or kinds")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    bench.run()
    if arguments.out:
        with open(arguments.out, "w") as out:
            out.writelines(json.dumps(line) + "\n" for line in bench.lines)
    return 1 if any("failed" in line for line in bench.lines) else 0


if __name__ == "__main__":
    sys.exit(main())
