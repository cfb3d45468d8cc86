#!/usr/bin/env python3
"""check_words.py finds what it is to find. Usage: words_test.py"""
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_words  # noqa: E402


def figure(text, key):
    return check_words.figures(text)[key]


class Figures(unittest.TestCase):
    def test_words_are_by_hand(self):
        table = "<!-- sizes: scripts/measurements --write -->\n| a | b |\n|---|---|\n| one two | three |\n<!-- end -->\n"
        self.assertEqual(figure("Four words by hand.\n\n" + table, "words"), 4)
        self.assertEqual(figure("<!-- Written by `neap`; a test compares. -->\nFour words by hand.\n", "words"), 0)
        self.assertEqual(figure("<!-- zero: NEAP_UPDATE_GOLDEN=1 formulas_golden_test -->\nOne.\n<!-- /zero -->\nTwo.\n", "words"), 1)
        self.assertEqual(figure("Run:\n```sh\nneap plan\n```\n", "words"), 5)

    def test_sentences(self):
        long = "Word " * 30 + "end."
        self.assertEqual(figure(long, "long_sentences"), 1)
        self.assertEqual(figure("Word " * 29 + "end.", "long_sentences"), 0)
        self.assertEqual(figure("- " + "word " * 20 + "\n- " + "word " * 20 + "\n", "long_sentences"), 0)
        self.assertEqual(figure("Word " * 20 + "end. `code` " + "word " * 20, "long_sentences"), 0)
        self.assertEqual(figure("```\n" + long + "\n```\n", "long_sentences"), 0)
        self.assertEqual(figure("Two words. Four words are here.", "mean_sentence"), 3)
        self.assertEqual(figure("It has 1 000 000 [long names](of/a/file.md).", "mean_sentence"), 5)

    def test_cells(self):
        self.assertEqual(figure("| a | b |\n|---|---|\n| one | " + "word " * 41 + "|\n", "longest_cell"), 41)

    def test_phrases(self):
        for text in ("Of these ranks one sends.", "It ends. What a rank lacks is sent.", "- Those of others wait.", "This is no file.",
                     "It runs beside NCCL.", "Gradients are there, too.", "It waits for ever.", "All but for the last.",
                     "Nobody reads it.", "It takes 2 seconds a step.", "Loaded once a process.", "It is kept for good."):
            self.assertEqual(figure(text, "phrases"), 1, text)
        for text in ("What now?", "This is no longer so.", "The size of the file.", "Too many files.", "Once a rank has ended, others stop.", "```\nOf all\n```\n"):
            self.assertEqual(figure(text, "phrases"), 0, text)


if __name__ == "__main__":
    unittest.main()
