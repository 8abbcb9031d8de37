"""What PyTorch computes for a kernel of ours: by the kernel's family, from tensors by the names of our declaration.

Each family has one formula, which serves three times: in float64 as the reference, in float32 as the plain computation
whose error is the yardstick, and in the kernel's own types as the peer, eager and compiled."""
import re

import torch
import torch.nn.functional as F

from harness import fp8_attention, fused_peers
from harness.attention_peers import attention_family
from harness.convolution_peers import convolution_family
from harness.depthwise_peers import depthwise_family
from harness.family import Family
from harness.fused_convolution_peers import fused_convolution_family
from harness.gather_peers import gather_family
from harness.product_peers import gemm_family, product_family
from harness.unknown_peers import unknown_family

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

EPSILON = 1e-5


def cosine(t, s):
    x, q = t["x"], t["query"]
    wide = x if x.dtype == torch.float64 else x.float()
    q = q.to(wide.dtype)
    squares = (wide * wide).sum(-1) * (q * q).sum()
    return torch.where(squares > 0, (wide * q).sum(-1) * torch.rsqrt(squares), 0.0)


def adamw(t, s):
    p, g = t["p"], t["g"]
    mean = t["m"] + (1 - s["beta1"]) * (g - t["m"])
    square = t["v"] + (1 - s["beta2"]) * (g * g - t["v"])
    direction = mean * s["correction1"] / (torch.sqrt(square * s["correction2"]) + s["eps"])
    return p - s["lr"] * (direction + s["decay"] * p), mean, square


def fused_adamw(t, s):
    p = torch.nn.Parameter(t["p"].clone())
    p.grad = t["g"]
    optimizer = torch.optim.AdamW([p], lr=s["lr"], betas=(s["beta1"], s["beta2"]), eps=s["eps"],
                                  weight_decay=s["decay"], fused=True, capturable=True)
    optimizer.step()
    return lambda: optimizer.step()


def like_x(t, name):
    """Weights in x's type, as PyTorch wants them; in the reference both are float64."""
    return t[name].to(t["x"].dtype)


