#!/usr/bin/env python3
"""Checks the modules' includes against the links of their CMake targets, and the links against docs/architecture.md.

Usage: check_layers.py SOURCE_DIR TARGETS [--write]

TARGETS is the file that cmake/NeapTargets.cmake writes into a build folder. A module is a target of src/. The rules:
  - a file includes only headers of its own module and of modules that its target links itself;
  - every link of a library to a module is used by an include;
  - a module with folders (FOLDERS of neap_add_module) has no file outside them and at most 40 in each, and its files include no
    header of a folder above their own;
  - links form no cycle, name modules by their alias (neap::x), and go with no include folder but the modules' own;
  - libtorch's headers need a link to libtorch; the CUDA toolkit's and Python's are used nowhere;
  - files from outside are opened by base/open_file;
  - headers have no flag of where tensors are stored: spec/types/homes.h says it;
  - spec::Home is named where homes are chosen, derived, counted and shown (HOMES); passes and runs ask what follows from them;
  - a home other than the device is named by its table, by the search and as a default (NAMED_HOMES); others ask for its traits;
  - a file of tests has at most 400 lines;
  - the table in docs/architecture.md is what follows from the links (--write renews it).
Prints each breach and exits 1 if there is any.
"""
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

SUFFIXES = {".h", ".hh", ".hpp", ".hxx", ".inl", ".inc", ".ipp", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".cu"}
INCLUDE = re.compile(r"^\s*#\s*(?:include|include_next|import)\b\s*(.*)$")
FORM = re.compile(r'^(?:"([^"]+)"|<([^>]+)>)')
LIBTORCH = re.compile(r"^(ATen|c10|caffe2|torch|torch/csrc)/")
FORBIDDEN = [
    (re.compile(r"^(cuda|cuda_runtime|cuda_runtime_api|driver_types|nvrtc|nccl|cublas\w*|cudnn\w*|cupti\w*)\.h$"),
     "the CUDA toolkit"),
    (re.compile(r"^(Python\.h|pybind11/.*)$"), "Python"),
]
READS = re.compile(r"\bifstream\b|\bfopen\(|\bO_RDONLY\b(?!.*\bO_DIRECTORY\b)")
# Opened for fsync, by descriptor, or as a lock of this program.
OWN_READS = {"src/base/open_file.cpp", "src/base/file.cpp", "src/arena/disk_file.cpp", "src/data/row_cache.cpp", "src/train/output_lock.cpp"}
STORED = re.compile(r"\bbool\s+(?:\w+(?:\s*=\s*\w+)?,\s*)*(?:\w*on_(?:host|disk)_?|streamed_?|streams_\w+)(?:\s*=\s*\w+)?\s*[,;]")
# Flags that are derived from homes for one unit, one tensor or one table.
OWN_STORED = {"src/step/units/trained_unit.h", "src/step/units/update_parts.h", "src/step/operations/weights.h", "src/ops/slot_blocks.h"}
HOME = re.compile(r"\bHome\b")
HOMES = {
    "src/spec/types/homes.h",
    # Phases and updates keep a model's homes.
    "src/spec/recipe/job_model.h", "src/spec/recipe/recipe_builder.cpp",
    # The search, and what it may choose.
    "src/plan/search/common_choices.cpp", "src/plan/search/home_options.cpp", "src/plan/search/model_choice.cpp",
    "src/plan/results/legal_homes.cpp", "src/plan/results/model_roles.h", "src/plan/results/model_roles.cpp",
    # Tags, and loads that are counted.
    "src/plan/results/memory_plan.h",
    "src/plan/counting/counted_slots.h", "src/plan/counting/counted_slots.cpp", "src/plan/counting/counted_gradients.h",
    "src/plan/counting/counted_training.h", "src/plan/counting/counted_training.cpp",
    # Texts.
    "src/plan/results/plan_json.cpp", "src/plan/results/plan_text.cpp",
}
NAMED_HOME = re.compile(r"\bHome::k(?!Device\b)\w+")
NAMED_HOMES = {"src/spec/types/homes.h", "src/plan/results/memory_plan.h", "src/plan/counting/counted_slots.h", "src/plan/counting/counted_slots.cpp"}
MOST_FILES = 40  # of a folder
MOST_LINES = 400  # of a file of tests
BEGIN, END = "<!-- modules: tests/layers/check_layers.py --write -->", "<!-- /modules -->"


