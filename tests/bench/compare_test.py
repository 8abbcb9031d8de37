"""compare_test.py path/to/tw_bench path/to/tw: the benchmark harness where there is no GPU."""
import array
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from programs import NO_GPU, ROOT, TW, TW_BENCH, compare, torch
from harness.program import Program, ProgramError, Unavailable
from harness.cases import checked
from harness.random_cases import DRAWN, random_cases
from harness.report import KEYS, Report, row, text_of
from harness.scratch import scratch_folder


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)

    def write(self, text):
        path = self.path / "cases.jsonl"
        path.write_text(text)
        return str(path)

    def rows(self, suite, cases):
        """The JSON rows of a suite on these cases."""
        json_path = self.path / "rows.jsonl"
        done = compare(suite, "--rounds", "2", "--cases", self.write(cases), "--json", str(json_path))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [json.loads(line) for line in json_path.read_text().splitlines()]
        for one in rows:
            self.assertLessEqual(set(KEYS), set(one))
            self.assertEqual(one["suite"], suite)
        return rows


class Scratch(Folder):
    def test_of_killed_processes_is_removed_by_the_next(self):
        program = ("import sys, time\n"
                   "from harness.scratch import scratch_folder\n"
                   "with scratch_folder(sys.argv[1]) as path:\n"
                   "    open(path + '/operand', 'w').write('x' * 1000)\n"
                   "    print(path, flush=True)\n"
                   "    time.sleep(60)\n")
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "bench"))
        running = subprocess.Popen([sys.executable, "-c", program, str(self.path)], stdout=subprocess.PIPE, text=True,
                                   env=environment)
        self.addCleanup(running.stdout.close)
        left = running.stdout.readline().strip()
        self.assertTrue(Path(left, "operand").exists())
        (self.path / "tilewright-notes").mkdir()
        with scratch_folder(self.path):
            self.assertTrue(Path(left, "operand").exists(), "that of a living process is gone")
        running.kill()
        running.wait()
        with scratch_folder(self.path) as mine:
            self.assertFalse(Path(left).exists())
            self.assertTrue(Path(mine).exists())
        self.assertEqual([entry.name for entry in self.path.iterdir()], ["tilewright-notes"])


