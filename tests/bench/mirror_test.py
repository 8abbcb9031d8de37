"""mirror_test.py path/to/tw_bench path/to/tw: cases that are drawn, and what is said of them, where there is no GPU."""
import array
import json
import math
import random
import re
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

from programs import TW, TW_BENCH, compare, torch
from harness import extents, mirror, tuned
from harness.cases import checked
from harness.kernel_names import with_kernels
from harness.program import Program, ProgramError
from harness.random_cases import MAKERS, random_cases
from harness.random_memory import MATRICES
from harness.random_products import cost
from harness.report import Report, row, text_of

OF_EXTENTS = ("gemm", "gemm-kinds", "gemm-fp32", "memory")


def extents_in(kernel):
    """Those of the first part of the name that has any."""
    return [int(number) for number in re.search(r"_(\d+(?:x\d+)*)(?:_|$)", kernel)[1].split("x")]


class Extents(unittest.TestCase):
    def test_half_are_multiples_of_64_a_fifth_of_8_and_each_size_is_as_frequent(self):
        draw, count = random.Random(5), 20000
        drawn = [extents.draw_extent(draw, extents.draw_step(draw)) for _ in range(count)]
        self.assertTrue(all(1 <= extent <= 65536 for extent in drawn))
        self.assertGreater(max(drawn), 60000)
        of_64 = sum(extent % 64 == 0 for extent in drawn) / count
        of_8 = sum(extent % 8 == 0 and extent % 64 != 0 for extent in drawn) / count
        self.assertAlmostEqual(of_64, 0.5 + 0.3 / 64, delta=0.015)
        self.assertAlmostEqual(of_8, 0.2 + 0.3 * 7 / 64, delta=0.015)
        plain = [extents.draw_extent(draw, 1) for _ in range(count)]
        for power in range(16):  # those from 2^power to twice that
            share = sum(extent.bit_length() == power + 1 for extent in plain) / count
            self.assertAlmostEqual(share, 1 / 16, delta=0.012)

    def test_units_are_kept(self):
        draw = random.Random(6)
        for unit in (1, 16, 128):
            for step in extents.STEPS:
                for _ in range(200):
                    extent = extents.draw_extent(draw, step, unit)
                    self.assertEqual(extent % math.lcm(step, unit), 0)
                    if step == 8 and unit < 64:
                        self.assertNotEqual(extent % 64, 0)

    def test_products_take_the_time_and_memory_that_is_wanted(self):
        for suite in ("gemm", "gemm-kinds"):
            steps = Counter()
            for case in random_cases(suite, 400, 3):
                seconds, memory = cost(case, case["m"], case["n"], case["k"])
                self.assertTrue(2e-6 <= seconds <= 10e-3 and memory <= 4 << 30, case)
                steps.update(next(step for step in (64, 8, 1) if case[name] % step == 0) for name in "mnk")
            self.assertAlmostEqual(steps[64] / 1200, 0.51, delta=0.06)
            self.assertAlmostEqual(steps[8] / 1200, 0.23, delta=0.06)
        self.assertEqual(cost({"type": "i8", "batch": 3}, 1000, 2000, 4000),
                         (max(2 * 3 * 8e9 / 1979e12, 3 * 20e6 / 3.35e12), 3 * (12e6 + 8e6)))


