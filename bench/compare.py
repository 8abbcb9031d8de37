#!/usr/bin/env python3
"""Measures this library against PyTorch, in alternating bursts on one GPU, and checks what both computed.

    bench/compare.py memory                       one suite with its own cases, bench/cases/memory.jsonl
    bench/compare.py gemm --cases FILE            with yours: JSON lines as in bench/cases/gemm.jsonl
    bench/compare.py automatic                    kernels of gemm, gemm-kinds, gemm-fp32 and memory, as they are declared and
                                                  scheduled by rule, against those that have the names; no PyTorch
    bench/compare.py gemm --random 40             shapes that are drawn; the seed is printed, --seed draws them again
    bench/compare.py conv --random 40 --tuned 8   and the best tiling that is found in 8 seconds beside the one taken
    bench/compare.py memory --tuned 8             and NAME_automatic with the best choices of the rule that are found
    bench/compare.py gemm --random 40 --dry-run compile   whether they compile, for sm_90a; needs no GPU; or a file's cases
    bench/compare.py unknown                      computations of tests/unknown, which no rule knows by name, scheduled by rule
    bench/compare.py train                        steps of training, planned as one graph, beside eager and compiled ones
    bench/compare.py accuracy                     no times: errors of attention and its gradients, ours and PyTorch's
    bench/compare.py all --json results.jsonl     every suite; a line of JSON a case

Prints a line a case: our ms, rate, the peer, its ms, ratio peer / ours, the share of the roof, clock and power. The
roof of a memory-bound case is a copy of equal bytes in the same run, of a product torch.matmul at 8192x8192x8192 (gemm and attention: in bf16).
accuracy prints the distance from float64, relative Frobenius and at the worst element, of ours and of PyTorch's unfused
attention in the same type, and their ratio. Over its bar (1.0 of o, 1.5 of gradients) a Frobenius error is wrong, an
element's is marked, and wrong over twice the bar.
Of drawn cases it also prints geometric mean, tenth percentile and the worst of the ratios, by kinds of kernels, and what
the library refuses.
Without a GPU it says what it cannot measure and runs the rest. Exit status: 0 done, 1 a result was wrong, 2 wrong
usage, 3 nothing could be measured."""
import argparse
import functools
import math
import sys
import time

from harness import mirror, tuned
from harness.automatic_suite import named_cases, run_automatic
from harness.cases import KEYS, CaseError, default_file, read_cases
from harness.gpu_suites import PEAKS, reason_without_gpu, run_accuracy, run_launch, run_suite
from harness.host_suites import run_compile, run_emulator
from harness.kernel_names import has_kernels, with_kernels
from harness.program import Program, ProgramError, find_program, library_of
from harness.random_cases import DRAWN, random_cases
from harness.report import Report
from harness.train_suite import run_train

GPU_SUITES = {**{suite: functools.partial(run_suite, suite) for suite in PEAKS}, "accuracy": run_accuracy,
              "automatic": run_automatic,
              "launch": run_launch, "train": run_train}
HOST_SUITES = {"compile": run_compile, "emulator": run_emulator}


def seconds(text):
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", metavar="SUITE", choices=[*KEYS, "all"], help=", ".join([*KEYS, "all"]))
    parser.add_argument("--cases", metavar="FILE", help="JSON lines of cases, in the suite's format; for one suite")
    parser.add_argument("--random", metavar="N", type=int, help=f"N drawn cases instead; of {', '.join(DRAWN)}")
    parser.add_argument("--seed", type=int, help="of --random (by default another one each time)")
    parser.add_argument("--within", metavar="SECONDS", type=seconds, help="of a suite with --random: no case begins later")
    parser.add_argument("--dry-run", choices=("lower", "compile"),
                        help=f"measures nothing: lowers or compiles the kernels, for {mirror.ARCH}")
    parser.add_argument("--tuned", metavar="SECONDS", type=seconds,
                        help=f"for each case: times the best that tw tune finds, a tiling or choices of the rule, too; of {', '.join(tuned.SUITES)}")
    parser.add_argument("--json", metavar="FILE", help="writes a line of JSON a case")
    parser.add_argument("--program", metavar="PATH", help="tw_bench, if it is not in build/ or carry/")
    parser.add_argument("--rounds", type=int,
                        help="bursts of each side, whose median counts (default 9, of drawn cases 5)")
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
        others = [suite for suite in options.suites if suite not in DRAWN]
        if others:
            parser.error(f"--random: no cases of {', '.join(others)} can be drawn, but of {', '.join(DRAWN)}")
    elif options.within or options.seed is not None:
        parser.error("--seed and --within belong to --random N")
    if options.dry_run and not all(has_kernels(suite) for suite in options.suites):
        parser.error("--dry-run: some suite has no kernels of its own to compile; name suites such as gemm and conv")
    if options.rounds is None:
        options.rounds = 5 if options.random else 9
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.seed is None:
        options.seed = int(time.time())
    return options


def cases_of(suite, options):
    if suite == "automatic" and not options.cases:
        return named_cases()
    if not options.random:
        cases = read_cases(suite, options.cases or default_file(suite))
    else:
        drawn = mirror.Drawn(options.seed, options.within)
        cases = [{**case, "drawn": drawn} for case in random_cases(suite, options.random, options.seed)]
    if options.tuned:
        cases = [{**case, "tuned": options.tuned} if tuned.has_space(suite, case) else case for case in cases]
    return cases


def dry_run(suite, cases, path, report, how):
    with Program(path, "emulated", library=library_of(suite, path)) as ours:
        mirror.compile_only(suite, with_kernels(suite, cases), ours, report, how == "lower")
    return True


def run(options):
    path = find_program(options.program)
    cases = {suite: cases_of(suite, options) for suite in options.suites}
    report = Report(options.json)
    wants_gpu = not options.dry_run and any(suite in GPU_SUITES for suite in cases)
    no_gpu = reason_without_gpu(path) if wants_gpu else None
    measured = 0
    for suite in cases:
        if options.random:
            report.say(f"{suite}: {options.random} cases of seed {options.seed}")
        if options.tuned and suite not in tuned.SUITES:
            report.say(f"{suite}: tw tune has no space of its kernels, --tuned does nothing here")
        if options.dry_run:
            measured += dry_run(suite, cases[suite], path, report, options.dry_run)
        elif suite in HOST_SUITES:
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
