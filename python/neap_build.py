"""Builds the native files with CMake for both distributions, and names the wheel by the system that they need.

NEAP_PREBUILT_DIR   a folder with built files (bin/, lib/ of a build folder); nothing is compiled.
NEAP_BUILD_DIR      the build folder; default build/python in the repository.
NEAP_TORCH_ROOT     if set, the trainer (neap train, neap generate) is also built; scripts/setup prints it.
"""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

REPOSITORY = Path(__file__).resolve().parent.parent


@functools.lru_cache(maxsize=None)
def tell(text):
    """Prints a text once for the user. pip shows a build's output only with -v, so the text also goes to the terminal."""
    print(text, flush=True)
    try:
        with open("/dev/tty", "w") as terminal:
            terminal.write(f"\n  {text}\n")
    except OSError:
        pass  # no terminal


def build(targets):
    """Builds these CMake targets and returns the build folder."""
    prebuilt = os.environ.get("NEAP_PREBUILT_DIR")
    if prebuilt:
        return Path(prebuilt)
    if not (REPOSITORY / "CMakeLists.txt").exists():
        raise FileNotFoundError(
            f"{REPOSITORY} is not Neap's repository; install from a checkout with "
            "`pip install ./python`, or set NEAP_PREBUILT_DIR")
    folder = Path(os.environ.get("NEAP_BUILD_DIR", REPOSITORY / "build" / "python"))
    torch = os.environ.get("NEAP_TORCH_ROOT", "")
    configure = ["cmake", "-S", str(REPOSITORY), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release",
                 "-DNEAP_TESTS=OFF", "-DNEAP_MPI=OFF", "-DNEAP_WERROR=OFF", "-DNEAP_UNITY=ON",
                 f"-DNEAP_TORCH={'ON' if torch else 'OFF'}", f"-DNEAP_TORCH_ROOT={torch}"]
    if not (folder / "CMakeCache.txt").exists() and shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    tell(f"neap: compiling in {folder}, which takes about {'13' if torch else '5'} minutes on two cores the first time. "
         "`make package` makes wheels in dist/ that install at once.")
    subprocess.run(configure, check=True)
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    subprocess.run(["cmake", "--build", str(folder), "-j", jobs, "--target", *targets], check=True)
    return folder


def copy_stripped(source, to):
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, to)
    strip = shutil.which("strip")
    if strip:
        subprocess.run([strip, "--strip-unneeded", str(to)], check=True)
    return to


class BuildNative(build_ext):
    """Each extension is a copy of one library under the name that its users expect."""

    library = None  # (CMake target, file name), set by setup.py
    file_names = {}  # extension name -> path in the wheel

    def get_ext_filename(self, fullname):
        return self.file_names.get(fullname.rpartition(".")[2], super().get_ext_filename(fullname))

    def build_extension(self, extension):
        target, name = self.library
        source = build([target]) / "lib" / name
        if not source.exists():
            raise FileNotFoundError(f"{source} was not built")
        copy_stripped(source, Path(self.get_ext_fullpath(extension.name)))


# The glibc of the oldest distributions whose libstdc++ has these symbols (from auditwheel's policies).
GLIBC_OF_LIBSTDCXX = [((3, 4, 19), (2, 17)), ((3, 4, 22), (2, 24)), ((3, 4, 24), (2, 27)), ((3, 4, 25), (2, 28)),
                      ((3, 4, 28), (2, 31)), ((3, 4, 29), (2, 34)), ((3, 4, 30), (2, 35)), ((3, 4, 32), (2, 38)),
                      ((3, 4, 33), (2, 39))]


def versions(data, name):
    """The versions of `name` among an ELF file's needed symbols. The string table contains them as whole strings."""
    found = re.findall(rb"\0" + name + rb"_([0-9.]+)(?=\0)", data)
    return [tuple(int(part) for part in text.decode().split(".")) for text in found]


def glibc_needed(files):
    """The glibc, (major, minor), of a system on which these ELF files run."""
    needed = [(2, 17)]  # what pip knows manylinux_x_y tags for
    for file in files:
        data = Path(file).read_bytes()
        needed += [version[:2] for version in versions(data, b"GLIBC")]
        for version in versions(data, b"GLIBCXX"):
            fitting = [glibc for libstdcxx, glibc in GLIBC_OF_LIBSTDCXX if libstdcxx >= version]
            if not fitting:
                raise RuntimeError(f"{file} needs GLIBCXX_{'.'.join(map(str, version))}, which no known system has")
            needed.append(min(fitting))
    return max(needed)


class PlatformWheel(bdist_wheel):
    """The native files do not use Python, so one wheel works with every Python version on Linux from one glibc on."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        platform = super().get_tag()[2]
        if not platform.startswith("linux_"):
            return "py3", "none", platform
        files = [file for file in Path(self.bdist_dir).rglob("*")
                 if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"]
        if not files:
            raise RuntimeError(f"no native file in {self.bdist_dir}; the wheel's tag follows from them")
        major, minor = glibc_needed(files)
        return "py3", "none", f"manylinux_{major}_{minor}_{platform.removeprefix('linux_')}"
