"""Suites that need a GPU: pairs of ours and PyTorch's, accuracy and launch. PyTorch is imported here only when one of them runs."""
import shutil
import statistics
import tempfile
import time
import traceback
from contextlib import contextmanager

from harness import mirror
from harness.gpu_state import GpuState
from harness.kernel_names import attention_kernel, with_kernels
from harness.program import Program, ProgramError, Unavailable, library_of
from harness.report import row
from harness.scratch import scratch_folder
from harness.tuned import TunedSide


def reason_without_gpu(path):
    """Why the suites of this file cannot run; None if they can."""
    try:
        with Program(path, "cuda") as ours:
            ours.ask("hello")
    except ProgramError as problem:
        return first_line(problem).removesuffix(" Looked in:")
    try:
        import torch
    except ImportError as problem:
        return f"no PyTorch to compare with ({problem})"
    return None if torch.cuda.is_available() else "PyTorch finds no GPU"


def first_line(problem):
    return (str(problem) or type(problem).__name__).splitlines()[0]


def folder_with_room():
    """Where operands of gigabytes go from one process to the other: memory if it has room, else a disk."""
    try:
        roomy = shutil.disk_usage("/dev/shm").free > 8 << 30
    except OSError:
        roomy = False
    return scratch_folder("/dev/shm" if roomy else tempfile.gettempdir())


def peak_flops(a, b):
    """The operations a second of torch.matmul."""
    import torch
    from harness import bursts
    side = bursts.TorchSide("peak", lambda t: torch.matmul(t["a"], t["b"]), [{"a": a, "b": b}])
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / (min(side.burst(3) for _ in range(3)) * 1e-3)


PEAKS = {"gemm": "bf16", "gemm-kinds": "bf16", "gemm-fp32": "f32", "attention": "bf16", "attention-backward": "bf16",
         "conv": "bf16", "conv-fused": "bf16", "linear-cross-entropy": "bf16", "depthwise": None, "memory": None,
         "unknown": None}

PEAKS["fused"] = None


def run_suite(suite, cases, path, report, rounds):
    """Each case against its peers; the roof is that of PEAKS: torch.matmul of such matrices, or else a copy."""
    import torch
    from harness import bursts, peers  # noqa: F401: turns TF32 off
    peak = None
    if PEAKS[suite] == "f32":
        peak = peak_flops(*(torch.rand(8192, 8192, device=bursts.DEVICE) for _ in "ab"))
    elif PEAKS[suite]:
        peak = peak_flops(*(torch.randn(8192, 8192, device=bursts.DEVICE).bfloat16() for _ in "ab"))
    return run_pairs(suite, with_kernels(suite, cases), path, report, rounds, peak)


def run_accuracy(cases, path, report, rounds):
    import torch
    from harness import accuracy, peers  # noqa: F401: turns TF32 off
    with Program(path, "cuda") as ours:
        device = ours.ask("hello")["device"]
        report.say(f"accuracy on {device}, beside PyTorch {torch.__version__}, against float64")
        for case in cases:
            kernel, outliers = attention_kernel(case), case.get("outliers", "none")
            name = kernel + ("" if outliers == "none" else f" outlying {outliers}")
            try:
                with folder_with_room() as folder:
                    results = accuracy.measure(ours, kernel, case, folder)
                for tensor, result in results.items():
                    report.add(row("accuracy", f"{name} {tensor}", device, **result))
            except Unavailable as problem:
                report.add(row("accuracy", name, device, problem=f"unavailable: {problem}"))
            except Exception as problem:  # one case that fails must not cost the others
                traceback.print_exc()
                report.add(row("accuracy", name, device, problem=f"failed: {first_line(problem)}", failed=True))
            torch.cuda.empty_cache()
    return True


def run_pairs(suite, cases, path, report, rounds, peak_flops):
    """Named cases one by one; of drawn ones the kernels are compiled ahead, and what they say together is printed."""
    import torch
    state, begin = GpuState(), time.monotonic()
    drawn = next((case["drawn"] for case in cases if "drawn" in case), None)
    with Program(path, "cuda", library=library_of(suite, path)) as ours:
        device = ours.ask("hello")["device"]
        report.say(f"{suite} on {device}, against PyTorch {torch.__version__}, medians of {rounds} rounds"
                   + (f", seed {drawn.seed}" if drawn else ""))
        if drawn:
            drawn.start()
        ahead = mirror.Ahead(ours, cases) if drawn else None
        for number, case in enumerate(cases):
            if drawn and drawn.is_over():
                report.say(f"{suite}: the time is over, {len(cases) - number} cases are left out")
                break
            refused = ahead.reach(number) if ahead else None
            result = ({"problem": f"refused: {refused}", "refused": refused} if refused
                      else measured(ours, case, rounds, peak_flops, state))
            report.add(row(suite, case.get("case", case["kernel"]), device, **result))
    state.stop()
    if drawn:
        for line in mirror.summary([one for one in report.rows if one["suite"] == suite], time.monotonic() - begin):
            report.say(f"{suite}: {line}")
    else:
        report.say_geomean(suite)
    return True


