"""`pip install ./python` and its drop-in, offline, with the libraries that are built already."""

import os
import shutil
import subprocess
import sys

from conftest import BUILD, SOURCE, run, environment


def install(tmp_path, to, *folders):
    """Installs folders of python/ to `to`."""
    if not (tmp_path / "python").exists():
        shutil.copytree(SOURCE / "python", tmp_path / "python",
                        ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-index", "--target",
         str(to), *(str(tmp_path / folder) for folder in folders)],
        capture_output=True, text=True,
        env={**os.environ, "NEAP_PREBUILT_DIR": str(BUILD)})
    assert done.returncode == 0, done.stdout + done.stderr


def test_neap_alone_leaves_torch_memory_saver_as_it_is(tmp_path):
    to = tmp_path / "site"
    install(tmp_path, to, "python")
    assert (to / "neap/libneap_hook.so").exists()
    assert not list(to.glob("torch_memory_saver*"))
    metadata = next(to.glob("neap-*.dist-info")) / "METADATA"
    assert "file://" not in metadata.read_text()
    assert "Requires-Dist" not in metadata.read_text()


def test_the_drop_in_is_a_distribution_of_its_own(tmp_path):
    to = tmp_path / "site"
    install(tmp_path, to, "python", "python/memory_saver")
    for name in ("neap/libneap_hook.so", "torch_memory_saver/__init__.py",
                 "torch_memory_saver_hook_mode_preload_cu13.abi3.so",
                 "torch_memory_saver_hook_mode_preload_cu12.abi3.so",
                 "torch_memory_saver_hook_mode_preload.abi3.so",
                 "torch_memory_saver_hook_mode_torch_cu13.abi3.so"):
        assert (to / name).exists(), name
    env = environment(NEAP_HOOK_LIBRARY=None)
    env["PYTHONPATH"] = str(to)
    run(f"""
        import neap, torch_memory_saver
        assert neap.library_path().startswith({str(to)!r})
        neap.allocate(MIB, tag="x").destroy()
        from importlib.metadata import version
        assert version("torch_memory_saver").startswith("0.0.10+neap")
        with torch_memory_saver.configure_subprocess():
            subprocess.run([sys.executable, "-c",
                            "import neap; assert neap.hook_mode() == 'preload'"], check=True)
        """, env)


def test_a_build_says_once_that_it_compiles_and_for_how_long(tmp_path):
    cmake = tmp_path / "cmake"
    cmake.write_text("#!/bin/sh\n")
    cmake.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCE / "python"),
           "NEAP_BUILD_DIR": str(tmp_path / "build"), "NEAP_TORCH_ROOT": ""}
    env.pop("NEAP_PREBUILT_DIR", None)
    done = subprocess.run([sys.executable, "-c", "from neap_build import build; build(['a']); build(['b'])"], env=env,
                          capture_output=True, text=True, start_new_session=True)  # without a terminal
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("neap: compiling in ") == 1, done.stdout
    assert "minutes on two cores" in done.stdout and "`make package`" in done.stdout
