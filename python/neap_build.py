"""Builds the hook libraries with CMake for both distributions' setup.py.

NEAP_PREBUILT_DIR   a folder with the libraries already built; nothing is compiled then.
NEAP_BUILD_DIR      where to build; default build/python in the repository.
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

REPOSITORY = Path(__file__).resolve().parent.parent


def build_library(target, file_name):
    """The path of one hook library, built if need be."""
    prebuilt = os.environ.get("NEAP_PREBUILT_DIR")
    if prebuilt:
        path = Path(prebuilt) / file_name
        if not path.exists():
            raise FileNotFoundError(f"NEAP_PREBUILT_DIR={prebuilt} has no {file_name}")
        return path
    if not (REPOSITORY / "CMakeLists.txt").exists():
        raise FileNotFoundError(
            f"{REPOSITORY} is not Neap's repository; install from a checkout with "
            "`pip install ./python`, or set NEAP_PREBUILT_DIR")
    build = Path(os.environ.get("NEAP_BUILD_DIR", REPOSITORY / "build" / "python"))
    configure = ["cmake", "-S", str(REPOSITORY), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release",
                 "-DNEAP_TESTS=OFF", "-DNEAP_TORCH=OFF", "-DNEAP_WERROR=OFF"]
    if not (build / "CMakeCache.txt").exists() and shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    subprocess.run(configure, check=True)
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    subprocess.run(["cmake", "--build", str(build), "--target", target, "-j", jobs], check=True)
    return build / "lib" / file_name


class BuildHook(build_ext):
    """Each extension is a copy of one library under the name that its users expect."""

    library = None  # (CMake target, file name), set by setup.py
    file_names = {}  # extension name -> path in the wheel

    def get_ext_filename(self, fullname):
        return self.file_names.get(fullname.rpartition(".")[2], super().get_ext_filename(fullname))

    def build_extension(self, extension):
        source = build_library(*self.library)
        to = Path(self.get_ext_fullpath(extension.name))
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)
        strip = shutil.which("strip")
        if strip:
            subprocess.run([strip, "--strip-unneeded", str(to)], check=True)


class PlatformWheel(bdist_wheel):
    """The libraries use nothing of Python: one wheel serves every version of it."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]