def measured(ours, case, rounds, peak_flops, state):
    """The keys of a row. A case that fails must not cost the others, and what it left of our program is ended."""
    import torch
    try:
        return measure_pair(ours, case, rounds, peak_flops, state)
    except Unavailable as problem:
        return {"problem": f"unavailable: {problem}"}
    except Exception as problem:
        traceback.print_exc()
        ours.restart()
        torch.cuda.empty_cache()
        return {"problem": f"failed: {first_line(problem)}", "failed": True}


def measure_pair(ours, case, rounds, peak_flops, state):
    import torch
    from harness import bursts, operands, peers

    family = peers.family_of(case["kernel"])
    if not family:
        raise ProgramError(f"harness/peers.py has no PyTorch peer for '{case['kernel']}'")
    with folder_with_room() as folder:
        wanted = {key: case[key] for key in ("kernel", "seed", "scalars", "sizes", "ranges", "normal", "ascending",
                                            "then", "parts", "of_rows") if key in case}
        facts = ours.ask("prepare", **wanted, folder=folder)
        inputs = operands.load_all(facts["inputs"])
        outputs = list(operands.load_all(facts["outputs"]).values())
    verdict = operands.check(family, facts, inputs, outputs)
    del outputs
    torch.cuda.empty_cache()

    moved = case.get("bytes", facts["bytes"])
    inputs = family.prepare(peers.in_types_of_x(inputs))
    sets = [inputs] + [{k: v.clone() for k, v in inputs.items()} for _ in range(1, bursts.num_sets(facts["bytes"]))]
    in_place = peers.in_place_of(family)
    sides, notes = peer_sides(family, facts, sets, in_place)
    if verdict.lost:
        notes.append("the formula loses its result in float32; rewrite it")
    roofs = [] if peak_flops else [bursts.copy_side(moved)]
    with tuned_side(ours, case, wanted, notes) as tuned:
        begin = time.monotonic()
        ms = bursts.medians([bursts.OurSide(ours), *tuned, *sides, *roofs], rounds)
        state_now = state.since(begin)
        best = {"tuned_ms": ms["tuned"], "tiling": tuned[0].tiling, "regret": ms["ours"] / ms["tuned"]} if tuned else {}
    ours.ask("finish")
    del roofs, sets, inputs
    peer = min((side.name for side in sides), key=ms.get) if sides else None
    del sides
    torch.cuda.empty_cache()

    roof = facts["flops"] / (ms["ours"] * 1e-3) / peak_flops if peak_flops else ms["copy"] / ms["ours"]
    work = facts["flops"] * 1e-12 if peak_flops else moved * 1e-9
    return {"ms": ms["ours"], "rate": work / (ms["ours"] * 1e-3), "unit": "TFLOP/s" if peak_flops else "GB/s",
            "peer": peer, "peer_ms": ms.get(peer), "ratio": ms[peer] / ms["ours"] if peer else None, "roof_share": roof,
            "correct": verdict.correct, "error": verdict.error, "allowed_error": verdict.allowed,
            "launches": facts["launches"], "all_ms": ms, "note": "; ".join(notes), **best, **state_now}


@contextmanager
def tuned_side(ours, case, wanted, notes):
    """In a list, the case with its best tiling; no side, and a note, where none is found or asked for."""
    side = None
    try:
        side = TunedSide(ours, case, wanted) if "tuned" in case else None
    except ProgramError as problem:
        notes.append(f"not tuned: {first_line(problem)[:200]}")
    try:
        yield [side] if side else []
    finally:
        if side:
            side.close()


