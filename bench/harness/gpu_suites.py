"""Suites that need a GPU: gemm, gemm-fp32, attention, accuracy, memory and launch. PyTorch is imported here only when one of them runs."""
import math
import shutil
import statistics
import tempfile
import time
import traceback

from harness.gpu_state import GpuState
from harness.program import Program, ProgramError, Unavailable
from harness.report import row
from harness.scratch import scratch_folder


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


def transposes(case):
    return ("_ta" if case.get("transpose_a") else "") + ("_tb" if case.get("transpose_b") else "")


def product_kernel(case):
    return f"product_{case['m']}x{case['n']}x{case['k']}{transposes(case)}"


def gemm_kernel(case):
    """The name of the kernel on tensor cores, with the tiles that the case asks for."""
    batch = f"{case['batch']}x" if case.get("batch") else ""
    epilogue = case.get("epilogue", "none")
    return (f"gemm_{case.get('type', 'bf16')}_{batch}{case['m']}x{case['n']}x{case['k']}{transposes(case)}"
            + ("" if epilogue == "none" else f"_{epilogue}") + (f"_experts{case['experts']}" if case.get("experts") else "")
            + ("_scaled" if case.get("block_scales") else "") + (f"_tile{case['tile']}" if "tile" in case else ""))


def attention_kernel(case):
    """The name of the kernel, with the tiles that the case asks for."""
    optional = "".join(f"_{key}{case[key]}" for key in ("keys", "width", "group") if key in case)
    return (f"attention_{case.get('type', 'bf16')}_{case['batch']}x{case['heads']}x{case['rows']}x{case['depth']}{optional}"
            + ("_causal" if case.get("causal") else "") + (f"_{case['rules']}" if case.get("rules") else "")
            + (f"_tile{case['tile']}" if "tile" in case else ""))


def peak_flops(a, b):
    """The operations a second of torch.matmul."""
    import torch
    from harness import bursts
    side = bursts.TorchSide("peak", lambda t: torch.matmul(t["a"], t["b"]), [{"a": a, "b": b}])
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / (min(side.burst(3) for _ in range(3)) * 1e-3)


def run_gemm_fp32(cases, path, report, rounds):
    import torch
    from harness import bursts, peers  # noqa: F401: turns TF32 off
    cases = [{**case, "kernel": product_kernel(case)} for case in cases]
    a, b = (torch.rand(8192, 8192, device=bursts.DEVICE) for _ in "ab")
    return run_pairs("gemm-fp32", cases, path, report, rounds, peak_flops(a, b))


def run_gemm(cases, path, report, rounds):
    import torch
    from harness import bursts
    cases = [{**case, "kernel": gemm_kernel(case), "normal": True,
              "ascending": {"expert": [0, case["experts"]]} if case.get("experts") else {}} for case in cases]
    a, b = (torch.randn(8192, 8192, device=bursts.DEVICE).bfloat16() for _ in "ab")
    return run_pairs("gemm", cases, path, report, rounds, peak_flops(a, b))


def ranges_of_rules(case):
    """Of inputs beside operands: scales; what rules read: three documents, and slopes with which no exponential leaves its range."""
    scales = {f"scale_{name}": [0.5, 1.5] for name in "qkv"} if case.get("type") == "e4m3" else {}
    return {name: ends for name, ends in (("documents", [0, 3]), ("slopes", [0, 0.01]))
            if name.replace("slopes", "alibi") in case.get("rules", "")} | scales


def run_attention(cases, path, report, rounds):
    import torch
    from harness import bursts
    cases = [{**case, "kernel": attention_kernel(case), "normal": True, "ranges": ranges_of_rules(case)} for case in cases]
    a, b = (torch.randn(8192, 8192, device=bursts.DEVICE).bfloat16() for _ in "ab")
    return run_pairs("attention", cases, path, report, rounds, peak_flops(a, b))


