"""Timing: several sides, in turns, on one GPU."""
import statistics

import torch

DEVICE = "cuda"
BURST_MS = 15.0
ROTATED_BYTES = 200 << 20  # several times an L2 cache


class TorchSide:
    """A PyTorch call on rotating sets of tensors. Its bursts are CUDA graphs (unless `graphed` is False), so that the
    host is not what is measured.

    `call(tensors)` returns results or None; results live for a whole turn of the sets, so that outputs rotate too."""

    def __init__(self, name, call, sets, graphed=True):
        self.name, self.call, self.sets, self.graphed = name, call, sets, graphed
        self.graph, self.graph_runs = None, 0
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.run(3)
        torch.cuda.synchronize()

    def run(self, runs):
        kept = [None] * len(self.sets)
        for index in range(runs):
            kept[index % len(kept)] = self.call(self.sets[index % len(kept)])

    def record(self, runs):
        self.graph, self.graph_runs = torch.cuda.CUDAGraph(), 0
        with torch.cuda.graph(self.graph):
            self.run(runs)
        self.graph.replay()
        torch.cuda.synchronize()
        self.graph_runs = runs

    def burst(self, runs):
        """Milliseconds of one of so many runs."""
        if self.graphed and runs != self.graph_runs:
            self.record(runs)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        if self.graphed:
            self.graph.replay()
        else:
            self.run(runs)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / runs


class OurSide:
    name = "ours"

    def __init__(self, program):
        self.program = program

    def burst(self, runs):
        return self.program.ask("burst", n=runs)["ms"]


def num_sets(bytes_each):
    return int(min(256, 1 + ROTATED_BYTES // max(1, int(bytes_each))))


def copy_side(total_bytes):
    """A copy that reads and writes `total_bytes` together."""
    half = max(1, int(total_bytes) // 2)
    sets = [{"from": torch.randint(0, 255, (half,), dtype=torch.uint8, device=DEVICE),
             "to": torch.empty(half, dtype=torch.uint8, device=DEVICE)} for _ in range(num_sets(2 * half))]

    def call(t):
        t["to"].copy_(t["from"])
    return TorchSide("copy", call, sets, graphed=False)


def medians(sides, rounds):
    """Milliseconds of each side by name: the median over rounds in which the sides take turns, in changing order."""
    runs = {side.name: runs_for(side.burst(3)) for side in sides}
    for side in sides:
        side.burst(runs[side.name])
    times = {side.name: [] for side in sides}
    for turn in range(rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            times[side.name].append(side.burst(runs[side.name]))
    return {name: statistics.median(values) for name, values in times.items()}


def runs_for(ms):
    return max(3, min(200, int(BURST_MS / max(ms, 1e-4))))
