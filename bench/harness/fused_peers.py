"""What PyTorch computes for the kernels of a training step between and around its products."""
import math
import re

import torch
import torch.nn.functional as F

from harness.family import Family

EPSILON = 1e-5
LEFT_OUT = 0.1
NAME = re.compile(r"fused_([a-z_]+)_(\d+(?:x\d+)*)")


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


def stored(exact, like):
    """As bf16 tensors hold it; in float64 and float32 nothing is rounded."""
    return exact.to(like.dtype)


def slope_of_gelu(z):
    return 0.5 * (1 + torch.erf(z * math.sqrt(0.5))) + z * torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def residual_layernorm(t, s):
    r = t["x"] + t["y"]
    z = wide(r)
    mean = z.mean(-1)
    centred = z - mean[:, None]
    scale = torch.rsqrt((centred * centred).mean(-1) + EPSILON)
    n = centred * scale[:, None] * wide(t["gain"]) + wide(t["bias"])
    return r, stored(n, r), mean, scale


def residual_layernorm_eager(t, s):
    def call():
        r = t["x"] + t["y"]
        return r, *torch.ops.aten.native_layer_norm(r, r.shape[-1:], t["gain"], t["bias"], EPSILON)
    return call


def norm_backward(t, s):
    dn, scale = wide(t["dn"]), t["scale"][:, None]
    mean = t.get("mean")
    standardised = (wide(t["r"]) if mean is None else wide(t["r"]) - mean[:, None]) * scale
    g = dn * wide(t["gain"])
    rest = g - standardised * (g * standardised).mean(-1, keepdim=True)
    if mean is not None:
        rest = rest - g.mean(-1, keepdim=True)
    dx = stored(scale * rest + wide(t["dr"]), t["r"])
    dgain = (dn * standardised).sum(0)
    return (dx, dgain) if mean is None else (dx, dgain, dn.sum(0))


def layernorm_backward_eager(t, s):
    def call():
        dx, dgain, dbias = torch.ops.aten.native_layer_norm_backward(
            t["dn"], t["r"], t["r"].shape[-1:], t["mean"][:, None], t["scale"][:, None], t["gain"], t["gain"],
            [True, True, True])
        return dx + t["dr"], dgain, dbias
    return call


def philox(counter, key):
    """The four words of Philox 4x32-10 of the counters (counter, 0, 0, 0) and the key (key, 0), i64 tensors of u32."""
    mask, factors, steps = 0xffffffff, (0xd2511f53, 0xcd9e8d57), (0x9e3779b9, 0xbb67ae85)

    def multiplied(x, factor):
        """Both halves of x * factor, whose 64 bits would not fit into an i64."""
        low, high = x * (factor & 0xffff), x * (factor >> 16)
        upper = (low >> 16) + high
        return upper >> 16, ((upper & 0xffff) << 16) | (low & 0xffff)

    zero = torch.zeros_like(counter)
    c, k = [counter & mask, counter >> 32, zero, zero], [key & mask, torch.zeros_like(key)]
    for turn in range(10):
        (high0, low0), (high1, low1) = multiplied(c[0], factors[0]), multiplied(c[2], factors[1])
        keys = [(k[n] + turn * steps[n]) & mask for n in range(2)]
        c = [high1 ^ c[1] ^ keys[0], low1, high0 ^ c[3] ^ keys[1], low0]
    return c