def in_types_of_x(tensors):
    """What the peer is given: PyTorch's row operators want the weights in x's type."""
    if "x" not in tensors:
        return tensors
    return {name: t.to(tensors["x"].dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


THREADS = 256  # that a row's elements are shared among


def running_moments(t):
    """In one pass in float32 by Welford, as our kernels: each thread's mean and sum of squares, which then are joined."""
    x, (rows, columns) = t["x"].float(), t["x"].shape
    mean, squares, count = (torch.zeros(rows, THREADS, device=x.device) for _ in range(3))
    for begin in range(0, columns, THREADS):
        part = x[:, begin:begin + THREADS]
        own = slice(0, part.shape[1])
        count[:, own] += 1
        away = part - mean[:, own]
        mean[:, own] += away / count[:, own]
        squares[:, own] += away * (part - mean[:, own])
    whole = (mean * count).sum(-1) / columns
    return whole, (squares + count * (mean - whole[:, None]) ** 2).sum(-1) / columns


def norm_gradient(t, mean):
    """dx of layernorm, or of rmsnorm if there is no mean."""
    x, scale = wide(t["x"]), wide(t["scale"])[:, None]
    standardised = (x if mean is None else x - mean[:, None]) * scale
    g = wide(t["dy"]) * wide(t["gain"])
    rest = g - standardised * (g * standardised).mean(-1, keepdim=True)
    return (scale * (rest if mean is None else rest - g.mean(-1, keepdim=True))).to(t["x"].dtype)


def cross_entropy_gradient(t, s):
    x, label = wide(t["x"]), t["label"][:, None]
    share = torch.exp(x - (t["loss"][:, None] + x.gather(1, label)))
    return (share.scatter_add(1, label, torch.full_like(share[:, :1], -1)) * t["dloss"][:, None]).to(t["x"].dtype)


FAMILIES = {
    "softmax": Family(lambda t, s: F.softmax(t["x"], -1)),
    "row_sum": Family(lambda t, s: t["x"].sum(-1), terms="x"),
    "layernorm": Family(
        lambda t, s: F.layer_norm(t["x"], t["x"].shape[-1:], like_x(t, "gain"), like_x(t, "bias"), EPSILON)),
    "rmsnorm": Family(lambda t, s: F.rms_norm(t["x"], t["x"].shape[-1:], like_x(t, "gain"), EPSILON)),
    "softmax_gradient": Family(
        lambda t, s: t["x"] * (t["dy"] - (t["x"] * t["dy"]).sum(-1, keepdim=True)), terms="x",
        eager=lambda t, s: lambda: torch.ops.aten._softmax_backward_data(t["dy"], t["x"], -1, t["x"].dtype)),
    "layernorm_gradient": Family(
        lambda t, s: norm_gradient(t, t["mean"]), terms="x",
        eager=lambda t, s: lambda: torch.ops.aten.native_layer_norm_backward(
            t["dy"], t["x"], t["x"].shape[-1:], t["mean"][:, None], t["scale"][:, None], t["gain"], None,
            [True, False, False])[0]),
    "rmsnorm_gradient": Family(lambda t, s: norm_gradient(t, None), terms="x"),
    "cross_entropy": Family(lambda t, s: F.cross_entropy(wide(t["x"]), t["label"], reduction="none"), terms="x",
                            eager=lambda t, s: lambda: F.cross_entropy(t["x"], t["label"], reduction="none")),
    "cross_entropy_gradient": Family(cross_entropy_gradient),
    "argmax": Family(lambda t, s: torch.max(wide(t["x"]), -1), eager=lambda t, s: lambda: torch.max(t["x"], -1)),
    "moments": Family(lambda t, s: torch.var_mean(wide(t["x"]), -1, correction=0)[::-1],
                      yardstick=running_moments, yardstick_of_all=True, allowed=2.0),
    "column_sum": Family(lambda t, s: t["x"].sum(0), terms="x", along=0),
    "full_sum": Family(lambda t, s: t["x"].sum(), terms="x"),
    "transpose": Family(lambda t, s: t["x"].t().contiguous()),
    "gelu_bias": Family(lambda t, s: F.gelu(t["x"] + t["bias"])),
    "dot": Family(lambda t, s: torch.dot(t["a"], t["b"]), terms="a"),
    "dot_atomic": Family(lambda t, s: torch.dot(t["a"], t["b"]), terms="a"),
    "similarity": Family(cosine, eager=lambda t, s: lambda: F.cosine_similarity(t["x"], t["query"][None], -1)),
    "adamw": Family(adamw, eager=fused_adamw),
}


def family_of(kernel):
    """The Family of "softmax_16384x768_bf16", or None; the same of "..._automatic", its declaration scheduled by rule."""
    kernel = kernel.removesuffix("_automatic")
    for find in (product_family, gemm_family, convolution_family, fused_convolution_family, depthwise_family,
                 fp8_attention.family_of, attention_family, gather_family, fused_peers.fused_family, unknown_family):
        if family := find(kernel):
            return family
    if kernel.startswith("linear_cross_entropy_"):
        from harness import linear_cross_entropy
        return linear_cross_entropy.family()
    name = re.fullmatch(r"([a-z_]+?)_\d+(x\d+)*(_(f32|bf16|f16))?(_pitch\d+)?", kernel)
    return FAMILIES.get(name[1]) if name else None


def in_place_of(family):
    """Names of the tensors that its kernel overwrites with its first results."""
    return next((fused_peers.IN_PLACE[name] for name in fused_peers.IN_PLACE if family is fused_peers.FAMILIES[name]),
                ("p", "m", "v") if family is FAMILIES["adamw"] else ())


def compiled_peer(family, scalars, in_place):
    """One compiled function of the tensors; what our kernel updates in place, it does too."""
    def call(tensors):
        results = (family.compiled_formula or family.formula)(tensors, scalars)
        if not in_place:
            return results
        for name, value in zip(in_place, results):
            tensors[name].copy_(value)
        return None
    torch._dynamo.reset()  # else, from the ninth case on, it gives up on `call` and runs eagerly
    return torch.compile(call, dynamic=False)
