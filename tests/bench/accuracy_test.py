"""accuracy_test.py path/to/tw_bench path/to/tw: errors of attention, of 16 bits and of 8, beside PyTorch's, on the emulator and the CPU."""
import math
import unittest
from pathlib import Path
from unittest import mock

from programs import TW_BENCH, torch
from harness.program import Program
from harness.report import Report, row, text_of


@unittest.skipUnless(torch, "PyTorch is not on this machine")
class Accuracy(unittest.TestCase):
    def test_tells_errors_beside_those_of_torch(self):
        from harness import bursts, gpu_suites
        bursts.DEVICE = "cpu"
        cases = [{"batch": 1, "heads": 2, "rows": 96, "depth": 64, "group": 2, "causal": True},
                 {"batch": 1, "heads": 1, "rows": 200, "depth": 64, "outliers": "columns"},
                 {"batch": 1, "heads": 1, "rows": 64, "depth": 60}]
        report = Report()
        emulated = mock.patch.object(gpu_suites, "Program", lambda path, device: Program(path, "emulated"))
        with emulated, mock.patch("builtins.print"):
            self.assertTrue(gpu_suites.run_accuracy(cases, TW_BENCH, report, 1))
        self.assertIn("unavailable: no kernel named 'attention_bf16_1x1x64x60'", report.rows.pop()["problem"])
        self.assertEqual([r["case"] for r in report.rows],
                         [f"attention_bf16_1x2x96x64_group2_causal {name}" for name in ("o", "dq", "dk", "dv")] +
                         [f"attention_bf16_1x1x200x64 outlying columns {name}" for name in ("o", "dq", "dk", "dv")])
        for result in report.rows:
            self.assertIs(result["correct"], True, text_of(result))
            self.assertLess(0, result["frobenius"]["ours"])
            self.assertLess(result["frobenius"]["peer"], 0.1)
        self.assertFalse(report.failed())

    def test_attention_of_8_bits_is_checked(self):
        from harness import bursts, gpu_suites, kernel_names, operands, peers
        bursts.DEVICE = "cpu"
        case = {"type": "e4m3", "batch": 1, "heads": 2, "rows": 100, "depth": 64, "group": 2, "causal": True}
        kernel = kernel_names.attention_kernel(case)
        family = peers.family_of(kernel)
        with Program(TW_BENCH, "emulated") as ours, gpu_suites.folder_with_room() as folder:
            facts = ours.ask("prepare", kernel=kernel, folder=folder, normal=True, ranges=kernel_names.ranges_of_rules(case))
            inputs = operands.load_all(facts["inputs"])
            results = list(operands.load_all(facts["outputs"]).values())
        verdict = operands.check(family, facts, inputs, results)
        self.assertTrue(verdict.correct, verdict)
        prepared = family.prepare(peers.in_types_of_x(inputs))
        q, k, v = (prepared[f"{name}16"] for name in "qkv")
        peer = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        self.assertLess((peer.transpose(1, 2) - results[0]).abs().max().item(), 0.2)
        for result in results:
            result.view(-1)[-1] += 0.5
            self.assertFalse(operands.check(family, facts, inputs, results)[0])
            result.view(-1)[-1] -= 0.5

    def test_errors_over_the_bar_are_wrong(self):
        from harness import accuracy
        exact = torch.linspace(-1, 1, 1000, dtype=torch.float64)
        rounded = exact.bfloat16()
        coarse = (exact * 16).round().div(16).bfloat16()  # errs by up to 1 / 32
        for name, ours, theirs, correct in (("o", rounded, coarse, True), ("o", rounded, rounded, True),
                                            ("o", coarse, rounded, False), ("dq", coarse, coarse, True),
                                            ("dk", -exact.bfloat16(), coarse, False)):
            result = accuracy.judged(name, ours, theirs, exact)
            self.assertIs(result["correct"], correct, result)
            text = text_of(row("accuracy", name, "cpu", **result))
            self.assertEqual("OVER THE BAR" in text, not correct)
            self.assertTrue(text.endswith("correct" if correct else "WRONG"))
        with_nan = rounded.clone().index_fill_(0, torch.tensor(3), math.nan)
        for theirs in (coarse, with_nan):
            result = accuracy.judged("o", with_nan, theirs, exact)
            self.assertEqual(result["frobenius"]["ours"], math.inf)
            self.assertIs(result["correct"], False)


if __name__ == "__main__":
    unittest.main()
