"""What PyTorch computes for a kernel of ours: by the kernel's family, from tensors by the names of our declaration.

Each family has one formula, which serves three times: in float64 as the reference, in float32 as the plain computation
whose error is the yardstick, and in the kernel's own types as the peer, eager and compiled."""
import math
import re

import torch
import torch.nn.functional as F

from harness import fp8_attention
from harness.attention_peers import attention_family
from harness.convolution_peers import convolution_family
from harness.depthwise_peers import depthwise_family
from harness.family import Family
from harness.fused_convolution_peers import fused_convolution_family

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


def product(transpose_a, transpose_b):
    def formula(t, s):
        return torch.matmul(t["a"].t() if transpose_a else t["a"], t["b"].t() if transpose_b else t["b"])
    return Family(formula, compiled=False, terms="a", along=0 if transpose_a else 1)


def truncated_to_tf32(x):
    """As float32 without the last 13 bits, in x's type."""
    return (x.float().view(torch.int32) & ~0x1fff).view(torch.float32).to(x.dtype)


LIBRARIES = ("cublas", "cublaslt")  # that torch.matmul can be told to prefer
GEMM = re.compile(r"gemm_(bf16|f16|tf32|i8|e4m3)_(?:\d+x)?\d+x\d+x\d+(_ta)?(_tb)?(_bias)?"
                  r"(_gelu_tanh|_gelu|_swiglu)?(?:_experts(\d+))?(_scaled)?(?:_f32)?(?:_tile\w+)?")
UNIT_TERMS = {"bf16": 16, "f16": 16, "tf32": 8}  # of one instruction


def gemm(name):
    """A product on tensor cores, of the operands' types: torch.matmul with either library, allowed tf32 for tf32,
    torch._int_mm for i8, and torch._scaled_mm, with fast and with exact accumulation, for e4m3."""
    type_name, transpose_a, transpose_b, add_bias, activation, experts, block_scales = name.groups()
    if (experts or block_scales) and (activation or add_bias or (experts and type_name not in ("bf16", "f16"))):
        return None  # not written yet
    if block_scales:
        return product_of_scaled_blocks()
    if experts:
        return product_by_experts(transpose_b)

    def operands(t):
        return (t["a"].transpose(-1, -2) if transpose_a else t["a"], t["b"].transpose(-1, -2) if transpose_b else t["b"])

    def epilogue(t, c):
        c = c + t["bias"].to(c.dtype) if add_bias else c
        if activation == "_swiglu":  # columns in eights: gates, what they gate, and so on
            pairs = c.view(*c.shape[:-1], -1, 2, 8)
            return (F.silu(pairs[..., 0, :]) * pairs[..., 1, :]).flatten(-2)
        if activation:
            return F.gelu(c, approximate="tanh" if activation == "_gelu_tanh" else "none")
        return c

    def formula(t, s):
        a, b = operands(t)
        if a.dtype == torch.int8:
            a, b = a.double(), b.double()
        if type_name == "tf32":
            a, b = truncated_to_tf32(a), truncated_to_tf32(b)
        return epilogue(t, torch.matmul(a, b))

    def preferring(library):
        def call(t):
            torch.backends.cuda.preferred_blas_library(library)
            torch.backends.cuda.matmul.allow_tf32 = type_name == "tf32"
            try:
                return epilogue(t, torch.matmul(*operands(t)))
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False
        return call

    def scaled(fast):
        def call(t):
            one = torch.ones((), device=t["a"].device)
            return epilogue(t, torch._scaled_mm(*operands(t), scale_a=one, scale_b=one, out_dtype=torch.bfloat16,
                                                use_fast_accum=fast))
        return call

    if type_name == "i8":
        ways = {"_int_mm": lambda t: epilogue(t, torch._int_mm(*operands(t)))}
    elif type_name == "e4m3":
        ways = {"_scaled_mm": scaled(False), "_scaled_mm fast": scaled(True)}
    else:
        ways = {library: preferring(library) for library in LIBRARIES}
        if add_bias and activation in ("_gelu", "_gelu_tanh"):  # with gelu's cheaper approximation by tanh
            ways["fused"] = lambda t: torch._addmm_activation(t["bias"], *operands(t), use_gelu=True)
    if activation == "_swiglu":
        return gated(formula, transpose_b)
    def algorithms(t, results):
        from harness import cublaslt
        return cublaslt.ways(operands, t, bool(activation), results.dtype)
    fused = bool(add_bias or activation) and type_name in ("bf16", "f16")
    return Family(formula, ways=ways, candidates=algorithms, compiled=fused, terms="a" if type_name in UNIT_TERMS else "",
                  along=-2 if transpose_a else -1, unit_terms=UNIT_TERMS.get(type_name, 0))