def is_kept(seed, shape):
    """Of elements by their numbers in row-major order, as the kernels' dropout."""
    count = math.prod(shape)
    calls = torch.arange((count + 3) // 4, device=seed.device)
    drawn = torch.stack(philox(calls, seed.long().reshape(-1)[:1]), -1).reshape(-1)[:count]
    return (drawn >= round(LEFT_OUT * 2**32)).reshape(shape)


def gelu_dropout(t, s):
    x = wide(t["x"])
    y = F.gelu(x + wide(t["bias"])) * is_kept(t["seed"], x.shape) / (1 - LEFT_OUT)
    return stored(y, t["x"])


def gelu_dropout_backward(t, s):
    x = wide(t["x"])
    kept = is_kept(t["seed"], x.shape) / (1 - LEFT_OUT)
    dx = stored(wide(t["dy"]) * kept * slope_of_gelu(x + wide(t["bias"])), t["x"])
    return dx, wide(dx).sum(0)


def own_mask(x):
    """PyTorch's own random numbers, which differ from ours and cost it what they cost."""
    return torch.rand_like(x) >= LEFT_OUT


def gelu_dropout_peer(t, s):
    return F.dropout(F.gelu(t["x"] + t["bias"]), LEFT_OUT)


def gelu_dropout_backward_peer(t, s):
    x = t["x"].float()
    slope = slope_of_gelu(x + t["bias"].float())
    dx = (t["dy"].float() * own_mask(x) / (1 - LEFT_OUT) * slope).bfloat16()
    return dx, dx.float().sum(0)


def cross_entropy(t, s):
    x, label = wide(t["logits"]), t["label"][:, None]
    lse = torch.logsumexp(x, -1, keepdim=True)
    share = torch.exp(x - lse)
    dlogits = share.scatter_add(1, label, torch.full_like(share[:, :1], -1)) / x.shape[0]
    return stored(dlogits, t["logits"]), (lse - x.gather(1, label))[:, 0]


def embedding(length):
    def formula(t, s):
        ids, places = t["ids"].long(), t["places"]
        numbers = torch.arange(ids.shape[0], device=ids.device) % length
        return stored(wide(t["table"])[ids] + wide(places)[numbers], places)

    def eager(t, s):
        def call():
            ids = t["ids"]
            rows = F.embedding(ids, t["table"])
            if ids.shape[0] % length:
                return rows + t["places"].repeat(-(-ids.shape[0] // length), 1)[:ids.shape[0]]
            return rows.view(-1, length, rows.shape[-1]) + t["places"]
        return call
    return Family(formula, eager=eager)


def embedding_backward(words, length):
    def formula(t, s):
        ids, dy = t["ids"].long(), wide(t["dy"])
        numbers = torch.arange(ids.shape[0], device=ids.device) % length
        return (torch.zeros(words, dy.shape[1], dtype=dy.dtype, device=dy.device).index_add(0, ids, dy),
                torch.zeros(length, dy.shape[1], dtype=dy.dtype, device=dy.device).index_add(0, numbers, dy))

    def eager(t, s):
        def call():
            dy = t["dy"]
            dtable = torch.ops.aten.embedding_dense_backward(dy, t["ids"], words, -1, False)
            if dy.shape[0] % length:
                return dtable, formula(t, s)[1]
            return dtable, dy.view(-1, length, dy.shape[1]).sum(0, dtype=torch.float32)
        return call
    return Family(formula, eager=eager, terms="dy", along=0)


def adamw(t, s):
    g = t["g"] * t["clip"]
    mean = t["m"] + (1 - s["beta1"]) * (g - t["m"])
    square = t["v"] + (1 - s["beta2"]) * (g * g - t["v"])
    direction = mean * s["correction1"] / (torch.sqrt(square * s["correction2"]) + s["eps"])
    p = t["p"] - s["lr"] * (direction + s["decay"] * t["p"])
    return p, mean, square, p if p.dtype == torch.float64 else p.bfloat16()


def adamw_eager(t, s):
    p = torch.nn.Parameter(t["p"].clone())
    p.grad = t["g"]
    optimizer = torch.optim.AdamW([p], lr=s["lr"], betas=(s["beta1"], s["beta2"]), eps=s["eps"],
                                  weight_decay=s["decay"], fused=True, capturable=True)

    def call():
        p.grad.mul_(t["clip"])
        optimizer.step()
        return p.detach().bfloat16()
    call()
    return call


def linear_gelu(t, s):
    pre = stored(wide(t["x"]) @ wide(t["w"]).t() + wide(t["bias"]), t["x"])
    return pre, stored(F.gelu(wide(pre)), pre)


def linear_gelu_peer(t, s):
    pre = F.linear(t["x"], t["w"], t["bias"])
    return pre, F.gelu(pre)


def linear_residual(t, s):
    return F.linear(t["x"], t["w"], t["bias"]) + t["residual"]


def linear_gelu_backward(t, s):
    dpre = stored((wide(t["dy"]) @ wide(t["w"])) * slope_of_gelu(wide(t["pre"])), t["pre"])
    return dpre, wide(dpre).sum(0)


def linear_gelu_backward_peer(t, s):
    dpre = torch.ops.aten.gelu_backward(t["dy"] @ t["w"], t["pre"])
    return dpre, dpre.sum(0, dtype=torch.float32)


def weight_gradient(t, s):
    return t["dw_before"] + wide(t["dy"]).t() @ wide(t["h"])


def weight_gradient_peer(t, s):
    return t["dw_before"] + t["dy"].t() @ t["h"]


def call_of(formula):
    return lambda t, s: lambda: formula(t, s)


def of_rounded(formula, **more):
    """A Family whose results are made of others as bf16 holds them: they may err by that as the formula does."""
    return Family(formula, yardstick=lambda t: formula(t, {}), yardstick_of_all=True, allowed=1.5, **more)


FAMILIES = {
    "residual_layernorm": of_rounded(residual_layernorm, eager=residual_layernorm_eager),
    "layernorm_backward": Family(norm_backward, eager=layernorm_backward_eager, terms="dn", along=0),
    "rmsnorm_backward": Family(norm_backward, terms="dn", along=0),
    "gelu_dropout": Family(gelu_dropout, eager=call_of(gelu_dropout_peer), compiled_formula=gelu_dropout_peer),
    "gelu_dropout_backward": of_rounded(gelu_dropout_backward, eager=call_of(gelu_dropout_backward_peer),
                                        compiled_formula=gelu_dropout_backward_peer, terms="dy", along=0),
    "cross_entropy": Family(cross_entropy, terms="logits"),
    "adamw": Family(adamw, eager=adamw_eager),
    "linear_gelu": of_rounded(linear_gelu, eager=call_of(linear_gelu_peer), compiled_formula=linear_gelu_peer,
                              terms="x", unit_terms=16),
    "linear_residual": Family(linear_residual, terms="x", unit_terms=16),
    "linear_gelu_backward": of_rounded(linear_gelu_backward, eager=call_of(linear_gelu_backward_peer),
                                       compiled_formula=linear_gelu_backward_peer, terms="dy", unit_terms=16),
    "weight_gradient": Family(weight_gradient, eager=call_of(weight_gradient_peer),
                              compiled_formula=weight_gradient_peer, terms="dy", along=0, unit_terms=16),
}
IN_PLACE = {"adamw": ("p", "m", "v")}  # what the compiled peer updates as our kernel does


def fused_family(kernel):
    """The Family of "fused_layernorm_backward_32768x768", or None."""
    name = NAME.fullmatch(kernel)
    if not name:
        return None
    extents = [int(extent) for extent in name[2].split("x")]
    if name[1] == "embedding":
        return embedding(extents[3])
    if name[1] == "embedding_backward":
        return embedding_backward(extents[1], extents[3])
    return FAMILIES.get(name[1])
