"""unknown_suite_test.py path/to/tw_bench path/to/tw: the suite of kernels that tw_bench loads."""
import unittest
from pathlib import Path

from programs import compare, torch
from harness.cases import default_file, read_cases
from harness.program import ProgramError, library_of


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
