"""Steps of training in PyTorch as one would write them, beside those of bench/train_steps.cpp: the same data, parameters
and optimizers. Each is made of the tensors that tw_bench wrote, and serves three times: in float64 as the reference,
eager, and compiled."""
import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

from harness import bursts, operands

LOOSEST = 1.5  # times the error of PyTorch's own step
# Where a value is as near to a kink as its rounding, the adjoint passes on one side and not on the other: in f32 some
# 1e-6 of all elements, which moves sums of n of them by sqrt(1e-6 n) of sqrt(n).
# (One flip of 6.4 million moves the gradient of an MLP's bias by 3e-4 to 7e-4; sums in one run of 1880 terms flip 0 to 2.)
KINKS = {("mlp", "f32"): 1e-3, ("residual", "f32"): 1e-3, ("residual_nchw", "f32"): 1e-3}
UPDATE = 1e-3  # of an optimizer in f32 beside its formula, relative to what it changes, of parameters as large as 1
ROUNDINGS = {"f32": 1e-5, "bf16": 2.0**-8}  # which is no error of either side: relative, of a tensor as a whole


class FeedForward(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.norm = nn.LayerNorm(sizes["width"])
        self.up = nn.Linear(sizes["width"], sizes["hidden"])
        self.down = nn.Linear(sizes["hidden"], sizes["width"])

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        width, hidden = sizes["width"], sizes["hidden"]
        self.shape = (sizes["batch"], sizes["length"], 3, sizes["heads"], width // sizes["heads"])
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        q, k, v = (part.transpose(1, 2) for part in self.qkv(self.norm1(x)).view(self.shape).unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        y = x + self.out(attended)
        return y + self.down(F.gelu(self.up(self.norm2(y))))


class Residual(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        channels = sizes["channels"]
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def mlp(sizes):
    inputs, hidden, classes = sizes["inputs"], sizes["hidden"], sizes["classes"]
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                         nn.Linear(hidden, classes))


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters):
    fused = parameters[0].is_cuda and parameters[0].dtype == torch.float32
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, fused=fused or None)


def cross_entropy(module, data):
    return F.cross_entropy(module(data["x"]).float() if data["x"].dtype != torch.float64 else module(data["x"]),
                           data["labels"])


def squared_error(module, data):
    y = module(data["x"])
    return F.mse_loss(y if y.dtype == torch.float64 else y.float(), data["goal"])


STEPS = {"mlp": (mlp, cross_entropy, momentum), "feed_forward": (FeedForward, squared_error, adamw),
         "transformer": (Transformer, squared_error, adamw),
         "residual": (Residual, squared_error, momentum),
         "residual_nchw": (Residual, squared_error, momentum)}
CHANNELS_FIRST = ("residual_nchw",)  # steps whose images ours have channels first, too


def channels_first(name, tensor):
    """As PyTorch has them, of ours."""
    return tensor if name in CHANNELS_FIRST or tensor.dim() != 4 else tensor.permute(0, 3, 1, 2)


def as_ours(name, tensor):
    return tensor if name in CHANNELS_FIRST or tensor.dim() != 4 else tensor.permute(0, 2, 3, 1)


class Step:
    """One that trains `module` on the tensors called `before`, in the type `wide`, or with values of bf16."""

    def __init__(self, name, sizes, before, wide=torch.float32, values="f32"):
        self.name = name
        make, self.loss_of, optimizer = STEPS[name]
        self.module = make(sizes).to(bursts.DEVICE, wide).train()
        known = dict(self.module.named_parameters())
        with torch.no_grad():
            for key, parameter in known.items():
                parameter.copy_(channels_first(name, before[key]))
        if name not in CHANNELS_FIRST and any(tensor.dim() == 4 for tensor in before.values()):
            self.module.to(memory_format=torch.channels_last)
        self.data = {key: channels_first(name, tensor.long() if key == "labels" else tensor.to(wide))
                     for key, tensor in before.items() if key not in known and key not in moments_of(known)}
        self.wants_x = "goal" in self.data  # a block in the middle of a network
        self.data["x"].requires_grad_(self.wants_x)
        self.optimizer = optimizer(list(self.module.parameters()))
        self.values, self.forward = values, self.loss_of
        self.loss = None

    def compiled(self):
        self.forward = torch.compile(self.loss_of)
        return self

    def run(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.data["x"].grad = None
        mixed = torch.autocast(bursts.DEVICE, torch.bfloat16) if self.values == "bf16" else nullcontext()
        with mixed:
            self.loss = self.forward(self.module, self.data)
        self.loss.backward()
        self.optimizer.step()

    def after(self):
        """What one run has made, by the names of ours."""
        made = {key: as_ours(self.name, parameter.detach()) for key, parameter in self.module.named_parameters()}
        made["loss"] = self.loss.detach()
        if isinstance(self.optimizer, torch.optim.AdamW):
            for key, parameter in self.module.named_parameters():
                state = self.optimizer.state[parameter]
                made |= zip(moments_of([key]), (state["exp_avg"], state["exp_avg_sq"]))
        if self.wants_x:
            made["x.grad"] = as_ours(self.name, self.data["x"].grad)
        return made


def moments_of(parameters):
    return [f"{key}.{moment}_moment" for key in parameters for moment in ("first", "second")]


def adamw_of_own_moments(key, before, after):
    """What the first step makes of a parameter, in float64, by the moments that it has made. Where a gradient is as
    small as epsilon, its rounding moves the parameter as far as all of it: gradients are compared in moments."""
    options = adamw([torch.zeros(1, dtype=torch.float64, requires_grad=True)]).param_groups[0]
    beta1, beta2 = options["betas"]
    first, second = (after[name].double() for name in moments_of([key]))
    update = first / (1 - beta1) / ((second / (1 - beta2)).sqrt() + options["eps"])
    return before[key].double() * (1 - options["lr"] * options["weight_decay"]) - options["lr"] * update


def distance(got, exact, start):
    """Of parameters relative to what the step has changed, of results relative to themselves."""
    change = (exact - start.double() if start is not None else exact).norm()
    error = ((got.double() - exact).norm() / change).item()
    return math.inf if math.isnan(error) else error


def verdict(step, sizes, before, after, values):
    """(correct, note): each tensor that the step has made beside PyTorch's, both by their distance from float64."""
    exact = Step(step, sizes, before, torch.float64)
    exact.run()
    theirs = Step(step, sizes, before, values=values)
    theirs.run()
    exact, theirs = exact.after(), theirs.after()
    correct, worst = True, (0.0, "")
    for name, reference in exact.items():
        if f"{name}.first_moment" in exact:
            own = distance(after[name], adamw_of_own_moments(name, before, after), before[name])
            peer, allowed = 0, UPDATE
        else:
            start = before.get(name) if "_moment" not in name else None
            own, peer = distance(after[name], reference, start), distance(theirs[name], reference, start)
            allowed = LOOSEST * peer + ROUNDINGS[values] + KINKS.get((step, values), 0)
        correct = correct and own <= allowed
        worst = max(worst, (own / allowed, f"{name} errs by {own:.2g}, PyTorch by {peer:.2g}"))
    return correct, worst[1]


def load(described, when):
    """Tensors of a prepare that have data, before the first run or after it."""
    return {name: operands.load({**one, "strides": dense_strides(one["shape"]), "file": one[when]})
            for name, one in described.items() if one.get(when)}


def dense_strides(shape):
    strides = []
    for extent in reversed(shape):
        strides.insert(0, 1 if not strides else strides[0] * last)
        last = extent
    return strides


def sides(case, sizes, before, values):
    """PyTorch's ways to time, and a note for each that could not be had."""
    found, notes = [], []
    for name, compiles in (("torch eager", False), ("torch compile", True)):
        try:
            step = Step(case["step"], sizes, before, values=values)
            step = step.compiled() if compiles else step
            side = bursts.TorchSide(name, lambda _, step=step: step.run(), [{}], graphed=False)
            side.burst(3)
            found.append(side)
        except Exception as problem:
            notes.append(f"no {name}: {(str(problem) or type(problem).__name__).splitlines()[0][:100]}")
    return found, notes