def run_attention_backward(cases, path, report, rounds):
    import torch
    from harness import bursts

    def sums(case):  # logarithms such as softmaxes of random scores have
        most = math.log2(case.get("keys", case["rows"]))
        return {"lse": [most, most + 2]}
    cases = [{**case, "kernel": attention_kernel(case).replace("attention_", "attention_gradients_", 1), "normal": True,
              "ranges": {**sums(case), **ranges_of_rules(case)}} for case in cases]
    a, b = (torch.randn(8192, 8192, device=bursts.DEVICE).bfloat16() for _ in "ab")
    return run_pairs("attention-backward", cases, path, report, rounds, peak_flops(a, b))


def convolution_kernel(case, which):
    """The name of the kernel of a pass, with the tiles that the case asks for."""
    gradient = {"forward": "", "data": "_data_gradient", "weight": "_weight_gradient"}[which]
    optional = "".join(f"_{key}{case[key]}" for key in ("stride", "pad", "dilation", "groups") if key in case)
    return (f"convolution{gradient}_{case.get('type', 'bf16')}_{case['images']}x{case['height']}x{case['width']}x"
            f"{case['channels']}_{case['filters']}_{case['kernel_h']}x{case['kernel_w']}{optional}"
            + (f"_tile{case['tile']}" if "tile" in case else ""))


def run_conv(cases, path, report, rounds):
    """Of a case without "pass" all three."""
    import torch
    from harness import bursts
    from harness.cases import PASSES
    cases = [{**case, "kernel": convolution_kernel(case, which), "normal": True}
             for which in PASSES for case in cases if case.get("pass", which) == which]
    a, b = (torch.randn(8192, 8192, device=bursts.DEVICE).bfloat16() for _ in "ab")
    return run_pairs("conv", cases, path, report, rounds, peak_flops(a, b))


def run_conv_fused(cases, path, report, rounds):
    """Of a convolution with what "fused" names around it, as the kernel's name ends."""
    import torch
    from harness import bursts
    cases = [{**case, "normal": True, "ranges": {"scale": [0.5, 1.5]} if "prologue" in case["fused"] else {},
              "kernel": convolution_kernel(case, "forward").replace("convolution_", "convolution_fused_", 1)
              + f"_{case['fused']}"} for case in cases]
    a, b = (torch.randn(8192, 8192, device=bursts.DEVICE).bfloat16() for _ in "ab")
    return run_pairs("conv-fused", cases, path, report, rounds, peak_flops(a, b))


def depthwise_kernel(case, which):
    """The name of the kernel of a pass, with the tiles that the case asks for."""
    gradient = {"forward": "", "data": "_data_gradient", "weight": "_weight_gradient"}[which]
    optional = "".join(f"_{key}{case[key]}" for key in ("stride", "pad", "dilation") if key in case)
    return (f"depthwise{gradient}_{case.get('type', 'bf16')}_{case['images']}x{case['height']}x{case['width']}x"
            f"{case['channels']}_{case['kernel_h']}x{case['kernel_w']}{optional}"
            + (f"_tile{case['tile']}" if "tile" in case else ""))


def run_depthwise(cases, path, report, rounds):
    """Of a case without "pass" all three."""
    from harness.cases import PASSES
    cases = [{**case, "kernel": depthwise_kernel(case, which), "normal": True}
             for which in PASSES for case in cases if case.get("pass", which) == which]
    return run_pairs("depthwise", cases, path, report, rounds, None)


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


def linear_cross_entropy_case(case):
    """Both passes as one unit: losses, then gradients, of so many parts of the rows one after another."""
    parts, vocabulary = case.get("parts", 1), case["vocabulary"]
    name = f"{case.get('type', 'bf16')}_{case['rows'] // parts}x{case['depth']}x{vocabulary}"
    ranges = {"w": [-0.05, 0.05], "label": [0, vocabulary - 1], "dloss": [0.5, 1.5]}
    case = {key: value for key, value in case.items() if key in ("parts", "seed")}
    return {**case, "case": f"{name} parts {parts}", "kernel": f"linear_cross_entropy_{name}",
            "then": f"linear_cross_entropy_gradients_{name}" + ("_part" if parts > 1 else ""), "normal": True,
            "ranges": ranges, **({"of_rows": ["x", "label", "dloss", "loss", "dx"]} if parts > 1 else {})}


