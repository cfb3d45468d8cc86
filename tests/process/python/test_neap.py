"""The package neap on the host device: no GPU, no torch."""

from conftest import environment, run


def test_imports_without_torch_and_without_device():
    run("""
        import neap
        assert "torch" not in sys.modules
        assert neap.device_count() == 1 and neap.regions() == []
        assert neap.stats()["devices"] == []      # nothing was opened
        """)


def test_graph_buffers_are_not_registered_from_the_import_on():
    run("""
        import neap
        assert os.environ["NCCL_GRAPH_REGISTER"] == "0"
        """, environment(NCCL_GRAPH_REGISTER=None))
    run("""
        import neap
        assert os.environ["NCCL_GRAPH_REGISTER"] == "1"
        """, environment(NCCL_GRAPH_REGISTER="1"))
    run("""
        import neap
        hook = neap.library()
        del os.environ["NCCL_GRAPH_REGISTER"]                    # no later call sets it
        hook.call("neap_scope_enter", ctypes.byref(neap._library.Scope(tag=b"kv", enabled=1)))
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        assert getenv(b"NCCL_GRAPH_REGISTER") is None
        """)


def test_contents_survive_by_policy():
    run("""
        import neap
        regions = {}
        for policy in ("discard", "host", "disk", "zero"):
            region = neap.allocate(3 * MIB, tag=policy, policy=policy)
            ctypes.memset(region.address, 7, 3 * MIB)
            regions[policy] = region
        addresses = {policy: region.address for policy, region in regions.items()}
        moved = neap.pause()
        assert moved.regions == 4 and moved.copied == 8 * MIB, moved
        assert neap.stats()["devices"][0]["page_store"] == 0     # the memory is there for others
        assert neap.stats()["devices"][0]["free"] == 64 * MIB
        assert all(region.info.state == neap.State.PAUSED for region in regions.values())
        assert bytes(neap.host_copy(regions["host"]))[:4] == bytes([7] * 4)
        try:
            neap.host_copy(regions["discard"])
            assert False
        except neap.NotFoundError:
            pass
        neap.resume(["host", "disk"])
        assert regions["zero"].info.state == neap.State.PAUSED
        neap.resume()
        assert {policy: region.address for policy, region in regions.items()} == addresses
        for policy, byte in (("host", 7), ("disk", 7), ("zero", 0)):
            assert set(ctypes.string_at(addresses[policy], 3 * MIB)) == {byte}, policy
        assert neap.pause("host", keep_pages=True).regions == 1
        assert neap.pause("host").regions == 0
        assert neap.stats()["devices"][0]["page_store"] == 4 * MIB
        hits = neap.stats()["devices"][0]["store_hits"]
        neap.resume("host")
        assert neap.stats()["devices"][0]["store_hits"] > hits
        for region in regions.values():
            region.destroy()
        """)


def test_out_of_memory_says_who_holds_what_and_changes_nothing():
    run("""
        import neap
        first = neap.allocate(40 * MIB, tag="weights")
        second = neap.allocate(40 * MIB, tag="kv", paused=True)
        before = time.monotonic()
        try:
            neap.resume("kv", wait=0.2)
            assert False
        except neap.OutOfMemoryError as error:
            assert time.monotonic() - before >= 0.2
            assert error.code == 4 and error.need == 40 * MIB and error.free == 24 * MIB
            assert error.holders == (("weights", 40 * MIB),), error.holders
            assert "weights" in str(error)
        assert second.info.state == neap.State.PAUSED
        assert first.info.state == neap.State.RESIDENT
        neap.exchange("weights", "kv")
        assert second.info.mapped == 40 * MIB and first.info.mapped == 0
        first.destroy(); second.destroy()
        assert neap.release_store() == 40 * MIB
        assert isinstance(neap.OutOfMemoryError(), RuntimeError)
        """)


def test_errors_have_types():
    run("""
        import neap
        for call, kind in ((lambda: neap.info(0x1000), neap.NotFoundError),
                           (lambda: neap.info(0x1000), LookupError),
                           (lambda: neap.allocate(0), ValueError),
                           (lambda: neap.allocate(MIB, device=9), neap.InvalidArgumentError),
                           (lambda: neap.allocate(MIB, policy="keep"), neap.InvalidArgumentError),
                           (lambda: neap.set_hook_mode("preload"), neap.UnsupportedError),
                           (lambda: neap.region("x").__enter__(), neap.UnsupportedError),
                           (lambda: neap.Importer("/nowhere/socket"), neap.NotFoundError)):
            try:
                call()
            except kind as error:
                assert isinstance(error, neap.NeapError) and error.code != 0
            else:
                assert False, kind
        """)


