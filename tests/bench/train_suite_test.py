"""train_suite_test.py path/to/tw_bench path/to/tw: steps of training as tw_bench makes them, on the emulator."""
import math
import struct
import tempfile
import unittest
from pathlib import Path

from programs import TW_BENCH, compare, torch
from harness.cases import CaseError, checked, default_file, read_cases
from harness.program import Program, ProgramError
from harness.train_suite import name_of

SMALL = {"mlp": {"batch": 8, "inputs": 5, "hidden": 6, "classes": 3},
         "feed_forward": {"tokens": 32, "width": 16, "hidden": 24},
         "residual": {"images": 2, "extent": 4, "channels": 8},
         "residual_nchw": {"images": 2, "extent": 4, "channels": 8},
         "transformer": {"batch": 2, "length": 8, "width": 16, "heads": 2, "hidden": 32}}


def prepared(ours, step, values="f32", **more):
    return ours.ask("prepare", step=step, sizes=SMALL[step], values=values, **more)


def floats(path):
    data = Path(path).read_bytes()
    return struct.unpack(f"{len(data) // 4}f", data)


def rows(values, width):
    return [values[at:at + width] for at in range(0, len(values), width)]


def linear(x, weight, bias):
    return [[sum(a * b for a, b in zip(row, w)) + c for w, c in zip(weight, bias)] for row in x]


def loss_of_mlp(read, sizes):
    x = rows(read("x"), sizes["inputs"])
    labels = struct.unpack(f"{sizes['batch']}i", read("labels", raw=True))
    for layer in ("0", "2", "4"):
        width = len(x[0])
        x = linear(x, rows(read(f"{layer}.weight"), width), read(f"{layer}.bias"))
        if layer != "4":
            x = [[max(v, 0) for v in row] for row in x]
    return sum(math.log(sum(map(math.exp, row))) - row[label] for row, label in zip(x, labels)) / len(x)


class Train(unittest.TestCase):
    def test_each_step_changes_its_parameters(self):
        with Program(TW_BENCH, "emulated") as ours, tempfile.TemporaryDirectory() as folder:
            for step in SMALL:
                for values in ("f32", "bf16"):
                    facts = prepared(ours, step, values, folder=folder, text=True)
                    self.assertEqual(facts["sizes"], SMALL[step])
                    self.assertEqual("rounded for products" in facts["text"], values == "bf16")
                    for name, tensor in facts["tensors"].items():
                        after = Path(tensor["after"]).read_bytes()
                        self.assertEqual(len(after), 4 * math.prod(tensor["shape"]))
                        self.assertTrue(all(map(math.isfinite, floats(tensor["after"]))) or name == "labels", name)
                        if name.endswith(("weight", "bias", "moment")):
                            self.assertNotEqual(after, Path(tensor["before"]).read_bytes(), f"{step}: {name}")
                    self.assertGreater(ours.ask("burst", n=2)["ms"], 0)
                    ours.ask("finish")

    def test_the_loss_is_that_of_the_formula(self):
        with Program(TW_BENCH, "emulated") as ours, tempfile.TemporaryDirectory() as folder:
            tensors = prepared(ours, "mlp", folder=folder)["tensors"]

            def read(name, raw=False):
                path = tensors[name]["before"]
                return Path(path).read_bytes() if raw else floats(path)
            self.assertAlmostEqual(floats(tensors["loss"]["after"])[0], loss_of_mlp(read, SMALL["mlp"]), places=5)

    def test_each_kernel_can_be_timed(self):
        with Program(TW_BENCH, "emulated") as ours:
            facts = prepared(ours, "mlp", profile=True)
            self.assertEqual(len(facts["profile"]), facts["launches"])

    def test_branches_change_the_order_alone(self):
        with Program(TW_BENCH, "emulated") as ours, tempfile.TemporaryDirectory() as folder:
            chain = prepared(ours, "mlp", folder=folder, branches=False)
            made = {name: Path(tensor["after"]).read_bytes() for name, tensor in chain["tensors"].items()}
            self.assertEqual(chain["beside"], 0)
            branches = prepared(ours, "mlp", folder=folder)
            self.assertGreater(branches["beside"], 0)
            for name, tensor in branches["tensors"].items():
                self.assertEqual(Path(tensor["after"]).read_bytes(), made[name], name)

    def test_says_what_it_does_not_know(self):
        with Program(TW_BENCH, "emulated") as ours:
            for message, wrong in (("no step named 'lstm'; there are [", {"step": "lstm"}),
                                   ("the step 'mlp' has no size 'depth'; it has ", {"step": "mlp", "sizes": {"depth": 3}}),
                                   ("\"values\" are 'f16'; write f32 or bf16", {"step": "mlp", "values": "f16"})):
                with self.assertRaises(ProgramError) as refused:
                    ours.ask("prepare", **wrong)
                self.assertIn(message, str(refused.exception))
            with self.assertRaises(ProgramError) as refused:
                prepared(ours, "mlp", folder="/nonexistent")
            self.assertIn("cannot write /nonexistent/", str(refused.exception))

    def test_cases_are_checked(self):
        for case in [*read_cases("train", default_file("train")), *read_cases("train", default_file("train-branches"))]:
            self.assertIn(case["step"], SMALL)
        with self.assertRaisesRegex(CaseError, '"step" is "lstm", not "mlp", "feed_forward", "residual", "residual_nchw" or "transformer"'):
            checked("train", '{"step": "lstm"}', "line")
        self.assertEqual(name_of({"step": "mlp", "sizes": {"batch": 64}, "values": "bf16"}), "mlp_batch64_bf16")
        self.assertEqual(name_of({"step": "mlp", "branches": False}), "mlp_f32_chain")

    def test_needs_a_gpu(self):
        self.assertIn("train: cannot be measured: ", compare("train").stdout)

    @unittest.skipUnless(torch, "no PyTorch")
    def test_pytorch_takes_the_same_step(self):
        from harness import bursts, step_peers
        bursts.DEVICE = "cpu"
        with Program(TW_BENCH, "emulated") as ours:
            for step in SMALL:
                for values in ("f32", "bf16"):
                    with tempfile.TemporaryDirectory() as folder:
                        facts = prepared(ours, step, values, folder=folder)
                        before, after = (step_peers.load(facts["tensors"], when) for when in ("before", "after"))
                    correct, note = step_peers.verdict(step, SMALL[step], before, after, values)
                    self.assertTrue(correct, f"{step} {values}: {note}")
                    name = next(name for name in after if name.endswith("weight"))
                    after[name] = after[name] + 1e-2
                    self.assertFalse(step_peers.verdict(step, SMALL[step], before, after, values)[0])


if __name__ == "__main__":
    unittest.main()
