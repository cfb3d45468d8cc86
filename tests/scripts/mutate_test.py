#!/usr/bin/env python3
"""scripts/mutate on a small project: what a test holds is killed, what no test looks at survives, the tree stays as it is.

usage: mutate_test.py SCRIPTS_FOLDER
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv[1])
SOURCE = """#include "thing/thing.h"

int clamp(int value, int low, int high) {
  if (value < low) {
    return low;
  }
  if (high < value) {
    return high;
  }
  return value;
}

int add_up(int count) {
  int sum = 0;
  for (int i = 1; i < count; ++i) {
    if (i == 3) {
      continue;
    }
    sum += i;
  }
  return sum;
}

bool unseen(int a, int b) {
  return a > b && b > 7;
}

int table_size() {
  int table[4] = {};
  return static_cast<int>(sizeof table);
}
"""
# A path has / and no *, so its mutant is neither a switch nor a program of its own.
PLACES = """#include <filesystem>

#include "thing/thing.h"

bool placed(const char* folder, const char* name) {
  const std::filesystem::path base(folder), file(name);
  return (base / file).is_absolute();
}
"""
TEST = """#include "thing/limits.h"
#include "thing/sizes.h"
#include "thing/thing.h"

int main() {
  // One assertion a border.
  if (clamp(1, 2, 9) != 2 || clamp(2, 2, 9) != 2 || clamp(9, 2, 9) != 9 || clamp(12, 2, 9) != 9) return 1;
  if (clamp(5, 2, 9) != 5) return 1;
  if (add_up(6) != 1 + 2 + 4 + 5 || add_up(0) != 0) return 1;
  if (table_size() != 4 * sizeof(int)) return 1;
  (void)unseen(9, 8);
  if (!above(4, 3) || above(3, 3) || doubled(3) != 6 || one_byte() != 1) return 1;
  if (!placed("/a", "b") || placed("a", "b")) return 1;
  return 0;
}
"""
FILES = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES C CXX)
enable_testing()
add_library(thing src/thing/thing.cpp src/thing/places.cpp)
target_include_directories(thing PUBLIC src)
add_executable(thing_test tests/unit/thing/thing_test.cpp)
target_link_libraries(thing_test PRIVATE thing)
set_target_properties(thing_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_test(NAME thing.small COMMAND thing_test)
add_test(NAME thing.broken COMMAND sh -c "exit 3")
""",
    "CMakePresets.json": json.dumps({"version": 6, "configurePresets": [
        {"name": "core", "generator": "Ninja", "binaryDir": "${sourceDir}/build/${presetName}"}]}),
    ".gitignore": "/build/\n__pycache__/\n",
    "src/thing/thing.h": "int clamp(int, int, int);\nint add_up(int);\nbool unseen(int, int);\nint table_size();\n"
                         "bool placed(const char*, const char*);\n",
    "src/thing/limits.h": "#pragma once\ninline bool above(int value, int limit) {\n  if (value == 100) {\n    return true;\n  }\n"
                          "  return value > limit;\n}\n",
    "src/thing/sizes.h": "#pragma once\ninline int doubled(int value) {\n  return value + value;\n}\n"
                         "inline int one_byte() {\n  static const char bytes[1] = {};\n  return static_cast<int>(sizeof bytes);\n}\n",
    "src/thing/thing.cpp": SOURCE,
    "src/thing/places.cpp": PLACES,
    "tests/unit/thing/thing_test.cpp": TEST,
}


