#!/usr/bin/env python3
"""Has PyTorch train three tiny networks on the CPU, and writes down how that went: tests/ops/reference_losses_test.cpp
reads it.

    make_reference_losses.py FOLDER      mlp.safetensors, convolutions.safetensors, transformer.safetensors

Each file has, for 20 steps on four batches in turn, in float64 of weights and data that are f32 numbers:

    start.NAME, final.NAME   parameters and running moments before the first step, F32, and behind the last, F64
    gradient.NAME            of the first step, before clipping, F64
    losses                   [steps], F64
    x, labels                [batches, ...], what the network is given and what it is to say

and of the same in f32, and by torch.autocast in bf16, what rounding costs PyTorch itself:

    f32.losses, bf16.losses                               [steps], F64
    f32.gradient_error.NAME, bf16.., f32.final_error.NAME  distances from float64, F64 scalars: `distance` below

Names and layouts are those of tw::nn: images have channels last, filters are [filters, taps, taps, channels].
"""
import json
import math
import os
import random
import struct
import sys
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

STEPS, BATCHES = 20, 4
TEXT = "the rain in spain stays mainly in the plain and the train in maine remains in the main lane "
# Where an element is as near to a kink (zero before a ReLU, two largest of a window) as its rounding in f32, gradients
# part: seeds are chosen so that none is.
NEAREST_KINK = 4e-5


class Mlp(nn.Module):
    inputs, classes, rows, kinks = 32, 16, 32, True

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(self.inputs, 32)
        self.second = nn.Linear(32, 32)
        self.output = nn.Linear(32, self.classes)

    def forward(self, x, note):
        for layer in (self.first, self.second):
            x = layer(x)
            note(x.abs())
            x = F.relu(x)
        return self.output(x)

    def data(self, numbers):
        """Which class a linear map of x says."""
        x = uniform(numbers, (BATCHES, self.rows, self.inputs), 2)
        return x, (x.double() @ uniform(numbers, (self.inputs, self.classes), 1).double()).argmax(-1)

    def train_by(self):
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


class Convolutions(nn.Module):
    side, channels, classes, images, kinks = 8, 3, 10, 8, True

    def __init__(self):
        super().__init__()
        # A batch norm takes a bias off again: its gradient would be nothing but rounding.
        self.conv1 = nn.Conv2d(self.channels, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.output = nn.Linear(4 * 16, self.classes)

    def forward(self, x, note):
        x = x.permute(0, 3, 1, 2)
        for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            x = norm(conv(x))
            note(x.abs())
            x = F.relu(x)
            note(gaps(x))
            x = F.max_pool2d(x, 2)
        return self.output(x.permute(0, 2, 3, 1).flatten(1))

    def data(self, numbers):
        x = uniform(numbers, (BATCHES, self.images, self.side, self.side, self.channels), 1)
        of_x = uniform(numbers, (self.side * self.side * self.channels, self.classes), 1).double()
        return x, (x.double().flatten(2) @ of_x).argmax(-1)

    def train_by(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.05, eps=1e-4)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(width // self.heads))
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        attended = torch.softmax(scores.masked_fill(later, -math.inf), -1) @ v
        return self.out(attended.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    batch, length, width, heads, hidden, kinks = 2, 16, 16, 2, 32, False
    kinds = 16  # of characters

    def __init__(self):
        super().__init__()
        self.characters = nn.Parameter(torch.empty(self.kinds, self.width))
        self.places = nn.Parameter(torch.empty(self.length, self.width))
        self.blocks = nn.ModuleList(Block(self.width, self.heads, self.hidden) for _ in range(2))
        self.norm = nn.LayerNorm(self.width)
        self.output = nn.Linear(self.width, self.kinds)

    def forward(self, x, note):
        x = F.embedding(x.view(self.batch, self.length).long(), self.characters) + self.places
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x)).flatten(0, 1)

    def data(self, numbers):
        """Sequences of the text, and which character stands behind each of theirs."""
        known = sorted(set(TEXT))
        assert len(known) <= self.kinds
        first = [numbers.randrange(len(TEXT) - self.length) for _ in range(BATCHES * self.batch)]
        rows = [[known.index(c) for c in TEXT[at:at + self.length + 1]] for at in first]
        ids = torch.tensor(rows, dtype=torch.int32).view(BATCHES, self.batch, self.length + 1)
        return ids[..., :-1].reshape(BATCHES, -1), ids[..., 1:].reshape(BATCHES, -1)

    def train_by(self):
        # Keys may all be moved alike: the gradients of their biases are rounding, which this epsilon keeps as small.
        return torch.optim.AdamW(self.parameters(), lr=0.01, betas=(0.9, 0.98), weight_decay=0.1, eps=1e-4)

    max_norm = 0.5


# By file: the network, the seed of its weights and data, and the types that it is trained in besides float64.
NETWORKS = {"mlp": (Mlp, 324, ("f32", "bf16")), "convolutions": (Convolutions, 223, ("f32",)),
            "transformer": (Transformer, 1, ("f32", "bf16"))}


def uniform(numbers, shape, bound):
    """The same on every machine, and of every version of PyTorch."""
    values = [numbers.uniform(-bound, bound) for _ in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float32).view(shape)


def gaps(x):
    """Between the two largest of each window of 2 x 2, where they are not both zero."""
    n, c, h, w = x.shape
    windows = x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 1, 2, 4, 3, 5).reshape(-1, 4)
    top = windows.topk(2).values
    return (top[:, 0] - top[:, 1])[top[:, 0] > 0]


