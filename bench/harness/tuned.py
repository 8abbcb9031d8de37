"""The fastest tiling that `tw tune` finds for a case, as one more side to time."""
import json
import subprocess
import tempfile
from pathlib import Path

from harness.program import Program, ProgramError

SUITES = ("gemm", "gemm-kinds", "conv")  # whose kernels have a space of tilings


def has_space(suite, case):
    """With channels first, what is multiplied is that of another kernel, over copies."""
    return suite in SUITES and case.get("layout", "nhwc") == "nhwc"


def best_tiling(path, device, kernel, seconds):
    """Its text, as behind _tile in a name. `path` is tw_bench's: tw is built beside it."""
    tw = Path(path).parent.parent / "tools" / "tw"
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "tuned.jsonl")
        command = [str(tw), "tune", kernel, "--within", str(seconds), "--records", str(records), "--device", device]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as problem:
            raise ProgramError(f"cannot start {tw}: {problem}") from None
        if done.returncode != 0:
            raise ProgramError(f"tw tune: {(done.stderr.strip() or done.stdout.strip()).splitlines()[0]}")
        return json.loads(records.read_text().splitlines()[0])["tiling"]


class TunedSide:
    """A tw_bench of its own that runs the case with its best tiling; to be closed."""
    name = "tuned"

    def __init__(self, ours, case, wanted):
        self.tiling = best_tiling(ours.path, ours.device, case["kernel"], case["tuned"])
        self.program = Program(ours.path, ours.device)
        try:
            self.program.ask("prepare", **{**wanted, "kernel": f"{case['kernel']}_tile{self.tiling}"})
        except Exception:
            self.close()
            raise

    def burst(self, runs):
        return self.program.ask("burst", n=runs)["ms"]

    def close(self):
        self.program.__exit__()