class Mutate(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        for name, text in FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        (self.root / "scripts").mkdir()
        for name in ("mutate", "mutation.py"):
            shutil.copy(SCRIPTS / name, self.root / "scripts")
        subprocess.run(["git", "init", "-q", "."], cwd=self.root, check=True)
        subprocess.run(["git", "add", "-A"], cwd=self.root, check=True)

    def tearDown(self):
        self.folder.cleanup()

    def mutate(self, *words):
        done = subprocess.run([self.root / "scripts" / "mutate", *words], cwd=self.root, capture_output=True, text=True,
                              timeout=800)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_listing_is_the_same_each_time_and_differs_with_the_seed(self):
        first = self.mutate("--list", "--count", "5", "src/thing/thing.cpp")
        self.assertEqual(first.count("\n  - "), 5)
        self.assertEqual(self.mutate("--list", "--count", "5", "src/thing/thing.cpp"), first)
        self.assertNotEqual(self.mutate("--list", "--count", "5", "--seed", "2", "src/thing/thing.cpp"), first)

    def test_tests_decide_and_the_tree_stays(self):
        # A mutant that a killed run left behind.
        left = self.root / "build/mutants/tree/src/thing"
        left.mkdir(parents=True)
        (left / "thing.cpp").write_text("this does not compile")
        out = self.root / "build" / "out.jsonl"
        text = self.mutate("--count", "0", "--out", str(out), "src")
        self.assertEqual((self.root / "src/thing/thing.cpp").read_text(), SOURCE)
        self.assertEqual((left / "thing.cpp").read_text(), SOURCE)
        results = [json.loads(line) for line in out.read_text().splitlines()]
        by_line = {}
        for result in results:
            self.assertEqual(result["tests"], ["thing.small"], "a test that fails anyway says nothing")
            by_line.setdefault(result["before"], set()).add(result["outcome"])
        equivalent = {"if (value < low) {", "if (high < value) {"}  # < and <= give the same value at the border
        for line in ("return low;", "return value;", "sum += i;", "if (i == 3) {", "continue;", "int sum = 0;",
                     "int add_up(int count) {", "int clamp(int value, int low, int high) {"):
            self.assertLessEqual(by_line.get(line, set()), {"killed"}, line)
        for line in equivalent:
            self.assertEqual(by_line[line], {"killed", "survived"}, line)
        self.assertEqual(by_line["return a > b && b > 7;"], {"survived"})
        self.assertEqual(by_line["int table[4] = {};"], {"killed"}, "a constant that cannot be a switch")
        operators = {result["operator"] for result in results}
        self.assertLessEqual({"comparison", "logic", "constant", "negation", "statement", "return", "jump"}, operators)
        self.assertIn("| src/thing |", text)
        # What is in the file is not run again.
        before = out.read_text()
        self.mutate("--count", "0", "--out", str(out), "src")
        self.assertEqual(out.read_text(), before)

    def test_headers_that_are_named_are_compiled_once(self):
        headers = ["src/thing/limits.h", "src/thing/sizes.h"]
        listed = self.mutate("--list", "--count", "0", *headers).split("\n")
        place = lambda operator, line: next(one for one, before in zip(listed, listed[1:]) if f":{operator}:" in one and line in before)
        unseen, seen, sum_ = place("constant", "value == 100"), place("comparison", "value > limit"), place("arithmetic", "value + value")
        ids = [word for one in (unseen, seen, sum_, place("constant", "bytes[1]")) for word in ("--id", one)]
        out = self.root / "build" / "out.jsonl"
        self.mutate("--switches", "--out", str(out), *ids, *headers)
        results = {r["id"]: r["outcome"] for r in map(json.loads, out.read_text().splitlines())}
        self.assertEqual(results, {unseen: "survived", seen: "killed", sum_: "killed"}, "the size of an array is no switch")
        for name in headers:
            self.assertEqual((self.root / "build/mutants/tree" / name).read_text(), FILES[name])

    def test_a_mutant_that_does_not_compile_leaves_nothing_behind(self):
        listed = self.mutate("--list", "--count", "0", "src/thing/places.cpp").splitlines()
        quotient = next(line for line in listed if ":arithmetic:" in line)
        out = self.root / "build" / "out.jsonl"
        self.mutate("--id", quotient, "--out", str(out))
        self.assertEqual([json.loads(line)["outcome"] for line in out.read_text().splitlines()], ["not compiled"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
