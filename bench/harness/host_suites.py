"""Suites that need no GPU: compile and emulator."""
import statistics
import tempfile

from harness.program import Program, ProgramError, Unavailable
from harness.report import row
from harness.scratch import scratch_folder


def run_compile(cases, path, report, rounds):
    """From schedule to cubin: with no cache, from the disk, from memory. The cache folder is an empty one."""
    with scratch_folder(tempfile.gettempdir()) as cache, Program(path, "emulated", cache) as ours:
        catalog = ours.ask("hello")["kernels"]
        try:
            ours.ask("compile", kernel="product_1x1x1")  # loads NVRTC, which is not part of the figures
        except ProgramError as problem:
            report.say(f"compile: cannot be measured: {problem}")
            return False
        results = []
        for case in cases:
            arch = case.get("arch", "sm_90a")
            for kernel in catalog if case["kernel"] == "*" else [case["kernel"]]:
                results.append(compile_row(ours, kernel, arch))
                report.add(results[-1])
    say_summary(report, [r for r in results if r["ms"] is not None])
    return True


def compile_row(ours, kernel, arch):
    try:
        facts = ours.ask("compile", kernel=kernel, arch=arch)
    except ProgramError as problem:
        failed = not isinstance(problem, Unavailable)
        return row("compile", kernel, arch, problem=f"unavailable: {problem}", failed=failed)
    note = f"lowered in {facts['lower_ms']:.2f} ms, all from disk {facts['disk_ms']:.2f} ms, " \
           f"from memory {facts['memo_ms']:.2f} ms"
    if not facts["same_text"]:
        note += ", DIFFERENT TEXT when lowered again"
    return row("compile", kernel, arch, ms=facts["cold_ms"], rate=1e3 / facts["cold_ms"], unit="programs/s",
               correct=facts["same_text"], note=note, **facts)


def say_summary(report, results):
    for key, what in (("cold_ms", "with no cache"), ("lower_ms", "schedule to text"), ("disk_ms", "from disk"),
                      ("disk_read_ms", "text to cubin from disk"), ("memo_ms", "from memory"),
                      ("memo_read_ms", "text to cubin from memory")):
        if results:
            worst = max(results, key=lambda r: r[key])
            report.say(f"compile, {what}: median {statistics.median(r[key] for r in results):.3f} ms, "
                       f"worst {worst[key]:.3f} ms ({worst['case']}), {len(results)} programs")


def run_emulator(cases, path, report, rounds):
    """The register-tiled product of tests/emulator: seconds and checked accesses a second."""
    with Program(path, "emulated") as ours:
        for case in cases:
            name = f"sgemm_{case['m']}x{case['n']}x{case['k']}"
            try:
                facts = [ours.ask("emulator", **case) for _ in range(max(1, rounds // 2))]
            except ProgramError as problem:
                report.add(row("emulator", name, "emulated", problem=f"unavailable: {problem}", failed=True))
                continue
            seconds = statistics.median(f["seconds"] for f in facts)
            report.add(row("emulator", name, "emulated", ms=seconds * 1e3, rate=facts[0]["accesses"] / seconds * 1e-6,
                           unit="M access/s", correct=all(f["correct"] for f in facts),
                           accesses=facts[0]["accesses"], compile_ms=facts[0]["compile_seconds"] * 1e3))
    return True