def peer_sides(family, facts, sets, in_place):
    """PyTorch's ways as sides to time, and a note for each that could not be had."""
    import torch
    from harness import bursts, peers
    scalars, sides, notes = facts["scalars"], [], []
    if family.memory_beside:
        operands = sum(sets[0][name].nbytes for name in family.memory_beside)
        notes.append(f"peak memory beside operands: ours {(facts['memory'] - operands) / 2**30:.2f} GiB")

    def eager():
        if not family.eager:
            return bursts.TorchSide("torch eager", lambda t: family.formula(t, scalars), sets)
        calls = [{"call": family.eager(t, scalars)} for t in sets]
        return bursts.TorchSide("torch eager", lambda t: t["call"](), calls)

    def compiled():
        return bursts.TorchSide("torch compile", peers.compiled_peer(family, scalars, in_place), sets)

    def way(name):
        def make():
            for tensors in sets:  # what they keep is made before any time is taken
                family.ways[name](tensors)
            return bursts.TorchSide(f"torch {name}", family.ways[name], sets)
        return make

    makers = {name: way(name) for name in family.ways} or {"eager": eager}
    if family.compiled:
        makers["compiled"] = compiled
    for name, make in makers.items():
        try:
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            side = make()
            if family.memory_beside:
                notes.append(f"{side.name} {(torch.cuda.max_memory_allocated() - before) / 2**30:.2f} GiB")
            side.burst(3)
            sides.append(side)
        except Exception as problem:
            notes.append(f"no {name} peer: {first_line(problem)[:100]}")
    if family.candidates:
        try:
            sides.append(fastest_candidate(family, sides[0], sets))
        except Exception as problem:
            notes.append(f"no further candidates: {first_line(problem)[:200]}")
    return sides, notes


def fastest_candidate(family, known, sets):
    """The fastest of the ways that compute what the side `known` does, in short bursts."""
    from harness import bursts
    expected = known.call(sets[0])
    best = None
    for name, call in family.candidates(sets[0], expected).items():
        difference = (call(sets[0]).double() - expected.double()).abs().max().item()
        if not difference <= 0.02 * expected.double().abs().max().item():
            raise RuntimeError(f"{name} differs by {difference} from {known.name}")
        side = bursts.TorchSide(name, call, sets)
        runs = bursts.runs_for(side.burst(3))
        ms = min(side.burst(runs) for _ in range(3))
        if best is None or ms < best[0]:
            best = ms, side
    if best is None:
        raise RuntimeError("none found")
    return best[1]


def run_launch(cases, path, report, rounds):
    """A prepared launch against the driver's own call; a graph of small kernels against PyTorch's; host time of
    operators and of a replayed step, beside PyTorch's."""
    with Program(path, "cuda") as ours:
        device = ours.ask("hello")["device"]
        for case in cases:
            facts = ours.ask("calls") if case["kind"] in ("operator", "step") else \
                ours.ask("launch", graph=case.get("kernels", 100))
            for name, us, peer, peer_us, note in launch_rows(case, facts, rounds):
                report.add(row("launch", name, device, ms=us * 1e-3, rate=1e3 / us, unit="k/s", peer=peer,
                               peer_ms=peer_us * 1e-3, ratio=peer_us / us, correct=facts["correct"],
                               note=f"{us:.3f} us{note}"))
    return True


def launch_rows(case, facts, rounds):
    """Of each row: its name, our microseconds, the peer and its, and a note."""
    from harness import host_calls
    if case["kind"] == "launch":
        us, peer_us = facts["prepared_us"], facts["bare_us"]
        return [("prepared launch", us, "cuLaunchKernel", peer_us, f", {us - peer_us:+.3f} us of host time")]
    if case["kind"] == "graph":
        kernels = case.get("kernels", 100)
        return [(f"one of a graph of {kernels}", facts["graph_us"], "torch graph", torch_graph_us(kernels, rounds),
                 " each")]
    if case["kind"] == "step":
        kernels = facts["step_kernels"]
        return [("replayed step", facts["step_us"], "torch graph", host_calls.torch_replay_us(kernels),
                 f" of host time, {kernels} kernels")]
    return [(f"call of {name}", us, "torch eager", host_calls.torch_call_us(name), " of host time")
            for name, us in facts["operators"].items()]


def torch_graph_us(kernels, rounds):
    import torch
    from harness import bursts

    def add_one(tensors):
        tensors["x"].add_(1.0)
    side = bursts.TorchSide("torch graph", add_one, [{"x": torch.zeros(64, device=bursts.DEVICE)}])
    return statistics.median(side.burst(kernels) for _ in range(rounds)) * 1e3
