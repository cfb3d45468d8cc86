#!/usr/bin/env python3
"""The communicator over MPI, as processes. usage: FILE NEAP COLLECTIVES REVIEWS MPIRUN"""
import sys
import time
import unittest

import launch


class Collectives(unittest.TestCase):
    def program(self, ranks, *arguments):
        return launch.run(ranks, launch.COLLECTIVES, *arguments, timeout=120)

    def test_every_collective_on_several_ranks(self):
        for ranks in (2, 3, 4):
            result = self.program(ranks, "cpu")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stdout, rf"\d+ checks on {ranks} ranks over mpi")

    def test_exit_code_and_words_of_a_failing_rank_come_through(self):
        result = self.program(2, "cpu", "fail", "1", "3")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("rank 1: rank made to fail", result.stderr)

    def test_a_rank_that_fails_while_sums_run_ends_the_others(self):
        for rank in ("0", "1"):
            start = time.monotonic()
            result = self.program(2, "cpu", "fail-in-lane", rank, "3")
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertEqual(result.stderr.count("rank made to fail"), 1, result.stderr)
            self.assertLess(time.monotonic() - start, 60)

    def test_a_rank_that_dies_ends_the_others(self):
        start = time.monotonic()
        result = self.program(2, "cpu", "die", "0")
        self.assertNotEqual(result.returncode, 0)
        self.assertLess(time.monotonic() - start, 60)

    def test_a_rank_that_works_for_long_shows_it(self):
        result = self.program(3, "cpu", "slow", "1")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_rank_that_does_not_come_is_named_once(self):
        start = time.monotonic()
        result = self.program(3, "cpu", "late", "1")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.count("rank 0: Rank 0 waited 4 s in all_reduce for rank 1"), 1, result.stderr)
        self.assertEqual(result.stderr.count("waited"), 1, result.stderr)
        self.assertLess(time.monotonic() - start, 60)

    def test_a_launcher_of_another_kind_is_told_apart(self):
        # Variables that promise ranks, and no mpirun behind them.
        lies = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        result = launch.run(1, launch.COLLECTIVES, "cpu", **lies)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("MPI says rank 0 of 1", result.stderr)


if __name__ == "__main__":
    launch.NEAP, launch.COLLECTIVES, launch.REVIEWS, launch.MPIRUN = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
