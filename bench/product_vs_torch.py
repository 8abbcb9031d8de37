#!/usr/bin/env python3
"""fp32 products: `tw run` and torch.matmul (cuBLAS, TF32 off) in alternating rounds on one GPU.

    bench/product_vs_torch.py path/to/tw [MxNxK ...]

Prints a line a shape: our median ms, the peer's, peer / ours, SM clock and power. Correctness is checked by `tw run`."""
import json
import statistics
import subprocess
import sys

import torch


def ours(tw, m, n, k):
    out = subprocess.run([tw, "run", f"product_{m}x{n}x{k}", "--device", "cuda", "--json"], capture_output=True, text=True)
    if out.returncode != 0:
        raise SystemExit(out.stdout + out.stderr)
    return json.loads(out.stdout.strip().splitlines()[-1])


def peer(m, n, k, repeats=20):
    a = torch.rand(m, k, device="cuda") * 2 - 1
    b = torch.rand(k, n, device="cuda") * 2 - 1
    times = []
    for r in range(repeats + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.matmul(a, b)
        end.record()
        torch.cuda.synchronize()
        if r >= 3:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def state():
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.strip()


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    tw = sys.argv[1]
    shapes = sys.argv[2:] or ["4096x4096x4096"]
    for shape in shapes:
        m, n, k = map(int, shape.split("x"))
        mine, theirs, correct = [], [], True
        for _ in range(3):
            result = ours(tw, m, n, k)
            mine.append(result["ms"])
            correct &= result["correct"]
            theirs.append(peer(m, n, k))
        a, b = statistics.median(mine), statistics.median(theirs)
        print(f"{shape:>20}  ours {a:8.4f} ms {2e-9 * m * n * k / a:7.2f} TFLOP/s   cuBLAS {b:8.4f} ms   "
              f"ratio {b / a:.3f}   correct {correct}   {state()}", flush=True)


main()
