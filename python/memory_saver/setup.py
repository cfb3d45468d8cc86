"""The distribution `torch_memory_saver` on Neap.

It has the name of the package that it replaces, so that pip replaces that package and dependents are
satisfied. The local version identifies it.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from neap_build import BuildNative, PlatformWheel  # noqa: E402

# Launchers use these file names in site-packages: one per hook mode, with and without a CUDA version.
# Here they are copies of one library that works with every CUDA version.
STEMS = [f"torch_memory_saver_hook_mode_{mode}{cuda}"
         for mode in ("preload", "torch") for cuda in ("", "_cu12", "_cu13")]


class BuildDropIn(BuildNative):
    library = ("neap_drop_in_library", "libneap_memory_saver.so")
    file_names = {stem: f"{stem}.abi3.so" for stem in STEMS}


setup(
    name="torch_memory_saver",
    version="0.0.10+neap0.1.0",
    description="torch_memory_saver's interface on Neap",
    python_requires=">=3.9",
    packages=["torch_memory_saver", "torch_memory_saver.hooks"],
    ext_modules=[Extension(stem, sources=[]) for stem in STEMS],
    install_requires=["neap==0.1.0"],
    cmdclass={"build_ext": BuildDropIn, "bdist_wheel": PlatformWheel},
    zip_safe=False,
)