@dataclass
class Target:
    name: str
    kind: str
    folder: Path
    headers: set = field(default_factory=set)
    sources: set = field(default_factory=set)
    links: list = field(default_factory=list)      # as written, without generator expressions
    includes: list = field(default_factory=list)
    folders: list = field(default_factory=list)    # names of its folders, lowest first
    modules: set = field(default_factory=set)      # linked targets of src/, by name

    @property
    def short(self):
        return self.name.removeprefix("neap_")


def read_targets(path: Path):
    """The build's options and its targets by name."""
    lines = path.read_text().splitlines()
    options = dict(entry.split("=", 1) for entry in lines[0].split("\t"))
    targets = {}
    for line in lines[1:]:
        name, kind, folder, headers, sources, links, includes, folders = (line.split("\t") + [""] * 7)[:8]
        if name.startswith("neap_pch_"):
            continue
        folder = Path(folder)
        files = [[(folder / f).resolve() for f in column.split(";") if f and "$<" not in f] for column in (headers, sources)]
        wrapped = re.compile(r"\$<LINK_ONLY:([^>]+)>")
        links = [wrapped.sub(r"\1", link) for link in links.split(";") if link and not link.startswith("::@")]
        links += [m + "" for m in re.findall(r"\$<TARGET_OBJECTS:([^>]+)>", sources)]
        targets[name] = Target(name, kind, folder.resolve(), set(files[0]), set(files[1]), links,
                               [i for i in includes.split(";") if i], [f for f in folders.split(";") if f])
    for target in targets.values():
        for link in target.links:
            name = link.replace("neap::", "neap_") if link.startswith("neap::") else link
            if name in targets:
                target.modules.add(name)
    return options, targets


def without_comments(text: str) -> str:
    """Comments blanked, lines kept; a backslash at a line's end joins it with the next."""
    blank = lambda m: m.group(0) if m.group(0)[0] in "\"'" else re.sub(r"[^\n]", " ", m.group(0))
    text = text.replace("\\\n", "\x00")
    text = re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', blank, text, flags=re.S)
    return text


def includes_of(file: Path):
    """(line number, name, quoted) of each include; name is None where a macro stands for it."""
    number = 1
    for line in without_comments(file.read_text(errors="replace")).split("\n"):
        match = INCLUDE.match(line.replace("\x00", " "))
        if match:
            form = FORM.match(match.group(1).strip())
            yield number, (form.group(1) or form.group(2)) if form else None, bool(form and form.group(1))
        number += 1 + line.count("\x00")


