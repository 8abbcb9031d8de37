"""operands_test.py path/to/tw_bench path/to/tw: what the check of results says of some that no kernel computed."""
import math
import unittest

from programs import torch


@unittest.skipUnless(torch, "PyTorch is not on this machine")
class Verdicts(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        self.x = torch.rand(200) - 0.5

    def check(self, formula, got, **family):
        from harness import operands
        from harness.family import Family
        facts = {"scalars": {}, "approximate": False}
        return operands.check(Family(lambda t, _: formula(t["x"]), **family), facts, {"x": self.x}, [got])

    @staticmethod
    def changed(values, place, value):
        values = values.clone()
        values[place] = value
        return values

    def test_nan_is_right_only_where_float64_has_it(self):
        def some_nan(x):
            return self.changed(x * 2, 7, math.nan)
        self.assertFalse(self.check(some_nan, self.x * 2).correct, "a number in the place of NaN")
        self.assertTrue(self.check(some_nan, some_nan(self.x)).correct)
        self.assertFalse(self.check(some_nan, self.changed(some_nan(self.x), 8, math.nan)).correct)

    def test_nan_of_float32_alone_excuses_nothing(self):
        def squares_of_large(x):
            large = (x + 1) * 1e25
            return (large * large) / (large * large)  # infinite over infinite in float32, 1 in float64
        self.assertTrue(squares_of_large(self.x).isnan().all())
        self.assertFalse(self.check(squares_of_large, squares_of_large(self.x)).correct)
        self.assertTrue(self.check(squares_of_large, torch.ones(200)).correct)
        self.assertFalse(self.check(squares_of_large, torch.ones(200) + 0.01).correct)

    def test_infinite_elements_are_those_of_the_formula(self):
        def some_infinite(x):
            return self.changed(x * 2, 7, -math.inf)
        right = some_infinite(self.x)
        self.assertTrue(self.check(some_infinite, right).correct)
        for wrong in (math.inf, 0.0, math.nan):
            self.assertFalse(self.check(some_infinite, self.changed(right, 7, wrong)).correct, wrong)
        self.assertFalse(self.check(some_infinite, self.changed(right, 8, right[8] + 0.01)).correct)

    def test_numbers_at_the_edge_of_a_type_may_overflow(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            largest, ulp = torch.finfo(dtype).max, torch.finfo(dtype).max * torch.finfo(dtype).eps / 2
            for sign in (1, -1):
                for edge, got, correct in (  # in ulps from the largest number; one half of it rounds to infinity
                        (0.49, math.inf, True), (0.51, largest, True), (0.1, math.inf, True), (40.0, math.inf, True),
                        (0.51, -math.inf, False), (0.51, math.nan, False), (-9.0, math.inf, False),
                        (9.0, largest, False), (40.0, largest, False)):
                    def one_at_the_edge(x, edge=edge):
                        return self.changed(x.double() * largest * 1.9, 7, sign * (largest + edge * ulp))
                    right = one_at_the_edge(self.x).to(dtype)
                    with self.subTest(dtype=dtype, sign=sign, edge=edge, got=got):
                        self.assertIs(self.check(one_at_the_edge, self.changed(right, 7, sign * got)).correct, correct)
                        self.assertFalse(self.check(one_at_the_edge, self.changed(right, 8, math.inf)).correct)

    def test_what_overflows_hides_no_errors(self):
        def one_is_large(x):
            return self.changed(x.double(), 7, 1e6)
        right = one_is_large(self.x).half()
        self.assertTrue(right[7].isinf() and self.check(one_is_large, right).correct)
        self.assertFalse(self.check(one_is_large, self.changed(right, 8, right[8] + 0.01)).correct)

    def test_a_formula_that_loses_its_results_tells_nothing(self):
        def loses(x):
            return (x + 1e9) - 1e9
        for got in (self.x, loses(self.x)):
            verdict = self.check(loses, got)
            self.assertTrue(verdict.lost and not verdict.correct, verdict)
        self.x = self.x[:20]  # of few it may be luck
        self.assertFalse(self.check(loses, self.x).lost)

    def test_a_yardstick_without_a_number_allows_nothing(self):
        wrong = self.x + 0.01
        for yardstick, correct in ((lambda t: t["x"] + 0.02, True), (lambda t: t["x"] * math.nan, False)):
            verdict = self.check(lambda x: x + 0, wrong, yardstick=yardstick, yardstick_of_all=True)
            self.assertIs(verdict.correct, correct, verdict)
            verdict = self.check(lambda x: x + 0, wrong.half(), yardstick=yardstick)
            self.assertIs(verdict.correct, correct, verdict)

    def test_the_first_wrong_output_is_told(self):
        from harness import operands
        from harness.family import Family
        family = Family(lambda t, _: (t["x"], t["x"], t["x"]))
        results = [self.x + 0.01, self.x + 0.1, self.x]
        verdict = operands.check(family, {"scalars": {}, "approximate": False}, {"x": self.x}, results)
        self.assertFalse(verdict.correct)
        self.assertLess(verdict.error, 0.05)


if __name__ == "__main__":
    unittest.main()