def test_arguments_of_a_wrong_kind_are_named():
    run("""
        import neap
        for call, kind, words in (
                (lambda: neap.allocate(-1, "x"), ValueError, "a size in bytes is -1"),
                (lambda: neap.allocate(1 << 64), ValueError, "a size in bytes is"),
                (lambda: neap.allocate("5MiB"), TypeError, "a size in bytes is an int, not str"),
                (lambda: neap.allocate(MIB, 5), TypeError, "a tag is a str, not int"),
                (lambda: neap.allocate(MIB, "a\\0b"), ValueError, "NUL"),
                (lambda: neap.allocate(MIB, device=1 << 32), ValueError, "a device is"),
                (lambda: neap.pause(5), TypeError, "tags are a str, several or None, not int"),
                (lambda: neap.pause(["a", 5]), TypeError, "a tag is a str, not int"),
                (lambda: neap.regions(5), TypeError, "a tag is a str, not int"),
                (lambda: neap.release_store(-1), ValueError, "a size in bytes is -1")):
            try:
                call()
            except kind as error:
                assert words in str(error), error
            else:
                assert False, words
        neap.allocate(MIB, "caf\u00e9").destroy()
        """)


def test_callbacks_can_stop_a_pause():
    run("""
        import neap
        region = neap.allocate(2 * MIB, tag="nccl", policy="host")
        seen = []
        telling = neap.add_callbacks("nccl", before_unmap=lambda r: seen.append(("out", r.address)),
                                     after_map=lambda r: seen.append(("in", r.version)))
        neap.pause("nccl"); neap.resume("nccl")
        assert seen[0] == ("out", region.address) and seen[1][0] == "in"
        def refuse(_):
            raise RuntimeError("still registered")
        refusing = neap.add_callbacks("nccl", before_unmap=refuse)
        try:
            neap.pause("nccl")
            assert False
        except neap.CancelledError:
            assert str(refusing.error) == "still registered"
        assert region.info.state == neap.State.RESIDENT
        refusing.remove(); telling.remove()
        assert neap.pause("nccl").regions == 1
        """)


def test_alias_shrink_and_grow():
    run("""
        import neap
        trainer = neap.allocate(8 * MIB, tag="trainer")
        rollout = neap.alias(trainer, tag="rollout")
        ctypes.memset(trainer.address, 9, 8 * MIB)
        assert ctypes.string_at(rollout.address, 8 * MIB) == bytes([9]) * (8 * MIB)
        rollout.destroy()
        kv = neap.allocate(16 * MIB, tag="kv")
        gave = kv.shrink(8 * MIB, 8 * MIB).bytes
        assert kv.info.mapped == kv.size - gave
        kv.grow(8 * MIB, 8 * MIB)
        assert kv.info.mapped == kv.size
        assert kv.__cuda_array_interface__["data"] == (kv.address, False)
        """)


def test_keep_resident_and_peers():
    run("""
        import neap
        stays = neap.allocate(4 * MIB, tag="mixed", policy="host")
        goes = neap.allocate(4 * MIB, tag="mixed", policy="host")
        ctypes.memset(stays.address, 7, 4 * MIB)
        assert neap.keep_resident(stays.address + MIB) == 4 * MIB and stays.info.kept
        assert neap.pause("mixed").bytes == 4 * MIB
        assert ctypes.string_at(stays.address, 4 * MIB) == bytes([7]) * (4 * MIB)
        try:
            neap.keep_resident(goes); assert False
        except neap.BusyError as error:
            assert "resume it first" in str(error), error
        neap.resume()
        assert neap.keep_resident(stays, keep=False) == 0 and not stays.info.kept
        assert neap.pause().bytes == 8 * MIB
        neap.grant_peer(0, 1)
        try:
            neap.grant_peer(0, -1); assert False
        except neap.InvalidArgumentError: pass
        """, environment(NEAP_HOOK_DEVICE="host:64MiBx2"))


def test_stats_trace_and_prometheus(tmp_path):
    trace = tmp_path / "run.trace"
    run(f"""
        import neap
        with neap.trace({str(trace)!r}):
            with neap.phase("generate"):
                region = neap.allocate(4 * MIB, tag="kv", policy="host")
                neap.pause("kv"); neap.resume("kv")
            neap.mark("done")
        stats = neap.stats()
        assert stats["schema"] == 1
        device = stats["devices"][0]
        assert device["free"] <= device["total"] == 64 * MIB
        tag = next(t for t in device["tags"] if t["tag"] == "kv")
        assert tag["mapped"] == 4 * MIB and tag["pauses"] == 1 and tag["resumes"] == 1
        assert tag["copied_to_host"] == 4 * MIB and tag["pause_seconds"] > 0
        text = neap.prometheus()
        assert 'neap_tag_bytes{{device="0",tag="kv",place="mapped"}} 4194304' in text
        for line in text.splitlines():
            assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2
        """)
    data = trace.read_bytes()
    assert data[:8] == b"NEAPTRC\n" and len(data) > 64


