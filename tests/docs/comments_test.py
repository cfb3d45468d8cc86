#!/usr/bin/env python3
"""check_comments.py finds what it is to find. Usage: comments_test.py"""
import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_comments  # noqa: E402

LONG = "word " * 30 + "end."


def read(name, text):
    return [check_comments.prose(comment).strip() for comment in check_comments.comments(name, text)]


def rules(text, name="a.cpp"):
    return [rule for _, rule, _ in check_comments.violations(name, text)]


class Comments(unittest.TestCase):
    def test_c_like(self):
        self.assertEqual(read("a.cpp", "// One\n// sentence.\nint a;  ///< size\n/* Two\n * lines. */\n"),
                         ["One\nsentence.", "size", "Two\nlines."])
        self.assertEqual(read("a.h", "/// One.\n///\n/// Two.\nint a;\n"), ["One.\n\nTwo."])
        self.assertEqual(read("a.cpp", "int a;  // of one\n        // thing\nint b;\n// other\n"), ["of one\nthing", "other"])
        self.assertEqual(read("a.h", "// Section\n/// One.\n/// More.\nint a;\n"), ["Section", "One.\nMore."])
        self.assertEqual(read("a.js", "const a = `// text`;  // note\n"), ["note"])

    def test_strings_are_no_comments(self):
        code = 'f("// no", \'"\', "\\"// no", R"(// no " )", R"x(/* )" no */)x", 1\'000\'000);  // yes\nchar c = \'/\';\n'
        self.assertEqual(read("a.cpp", code), ["yes"])
        self.assertEqual(read("a.py", "a = '# no'  # yes\nb = '''\n# no\n'''\n"), ["yes"])

    def test_python(self):
        self.assertEqual(read("a.py", '"""Module.\n\nMore."""\ndef f():\n    """It is."""\n    # One\n    # note.\n    return "no"\n'),
                         ["Module.\n\nMore.", "It is.", "One\nnote."])

    def test_tables_code_and_directives_are_left_out(self):
        self.assertEqual(read("a.h", "// Format:\n//   word  word\n// End.\n"), ["Format:\nEnd."])
        self.assertEqual(read("a.h", "// A.\n//\n//   code\n//     more\n//\n// B.\n"), ["A.\n\n\nB."])
        self.assertEqual(read("a.h", "// Threads   any\n//           thread.\n// Cost      none.\n"),
                         ["Threads   any\n          thread.\n\nCost      none."])
        self.assertEqual(read("a.cpp", "int a;  // NOLINT(some-check)\n"), [""])


class Rules(unittest.TestCase):
    def test_long_sentences(self):
        self.assertEqual(rules("// " + LONG + "\n"), ["long_sentences"])
        self.assertEqual(rules("// " + "word " * 20 + "\n// " + "word " * 20 + "\n"), ["long_sentences"])
        self.assertEqual(rules("// " + "word " * 20 + "end.\n// " + "Word " * 20 + "\n"), [])
        self.assertEqual(rules("// " + "word " * 20 + "\nint a;\n// " + "word " * 20 + "\n"), [])
        self.assertEqual(rules('"""' + LONG + '"""\n', "a.py"), ["long_sentences"])

    def test_phrases(self):
        for text in ("Of those one is sent.", "What a rank lacks.", "This is no file.", "It runs beside NCCL.", "There, too."):
            self.assertEqual(rules(f"int a;  ///< {text}\n"), ["phrases"], text)
        self.assertEqual(rules('f("Of those, too");\n'), [])


class Limits(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "src" / "one").mkdir(parents=True)
        (self.root / "tests" / "docs").mkdir(parents=True)
        self.limits = self.root / "tests" / "docs" / "comments.json"

    def write(self, long, phrases):
        (self.root / "src" / "one" / "a.h").write_text(f"// {LONG}\nint a;\n" * long + "// Of it.\nint a;\n" * phrases)

    def check(self, *options):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = check_comments.main([self.root, *options])
        return code, output.getvalue()

    def test_numbers_only_fall(self):
        self.write(2, 1)
        self.check("--write")
        self.assertEqual(json.loads(self.limits.read_text()), {"src/one": {"long_sentences": 2, "phrases": 1}})
        self.assertEqual(self.check()[0], 0)
        self.write(3, 0)
        code, output = self.check()
        self.assertEqual(code, 1)
        self.assertIn("src/one: 3 long_sentences in comments, at most 2", output)
        self.assertIn("src/one/a.h:5: long_sentences", output)
        self.check("--write")
        self.assertEqual(json.loads(self.limits.read_text()), {"src/one": {"long_sentences": 2, "phrases": 0}})

    def test_a_folder_without_a_number_holds_the_rules(self):
        self.limits.write_text("{}")
        self.write(0, 0)
        self.assertEqual(self.check()[0], 0)
        self.write(0, 1)
        self.assertEqual(self.check()[0], 1)
        self.check("--write")
        self.assertEqual(json.loads(self.limits.read_text()), {})

    def test_nothing_found_is_a_failure(self):
        self.assertEqual(self.check()[0], 1)


if __name__ == "__main__":
    unittest.main()
