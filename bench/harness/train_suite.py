"""The suite of whole steps of training: ours as one launch, PyTorch's eager and compiled."""
import time
import traceback

from harness.gpu_state import GpuState
from harness.gpu_suites import first_line, folder_with_room
from harness.program import Program
from harness.report import row


def name_of(case):
    sizes = "".join(f"_{size}{value}" for size, value in case.get("sizes", {}).items())
    return f"{case['step']}{sizes}_{case.get('values', 'f32')}{'' if case.get('branches', True) else '_chain'}"


def run_train(cases, path, report, rounds):
    import torch
    from harness import peers  # noqa: F401: turns TF32 off
    state = GpuState()
    with Program(path, "cuda") as ours:
        device = ours.ask("hello")["device"]
        report.say(f"train on {device}, against PyTorch {torch.__version__}, medians of {rounds} rounds")
        drawn = next((case["drawn"] for case in cases if "drawn" in case), None)
        if drawn:
            drawn.start()
        for number, case in enumerate(cases):
            if drawn and drawn.is_over():
                report.say(f"train: the time is over, {len(cases) - number} cases are left out")
                break
            try:
                result = measured(ours, case, rounds, state)
            except Exception as problem:  # one case that fails must not cost the others
                traceback.print_exc()
                ours.restart()
                result = {"problem": f"failed: {first_line(problem)}", "failed": True}
            torch.cuda.empty_cache()
            report.add(row("train", name_of(case), device, **result))
    state.stop()
    report.say_geomean("train")
    return True


def measured(ours, case, rounds, state):
    """The keys of a row. The peer of a case is the faster one, or the one that it names."""
    from harness import bursts, step_peers
    values = case.get("values", "f32")
    with folder_with_room() as folder:
        asked = {key: case[key] for key in ("step", "sizes", "values", "branches", "seed") if key in case}
        facts = ours.ask("prepare", folder=folder, **asked)
        before, after = (step_peers.load(facts["tensors"], when) for when in ("before", "after"))
    correct, note = step_peers.verdict(case["step"], facts["sizes"], before, after, values)
    del after
    found, notes = step_peers.sides(case, facts["sizes"], before, values)
    begin = time.monotonic()
    ms = bursts.medians([bursts.OurSide(ours), *found], rounds)
    state_now = state.since(begin)
    ours.ask("finish")
    theirs = {name: value for name, value in ms.items() if name != "ours"}
    peer = f"torch {case['peer']}" if "peer" in case else min(theirs, key=theirs.get, default=None)
    notes = [f"{name} {value:.4f} ms" for name, value in theirs.items() if name != peer] + notes
    notes.append(f"{facts['launches']} kernels of {facts['groups']} groups, {facts['beside']} beside others, "
                 f"predicted {facts['predicted_ms']:.4f} ms, arena {facts['arena'] / 2**20:.0f} MiB, planned and loaded in {facts['seconds']:.1f} s, {note}")
    return {"ms": ms["ours"], "rate": 1e3 / ms["ours"], "unit": "steps/s", "peer": peer, "peer_ms": ms.get(peer),
            "ratio": ms[peer] / ms["ours"] if peer in ms else None, "correct": correct, "all_ms": ms,
            "launches": facts["launches"], "note": "; ".join(notes), **state_now}