class SuitesWithoutGpu(Folder):
    def test_emulator(self):
        (result,) = self.rows("emulator", '{"m": 64, "n": 128, "k": 32}\n')
        self.assertEqual(result["case"], "sgemm_64x128x32")
        self.assertIs(result["correct"], True)
        # 2 x 64 x 128 x 32 reads of shared memory are the least that 4 x 4 register tiles can do with: a quarter each.
        self.assertGreater(result["accesses"], 2 * 64 * 128 * 32 / 4)
        self.assertAlmostEqual(result["rate"], result["accesses"] / result["ms"] * 1e-3, delta=0.01 * result["rate"])
        self.assertIsNone(result["peer_ms"])

    def test_compile(self):
        # The softmax has several bound loops of equal stride: their order must not depend on where memory lies.
        kernels = ["row_sum_1x1", "product_3x4x5", "softmax_7x37_f32", "softmax_7x37_f32"]
        with Program(TW_BENCH, "emulated") as ours:
            try:
                ours.ask("compile", kernel="product_1x1x1")
            except ProgramError as problem:
                self.skipTest(f"NVRTC is not on this machine: {problem}")
        rows = self.rows("compile", "".join(json.dumps({"kernel": kernel}) + "\n" for kernel in kernels))
        self.assertEqual([r["case"] for r in rows], kernels)
        for result in rows:
            self.assertIs(result["correct"], True, text_of(result))
            self.assertEqual(result["ms"], result["cold_ms"])
            self.assertLess(result["memo_read_ms"], result["ms"] - result["lower_ms"])
            self.assertLess(result["disk_read_ms"], result["ms"] - result["lower_ms"])

    def test_a_kernel_that_the_catalog_lacks(self):
        (result,) = self.rows("compile", '{"kernel": "levitate_3x4"}')
        self.assertIn("no kernel named 'levitate_3x4'", result["problem"])
        self.assertIsNone(result["ms"])
        self.assertIn("unavailable", text_of(result))

    def test_what_needs_a_gpu_says_so(self):
        for suite in ("gemm", "gemm-fp32", "accuracy", "memory", "fused", "launch"):
            done = compare(suite)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(f"{suite}: cannot be measured: no CUDA driver", done.stdout)

    def test_several_suites_run_what_they_can(self):
        done = compare("memory", "emulator", "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("memory: cannot be measured", done.stdout)
        self.assertIn("sgemm_256x256x512", done.stdout)


class CaseFiles(Folder):
    def refused(self, suite, text):
        done = compare(suite, "--cases", self.write(text))
        self.assertEqual(done.returncode, 2, done.stdout)
        return done.stderr

    def test_bad_ones_are_refused_with_line_and_reason(self):
        for suite, text, message in (
            ("emulator", '{"m": 64, "n": 64, "k": 16}\n{"m": 64,\n', "cases.jsonl:2: not JSON"),
            ("emulator", '{"m": 64, "n": 64}', 'cases.jsonl:1: "k" is missing; a case of emulator has m, n, k'),
            ("emulator", '{"m": 64, "n": 64, "k": "many"}', '"k" is "many", not a whole number'),
            ("emulator", '{"m": 64, "n": 64, "k": true}', '"k" is true, not a whole number'),
            ("compile", '{"kernel": "a", "colour": 3}', '"colour" means nothing here; a case of compile has kernel'),
            ("memory", '{"kernel": "a", "ranges": {"v": [1, 0]}}', "not an object of [low, high]"),
            ("memory", '{"kernel": "a", "scalars": [1]}', "not an object of numbers"),
            ("launch", '{"kind": "lunch"}', '"kind" is "lunch", not "launch", "graph", "operator" or "step"'),
            ("gemm-fp32", "[1, 2]", "is no JSON object"),
            ("gemm", '{"m": 1, "n": 1, "k": 1, "type": "f32"}', 'not "bf16", "f16", "tf32", "i8" or "e4m3"'),
            ("gemm", '{"m": 1, "n": 1, "k": 1, "epilogue": "relu"}', "not one of none, bias, gelu, bias_gelu, gelu_tanh"),
            ("accuracy", '{"batch":1,"heads":1,"rows":8,"depth":8,"outliers":"x"}', '"none", "rows" or "columns"'),
            ("compile", "\n\n", "there is no case in it"),
        ):
            with self.subTest(text=text):
                self.assertIn(message, self.refused(suite, text))

    def test_a_file_that_is_not_there(self):
        done = compare("compile", "--cases", str(self.path / "none.jsonl"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("none.jsonl: cannot be read", done.stderr)

    def test_cases_belong_to_one_suite(self):
        done = compare("compile", "emulator", "--cases", self.write("{}"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("--cases belongs to one suite", done.stderr)

    def test_our_own_files_are_good(self):
        from harness.cases import KEYS as SUITES, default_file, read_cases
        for suite in SUITES:
            if suite != "automatic":  # which has those of others
                self.assertTrue(read_cases(suite, default_file(suite)))
        self.assertEqual(len(read_cases("gemm", default_file("gemm"))), 22)
        self.assertTrue(read_cases("gemm", default_file("gemm-kinds")) and
                        read_cases("attention", default_file("attention-fp8")))

    def test_cases_of_gemm_are_kernels(self):
        from harness.kernel_names import gemm_kernel
        case = {"m": 64, "n": 32, "k": 48, "type": "f16", "transpose_b": True, "epilogue": "bias_gelu", "batch": 2,
                "result": "f32", "tile": "16x16x16w16x8s2"}
        self.assertEqual(gemm_kernel(case), "gemm_f16_2x64x32x48_tb_bias_gelu_f32_tile16x16x16w16x8s2")
        self.assertEqual(gemm_kernel({"m": 5, "n": 6, "k": 7}), "gemm_bf16_5x6x7")

    def test_a_shape_that_the_emulator_cannot_run(self):
        done = compare("emulator", "--cases", self.write('{"m": 65, "n": 64, "k": 16}'))
        self.assertEqual(done.returncode, 1)
        self.assertIn("m and n are multiples of 64", done.stdout)


class Protocol(Folder):
    def setUp(self):
        super().setUp()
        self.ours = Program(TW_BENCH, "emulated")
        self.addCleanup(self.ours.__exit__)

    def prepare(self, kernel, **details):
        return self.ours.ask("prepare", kernel=kernel, folder=str(self.path), **details)

    def floats(self, described):
        values = array.array("f")
        values.frombytes(Path(described["file"]).read_bytes())
        return values

    def test_writes_operands_and_results(self):
        facts = self.prepare("product_5x7x3")
        a, b = (self.floats(one) for one in facts["inputs"])
        c = self.floats(facts["outputs"][0])
        self.assertEqual(facts["outputs"][0]["shape"], [5, 7])
        self.assertEqual(facts["bytes"], 4 * (5 * 3 + 3 * 7 + 5 * 7))
        self.assertEqual(facts["flops"], 2 * 5 * 7 * 3)
        for i in range(5):
            for j in range(7):
                exact = math.fsum(a[i * 3 + k] * b[k * 7 + j] for k in range(3))
                self.assertAlmostEqual(c[i * 7 + j], exact, delta=1e-6)
        self.assertTrue(all(-1 <= value < 1 for value in a) and min(a) < -0.2 and max(a) > 0.2)

    def test_seeds_and_ranges_decide_the_data(self):
        def data(**details):
            return self.floats(self.prepare("row_sum_131x37", **details)["inputs"][0])
        self.assertEqual(data(seed=3), data(seed=3))
        self.assertNotEqual(data(seed=3), data(seed=4))
        self.assertTrue(all(4 <= value <= 5 for value in data(ranges={"x": [4, 5]})))

    def test_ranges_are_those_of_integers_too(self):
        """Ids that the declaration does without, 9 of 9 words, are drawn where nothing else is said."""
        def ids(**details):
            facts = self.prepare("embedding_gradient_50x9x64_bf16", **details)
            described = next(one for one in facts["inputs"] if one["type"] == "i32")
            return set(array.array("i", Path(described["file"]).read_bytes())), described["name"]
        drawn, name = ids()
        self.assertFalse(drawn <= set(range(9)))
        self.assertEqual(ids(ranges={name: [2, 4]})[0], {2, 3, 4})

    def test_outliers_are_larger_than_the_others(self):
        def data(**details):
            return self.floats(self.prepare("row_sum_131x37", normal=True, **details)["inputs"][0])
        plain, of_rows, of_columns = data(), data(outliers={"x": [0, 50, 16]}), data(outliers={"x": [1, 36, -4]})
        for i in range(131):
            for j in range(37):
                self.assertEqual(of_rows[i * 37 + j], plain[i * 37 + j] * (16 if i in (0, 50, 100) else 1))
                self.assertEqual(of_columns[i * 37 + j], plain[i * 37 + j] * (-4 if j in (0, 36) else 1))

    def test_normal_data(self):
        def deviation(kernel, read):
            facts = self.prepare(kernel, normal=True)
            values = read(facts["inputs"][0])
            mean = math.fsum(values) / len(values)
            self.assertLess(abs(mean), 0.1 * max(values))
            return math.sqrt(math.fsum((value - mean)**2 for value in values) / len(values))

        def small_integers(described):
            return array.array("b", Path(described["file"]).read_bytes())

        def brain_floats(described):
            halves = array.array("H", Path(described["file"]).read_bytes())
            return array.array("f", b"".join(b"\0\0" + half.to_bytes(2, "little") for half in halves))
        self.assertAlmostEqual(deviation("row_sum_131x37", self.floats), 1, delta=0.05)
        self.assertAlmostEqual(deviation("gemm_bf16_64x16x80", brain_floats), 1, delta=0.05)
        self.assertAlmostEqual(deviation("gemm_i8_64x16x80", small_integers), 32, delta=1.5)

    def test_kernels_hand_on_their_results_by_parts_of_the_rows(self):
        """A part's losses and gradients of x are those of its rows alone, gradients of w are sums over the parts."""
        def numbers(facts, name):
            described = next(one for one in facts["outputs"] if one["name"] == name)
            raw = Path(described["file"]).read_bytes()
            return raw if described["type"] == "bf16" else self.floats(described)
        both = {"normal": True, "ranges": {"label": [0, 63], "dloss": [0, 1]}}
        whole = self.prepare("linear_cross_entropy_bf16_80x16x64", then="linear_cross_entropy_gradients_bf16_80x16x64_part",
                             **both)
        self.assertEqual([one["name"] for one in whole["outputs"]], ["loss", "dx", "dw"])
        wanted = {name: numbers(whole, name) for name in ("loss", "dx", "dw")}
        parts = self.prepare("linear_cross_entropy_bf16_40x16x64", then="linear_cross_entropy_gradients_bf16_40x16x64_part",
                             parts=2, of_rows=["x", "label", "dloss", "loss", "dx"], **both)
        self.assertEqual(parts["launches"], 2 * whole["launches"])
        self.assertEqual(parts["flops"], whole["flops"])
        self.assertLess(parts["memory"], whole["memory"])
        self.assertEqual(numbers(parts, "loss"), wanted["loss"])
        self.assertEqual(numbers(parts, "dx"), wanted["dx"])
        for got, expected in zip(numbers(parts, "dw"), wanted["dw"]):
            self.assertAlmostEqual(got, expected, delta=1e-4)

    def test_bursts(self):
        facts = self.prepare("row_sum_131x37")
        self.assertGreaterEqual(facts["sets"], 2)
        self.assertGreater(self.ours.ask("burst", n=3)["ms"], 0)
        self.assertGreater(self.ours.ask("burst", n=1)["ms"], 0)
        self.ours.ask("finish")
        with self.assertRaisesRegex(ProgramError, "nothing is prepared; send prepare first"):
            self.ours.ask("burst", n=3)

    def test_scalars_are_used(self):
        def result(alpha):
            facts = self.prepare("product_67x71x37_ab", scalars={"alpha": alpha, "beta": 0})
            self.assertEqual(facts["scalars"], {"alpha": alpha, "beta": 0})
            return self.floats(facts["outputs"][0])
        self.assertEqual([2 * value for value in result(1)], list(result(2)))

    def test_refusals(self):
        for message, command, details in (
            ("no command 'dance'; write hello", "dance", {}),
            ("prepare: .*'kernel' not found; it takes", "prepare", {}),
            ('"n" is 0; give at least 1', "burst", {"n": 0}),
            ('"parts" is 0; give at least 1', "prepare", {"kernel": "row_sum_1x1", "parts": 0}),
            (r'"ranges" names \'z\', which row_sum_1x1 does not have; there is \[x\]', "prepare",
             {"kernel": "row_sum_1x1", "ranges": {"z": [0, 1]}}),
            (r'"outliers" of \'x\' are one in 1 along dimension 2, but it is f32 of 2 dimensions', "prepare",
             {"kernel": "row_sum_1x1", "outliers": {"x": [2, 1, 9]}}),
            (r'"outliers" of \'label\' are one in 1 along dimension 0, but it is i64 of 1 dimensions', "prepare",
             {"kernel": "cross_entropy_4x8_f32", "outliers": {"label": [0, 1, 9]}}),
            (r'"scalars" names \'alpha\', which row_sum_1x1 does not have', "prepare",
             {"kernel": "row_sum_1x1", "scalars": {"alpha": 1}}),
            ("cannot write /nonexistent/input_", "prepare", {"kernel": "row_sum_1x1", "folder": "/nonexistent"}),
            ("has no driver whose call could be compared", "launch", {}),
            ("host time on the emulated device is that of the kernels themselves", "calls", {}),
            ("m and n are multiples of 64", "emulator", {"m": 1, "n": 1, "k": 1}),
        ):
            with self.subTest(command=command):
                if command == "burst":
                    self.prepare("row_sum_1x1")
                with self.assertRaisesRegex(ProgramError, message):
                    self.ours.ask(command, **details)
        with self.assertRaises(Unavailable):
            self.prepare("levitate_3x4")

    def test_a_program_that_is_not_there(self):
        with self.assertRaisesRegex(ProgramError, "cannot start /nonexistent"):
            Program("/nonexistent", "cuda")

    @unittest.skipUnless(torch, "PyTorch is not on this machine")
    def test_the_check_accepts_right_results_and_refuses_wrong_ones(self):
        from harness import bursts, operands, peers
        bursts.DEVICE = "cpu"
        judged = 0
        for kernel in self.ours.ask("hello")["kernels"] + ["product_30x20x50_ta", "product_30x20x50_tb"] + [
                f"convolution{of}_bf16_2x5x4x16_8_3x3_pad1{rest}" for of in ("", "_data_gradient", "_weight_gradient")
                for rest in ("", "_nchw", "_groups2", "_groups2_nchw")]:
            family = peers.family_of(kernel)
            if not family or kernel.startswith("rmsnorm") and not hasattr(torch.nn.functional, "rms_norm"):
                continue
            with self.subTest(kernel=kernel):
                facts = self.prepare(kernel, ranges={"v": [0, 1]} if kernel.startswith("adamw") else {})
                inputs = operands.load_all(facts["inputs"])
                outputs = list(operands.load_all(facts["outputs"]).values())
                self.assertTrue(operands.check(family, facts, inputs, outputs)[0])
                if outputs[0].numel() == 0:
                    continue
                largest = outputs[0].double().abs().max().item()  # that errors are relative to
                outputs[0].view(-1)[-1] += max(0.3, largest / 50) if outputs[0].is_floating_point() else 1
                self.assertFalse(operands.check(family, facts, inputs, outputs)[0])
                if outputs[0].is_floating_point():
                    outputs[0].view(-1)[-1] = math.nan
                    self.assertFalse(operands.check(family, facts, inputs, outputs)[0])
                judged += 1
        self.assertGreater(judged, 20)


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
class PairsWithoutGpu(Folder):
    """A whole comparison with the emulator as our side and PyTorch on the CPU as the other."""

    def test_measures_and_checks(self):
        from harness import bursts, gpu_suites
        bursts.DEVICE = "cpu"
        event = mock.Mock(**{"elapsed_time.return_value": 2.0})
        fakes = {"Stream": mock.MagicMock(), "current_stream": mock.Mock(), "synchronize": mock.Mock(),
                 "stream": mock.MagicMock(), "CUDAGraph": FakeGraph, "graph": FakeGraph, "empty_cache": mock.Mock(),
                 "Event": mock.Mock(return_value=event), "memory_allocated": mock.Mock(return_value=0),
                 "reset_peak_memory_stats": mock.Mock()}
        state = mock.Mock(**{"since.return_value": {"clock_mhz": 1980.0, "power_w": 500.0}})
        libraries = mock.patch.object(torch.backends.cuda, "preferred_blas_library", create=True)
        with mock.patch.multiple(torch.cuda, **fakes), libraries, Program(TW_BENCH, "emulated") as ours:
            for kernel, peak in (("row_sum_5x1000_bf16", None), ("softmax_7x37_f32", None), ("product_64x48x40", 1e9),
                                 ("gemm_bf16_37x50x61_ta", 1e9), ("gemm_bf16_3x33x20x40_tb_f32", 1e9),
                                 ("gemm_tf32_33x20x44_ta", 1e9)):
                result = gpu_suites.measure_pair(ours, {"kernel": kernel, "normal": True}, 1, peak, state)
                self.assertIs(result["correct"], True)
                expected = ("torch cublas", "torch cublaslt") if kernel.startswith("gemm") else ("torch eager",)
                self.assertIn(result["peer"], expected)
                self.assertEqual(set(expected), set(result["all_ms"]) - {"ours", "copy", "torch compile"})
                self.assertAlmostEqual(result["ratio"], result["peer_ms"] / result["ms"])
                self.assertGreater(result["roof_share"], 0)
                self.assertIn("TFLOP/s" if peak else "GB/s", text_of(row("memory", kernel, "cpu", **result)))
            with self.assertRaisesRegex(ProgramError, "no PyTorch peer for 'standardise_1x1'"):
                gpu_suites.measure_pair(ours, {"kernel": "standardise_1x1"}, 1, None, state)


class TwBench(unittest.TestCase):
    def run_tw(self, *arguments):
        return subprocess.run([TW, "bench", *arguments], capture_output=True, text=True, env=NO_GPU)

    def test_prints_a_line_a_kernel(self):
        done = self.run_tw("row_sum_131x37", "product_3x4x5", "--device", "emulated")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"row_sum_131x37 +[0-9.]+ ms +[0-9.]+ GB/s +[0-9.]+ GFLOP/s")
        self.assertIn("the emulator's times say nothing about a GPU", done.stdout)
        self.assertNotIn("of a copy", done.stdout)

    def test_as_json(self):
        done = self.run_tw("product_30x40x50", "elementwise_0x8", "--device", "emulated", "--json")
        one, empty = map(json.loads, done.stdout.splitlines())
        self.assertGreater(one["ms"], 0)
        self.assertAlmostEqual(one["gflops"], 2 * 30 * 40 * 50 / one["ms"] * 1e-6, delta=1e-6 * one["gflops"])
        self.assertIsNone(one["copy_share"])
        self.assertIsNone(empty["gb_per_s"])

    def test_refuses_unknown_kernels(self):
        done = self.run_tw("row_sum_131x38x")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no kernel named 'row_sum_131x38x'", done.stderr)


class Rows(unittest.TestCase):
    def test_a_line_tells_everything(self):
        text = text_of(row("memory", "softmax_4x4_bf16", "NVIDIA H200", ms=0.5, rate=4000.0, unit="GB/s",
                           peer="torch compile", peer_ms=0.6, ratio=1.2, roof_share=0.93, correct=False,
                           clock_mhz=1980.0, power_w=512.0))
        for part in ("softmax_4x4_bf16", "0.5000 ms", "4000 GB/s", "torch compile 0.6000 ms, ratio 1.200", "roof 0.930",
                     "1980 MHz 512 W", "WRONG"):
            self.assertIn(part, text)

    def test_a_wrong_result_fails_the_run_and_is_written_as_json(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch("builtins.print"):
            path = Path(folder) / "rows.jsonl"
            report = Report(path)
            report.add(row("memory", "a", "gpu", ms=1.0, rate=1.0, unit="GB/s", ratio=2.0, correct=True))
            report.add(row("memory", "b", "gpu", problem="unavailable: no kernel named 'b'"))
            self.assertFalse(report.failed())
            report.add(row("memory", "c", "gpu", ms=1.0, rate=1.0, unit="GB/s", ratio=0.5, correct=False,
                           error=math.inf, allowed_error=1e-7))
            self.assertTrue(report.failed())
            written = [json.loads(line, parse_constant=self.fail) for line in path.read_text().splitlines()]
            self.assertEqual([r["case"] for r in written], ["a", "b", "c"])
            with mock.patch.object(report, "say") as say:
                report.say_geomean("memory")
            say.assert_called_once_with("memory: ratio geomean 1.000, least 0.500, of 2 cases")


class RandomCases(Folder):
    def test_each_seed_has_its_own(self):
        for suite in DRAWN:
            cases = random_cases(suite, 40, 7)
            self.assertEqual(cases, random_cases(suite, 40, 7))
            self.assertNotEqual(cases, random_cases(suite, 40, 8))
            for case in cases:
                checked(suite, json.dumps(case), "drawn")
                self.assertEqual(case.get("heads", 0) % case.get("group", 1), 0)
                for side, kernel in (("height", "kernel_h"), ("width", "kernel_w")) if "kernel_h" in case else ():
                    reach = (case[kernel] - 1) * case.get("dilation", 1)
                    self.assertGreater(case[side] + 2 * case.get("pad", 0), reach)

    def test_they_are_drawn_where_they_can_be(self):
        self.assertIn("no cases of launch can be drawn", compare("launch", "--random", "3").stderr)
        self.assertIn("give one of both", compare("attention", "--random", "3", "--cases", self.write("{}")).stderr)
        self.assertIn("must be at least 1", compare("attention", "--random", "0").stderr)
        self.assertIn("cannot be measured", compare("attention", "--random", "3").stdout)


if __name__ == "__main__":
    unittest.main()