class Names(unittest.TestCase):
    def test_of_all_kinds_are_known(self):
        """Every family, type, layout and epilogue occurs, and the catalog schedules every name, not all gated ones."""
        found, small = set(), {}
        for suite in OF_EXTENTS:
            for case in with_kernels(suite, random_cases(suite, 600, 11)):
                found.update(mirror.labels_of(case["kernel"]))
                small.setdefault(tuple(mirror.labels_of(case["kernel"])[:-1]), case["kernel"])
        self.assertLessEqual({*MATRICES, "full_sum", "dot", "dot_atomic", "adamw", "embedding", "embedding_gradient",
                              "embedding_gradient_atomic", "gemm", "product", "NN", "NT", "TN", "TT", "bf16", "f16", "tf32",
                              "f32", "i8", "e4m3", "batches", "experts", "scaled", "result f32", "ab", "bias", "gelu",
                              "gelu-tanh", "bias+gelu", "bias+gelu-tanh", "swiglu", "bias+swiglu", "no epilogue",
                              "extents of 64", "extents of 8", "other extents"}, found)
        draw = random.Random(1)
        some = draw.sample(sorted(small.values()), 40) + [name for name in small.values() if "swiglu" in name][:8]
        with Program(TW_BENCH, "emulated") as ours:
            answer = ours.ask("ahead", kernels=some, arch="sm_90a", lower=True)
        self.assertEqual([name for name in answer["refused"] if "swiglu" not in name], [])
        self.assertNotIn("no such name in the catalog", answer["refused"].values())

    def test_have_peers(self):
        if not torch:
            self.skipTest("PyTorch is not on this machine")
        from harness import peers
        for suite in MAKERS:
            for case in with_kernels(suite, random_cases(suite, 200, 12)):
                self.assertTrue(peers.family_of(case["kernel"]), case["kernel"])

    def test_of_training_steps_have_peers(self):
        if not torch:
            self.skipTest("PyTorch is not on this machine")
        from harness import peers
        from harness.cases import default_file, read_cases
        for case in read_cases("fused", default_file("fused")):
            self.assertTrue(peers.family_of(case["kernel"]), case["kernel"])

    def test_unknown_ones_are_refused_alone(self):
        with Program(TW_BENCH, "emulated") as ours:
            answer = ours.ask("ahead", kernels=["row_sum_5x1000_bf16", "levitate_3x4", "gemm_bf16_8x8x8_tile1x1x1g1s1"],
                              arch="sm_90a", lower=True)
            self.assertEqual(set(answer["refused"]), {"levitate_3x4", "gemm_bf16_8x8x8_tile1x1x1g1s1"})
            self.assertEqual(answer["refused"]["levitate_3x4"], "no such name in the catalog")
            cases = [{"kernel": name} for name in ("row_sum_5x1000_bf16", "levitate_3x4", "dot_33_bf16")]
            ahead = mirror.Ahead(ours, cases, arch="sm_90a", lower=True)
            self.assertEqual([bool(ahead.reach(number)) for number in range(3)], [False, True, False])

    def test_no_case_is_drawn_twice(self):
        with mock.patch.dict(MAKERS, {"gemm": lambda draw: {"m": draw.randint(1, 20)}}):
            self.assertEqual(sorted(case["m"] for case in random_cases("gemm", 20, 1)), list(range(1, 21)))

    def test_what_takes_too_long_is_left_alone(self):
        slow, quick = "gemm_bf16_1000x1000x1000_tb", "row_sum_1x1"
        begin = time.monotonic()
        with Program(TW_BENCH, "emulated") as ours:
            answer = ours.ask("ahead", kernels=[slow, quick], arch="sm_90a", lower=True, threads=1, most_seconds=1e-4)
            self.assertEqual(answer["refused"].get(slow), "took more than 0.0001 s to compile")
            self.assertEqual(ours.ask("ahead", kernels=[quick], arch="sm_90a", lower=True)["refused"], {})
        self.assertEqual(ours.process.returncode, 0)
        self.assertLess(time.monotonic() - begin, 60)

    def test_cases_can_be_written_down(self):
        for suite in OF_EXTENTS:
            cases = random_cases(suite, 300, 2)
            self.assertEqual(len({json.dumps(case) for case in cases}), 300)
            for case in cases:
                checked(suite, json.dumps(case), "drawn")
                name = with_kernels(suite, [case])[0]["kernel"]
                self.assertTrue(all(extent >= 1 for extent in extents_in(name)))


