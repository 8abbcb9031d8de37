#!/usr/bin/env python3
"""Measures this library against PyTorch, in alternating bursts on one GPU, and checks what both computed.

    bench/compare.py memory                       one suite with its own cases, bench/cases/memory.jsonl
    bench/compare.py gemm --cases FILE            with yours: JSON lines as in bench/cases/gemm.jsonl
    bench/compare.py attention --random 40 --seed 7   shapes that are drawn; of attention, attention-backward, conv, depthwise
    bench/compare.py accuracy                     no times: errors of attention and its gradients, ours and PyTorch's
    bench/compare.py all --json results.jsonl     every suite; a line of JSON a case

Prints a line a case: our ms, rate, the peer, its ms, ratio peer / ours, the share of the roof, clock and power. The
roof of a memory-bound case is a copy of equal bytes in the same run, of a product torch.matmul at 8192x8192x8192 (gemm and attention: in bf16).
accuracy prints the distance from float64, relative Frobenius and at the worst element, of ours and of PyTorch's unfused
attention in the same type, and their ratio. Over its bar (1.0 of o, 1.5 of gradients) a Frobenius error is wrong, an
element's is marked, and wrong over twice the bar.
Without a GPU it says what it cannot measure and runs the rest. Exit status: 0 done, 1 a result was wrong, 2 wrong
usage, 3 nothing could be measured."""
import argparse
import sys

from harness.cases import KEYS, CaseError, default_file, read_cases
from harness.gpu_suites import (reason_without_gpu, run_accuracy, run_attention, run_attention_backward, run_conv,
                                run_conv_fused, run_depthwise, run_gemm, run_gemm_fp32, run_launch, run_linear_cross_entropy, run_memory)
from harness.host_suites import run_compile, run_emulator
from harness.program import ProgramError, find_program
from harness.random_cases import MAKERS, random_cases
from harness.report import Report

GPU_SUITES = {"gemm": run_gemm, "gemm-fp32": run_gemm_fp32, "attention": run_attention,
              "attention-backward": run_attention_backward, "accuracy": run_accuracy, "conv": run_conv,
              "conv-fused": run_conv_fused, "depthwise": run_depthwise,
              "linear-cross-entropy": run_linear_cross_entropy,
              "memory": run_memory, "launch": run_launch}
HOST_SUITES = {"compile": run_compile, "emulator": run_emulator}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", metavar="SUITE", choices=[*KEYS, "all"], help=", ".join([*KEYS, "all"]))
    parser.add_argument("--cases", metavar="FILE", help="JSON lines of cases, in the suite's format; for one suite")
    parser.add_argument("--random", metavar="N", type=int, help=f"N drawn cases instead; of {' and '.join(MAKERS)}")
    parser.add_argument("--seed", type=int, default=1, help="of --random (default 1)")
    parser.add_argument("--json", metavar="FILE", help="writes a line of JSON a case")
    parser.add_argument("--program", metavar="PATH", help="tw_bench, if it is not in build/ or carry/")
    parser.add_argument("--rounds", type=int, default=9, help="bursts of each side, whose median counts (default 9)")
    options = parser.parse_args()
    if "all" in options.suites:
        options.suites = list(KEYS)
    if options.cases and len(options.suites) > 1:
        parser.error("--cases belongs to one suite")
    if options.random is not None:
        if options.cases:
            parser.error("--random draws cases, --cases names a file of them; give one of both")
        if options.random < 1:
            parser.error("--random must be at least 1")
        others = [suite for suite in options.suites if suite not in MAKERS]
        if others:
            parser.error(f"--random: no cases of {', '.join(others)} can be drawn, but of {' and '.join(MAKERS)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def run(options):
    path = find_program(options.program)
    cases = {suite: random_cases(suite, options.random, options.seed) if options.random
             else read_cases(suite, options.cases or default_file(suite)) for suite in options.suites}
    report = Report(options.json)
    no_gpu = reason_without_gpu(path) if any(suite in GPU_SUITES for suite in cases) else None
    measured = 0
    for suite in cases:
        if suite in HOST_SUITES:
            measured += HOST_SUITES[suite](cases[suite], path, report, options.rounds)
        elif no_gpu:
            report.say(f"{suite}: cannot be measured: {no_gpu}")
        else:
            measured += GPU_SUITES[suite](cases[suite], path, report, options.rounds)
    return 1 if report.failed() else 0 if measured else 3


def main():
    options = arguments()
    try:
        return run(options)
    except CaseError as problem:
        print(f"compare.py: {problem}", file=sys.stderr)
        return 2
    except (ProgramError, OSError) as problem:
        print(f"compare.py: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
