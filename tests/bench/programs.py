"""What tests of the benchmark share: TEST.py path/to/tw_bench path/to/tw. Puts bench/harness on the path, too."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

TW_BENCH, TW = sys.argv.pop(1), sys.argv.pop(1)
NO_GPU = dict(os.environ, TW_CUDA_DRIVER="/nonexistent/libcuda.so")

try:
    import torch
except ImportError:
    torch = None


def compare(*arguments, environment=NO_GPU):
    """compare.py where there is no GPU."""
    command = [sys.executable, str(ROOT / "bench/compare.py"), "--program", TW_BENCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)
