"""Each breach that check_layers.py names is found in a made-up project, and nothing in a clean one."""
import tempfile
import unittest
from pathlib import Path

from check_layers import BEGIN, END, Checker

# name -> (type, folder, headers, sources, links)
CLEAN = {
    "neap_base": ("STATIC_LIBRARY", "base", "base.h", "base.cpp", ""),
    "neap_device": ("STATIC_LIBRARY", "device", "device.h", "ledger.cpp", "neap::base"),
    "neap_device_cuda": ("STATIC_LIBRARY", "device/cuda", "cuda_device.h", "cuda_device.cpp", "neap::device"),
    "neap_cache": ("STATIC_LIBRARY", "cache", "cache.h", "cache.cpp", "neap::base"),
    "neap_arena": ("STATIC_LIBRARY", "arena", "arena.h", "arena.cpp", "neap::device"),
    "neap_rlhf": ("STATIC_LIBRARY", "rlhf", "run.h", "run.cpp", "neap::arena;neap_libtorch"),
}
FILES = {
    "base/base.h": "", "base/base.cpp": '#include "base/base.h"\n#include <vector>\n',
    "device/device.h": "", "device/ledger.cpp": '#include "base/base.h"\n#include "device/device.h"\n',
    "device/cuda/cuda_device.h": "", "device/cuda/cuda_device.cpp": '#include "device/device.h"\n',
    "cache/cache.h": "", "cache/cache.cpp": '#include "base/base.h"\n// #include "rlhf/run.h"\n',
    "arena/arena.h": "", "arena/arena.cpp": '#include "device/device.h"\n',
    "rlhf/run.h": "", "rlhf/run.cpp": '#include <ATen/ATen.h>\n#include "arena/arena.h"\n',
}


class Project:
    def __init__(self, folder: str):
        self.root = Path(folder).resolve()
        for name, text in FILES.items():
            self.write(f"src/{name}", text)
        self.write("docs/architecture.md", f"{BEGIN}{END}\n")
        self.targets = dict(CLEAN)
        self.includes, self.folders = {}, {}

    def write(self, name: str, text: str):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def change(self, target: str, **columns):
        names = ("kind", "folder", "headers", "sources", "links")
        self.targets[target] = tuple(columns.get(n, old) for n, old in zip(names, self.targets[target]))

    def breaches(self, write: bool = True) -> list:
        lines = ["torch=ON\tmpi=ON"]
        for name, (kind, folder, *columns) in self.targets.items():
            lines.append("\t".join([name, kind, str(self.root / "src" / folder), *columns, self.includes.get(name, ""),
                                    self.folders.get(name, "")]))
        self.write("targets.tsv", "\n".join(lines) + "\n")
        return Checker(self.root, self.root / "targets.tsv").run(write)