class Summaries(unittest.TestCase):
    def rows(self):
        rows = [row("gemm", f"gemm_bf16_64x64x{64 * n}_tb", "gpu", ms=1.0, peer_ms=n / 10, ratio=n / 10, unit="TFLOP/s",
                    rate=1.0, peer="torch", correct=True) for n in range(1, 21)]
        rows[3].update(regret=1.25, tuned_ms=0.8, tiling="64x64x64g1s4")
        rows.append(row("gemm", "gemm_f16_7x9x11", "gpu", ms=1.0, peer_ms=4.0, ratio=4.0, unit="TFLOP/s", rate=1.0,
                        peer="torch", correct=False))
        rows.append(row("gemm", "gemm_i8_8x8x8", "gpu", ms=1.0, unit="TFLOP/s", rate=1.0, correct=True))
        rows.append(row("gemm", "gemm_bf16_8x8x8", "gpu", problem="failed: crash", failed=True))
        for extent in (5, 6):
            rows.append(row("gemm", f"gemm_bf16_{extent}x8x8", "gpu", problem="refused: x", refused=f"no {extent} rows"))
        return rows

    def test_tell_what_counts(self):
        lines = list(mirror.summary(self.rows(), 50.0))
        text = "\n".join(lines)
        self.assertEqual(lines[0], "25 cases: 21 beside a peer, 1 without one, 2 refused, 1 failed, 1 WRONG, 50.0 s, "
                                   "2.00 s a case")
        values = [n / 10 for n in range(1, 21)] + [4.0]
        mean = math.exp(sum(map(math.log, values)) / 21)
        self.assertEqual(lines[1], f"ratio: geomean {mean:.3f}, tenth percentile 0.300, median 1.100, best 4.000, of 21; "
                                   "the worst:")
        self.assertEqual([line.split()[0] for line in lines[2:7]], ["0.100", "0.200", "0.300", "0.400", "0.500"])
        self.assertIn("  0.400 gemm_bf16_64x64x256_tb (tuned: 64x64x64g1s4)", lines)
        self.assertIn("    20 NT: geomean", text)
        self.assertIn("     1 other extents: geomean 4.000", text)
        self.assertIn("tuned / ours: geomean 0.800", text)
        self.assertIn("WRONG: gemm_f16_7x9x11", text)
        self.assertIn("failed: gemm_bf16_8x8x8: failed: crash", text)
        self.assertIn("refused 2 times: no 5 rows (gemm_bf16_5x8x8, gemm_bf16_6x8x8)", text)

    def test_of_nothing(self):
        self.assertEqual(list(mirror.summary([])), ["0 cases: 0 beside a peer, 0 without one, 0 refused, 0 failed, 0 WRONG"])

    def test_a_line_tells_the_tuned_time(self):
        self.assertIn("tuned 0.8000 ms (64x64x64g1s4), regret 1.250", text_of(self.rows()[3]))

    def test_percentiles(self):
        self.assertEqual(mirror.percentile([5, 1, 4, 2, 3], 0.1), 1)
        self.assertEqual(mirror.percentile(range(1, 101), 0.1), 10)
        self.assertEqual(mirror.percentile([7], 0.5), 7)

    def test_labels(self):
        for kernel, labels in (
            ("gemm_bf16_3x64x33x20_ta_bias_gelu_tanh_f32",
             ["gemm", "bf16", "result f32", "TN", "batches", "bias+gelu-tanh", "other extents"]),
            ("gemm_e4m3_128x192x256_tb_scaled", ["gemm", "e4m3", "NT", "no epilogue", "scaled", "extents of 64"]),
            ("gemm_bf16_256x64x64_experts8", ["gemm", "bf16", "NN", "no epilogue", "experts", "extents of 64"]),
            ("product_8x16x24_ta_tb_ab", ["product", "TT", "no epilogue", "ab", "extents of 8"]),
            ("softmax_gradient_128x64_f16", ["softmax_gradient", "f16", "extents of 64"]),
            ("convolution_data_gradient_bf16_2x8x8x64_64_3x3_stride2_pad1",
             ["convolution_data_gradient", "bf16", "stride", "pad", "extents of 8"]),
            ("attention_bf16_1x8x512x64_group2_causal", ["attention", "bf16", "group", "causal", "extents of 8"]),
        ):
            self.assertEqual(mirror.labels_of(kernel), labels)


