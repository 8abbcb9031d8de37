"""What PyTorch computes for a kernel of ours: by the kernel's family, from tensors by the names of our declaration.

Each family has one formula, which serves three times: in float64 as the reference, in float32 as the plain computation
whose error is the yardstick, and in the kernel's own types as the peer, eager and compiled."""
import math
import re
from dataclasses import dataclass, field
from typing import Callable, Optional

import torch
import torch.nn.attention
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

EPSILON = 1e-5


@dataclass
class Family:
    formula: Callable  # (tensors, scalars) -> a tensor or a tuple of them
    eager: Optional[Callable] = None  # another eager peer: (tensors, scalars) -> a call without arguments
    ways: dict = field(default_factory=dict)  # eager peers by name instead: tensors -> results
    candidates: Optional[Callable] = None  # (tensors, results) -> more ways, of which the fastest takes part
    compiled: bool = True
    compiled_formula: Optional[Callable] = None  # what is compiled, if not `formula`
    prepare: Callable = lambda t: t  # tensors -> tensors, before any time is taken
    terms: str = ""  # the input whose elements are summed, along `along`
    along: int = -1
    unit_terms: int = 0  # of those sums, so many at a time by a tensor core
    yardstick: Optional[Callable] = None  # tensors in their own types -> results that err as ours may
    allowed: float = 1.0  # times the error of the yardstick
    yardstick_of_all: bool = False  # results of float32 may have the yardstick's error, too
    memory_beside: tuple = ()  # operands; a case's note tells the peak of each side's memory beside them


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


ATTENTION = re.compile(r"attention_(?:bf16|f16)_\d+x\d+x\d+x\d+(?:_keys\d+)?(?:_width\d+)?(?:_group(\d+))?(_causal)?"
                       r"((?:_softcap\d+|_alibi|_bias|_documents|_window\d+)*)(?:_tile\w+)?")


def score_rules(t, names, causal):
    """What the rules make of a score, and which pairs they leave in, as flex attention asks for them: functions of the
    batch, the head, the row and the key, numbers or tensors that broadcast."""
    changes, masks = [], []
    if causal:
        masks.append(lambda b, h, i, j: j <= i)
    for name, number in re.findall(r"_([a-z]+)(\d*)", names):
        if name == "softcap":
            cap = float(number)
            changes.append(lambda score, b, h, i, j, cap=cap: torch.tanh(score / cap) * cap)
        elif name == "alibi":
            changes.append(lambda score, b, h, i, j: score + t["slopes"][h] * (j - i))
        elif name == "bias":
            changes.append(lambda score, b, h, i, j: score + t["bias"][0, h, i, j])
        elif name == "window":
            masks.append(lambda b, h, i, j, width=int(number): (j <= i) & (i - j < width))
        elif name == "documents":
            masks.append(lambda b, h, i, j: t["documents"][b, i] == t["documents"][b, j])

    def score(value, b, h, i, j):
        for change in changes:
            value = change(value, b, h, i, j)
        return value

    def seen(b, h, i, j):
        result = masks[0](b, h, i, j)
        for mask in masks[1:]:
            result = result & mask(b, h, i, j)
        return result
    return score, seen if masks else None