class CheckLayers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.project = Project(folder.name)

    def found(self, *expected: str):
        breaches = self.project.breaches()
        self.assertEqual(len(breaches), len(expected), breaches)
        for part in expected:
            self.assertTrue(any(part in text for text in breaches), (part, breaches))

    def test_clean_project(self):
        self.found()

    def test_angle_brackets(self):
        self.project.write("src/device/ledger.cpp", '#include "base/base.h"\n#include <rlhf/run.h>\n')
        self.found("src/device/ledger.cpp:2: device does not link rlhf (rlhf/run.h)")

    def divided(self, *more: str):
        """cache in two folders, the upper of which includes the lower."""
        self.project.write("src/cache/low/keys.h", "")
        self.project.write("src/cache/high/cache.h", '#include "cache/low/keys.h"\n')
        self.project.write("src/cache/high/cache.cpp", '#include "base/base.h"\n#include "cache/high/cache.h"\n')
        self.project.change("neap_cache", headers=";".join(["low/keys.h", "high/cache.h", *more]), sources="high/cache.cpp")
        self.project.folders["neap_cache"] = "low;high"
        for old in ("cache.h", "cache.cpp"):
            (self.project.root / "src/cache" / old).unlink()

    def test_folders_of_a_module(self):
        self.divided()
        self.found()

    def test_a_higher_folder(self):
        self.divided()
        self.project.write("src/cache/low/keys.h", '#include "cache/high/cache.h"\n')
        self.found("src/cache/low/keys.h:1: high is above low (cache/high/cache.h)")

    def test_a_file_outside_the_folders(self):
        self.project.write("src/cache/other.h", "")
        self.divided("other.h")
        self.found("src/cache: 1 files of cache are outside its folders")

    def test_a_full_folder(self):
        names = [f"low/file{i}.h" for i in range(40)]
        for name in names:
            self.project.write(f"src/cache/{name}", "")
        self.divided(*names)
        self.found("src/cache/low: 41 files; a folder has at most 40")

    def test_path_up_a_folder(self):
        self.project.write("src/device/ledger.cpp", '#include "base/base.h"\n#include "../rlhf/run.h"\n')
        self.found("ledger.cpp:2: an include goes up a folder", "ledger.cpp:2: device does not link rlhf (../rlhf/run.h)")

    def test_libtorch_in_quotes(self):
        self.project.write("src/cache/cache.cpp", '#include "base/base.h"\n#include "ATen/ATen.h"\n')
        self.found("src/cache/cache.cpp:2: cache does not link libtorch (ATen/ATen.h)")

    def test_hpp_file(self):
        self.project.write("src/cache/extra.hpp", "#include <rlhf/run.h>\n")
        self.found("src/cache/extra.hpp:1: cache does not link rlhf (rlhf/run.h)")

    def test_link_without_alias(self):
        self.project.change("neap_arena", links="neap_device")
        self.found("neap_arena links neap_device; write neap::device")

    def test_upward_link_without_alias(self):
        self.project.change("neap_base", links="neap_rlhf")
        self.found("links in a circle", "neap_base links neap_rlhf; write", "base links rlhf and includes nothing of it")

    def test_a_device_behind_the_interface(self):
        self.project.write("src/arena/arena.cpp", '#include "device/device.h"\n#include "device/cuda/cuda_device.h"\n')
        self.found("src/arena/arena.cpp:2: arena does not link device_cuda (device/cuda/cuda_device.h)")

    def test_generated_file(self):
        made = self.project.root / "build" / "made.cpp"
        self.project.write("build/made.cpp", '#include "base/base.h"\n#include <rlhf/run.h>\n')
        self.project.change("neap_cache", sources=f"cache.cpp;{made}")
        self.found("build/made.cpp:2: cache does not link rlhf (rlhf/run.h)")

    def test_forms_of_the_directive(self):
        self.project.write("src/cache/cache.cpp", '#include "base/base.h"\n#define RUN <rlhf/run.h>\n#include RUN\n'
                           '#  include/* */<rlhf/run.h>\n#include \\\n  "rlhf/run.h"\n/*\n#include "rlhf/run.h"\n*/\n')
        self.found("cache.cpp:3: a macro names the included file", "cache.cpp:4: cache does not link rlhf",
                   "cache.cpp:5: cache does not link rlhf")

    def test_absolute_path(self):
        self.project.write("src/cache/cache.cpp", f'#include "base/base.h"\n#include "{self.project.root}/src/rlhf/run.h"\n')
        self.found("cache.cpp:2: cache does not link rlhf")

    def test_transitive_link_is_not_enough(self):
        self.project.write("src/rlhf/run.cpp", '#include "arena/arena.h"\n#include "device/device.h"\n')
        self.found("src/rlhf/run.cpp:2: rlhf does not link device")

    def test_unused_link(self):
        self.project.change("neap_rlhf", links="neap::arena;neap::cache;neap_libtorch")
        self.found("rlhf links cache and includes nothing of it")

    def test_include_folder_of_all_modules(self):
        self.project.includes["neap_cache"] = str(self.project.root / "src")
        self.found("neap_cache includes from src: every module's headers at once")

    def test_toolkit_headers(self):
        self.project.write("src/rlhf/run.cpp", '#include "arena/arena.h"\n#include <cuda_runtime.h>\n#include "Python.h"\n')
        self.found("run.cpp:2: no module uses the CUDA toolkit", "run.cpp:3: no module uses Python")

    def test_files_are_opened_in_one_place(self):
        for text, found in (("std::ifstream in(path);", True), ("int f = ::open(p, O_RDONLY | O_CLOEXEC);", True), ("fopen(p, m)", True),
                            ("int f = ::open(p, O_RDONLY | O_DIRECTORY);", False), ("// std::ifstream", False)):
            self.project.write("src/cache/cache.cpp", f'#include "base/base.h"\n{text}\n')
            self.found(*["cache.cpp:2: opens a file itself"] if found else [])

    def test_flags_of_where_tensors_are_stored(self):
        for text, found in (("bool inputs_on_host = false;", True), ("bool streamed = false, on_disk = false;", True), ("bool on_disk_;", True),
                            ("bool whole, streams_tables;", True), ("bool streams_layers() const;", False),
                            ("// bool on_disk;", False)):
            self.project.write("src/cache/cache.h", f"\n{text}\n")
            self.found(*["cache.h:2: a flag of where tensors are stored"] if found else [])

    def test_readers_of_homes(self):
        for text, found in (("if (storage.layers == spec::Home::kDisk) return;", True), ("using spec::Home;", True), ("home = HomeOf();", False),
                            ("// Home", False)):
            self.project.write("src/cache/cache.cpp", f'#include "base/base.h"\n{text}\n')
            self.found(*["cache.cpp:2: names spec::Home"] if found else [])

    def test_homes_that_are_named(self):
        self.project.write("src/plan/results/legal_homes.cpp", "if (home == Home::kDisk) return;\nif (home == Home::kDevice) return;\n")
        self.project.write("src/plan/search/drafts.cpp", "using spec::Home;\nhome = Home::kHost;\n")
        self.project.targets["neap_plan"] = ("STATIC_LIBRARY", "plan", "", "results/legal_homes.cpp;search/drafts.cpp", "")
        self.found("legal_homes.cpp:1: names a home")

    def test_file_of_no_target(self):
        self.project.write("src/lost/lost.cpp", "")
        self.found("src/lost/lost.cpp: belongs to no target")

    def test_length_of_a_file_of_tests(self):
        for name in ("tests/unit/cache/cache_test.cpp", "tests/process/run_test.py"):
            for lines, found in ((400, False), (401, True)):
                self.project.write(name, "\n" * lines)
                self.found(*[f"{name}: has 401 lines, more than 400"] if found else [])
            self.project.write(name, "")
        self.project.write("tests/data/trace.json", "\n" * 401)
        self.found()

    def test_table_follows_the_links(self):
        self.assertEqual(self.project.breaches(write=True), [])
        self.assertEqual(self.project.breaches(write=False), [])
        self.project.change("neap_cache", links="neap::base;neap::device")
        self.project.write("src/cache/cache.cpp", '#include "base/base.h"\n#include "device/device.h"\n')
        self.assertIn("the modules' table is not what CMake links", "".join(self.project.breaches(write=False)))


if __name__ == "__main__":
    unittest.main()
