"""Host time of PyTorch's calls."""
import statistics
import time

import torch

from harness import bursts

CALLS, ROUNDS = 200, 30


def host_us(call, calls=CALLS):
    """The median over rounds of host microseconds of one call; the device is idle when a round begins."""
    for _ in range(calls):
        call()
    found = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begin) * 1e6 / calls)
    torch.cuda.synchronize()
    return statistics.median(found)


def torch_call_us(name):
    functional = torch.nn.functional
    x, y, w = (torch.rand(64, 64, device=bursts.DEVICE) for _ in range(3))
    b = torch.rand(64, device=bursts.DEVICE)
    leaf = torch.rand(64, 64, device=bursts.DEVICE, requires_grad=True)
    return host_us({"relu": lambda: torch.relu(x), "add": lambda: x + y, "linear": lambda: functional.linear(x, w, b),
                    "layer_norm": lambda: functional.layer_norm(x, (64,), b, b),
                    "relu, on tape": lambda: torch.relu(leaf)}[name])


def torch_replay_us(kernels):
    """Of a graph of so many small kernels."""
    def add_one(tensors):
        tensors["x"].add_(1.0)
    side = bursts.TorchSide("torch graph", add_one, [{"x": torch.zeros(64, device=bursts.DEVICE)}])
    side.record(kernels)
    return host_us(side.graph.replay, 20)