class CommandLine(unittest.TestCase):
    def test_a_dry_run_needs_no_gpu(self):
        done = compare("gemm-fp32", "memory", "--random", "3", "--seed", "4", "--dry-run", "lower")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], "gemm-fp32: 3 cases of seed 4")
        self.assertEqual(lines[1:4], [one["kernel"] for one in with_kernels("gemm-fp32", random_cases("gemm-fp32", 3, 4))])
        self.assertRegex(lines[4], r"gemm-fp32: 3 kernels, 0 refused, lowered for sm_90a in [0-9.]+ s")
        self.assertRegex(lines[-1], "memory: 3 kernels, 0 refused")

    def test_a_dry_run_takes_a_files_cases(self):
        """With their layouts: kernels of images whose channels come first are kernels of their own."""
        case = {"images": 2, "height": 8, "width": 8, "channels": 16, "filters": 16, "kernel_h": 1, "kernel_w": 1}
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write("\n".join(json.dumps({**case, "layout": layout}) for layout in ("nhwc", "nchw")))
            file.flush()
            done = compare("conv", "--cases", file.name, "--dry-run", "lower")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[:2], ["convolution_bf16_2x8x8x16_16_1x1", "convolution_bf16_2x8x8x16_16_1x1_nchw"])
        self.assertRegex(done.stdout, "conv: 6 kernels, 0 refused, lowered for sm_90a")

    def test_seeds_come_from_the_clock(self):
        self.assertRegex(compare("gemm", "--random", "2").stdout, r"^gemm: 2 cases of seed \d{9,}\ngemm: cannot be measured")

    def test_options_that_do_not_go_together(self):
        for arguments, message in (
            (("launch", "--random", "3"), "no cases of launch can be drawn, but of gemm, gemm-kinds"),
            (("launch", "--dry-run", "lower"), "some suite has no kernels of its own to compile"),
            (("gemm", "--seed", "3"), "--seed and --within belong to --random N"),
            (("gemm", "--random", "3", "--within", "0"), "--within: invalid seconds value"),
        ):
            done = compare(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)

    def test_what_cannot_be_tuned_is_said(self):
        self.assertIn("launch: tw tune has no space of its kernels", compare("launch", "--tuned", "3").stdout)
        for suite in ("gemm", "conv", "gemm-fp32", "memory"):
            self.assertNotIn("no space", compare(suite, "--tuned", "3").stdout)


class Data(unittest.TestCase):
    def test_of_large_arrays_comes_again_but_no_row_does(self):
        period, width, words = 4194301, 1024, 8300
        for kind, code in (("f32", "I"), ("f16", "H")):
            with Program(TW_BENCH, "emulated") as ours, tempfile.TemporaryDirectory() as folder:
                facts = ours.ask("prepare", kernel=f"embedding_2x{words}x{width}_{kind}", folder=folder)
                values = array.array(code, Path(facts["inputs"][0]["file"]).read_bytes())
            self.assertEqual(len(values), words * width)
            self.assertEqual(values[period:], values[:period] + values[:words * width - 2 * period])
            rows = {bytes(values[row * width:(row + 1) * width]) for row in range(words)}
            self.assertEqual(len(rows), words)


