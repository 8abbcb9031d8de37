"""unknown_suite_test.py path/to/tw_bench path/to/tw: suites of kernels scheduled by rule: those that tw_bench loads, and named ones."""
import unittest
from pathlib import Path

from programs import compare, torch
from harness.automatic_suite import named_cases
from harness.cases import default_file, read_cases
from harness.program import ProgramError, library_of


class Automatic(unittest.TestCase):
    def test_each_named_kernel_has_a_declaration_that_is_scheduled_by_rule(self):
        done = compare("automatic", "--dry-run", "lower")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, f"automatic: {len(named_cases())} kernels, 0 refused")


class Unknown(unittest.TestCase):
    def test_each_kernel_is_there_and_lowered(self):
        cases = read_cases("unknown", default_file("unknown"))
        done = compare("unknown", "--dry-run", "lower")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, f"unknown: {len(cases)} kernels, 0 refused")

    def test_says_where_it_looked_for_its_kernels(self):
        with self.assertRaisesRegex(ProgramError, "libunknown_kernels.so was not found in tests/unknown, lib of /none"):
            library_of("unknown", Path("/none/bench/tw_bench"))

    @unittest.skipUnless(torch, "no PyTorch")
    def test_each_kernel_has_a_peer(self):
        from harness import peers
        for case in read_cases("unknown", default_file("unknown")):
            self.assertTrue(peers.family_of(case["kernel"]), case)


if __name__ == "__main__":
    unittest.main()