def test_fork_is_refused_in_the_child_and_harmless_before():
    run("""
        import neap
        child = os.fork()                       # before any device is open: a process like another
        if child == 0:
            neap.allocate(MIB, tag="child").destroy()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        region = neap.allocate(MIB, tag="parent", policy="host")
        child = os.fork()
        if child == 0:
            try:
                neap.pause()
            except neap.UnsupportedError as error:
                sys.exit(0 if "fork" in str(error) else 3)
            sys.exit(4)
        assert os.waitpid(child, 0)[1] == 0
        neap.pause(); neap.resume()
        """)


def test_threads_pause_and_resume_at_once():
    run("""
        import neap
        regions = [neap.allocate(MIB, tag=f"t{i}", policy="host") for i in range(4)]
        failures = []
        def work(i):
            try:
                for step in range(25):
                    neap.pause(f"t{i}"); neap.resume(f"t{i}")
                    regions[i].info
            except Exception as error:
                failures.append(error)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not failures, failures
        """)


def test_configure_before_and_after_a_device_is_open(tmp_path):
    run(f"""
        import neap
        neap.configure(disk_folder={str(tmp_path)!r}, keep_host_buffers=False)
        region = neap.allocate(2 * MIB, tag="d", policy="disk")
        neap.pause("d"); neap.resume("d")
        kept = neap.allocate(2 * MIB, tag="k", policy="host")
        neap.pause("k")
        neap.configure(disk_folder={str(tmp_path)!r}, keep_host_buffers=True)
        neap.resume("k")                     # its buffer is kept from now on
        assert neap.stats()["devices"][0]["host_buffers"] > 0
        neap.configure(disk_folder="/elsewhere", keep_host_buffers=False)
        assert neap.stats()["devices"][0]["host_buffers"] == 0
        try:
            neap.pause("d")
            assert False
        except neap.NeapError as error:
            assert "/elsewhere" in str(error), error
        kept.destroy()
        neap.configure(disk_folder={str(tmp_path)!r}, keep_host_buffers=False, margin=62 * MIB)
        try:
            neap.allocate(4 * MIB)
            assert False
        except neap.OutOfMemoryError:
            pass
        try:
            neap.configure(touch_threads=3)
            assert False
        except neap.BusyError:
            pass
        """)


def test_missing_library_is_explained():
    run("""
        import neap
        try:
            neap.device_count()
            assert False
        except neap.UnsupportedError as error:
            assert "NEAP_HOOK_LIBRARY" in str(error)
        """, environment(NEAP_HOOK_LIBRARY="/nowhere/libneap_hook.so"))


def test_callbacks_need_not_be_kept():
    run("""
        import gc, weakref, neap
        region = neap.allocate(2 * MIB, tag="w", policy="host")
        told = []
        class Listener:
            def __call__(self, region): told.append(region.tag)
        for _ in range(200):                     # what is freed would be used again
            neap.add_callbacks("w", before_unmap=Listener()); gc.collect(0)
        neap.pause("w")
        assert told == ["w"] * 200
        listener = Listener()
        kept, gone = neap.add_callbacks("w", after_map=listener), weakref.ref(listener)
        del listener
        kept.remove(); kept.remove(); gc.collect()
        assert gone() is None
        neap.resume("w")
        assert len(told) == 200
        """)


def test_waiting_for_ever_and_less_than_nothing():
    run("""
        import neap
        neap.allocate(40 * MIB, tag="a")
        b = neap.allocate(40 * MIB, tag="b", paused=True)
        begin = time.monotonic()
        for wait in (0, -1, 0.01):
            try:
                neap.resume("b", wait=wait); assert False
            except neap.OutOfMemoryError: pass
        assert time.monotonic() - begin < 60
        threading.Timer(0.2, lambda: neap.pause("a")).start()
        neap.resume("b", wait=float("inf"))
        assert b.info.state == neap.State.RESIDENT
        """)


def test_preload_starts_processes_with_the_hook():
    run("""
        import neap
        before = os.environ.get("LD_PRELOAD")
        with neap.preload():
            out = subprocess.run([sys.executable, "-c",
                "import neap; print(neap.hook_mode(), neap.library().path)"],
                capture_output=True, text=True, check=True).stdout.split()
        assert out == ["preload", neap.library_path()], out
        assert os.environ.get("LD_PRELOAD") == before
        """)