class Tuned(unittest.TestCase):
    def side_of(self, ours, kernel):
        case = {"kernel": kernel, "tuned": 2.0}
        with mock.patch.object(Program, "ask", autospec=True, side_effect=Program.ask) as asked:
            side = tuned.TunedSide(ours, case, {"kernel": kernel, "normal": True})
        self.addCleanup(side.close)
        asked.assert_called_with(side.program, "prepare", normal=True, kernel=f"{kernel}_tile{side.tiling}")
        self.assertGreater(side.burst(1), 0)
        return side

    def test_the_best_tiling_becomes_a_side(self):
        with Program(TW_BENCH, "emulated") as ours:
            side = self.side_of(ours, "gemm_bf16_24x40x64_tb")
            self.assertRegex(side.tiling, r"^\d+x\d+x\d+[wg]")
            with self.assertRaisesRegex(ProgramError, "tw tune: .*tells its tiling already"):
                tuned.TunedSide(ours, {"kernel": f"gemm_bf16_24x40x64_tb_tile{side.tiling}", "tuned": 2.0}, {})
            for case in with_kernels("conv", [{"images": 1, "height": 6, "width": 5, "channels": 16, "filters": 24,
                                               "kernel_h": 3, "kernel_w": 3, "pad": 1}]):
                self.assertRegex(self.side_of(ours, case["kernel"]).tiling, r"^(\d+x\d+x\d+w|halo)\d")
        self.assertTrue(tuned.has_space("conv", {}))
        self.assertFalse(tuned.has_space("conv", {"layout": "nchw"}))
        self.assertTrue(tuned.has_space("memory", {}))
        self.assertFalse(tuned.has_space("attention", {}))
        self.assertEqual(Path(TW).resolve(), (Path(TW_BENCH).parent.parent / "tools" / "tw").resolve())


    def test_the_best_choices_of_a_rule_become_a_side(self):
        """tw tune keeps them where this side's tw_bench looks, and nowhere else."""
        cases = with_kernels("gemm-fp32", [{"m": 24, "n": 40, "k": 33, "transpose_a": True}])
        for kernel in (cases[0]["kernel"], "softmax_131x37", "softmax_131x37_automatic"):
            with self.subTest(kernel), Program(TW_BENCH, "emulated") as ours, \
                    mock.patch.object(tuned.subprocess, "run", wraps=tuned.subprocess.run) as run:
                with mock.patch.object(Program, "ask", autospec=True, side_effect=Program.ask) as asked:
                    side = tuned.TunedSide(ours, {"kernel": kernel, "tuned": 2.0}, {"kernel": kernel, "normal": True})
                self.addCleanup(side.close)
                name = kernel.removesuffix("_automatic") + "_automatic"
                asked.assert_called_with(side.program, "prepare", normal=True, kernel=name)
                self.assertEqual(run.call_args.args[0][1:3], ["tune", name])
                for environment in (run.call_args.kwargs["env"], side.program.environment):
                    self.assertEqual(environment["TW_CACHE_DIR"], side.cache.name)
                self.assertRegex(side.tiling, r"^(rule|\S*[.]\w+=\S+( \S+)*)$")
                self.assertGreater(side.burst(1), 0)
                side.close()
                self.assertFalse(Path(side.cache.name).exists())
        with Program(TW_BENCH, "emulated") as ours:
            with self.assertRaisesRegex(ProgramError, "tw tune: .*names no product on tensor cores"):
                tuned.TunedSide(ours, {"kernel": "softmax_131", "tuned": 2.0}, {})