def run_linear_cross_entropy(cases, path, report, rounds):
    import torch
    from harness import bursts
    peak = peak_flops(*(torch.randn(8192, 8192, device=bursts.DEVICE).bfloat16() for _ in "ab"))
    cases = [linear_cross_entropy_case(case) for case in cases]
    return run_pairs("linear-cross-entropy", cases, path, report, rounds, peak)


def run_memory(cases, path, report, rounds):
    return run_pairs("memory", cases, path, report, rounds, None)


def run_pairs(suite, cases, path, report, rounds, peak_flops):
    import torch
    state = GpuState()
    with Program(path, "cuda") as ours:
        device = ours.ask("hello")["device"]
        report.say(f"{suite} on {device}, against PyTorch {torch.__version__}, medians of {rounds} rounds")
        for case in cases:
            name = case.get("case", case["kernel"])
            try:
                result = measure_pair(ours, case, rounds, peak_flops, state)
            except Unavailable as problem:
                result = {"problem": f"unavailable: {problem}"}
            except Exception as problem:  # one case that fails must not cost the others
                traceback.print_exc()
                result = {"problem": f"failed: {first_line(problem)}", "failed": True}
                torch.cuda.empty_cache()
            report.add(row(suite, name, device, **result))
    state.stop()
    report.say_geomean(suite)
    return True


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
    correct, error, allowed = operands.check(family, facts, inputs, outputs)
    del outputs
    torch.cuda.empty_cache()

    moved = case.get("bytes", facts["bytes"])
    inputs = family.prepare(peers.in_types_of_x(inputs))
    sets = [inputs] + [{k: v.clone() for k, v in inputs.items()} for _ in range(1, bursts.num_sets(facts["bytes"]))]
    in_place = ("p", "m", "v") if family is peers.FAMILIES["adamw"] else ()
    sides, notes = peer_sides(family, facts, sets, in_place)
    all_sides = [bursts.OurSide(ours), *sides] + ([] if peak_flops else [bursts.copy_side(moved)])
    begin = time.monotonic()
    ms = bursts.medians(all_sides, rounds)
    state_now = state.since(begin)
    ours.ask("finish")
    del all_sides, sets, inputs
    peer = min((side.name for side in sides), key=ms.get) if sides else None
    del sides
    torch.cuda.empty_cache()

    roof = facts["flops"] / (ms["ours"] * 1e-3) / peak_flops if peak_flops else ms["copy"] / ms["ours"]
    work = facts["flops"] * 1e-12 if peak_flops else moved * 1e-9
    return {"ms": ms["ours"], "rate": work / (ms["ours"] * 1e-3), "unit": "TFLOP/s" if peak_flops else "GB/s",
            "peer": peer, "peer_ms": ms.get(peer), "ratio": ms[peer] / ms["ours"] if peer else None, "roof_share": roof,
            "correct": correct, "error": error, "allowed_error": allowed, "launches": facts["launches"], "all_ms": ms,
            "note": "; ".join(notes), **state_now}


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
    """A prepared launch against the driver's own call; a graph of small kernels against PyTorch's."""
    with Program(path, "cuda") as ours:
        device = ours.ask("hello")["device"]
        for case in cases:
            kernels = case.get("kernels", 100)
            facts = ours.ask("launch", graph=kernels)
            if case["kind"] == "launch":
                name, us, peer, peer_us = "prepared launch", facts["prepared_us"], "cuLaunchKernel", facts["bare_us"]
                note = f"{us - peer_us:+.3f} us of host time"
            else:
                name, us, peer = f"one of a graph of {kernels}", facts["graph_us"], "torch graph"
                peer_us, note = torch_graph_us(kernels, rounds), f"{us:.3f} us each"
            report.add(row("launch", name, device, ms=us * 1e-3, rate=1e3 / us, unit="k/s", peer=peer,
                           peer_ms=peer_us * 1e-3, ratio=peer_us / us, correct=facts["correct"], note=note))
    return True


def torch_graph_us(kernels, rounds):
    import torch
    from harness import bursts

    def add_one(tensors):
        tensors["x"].add_(1.0)
    side = bursts.TorchSide("torch graph", add_one, [{"x": torch.zeros(64, device=bursts.DEVICE)}])
    return statistics.median(side.burst(kernels) for _ in range(rounds)) * 1e3