def channels_last(tensor):
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor


def weights(module):
    """Parameters and running moments as tw::nn lays them out: copies in float64."""
    return {name: channels_last(tensor.detach().double()).contiguous().clone()
            for name, tensor in module.state_dict().items() if tensor.is_floating_point()}


def draw(module, numbers):
    """Uniform in +-1/sqrt(terms), gains around 1."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            terms = parameter[0].numel() if parameter.dim() > 1 else 16
            parameter.copy_(uniform(numbers, tuple(parameter.shape), 1 / math.sqrt(terms)))
            if "norm" in name and name.endswith("weight"):
                parameter += 1
            parameter.copy_(parameter.float())


def distance(got, exact, start=None):
    """The length of the difference relative to that of the exact one, or of what it has changed of the start."""
    return ((got - exact).norm() / (exact if start is None else exact - start).norm()).item()


class Run:
    """A network that is trained from `start` in one type."""

    def __init__(self, make, start, x, labels, values):
        self.module = make().to(torch.float64 if values == "f64" else torch.float32).train()
        own = self.module.state_dict()
        for name, tensor in start.items():
            own[name].copy_(tensor.permute(0, 3, 1, 2) if tensor.dim() == 4 else tensor)
        self.x, self.labels, self.values = x, labels, values
        self.losses, self.gradients, self.nearest_kink = [], {}, math.inf
        optimizer = self.module.train_by()
        for step in range(STEPS):
            self.step(optimizer, step)
        self.final = weights(self.module)

    def step(self, optimizer, step):
        x, labels = self.x[step % BATCHES], self.labels[step % BATCHES].long()
        if x.is_floating_point():
            x = x.to(next(self.module.parameters()).dtype)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if self.values == "bf16" else nullcontext():
            logits = self.module(x, self.note)
        loss = F.cross_entropy(logits.float() if self.values == "bf16" else logits, labels)
        loss.backward()
        if step == 0:
            self.gradients = {name: channels_last(parameter.grad.double()).contiguous().clone()
                              for name, parameter in self.module.named_parameters()}
        if hasattr(self.module, "max_norm"):
            nn.utils.clip_grad_norm_(self.module.parameters(), self.module.max_norm)
        optimizer.step()
        self.losses.append(loss.item())

    def note(self, distances):
        self.nearest_kink = min(self.nearest_kink, distances.min().item())


def reference(name, seed=None):
    """What the file of that name holds."""
    make, own_seed, types = NETWORKS[name]
    numbers = random.Random(own_seed if seed is None else seed)
    module = make().double()
    draw(module, numbers)
    start = weights(module)
    x, labels = module.data(numbers)
    exact = Run(make, start, x, labels, "f64")
    assert not make.kinks or exact.nearest_kink > NEAREST_KINK or seed is not None, \
        f"{name}: an element is as near as {exact.nearest_kink:.2g} to a kink; take another seed"
    file = {"x": x, "labels": labels.int(), "losses": torch.tensor(exact.losses, dtype=torch.float64)}
    file.update({f"start.{key}": tensor.float() for key, tensor in start.items()})
    file.update({f"gradient.{key}": tensor for key, tensor in exact.gradients.items()})
    file.update({f"final.{key}": tensor for key, tensor in exact.final.items()})
    for values in types:
        file.update(errors(Run(make, start, x, labels, values), exact, start, values))
    return file, exact


def errors(run, exact, start, values):
    """What a run in fewer bits is away from float64."""
    found = {f"{values}.losses": torch.tensor(run.losses, dtype=torch.float64)}
    for key, gradient in exact.gradients.items():
        found[f"{values}.gradient_error.{key}"] = scalar(distance(run.gradients[key], gradient))
    if values == "f32":
        for key, final in exact.final.items():
            found[f"{values}.final_error.{key}"] = scalar(distance(run.final[key], final, start[key]))
    return found


def scalar(number):
    return torch.tensor(number, dtype=torch.float64)


DTYPES = {torch.float64: ("F64", "d"), torch.float32: ("F32", "f"), torch.int32: ("I32", "i")}


def write_safetensors(path, tensors, metadata):
    """Wide elements first, so that all are aligned (github.com/huggingface/safetensors, "Format")."""
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in sorted(tensors.items(), key=lambda one: (-one[1].element_size(), one[0])):
        dtype, letter = DTYPES[tensor.dtype]
        content = struct.pack(f"<{tensor.numel()}{letter}", *tensor.reshape(-1).tolist())
        place = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": place}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    os.makedirs(sys.argv[1], exist_ok=True)
    for name in NETWORKS:
        file, exact = reference(name)
        path = os.path.join(sys.argv[1], f"{name}.safetensors")
        write_safetensors(path, file, {"made_by": f"scripts/make_reference_losses.py, PyTorch {torch.__version__}"})
        kink = f"; nearest kink {exact.nearest_kink:.2g}" if NETWORKS[name][0].kinks else ""
        print(f"{path}: {os.path.getsize(path)} bytes; loss {exact.losses[0]:.4f}, then {exact.losses[-1]:.4f}{kink}")
        for values in NETWORKS[name][2]:
            away = (file[f"{values}.losses"] - file["losses"]).abs() / file["losses"]
            print(f"    {values}: losses are {away.max().item():.2g} away")


if __name__ == "__main__":
    main()