def attention_by_rules(group, causal, names):
    """Attention whose scores follow rules: against flex attention and an unfused one, both compiled."""
    def of_heads(t, q, k, v, b, h):
        score, seen = score_rules(t, names, causal)
        i, j = torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)[None]
        scores = score((q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1]), b, h, i, j)
        if seen is not None:
            scores = scores.masked_fill(~seen(b, h, i, j), -math.inf)
        scores = scores.to(q.dtype)
        return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1) * math.log2(math.e)

    def formula(t, s=None):
        q, k, v = (t[name].transpose(1, 2) for name in "qkv")
        o = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=q.dtype, device=q.device)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):  # a head at a time: all scores may not fit
                o[b, h], lse[b, h] = of_heads(t, q[b, h], k[b, h // group], v[b, h // group], b, h)
        return o.transpose(1, 2), lse

    def unfused(t):
        q, k, v = (t[name].transpose(1, 2) for name in "qkv")
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        b, h = (torch.arange(q.shape[d], device=q.device) for d in (0, 1))
        return of_heads(t, q, k, v, b[:, None, None, None], h[None, :, None, None])[0]
    compiled_unfused, compiled_flex = (torch.compile(f) for f in (unfused, flex_attention))

    def flex(t):
        q, k, v = (t[name].transpose(1, 2) for name in "qkv")
        if "flex" not in t:
            score, seen = score_rules(t, names, causal)
            block_mask = seen and create_block_mask(
                seen, q.shape[0] if "documents" in names else None, None, q.shape[2], k.shape[2], device=q.device)
            t["flex"] = {"score_mod": score, "block_mask": block_mask}
        return compiled_flex(q, k, v, enable_gqa=group > 1, **t["flex"])
    return Family(formula, ways={"flex": flex, "unfused compiled": compiled_unfused}, compiled=False, terms="q",
                  unit_terms=16, yardstick=formula)


def attention(group, causal):
    """Scaled dot-product attention, by cuDNN and by FlashAttention-2 through PyTorch. Results: o, and the logarithm to
    base 2 of the sums. The yardstick rounds scores and probabilities to the operands' type, as an unfused one does."""
    def by_heads(t):
        return [t[name].transpose(1, 2) for name in "qkv"]

    def formula(t, s=None):
        q, k, v = by_heads(t)
        scale = 1 / math.sqrt(q.shape[-1])
        o = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=q.dtype, device=q.device)
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if causal else None
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):  # a head at a time: all scores may not fit
                scores = (q[b, h] @ k[b, h // group].t()) * scale
                if causal:
                    scores.masked_fill_(hidden, -math.inf)
                lse[b, h] = torch.logsumexp(scores, -1) * math.log2(math.e)
                o[b, h] = torch.softmax(scores, -1) @ v[b, h // group]
        return o.transpose(1, 2), lse

    def way(backend):
        def call(t):
            q, k, v = by_heads(t)
            with torch.nn.attention.sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=group > 1)
        return call
    backends = torch.nn.attention.SDPBackend
    ways = {"cudnn": way(backends.CUDNN_ATTENTION), "flash": way(backends.FLASH_ATTENTION)}
    return Family(formula, ways=ways, compiled=False, terms="q", unit_terms=16, yardstick=formula)


GRADIENTS = re.compile(ATTENTION.pattern.replace("attention_", "attention_gradients_", 1))


def attention_gradients(group, causal):
    """dq, dk and dv from what a forward pass saved: ours is given o and lse, the peers make their own before any time is
    taken. The yardstick rounds scores, probabilities and their adjoints to the operands' type, as an unfused one does."""
    def formula(t, s=None):
        q, k, v, g, o = (t[name].transpose(1, 2) for name in "qkvgo")
        scale, wide = 1 / math.sqrt(q.shape[-1]), t["lse"].dtype
        dq = torch.empty_like(q)
        dk, dv = (torch.zeros(x.shape, dtype=torch.float32 if x.dtype == torch.bfloat16 else x.dtype, device=x.device)
                  for x in (k, v))
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if causal else None
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):  # a head at a time: all scores may not fit
                of = h // group
                scores = q[b, h] @ k[b, of].t() * scale
                p = (scores.to(wide) * math.log2(math.e)).sub_(t["lse"][b, h][:, None]).exp2_()
                if causal:
                    p.masked_fill_(hidden, 0)
                delta = (g[b, h].to(wide) * o[b, h].to(wide)).sum(-1)
                ds = ((g[b, h] @ v[b, of].t()).to(wide).sub_(delta[:, None]).mul_(p)).to(q.dtype)
                dv[b, of] += p.to(q.dtype).t() @ g[b, h]
                dq[b, h] = ds @ k[b, of] * scale
                dk[b, of] += ds.t() @ q[b, h] * scale
        return dq.transpose(1, 2), dk.to(k.dtype).transpose(1, 2), dv.to(v.dtype).transpose(1, 2)

    def saved(t, name, forward):
        if name not in t:
            t[name] = forward(*(t[x].transpose(1, 2) for x in "qkv"))
        return t[name]

    def cudnn(t):
        q, k, v, g = (t[x].transpose(1, 2) for x in "qkvg")
        o, lse, begin_q, begin_k, max_q, max_k, seed, offset, _ = saved(
            t, "by cudnn", lambda *x: torch.ops.aten._scaled_dot_product_cudnn_attention(*x, None, True, 0.0, causal))
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, o, lse, seed, offset, None, begin_q, begin_k, max_q, max_k, 0.0, causal)

    def flash(t):
        q, k, v, g = (t[x].transpose(1, 2) for x in "qkvg")
        o, lse, begin_q, begin_k, max_q, max_k, seed, offset, _ = saved(
            t, "by flash", lambda *x: torch.ops.aten._scaled_dot_product_flash_attention(*x, 0.0, causal))
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            g, q, k, v, o, lse, begin_q, begin_k, max_q, max_k, 0.0, causal, seed, offset)
    return Family(formula, ways={"cudnn": cudnn, "flash": flash}, compiled=False, terms="q", unit_terms=16,
                  yardstick=formula, allowed=1.5)


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
    attention_name = ATTENTION.fullmatch(kernel)
    if attention_name:
        group, causal, rules = int(attention_name[1] or 1), bool(attention_name[2]), attention_name[3]
        return attention_by_rules(group, causal, rules) if rules else attention(group, causal)
    gradients_name = GRADIENTS.fullmatch(kernel)
    if gradients_name:
        return attention_gradients(int(gradients_name[1] or 1), bool(gradients_name[2]))
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
