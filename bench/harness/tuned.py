"""The fastest tiling, or the fastest choices of a rule, that `tw tune` finds for a case, as one more side to time."""
import json
import os
import subprocess
import tempfile
from pathlib import Path

from harness.program import Program, ProgramError

TILED = ("gemm", "gemm-kinds", "conv")  # whose kernels have a space of tilings
BY_RULE = ("gemm-fp32", "memory")  # whose declarations a rule schedules, as NAME_automatic
SUITES = TILED + BY_RULE


def has_space(suite, case):
    """With channels first, what is multiplied is that of another kernel, over copies."""
    return suite in SUITES and case.get("layout", "nhwc") == "nhwc"


def is_tiled(kernel):
    return kernel.startswith(("gemm_", "convolution_"))


def automatic(kernel):
    """The same declaration, scheduled by rule."""
    return kernel.removesuffix("_automatic") + "_automatic"


def best_tiling(path, device, kernel, seconds, cache=None):
    """Its text, as behind _tile in a name, or the picks of a rule; with `cache`, a record of these is kept there, if the
    device has times. `path` is tw_bench's: tw is built beside it."""
    tw = Path(path).parent.parent / "tools" / "tw"
    environment = dict(os.environ, TW_CACHE_DIR=str(cache)) if cache else None
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "tuned.jsonl")
        command = [str(tw), "tune", kernel, "--within", str(seconds), "--records", str(records), "--device", device]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
        except OSError as problem:
            raise ProgramError(f"cannot start {tw}: {problem}") from None
        if done.returncode != 0:
            raise ProgramError(f"tw tune: {(done.stderr.strip() or done.stdout.strip()).splitlines()[0]}")
        return json.loads(records.read_text().splitlines()[0])["tiling"]


class TunedSide:
    """A tw_bench of its own that runs the case with its best tiling; to be closed. What a rule schedules finds its best
    choices in a cache of its own: those of whoever measures stay as they are."""
    name = "tuned"
    program = None

    def __init__(self, ours, case, wanted):
        self.cache = None if is_tiled(case["kernel"]) else tempfile.TemporaryDirectory()
        try:
            self.start(ours, case, wanted)
        except Exception:
            self.close()
            raise

    def start(self, ours, case, wanted):
        cache = self.cache.name if self.cache else None
        kernel = automatic(case["kernel"]) if cache else case["kernel"]
        self.tiling = best_tiling(ours.path, ours.device, kernel, case["tuned"], cache)
        self.program = Program(ours.path, ours.device, cache=cache)
        self.program.ask("prepare", **{**wanted, "kernel": kernel if cache else f"{kernel}_tile{self.tiling}"})

    def burst(self, runs):
        return self.program.ask("burst", n=runs)["ms"]

    def close(self):
        if self.program:
            self.program.__exit__()
        if self.cache:
            self.cache.cleanup()