@unittest.skipUnless(torch, "PyTorch is not on this machine")
class Peers(unittest.TestCase):
    KERNELS = ("gemm_bf16_2x40x64x72_ta_tb_swiglu", "gemm_f16_40x96x56_tb_swiglu", "gemm_i8_7x33x50_ta",
               "gemm_i8_2x20x24x64_tb", "gemm_e4m3_9x20x50", "gemm_e4m3_2x40x33x64_tb_bias_gelu",
               "gemm_f16_9x7x33_bias_f32", "gemm_tf32_2x9x7x33_ta_bias_gelu_tanh", "gemm_bf16_256x40x64_experts3",
               "product_30x20x50_ta_tb_ab", "embedding_90x9x96_bf16", "embedding_gradient_atomic_50x9x64_bf16",
               "argmax_9x64_bf16", "moments_5x1000_bf16", "dot_atomic_33_bf16")

    def test_compute_what_ours_do(self):
        """Each of PyTorch's ways, within a few roundings of its type or what GELU by tanh differs from that by erf."""
        from harness import bursts, operands, peers
        bursts.DEVICE = "cpu"
        libraries = mock.patch.object(torch.backends.cuda, "preferred_blas_library", create=True)
        with Program(TW_BENCH, "emulated") as ours, libraries:
            for kernel in self.KERNELS:
                with tempfile.TemporaryDirectory() as folder:
                    experts = {"ascending": {"expert": [0, 3]}} if "experts" in kernel else {}
                    facts = ours.ask("prepare", kernel=kernel, folder=folder, normal=kernel.startswith("gemm"), **experts)
                    inputs = operands.load_all(facts["inputs"])
                    ours_got = tuple(operands.load_all(facts["outputs"]).values())
                family, scalars = peers.family_of(kernel), facts["scalars"]
                exact = operands.as_tuple(family.formula(operands.cast_floats(inputs, torch.float64), scalars))
                given = family.prepare(peers.in_types_of_x(inputs))
                ways = {name: lambda way=way: way(given) for name, way in family.ways.items()}
                ways["ours"] = lambda: ours_got
                if not family.ways:
                    ways["eager"] = family.eager(given, scalars) if family.eager else lambda: family.formula(given, scalars)
                if family.compiled_formula:
                    ways["compiled"] = lambda: family.compiled_formula(given, scalars)
                for name, way in ways.items():
                    for got, expected in zip(operands.as_tuple(way()), exact):
                        self.assertEqual(got.shape, expected.shape, f"{kernel} by {name}")
                        self.assertLess(operands.distance(got, expected), 0.02 * expected.abs().max().item() + 1e-3,
                                        f"{kernel} by {name}")

    def test_matrices_of_8_bits_are_made_as_functions_want_them(self):
        from harness.product_peers import matrix_by_matrix

        def multiply(a, b):
            self.assertEqual([extent % 16 for extent in (*b.shape, a.shape[1])], [0, 0, 0])
            self.assertTrue(a.is_contiguous() and b.t().is_contiguous() and a.shape[0] >= 32)
            return a.int() @ b.int()
        for m, n, k in ((1, 1, 1), (16, 16, 16), (33, 17, 40), (64, 48, 32)):
            a = torch.randint(-9, 9, (3, m, k), dtype=torch.int8)
            b = torch.randint(-9, 9, (3, n, k), dtype=torch.int8)
            call = matrix_by_matrix(multiply, 32)
            for right in (b.transpose(1, 2), b.transpose(1, 2).contiguous()):
                self.assertTrue(torch.equal(call(a, right), a.int() @ right.int()))
                self.assertTrue(torch.equal(call(a[0], right[0]), a[0].int() @ right[0].int()))

    def test_sums_that_cancel_may_err_as_the_sums_on_their_way(self):
        from harness import operands, peers
        terms = 4096
        torch.manual_seed(3)
        family = peers.family_of(f"gemm_tf32_1x1x{terms}")
        a, b = torch.randn(1, terms).half().float(), torch.randn(terms, 1).half().float()  # exact in tf32
        a[0, -1], b[-1, 0] = -1.0, 0.0
        b[-1, 0] = (a.double() @ b.double()).half().float().item()
        inputs, exact = {"a": a, "b": b}, a.double() @ b.double()
        self.assertLess(exact.abs().item(), 0.1)
        step = 2.0**-24 * terms / 8 * math.sqrt(terms)  # truncated after each instruction
        for error, correct in ((0.3 * step, True), (30 * step, False)):
            got = (exact + error).float()
            self.assertIs(operands.check(family, {"scalars": {}, "approximate": False}, inputs, [got])[0], correct)

    def test_few_results_may_have_bad_luck(self):
        from harness import operands, peers
        family = peers.family_of("similarity_1x1000_f32")
        for rows, correct in ((2, True), (500, False)):
            torch.manual_seed(rows)
            inputs = {"x": torch.rand(rows, 1000) - 0.5, "query": torch.rand(1000) - 0.5}
            exact = family.formula(operands.cast_floats(inputs, torch.float64), {})
            got = (exact + 8e-7 * exact.abs().max()).float()
            self.assertIs(operands.check(family, {"scalars": {}, "approximate": False}, inputs, [got])[0], correct)


