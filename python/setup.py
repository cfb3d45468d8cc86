"""The distribution `neap`. From a checkout it brings `torch_memory_saver`, its drop-in, along.

NEAP_WITHOUT_DROP_IN=1 leaves the drop-in out: the peer's own package then stays as it is.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from neap_build import BuildHook, PlatformWheel  # noqa: E402


class BuildNeap(BuildHook):
    library = ("neap_hook_library", "libneap_hook.so")
    file_names = {"libneap_hook": os.path.join("neap", "libneap_hook.so")}

    def get_ext_filename(self, fullname):
        name = super().get_ext_filename(fullname)
        return os.path.basename(name) if "." not in fullname else name


drop_in = HERE / "memory_saver"
dependencies = []
if drop_in.exists() and os.environ.get("NEAP_WITHOUT_DROP_IN", "0") in ("", "0"):
    dependencies.append(f"torch_memory_saver @ {drop_in.as_uri()}")

setup(
    name="neap",
    version="0.1.0",
    description="GPU memory in tagged regions that keep their address while memory comes and goes",
    python_requires=">=3.9",
    packages=["neap"],
    ext_modules=[Extension("neap.libneap_hook", sources=[])],
    install_requires=dependencies,
    cmdclass={"build_ext": BuildNeap, "bdist_wheel": PlatformWheel},
    zip_safe=False,
)