def product_of_scaled_blocks():
    """Scales of 128 terms of a row of a, and of 128 x 128 elements of b, as cuBLASLt wants them, too."""
    def formula(t, s):
        a, b = t["a"], t["b"]
        rows = t["scale_a"].t().repeat_interleave(128, 1)[:, :a.shape[1]]
        tiles = t["scale_b"].repeat_interleave(128, 0).repeat_interleave(128, 1)[:b.shape[0], :b.shape[1]]
        return (a.to(rows.dtype) * rows) @ (b.to(tiles.dtype) * tiles).t()

    def scaled(t):
        return torch._scaled_mm(t["a"], t["b"].t(), scale_a=t["scale_a"].t(), scale_b=t["scale_b"].t(),
                                out_dtype=torch.bfloat16, use_fast_accum=False)
    return Family(formula, ways={"_scaled_mm": scaled}, compiled=False)


def gated(formula, transpose_b):
    """The peer has the weights of gates and of what they gate as matrices of their own, or one below the other."""
    def prepare(t):
        b = t["b"] if transpose_b else t["b"].t()
        rows = b.view(-1, 2, 8, b.shape[-1])
        gate, up = (rows[:, half].reshape(-1, b.shape[-1]).contiguous() for half in (0, 1))
        return {**t, "gate": gate, "up": up, "both": torch.cat((gate, up))}

    def two_weights(t, s):
        return F.silu(t["a"] @ t["gate"].t()) * (t["a"] @ t["up"].t())

    def stacked(t):
        gate, up = (t["a"] @ t["both"].t()).chunk(2, -1)
        return F.silu(gate) * up
    return Family(formula, ways={"two weights": lambda t: two_weights(t, {}), "stacked weights": stacked},
                  compiled_formula=two_weights, prepare=prepare)


def product_by_experts(transpose_b):
    """Each expert's rows, which lie one below another, by a product of their own."""
    def matrix(t, expert):
        return t["b"][expert].t() if transpose_b else t["b"][expert]

    def formula(t, s):
        return torch.stack([rows @ matrix(t, expert) for rows, expert in zip(t["a"], t["expert"].tolist())])

    blocks = {}  # of each expert, first and last; by the memory that lists them

    def loop(t):
        key = t["expert"].data_ptr()
        if key not in blocks:
            experts = t["expert"].tolist()
            blocks[key] = [(e, experts.index(e), experts.index(e) + experts.count(e)) for e in sorted(set(experts))]
        c = torch.empty(*t["a"].shape[:2], t["b"].shape[-2 if transpose_b else -1], dtype=t["a"].dtype,
                        device=t["a"].device)
        for expert, first, end in blocks[key]:
            torch.matmul(t["a"][first:end].flatten(0, 1), matrix(t, expert), out=c[first:end].flatten(0, 1))
        return c
    return Family(formula, ways={"loop over experts": loop}, compiled=False)


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


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
    "column_sum": Family(lambda t, s: t["x"].sum(0), terms="x", along=0),
    "full_sum": Family(lambda t, s: t["x"].sum(), terms="x"),
    "transpose": Family(lambda t, s: t["x"].t().contiguous()),
    "gelu_bias": Family(lambda t, s: F.gelu(t["x"] + t["bias"])),
    "dot": Family(lambda t, s: torch.dot(t["a"], t["b"]), terms="a"),
    "similarity": Family(cosine, eager=lambda t, s: lambda: F.cosine_similarity(t["x"], t["query"][None], -1)),
    "adamw": Family(adamw, eager=fused_adamw),
}


def family_of(kernel):
    """The Family of "softmax_16384x768_bf16", or None."""
    product_name = re.fullmatch(r"product_\d+x\d+x\d+(_ta)?(_tb)?", kernel)
    if product_name:
        return product(bool(product_name[1]), bool(product_name[2]))
    gemm_name = GEMM.fullmatch(kernel)
    if gemm_name:
        return gemm(gemm_name)
    if of_convolution := convolution_family(kernel):
        return of_convolution
    if of_fused := fused_convolution_family(kernel):
        return of_fused
    if of_depthwise := depthwise_family(kernel):
        return of_depthwise
    if of_fp8 := fp8_attention.family_of(kernel):
        return of_fp8
    if of_attention := attention_family(kernel):
        return of_attention
    if kernel.startswith("linear_cross_entropy_"):
        from harness import linear_cross_entropy
        return linear_cross_entropy.family()
    name = re.fullmatch(r"([a-z_]+?)_\d+(x\d+)*(_(f32|bf16|f16))?(_pitch\d+)?", kernel)
    return FAMILIES.get(name[1]) if name else None


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
