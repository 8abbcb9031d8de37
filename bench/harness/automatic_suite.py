"""Kernels by name beside what they declare, scheduled by rule: NAME against NAME_automatic, both ours."""
import time
import traceback

from harness.cases import default_file, read_cases
from harness.gpu_state import GpuState
from harness.gpu_suites import first_line, folder_with_room
from harness.kernel_names import with_kernels
from harness.program import Program, Unavailable
from harness.report import row

SUITES = ("gemm", "gemm-kinds", "gemm-fp32", "memory")  # of whose named cases every one is taken


def named_cases():
    return [case for suite in SUITES for case in with_kernels(suite, read_cases(suite, default_file(suite)))]


def run_automatic(cases, path, report, rounds):
    import torch
    from harness import peers  # noqa: F401: turns TF32 off
    state = GpuState()
    with Program(path, "cuda") as automatic, Program(path, "cuda") as by_name:
        device = automatic.ask("hello")["device"]
        report.say(f"automatic on {device}, against the kernel of that name, medians of {rounds} rounds")
        for case in cases:
            name = case.get("case", case["kernel"])
            try:
                result = measured(automatic, by_name, case, rounds, state)
            except Unavailable as problem:
                result = {"problem": f"unavailable: {problem}"}
            except Exception as problem:  # one case that fails must not cost the others
                traceback.print_exc()
                automatic.restart()
                by_name.restart()
                result = {"problem": f"failed: {first_line(problem)}", "failed": True}
            torch.cuda.empty_cache()
            report.add(row("automatic", name, device, **result))
    state.stop()
    report.say_geomean("automatic")
    return True


class NamedSide:
    name = "by name"

    def __init__(self, program):
        self.program = program

    def burst(self, runs):
        return self.program.ask("burst", n=runs)["ms"]


def measured(automatic, by_name, case, rounds, state):
    """The keys of a row: results are held to PyTorch's formula, times to the kernel that has the name."""
    from harness import bursts, operands, peers
    wanted = {key: case[key] for key in ("seed", "scalars", "sizes", "ranges", "normal", "ascending") if key in case}
    with folder_with_room() as folder:
        facts = automatic.ask("prepare", kernel=f"{case['kernel']}_automatic", folder=folder, **wanted)
        family = peers.family_of(case["kernel"])
        inputs = operands.load_all(facts["inputs"])
        verdict = operands.check(family, facts, inputs, list(operands.load_all(facts["outputs"]).values()))
        del inputs
    by_name.ask("prepare", kernel=case["kernel"], **wanted)
    begin = time.monotonic()
    ms = bursts.medians([bursts.OurSide(automatic), NamedSide(by_name)], rounds)
    state_now = state.since(begin)
    for program in (automatic, by_name):
        program.ask("finish")
    moved = case.get("bytes", facts["bytes"])
    return {"ms": ms["ours"], "rate": moved * 1e-6 / ms["ours"], "unit": "GB/s", "peer": "by name",
            "peer_ms": ms["by name"], "ratio": ms["by name"] / ms["ours"], "correct": verdict.correct,
            "error": verdict.error, "allowed_error": verdict.allowed, "all_ms": ms, "launches": facts["launches"],
            **state_now}
