"""How far attention and its gradients are from float64: ours, and PyTorch's unfused one of the same type."""
import math

import torch

from harness import operands

BARS = {"o": 1.0, "dq": 1.5, "dk": 1.5, "dv": 1.5}  # times PyTorch's error
OF_ONE = 2.0  # bars that the error of one element may reach before it is wrong: it has luck, good or bad
ROUNDING = 1.05  # times the error of the exact result rounded: no other computation can be held to less
# What is scaled: [dimension, every, factor]. Keys that nearly all rows see alone, or parts of a head that outweigh all.
OUTLIERS = {"none": {}, "rows": {"k": [1, 211, 30], "v": [1, 211, 30]}, "columns": {"k": [3, 64, 20], "v": [3, 64, 20]}}


def unfused(q, k, v, causal):
    """One call of PyTorch for each step, whose results are rounded to the operands' type. Of [batch, rows, heads, depth];
    k and v may have fewer heads."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))
    if causal:
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2)


def by_torch(t, causal):
    """o, and the gradients of the sum of o * g."""
    q, k, v = (t[name].detach().requires_grad_() for name in "qkv")
    o = unfused(q, k, v, causal)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), t["g"])
    return {"o": o.detach(), "dq": dq, "dk": dk, "dv": dv}


def errors(got, exact):
    """The Frobenius norm of the difference relative to that of the exact result, and the largest difference. Infinite if
    there is a NaN."""
    difference = got.double() - exact
    both = {"frobenius": (difference.norm() / exact.norm()).item(), "worst": difference.abs().max().item()}
    return {name: math.inf if math.isnan(error) else error for name, error in both.items()}


def judged(name, ours, theirs, exact):
    """The errors of one result, as keys of a row. Wrong is what is over the bar as a whole, or far over it somewhere."""
    bar = BARS[name]
    own, peer, least = errors(ours, exact), errors(theirs, exact), errors(exact.to(ours.dtype), exact)
    row = {"bar": bar, "peer": "torch unfused", "correct": ours.shape == exact.shape}
    for kind, bars in (("frobenius", 1.0), ("worst", OF_ONE)):
        allowed = max(bar * peer[kind], ROUNDING * least[kind])
        ratio = own[kind] / peer[kind] if peer[kind] else math.inf if own[kind] else 1.0
        row[kind] = {"ours": own[kind], "peer": peer[kind], "ratio": ratio, "allowed": allowed}
        row["correct"] = row["correct"] and math.isfinite(own[kind]) and own[kind] <= bars * allowed
    return row


def results_of_ours(ours, kernel, gradients, details, folder):
    """Operands and results: the gradients are those of the forward pass's own results."""
    forward = ours.ask("prepare", kernel=kernel, folder=folder, **details)
    inputs, results = operands.load_all(forward["inputs"]), operands.load_all(forward["outputs"])
    both = ours.ask("prepare", kernel=kernel, then=gradients, folder=folder, **details)
    again = operands.load_all(both["inputs"])
    for name, tensor in inputs.items():
        assert torch.equal(tensor, again[name]), f"the passes were given different {name}"
    results.update(operands.load_all(both["outputs"]))
    ours.ask("finish")
    return again, results


def measure(ours, kernel, case, folder):
    """The keys of a row for each result, by its name."""
    details = {"normal": True, "outliers": OUTLIERS[case.get("outliers", "none")], "seed": case.get("seed", 1)}
    gradients = kernel.replace("attention_", "attention_gradients_", 1)
    inputs, results = results_of_ours(ours, kernel, gradients, details, folder)
    causal = case.get("causal", False)
    exact, theirs = by_torch(operands.cast_floats(inputs, torch.float64), causal), by_torch(inputs, causal)
    return {name: judged(name, results[name], theirs[name], exact[name]) for name in BARS}