class Checker:
    def __init__(self, root: Path, targets_file: Path):
        self.root, self.source = root.resolve(), (root / "src").resolve()
        self.options, self.targets = read_targets(targets_file)
        self.breaches = []
        self.owners = {}  # file -> names of targets
        for target in self.targets.values():
            for file in target.headers | target.sources:
                self.owners.setdefault(file, set()).add(target.name)
        self.used = {name: set() for name in self.targets}

    def breach(self, where, text):
        self.breaches.append(f"{where}: {text}")

    def name_of(self, file: Path) -> str:
        return os.path.relpath(file, self.root)

    def owners_of(self, file: Path) -> set:
        """The targets that list a file. One that none lists belongs to those of its folder, or to a module that this
        build leaves out: then nothing is known about it."""
        if file in self.owners or not self.complete():
            return self.owners.get(file, set())
        return {t.name for t in self.targets.values() if file.parent in [t.folder, *(t.folder / f for f in t.folders)]}

    def resolve(self, file: Path, name: str, quoted: bool):
        """The project's file that an include names, whether or not a compiler would be led to it."""
        candidates = [file.parent / name] if quoted else []
        candidates += [Path(name), self.source / name]
        candidates += [Path(folder) / name for t in self.owners_of(file) for folder in self.targets[t].includes]
        for candidate in candidates:
            if candidate.is_absolute() and candidate.is_file():
                real = candidate.resolve()
                if self.source in real.parents or real in self.owners:
                    return real
        return None

    def reaches(self, name: str, wanted: str) -> bool:
        seen, todo = set(), [name]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                if wanted in self.targets[at].links:
                    return True
                todo += self.targets[at].modules
        return False

    def check_lines(self, file: Path):
        name = self.name_of(file)
        if not file.is_relative_to(self.source):
            return
        for number, line in enumerate(without_comments(file.read_text()).splitlines(), 1):
            if READS.search(line) and name not in OWN_READS:
                self.breach(f"{name}:{number}", "opens a file itself; base/open_file knows pipes, devices and limits")
            if file.suffix == ".h" and STORED.search(line) and name not in OWN_STORED:
                self.breach(f"{name}:{number}", "a flag of where tensors are stored; spec/types/homes.h says that")
            if HOME.search(line) and name not in HOMES:
                self.breach(f"{name}:{number}", "names spec::Home; ask a function of spec/types/homes.h or of the plan's tags")
            elif NAMED_HOME.search(line) and name not in NAMED_HOMES and not name.startswith("src/plan/search/"):
                self.breach(f"{name}:{number}", "names a home; ask for its HomeTraits (spec/types/homes.h)")

    def check_lengths(self):
        for file in sorted(f for f in (self.root / "tests").rglob("*") if f.suffix in SUFFIXES | {".py"}):
            lines = len(file.read_text(errors="replace").splitlines())
            if lines > MOST_LINES:
                self.breach(self.name_of(file), f"has {lines} lines, more than {MOST_LINES}; divide it by subject")

    def check_file(self, file: Path):
        owners = self.owners_of(file)
        self.check_lines(file)
        for number, name, quoted in includes_of(file):
            where = f"{self.name_of(file)}:{number}"
            if name is None:
                self.breach(where, "a macro names the included file; write its name")
                continue
            header = self.resolve(file, name, quoted)
            if header is None:
                if LIBTORCH.match(name) and owners and not any(self.reaches(o, "neap_libtorch") for o in owners):
                    self.breach(where, f"{self.short(owners)} does not link libtorch ({name})")
                for pattern, what in FORBIDDEN:
                    if pattern.match(name):
                        self.breach(where, f"no module uses {what} ({name})")
                continue
            if quoted and ".." in Path(name).parts:
                self.breach(where, f"an include goes up a folder ({name}); name the file from src/")
            theirs = self.owners_of(header)
            if not theirs and not self.complete():
                theirs = {"neap_" + self.name_of(header.parent)}
            for owner in owners:
                known = self.targets[owner].modules
                self.used[owner] |= known & theirs
                if owner not in theirs and not known & theirs:
                    self.breach(where, f"{self.short({owner})} does not link {self.short(theirs)} ({name})")

    def check_folders(self, target: Target):
        """The folders of a module are levels, as modules are."""
        level = {target.folder / name: i for i, name in enumerate(target.folders)}
        files = sorted(f for f in target.headers | target.sources if target.folder in f.parents)
        for folder, number in Counter(f.parent for f in files).items():
            if folder not in level:
                self.breach(self.name_of(folder), f"{number} files of {target.short} are outside its folders")
            elif number > MOST_FILES:
                self.breach(self.name_of(folder), f"{number} files; a folder has at most {MOST_FILES}")
        for file in files:
            for line, name, quoted in includes_of(file):
                header = name and self.resolve(file, name, quoted)
                if header and level.get(header.parent, -1) > level.get(file.parent, len(level)):
                    self.breach(f"{self.name_of(file)}:{line}", f"{header.parent.name} is above {file.parent.name} ({name})")

    @staticmethod
    def short(names) -> str:
        return " or ".join(sorted(n.removeprefix("neap_") for n in names)) or "a module of no target"

    def check_links(self):
        for target in self.targets.values():
            where = f"{self.name_of(target.folder)}/CMakeLists.txt"
            for link in target.links:
                if link in self.targets and "_entry" not in link:
                    self.breach(where, f"{target.name} links {link}; write {link.replace('neap_', 'neap::', 1)}")
            if target.kind == "STATIC_LIBRARY":
                for unused in sorted(target.modules - self.used[target.name]):
                    self.breach(where, f"{target.short} links {self.short({unused})} and includes nothing of it")
            for folder in target.includes:
                real = Path(re.sub(r"\$<BUILD_INTERFACE:([^>]+)>", r"\1", folder)).resolve()
                owner = next((t for t in self.targets.values() if real.name == t.name and real.parent.name == "include"), None)
                if real == self.source or real in self.source.parents or self.source in real.parents:
                    self.breach(where, f"{target.name} includes from {self.name_of(real)}: every module's headers at once")
                elif owner and owner.name not in target.modules | {target.name}:
                    self.breach(where, f"{target.name} includes from {owner.name}, which it does not link")

    def levels(self):
        """Target -> height above the lowest module; a cycle is a breach."""
        found, open_ = {}, []

        def visit(name):
            if name in found:
                return found[name]
            if name in open_:
                self.breach("CMakeLists.txt", "links in a circle: " + " -> ".join([*open_[open_.index(name):], name]))
                return 0
            open_.append(name)
            found[name] = 1 + max((visit(m) for m in sorted(self.targets[name].modules)), default=-1)
            open_.pop()
            return found[name]

        for name in sorted(self.targets):
            visit(name)
        return found

    def modules_of_levels(self):
        """Level -> names of its modules without libtorch and with it. A name is followed by its folders."""
        found = {}
        for name, level in sorted(self.levels().items()):
            target = self.targets[name]
            text = target.short + (f" ({' '.join(target.folders)})" if target.folders else "")
            found.setdefault(level, ([], []))[self.reaches(name, "neap_libtorch")].append(text)
        return found

    def rows(self):
        """The table's lines, highest level first."""
        for level, modules in sorted(self.modules_of_levels().items(), reverse=True):
            yield f"| {level} | {' | '.join(', '.join(some) for some in modules)} |"

    def missing(self, table):
        """Modules of a build of fewer modules whose place in the table is another one."""
        shown = {int(cells[1]): [set(cell.strip().split(", ")) for cell in cells[2:4]]
                 for cells in (line.split("|") for line in table.splitlines()[3:] if line)}
        programs = {target.short for target in self.targets.values() if target.kind == "EXECUTABLE"}
        for level, modules in self.modules_of_levels().items():
            for some, there in zip(modules, shown.get(level, (set(), set()))):
                yield from (text for text in some if text not in there and text not in programs)

    def complete(self) -> bool:
        return self.options.get("torch") == "ON" and self.options.get("mpi") == "ON"

    def check_document(self, write: bool):
        page = self.root / "docs" / "architecture.md"
        text = page.read_text()
        if BEGIN not in text or END not in text:
            self.breach("docs/architecture.md", f"lacks {BEGIN} ... {END}")
            return
        before, rest = text.split(BEGIN, 1)
        table, after = rest.split(END, 1)
        head = "| level | without libtorch | with libtorch |\n| --- | --- | --- |\n"
        made = "\n" + head + "\n".join(self.rows()) + "\n"
        if write and not self.complete():
            self.breach("docs/architecture.md", "the table is written from a build with libtorch and MPI")
        elif write:
            page.write_text(before + BEGIN + made + END + after)
        elif self.complete() and table != made:
            self.breach("docs/architecture.md", "the modules' table is not what CMake links; run check_layers.py with --write")
        elif not self.complete():
            for text in self.missing(table):
                self.breach("docs/architecture.md", f"the table has no {text} on its level")

    def run(self, write: bool = False) -> list:
        files = {f for f in self.source.rglob("*") if f.suffix in SUFFIXES}
        for file in sorted(files):
            if not self.owners_of(file) and self.complete():
                self.breach(self.name_of(file), "belongs to no target")
        generated = {f for f in self.owners if f.exists() and f.suffix in SUFFIXES}
        for file in sorted(files | generated):
            if self.owners_of(file):
                self.check_file(file)
        for target in self.targets.values():
            if target.folders:
                self.check_folders(target)
        self.check_links()
        self.check_lengths()
        self.check_document(write)
        return self.breaches


def main() -> int:
    root, targets = Path(sys.argv[1]), Path(sys.argv[2])
    checker = Checker(root, targets)
    breaches = checker.run("--write" in sys.argv)
    for text in breaches:
        print(text)
    print(f"layers: {len(breaches)} breaches in {len(checker.targets)} targets, {len(checker.owners)} files")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
