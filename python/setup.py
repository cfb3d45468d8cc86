"""The distribution `neap`: the Python package, and the command `neap` with its libraries.

The drop-in for torch_memory_saver replaces another package, so it is a separate distribution: memory_saver/.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from neap_build import BuildNative, PlatformWheel, build, copy_stripped  # noqa: E402


class BuildNeap(BuildNative):
    library = ("neap_hook_library", "libneap_hook.so")
    file_names = {"libneap_hook": os.path.join("neap", "libneap_hook.so")}

    def get_ext_filename(self, fullname):
        name = super().get_ext_filename(fullname)
        return os.path.basename(name) if "." not in fullname else name

    def run(self):
        super().run()
        # Data files with the layout of CMake's install: setuptools would treat a script as text.
        folder = build(["neap", self.library[0]])
        stage = Path(self.build_temp) / "program"
        files = [("bin", folder / "bin" / "neap")]
        files += [("lib/neap", folder / "lib" / name) for name in ("libneap_hook.so", "libneap_trainer.so")]
        self.distribution.data_files = [(to, [str(copy_stripped(file, stage / to / file.name))])
                                        for to, file in files if file.exists()]


setup(
    name="neap",
    version="0.1.0",
    description="GPU memory in tagged regions that keep their address while memory comes and goes",
    python_requires=">=3.9",
    packages=["neap"],
    entry_points={"vllm.general_plugins": ["neap = neap.vllm:plugin"]},
    ext_modules=[Extension("neap.libneap_hook", sources=[])],
    cmdclass={"build_ext": BuildNeap, "bdist_wheel": PlatformWheel},
    zip_safe=False,
)