class FakeGraph:
    """Stands for CUDA graphs and their capture: what is captured is run at once."""

    def __init__(self, *_):
        pass

    def replay(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@unittest.skipUnless(torch, "PyTorch is not on this machine")
class Runs(unittest.TestCase):
    """A whole run with the emulator as our side and PyTorch on the CPU as the other."""

    def run_pairs(self, suite, cases, peak, drawn):
        from harness import bursts, gpu_suites
        bursts.DEVICE = "cpu"
        event = mock.Mock(**{"elapsed_time.return_value": 2.0})
        fakes = {"Stream": mock.MagicMock(), "current_stream": mock.Mock(), "synchronize": mock.Mock(),
                 "stream": mock.MagicMock(), "CUDAGraph": FakeGraph, "graph": FakeGraph, "empty_cache": mock.Mock(),
                 "Event": mock.Mock(return_value=event), "memory_allocated": mock.Mock(return_value=0),
                 "reset_peak_memory_stats": mock.Mock()}
        libraries = mock.patch.object(torch.backends.cuda, "preferred_blas_library", create=True)
        emulated = mock.patch.object(gpu_suites, "Program", lambda path, device: Program(path, "emulated"))
        copies = mock.patch.object(bursts, "num_sets", lambda bytes_each: 2)
        report = Report()
        cases = with_kernels(suite, [{**case, "drawn": drawn} for case in cases])
        with mock.patch.multiple(torch.cuda, **fakes), libraries, emulated, copies, \
                mock.patch("builtins.print") as printed, mock.patch("traceback.print_exc"):
            self.assertTrue(gpu_suites.run_pairs(suite, cases, TW_BENCH, report, 1, peak))
        return report, [call.args[0] for call in printed.call_args_list]

    def test_drawn_cases_are_measured_tuned_refused_and_summed_up(self):
        cases = [{"m": 24, "n": 40, "k": 64, "transpose_b": True, "tuned": 2.0},
                 {"m": 20, "n": 33, "k": 50, "type": "i8", "transpose_a": True, "batch": 2},
                 {"m": 40, "n": 48, "k": 56, "type": "tf32", "epilogue": "bias_swiglu", "batch": 2, "transpose_a": True},
                 {"m": 9, "n": 7, "k": 33, "type": "f16", "result": "f32", "epilogue": "bias_gelu"},
                 {"m": 8, "n": 8, "k": 8, "tile": "1x1x1g1s1"}]
        report, lines = self.run_pairs("gemm-kinds", cases, 1e9, mirror.Drawn(77))
        self.assertIn("medians of 1 rounds, seed 77", lines[0])
        for result in report.rows[:4]:
            self.assertIs(result["correct"], True, text_of(result))
            self.assertTrue(result["peer"], text_of(result))
        first = report.rows[0]
        self.assertAlmostEqual(first["regret"], first["ms"] / first["tuned_ms"])
        self.assertEqual(first["all_ms"]["tuned"], first["tuned_ms"])
        self.assertNotIn("tuned_ms", report.rows[1])
        self.assertTrue(report.rows[4]["problem"].startswith("refused: "))
        self.assertFalse(report.failed())
        self.assertTrue(any(line.startswith("gemm-kinds: 5 cases: 4 beside a peer, 0 without one, 1 refused, 0 failed, "
                                            "0 WRONG") for line in lines), lines)
        self.assertTrue(any("refused 1 times" in line for line in lines))

    def test_a_case_that_fails_costs_no_other(self):
        cases = [{"kernel": "dropout_7x37_f32"}, {"kernel": "argmax_9x64_bf16"}]
        report, lines = self.run_pairs("memory", cases, None, mirror.Drawn(1))
        self.assertEqual([bool(one.get("failed")) for one in report.rows], [True, False])
        self.assertIs(report.rows[1]["correct"], True)
        self.assertTrue(report.failed())
        self.assertTrue(any("share of a copy" in line for line in lines), lines)

    def test_no_case_begins_after_the_time(self):
        report, lines = self.run_pairs("memory", [{"kernel": "dot_33_bf16"}] * 3, None, mirror.Drawn(1, within=1e-9))
        self.assertEqual(report.rows, [])
        self.assertIn("memory: the time is over, 3 cases are left out", lines)


if __name__ == "__main__":
    unittest.main()
