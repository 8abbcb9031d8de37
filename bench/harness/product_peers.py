"""What PyTorch computes for products of matrices, on tensor cores and without."""
import functools
import re

import torch
import torch.nn.functional as F

from harness.family import Family

LIBRARIES = ("cublas", "cublaslt")  # that torch.matmul can be told to prefer
PRODUCT = re.compile(r"product_\d+x\d+x\d+(_ta)?(_tb)?(_ab)?(?:_tile\w+)?")
GEMM = re.compile(r"gemm_(bf16|f16|tf32|i8|e4m3)_(\d+x)?\d+x\d+x\d+(_ta)?(_tb)?(_bias)?"
                  r"(_gelu_tanh|_gelu|_swiglu)?(?:_experts(\d+))?(_scaled)?(_f32)?(?:_tile\w+)?")
UNIT_TERMS = {"bf16": 16, "f16": 16, "tf32": 8}  # of one instruction
PIECE = 16  # elements of 8 bits that torch._int_mm and torch._scaled_mm want k and n in multiples of
LEAST_ROWS = 32  # torch._int_mm wants more than 16


def product_family(kernel):
    """The Family of "product_64x48x40_tb", or None."""
    name = PRODUCT.fullmatch(kernel)
    if not name:
        return None
    transpose_a, transpose_b, add_c = name.groups()

    def operands(t):
        return (t["a"].t() if transpose_a else t["a"], t["b"].t() if transpose_b else t["b"])

    def formula(t, s):
        c = torch.matmul(*operands(t))
        return s["alpha"] * c + s["beta"] * t["c_in"] if add_c else c

    def addmm(t, s):
        return lambda: torch.addmm(t["c_in"], *operands(t), alpha=s["alpha"], beta=s["beta"])
    return Family(formula, eager=addmm if add_c else None, compiled=False, terms="a", along=0 if transpose_a else 1)


def truncated_to_tf32(x):
    """As float32 without the last 13 bits, in x's type."""
    return (x.float().view(torch.int32) & ~0x1fff).view(torch.float32).to(x.dtype)


def gemm_family(kernel):
    """The Family of "gemm_bf16_64x48x40_tb_bias", or None."""
    name = GEMM.fullmatch(kernel)
    if not name:
        return None
    type_name, _, _, transpose_b, add_bias, activation, experts, block_scales, _ = name.groups()
    if (experts or block_scales) and (activation or add_bias or (experts and type_name not in ("bf16", "f16"))):
        return None  # not written yet
    if block_scales:
        return product_of_scaled_blocks()
    if experts:
        return product_by_experts(transpose_b)
    return plain_gemm(name)


def plain_gemm(name):
    """A product on tensor cores, of the operands' types: torch.matmul with either library, allowed tf32 for tf32,
    torch._int_mm for i8, and torch._scaled_mm, with fast and with exact accumulation, for e4m3."""
    type_name, batch, transpose_a, transpose_b, add_bias, activation, _, _, wide = name.groups()

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

    def multiply(a, b):
        return product_in_f32(a, b) if wide else torch.matmul(a, b)

    along = -2 if transpose_a else -1
    if activation == "_swiglu":
        return gated(formula, operands, bool(add_bias), type_name, multiply, along)
    if type_name in ("i8", "e4m3"):
        ways = ways_of_8_bits(type_name, operands, epilogue)
    else:
        ways = {library: preferring(library, type_name, lambda t: epilogue(t, multiply(*operands(t))))
                for library in LIBRARIES}
        if add_bias and activation in ("_gelu", "_gelu_tanh") and not (wide or batch):  # with gelu's cheaper approximation by tanh
            ways["fused"] = lambda t: torch._addmm_activation(t["bias"], *operands(t), use_gelu=True)

    def algorithms(t, results):
        from harness import cublaslt
        return cublaslt.ways(operands, t, bool(activation), results.dtype)
    fused = bool(add_bias or activation) and type_name in ("bf16", "f16")
    return Family(formula, ways=ways, candidates=algorithms, compiled=fused, terms="a" if type_name in UNIT_TERMS else "",
                  along=along, unit_terms=UNIT_TERMS.get(type_name, 0))


def product_in_f32(a, b):
    """Of narrower operands, rounded to their type on the way only where PyTorch cannot do without."""
    try:
        return (torch.bmm if a.dim() == 3 else torch.mm)(a, b, out_dtype=torch.float32)
    except (TypeError, RuntimeError):
        return torch.matmul(a, b).float() if a.dtype != torch.float32 else torch.matmul(a, b)


def preferring(library, type_name, call):
    """The call with a library of its own, and with tensor cores for float32 if it is of tf32."""
    def with_settings(t):
        torch.backends.cuda.preferred_blas_library(library)
        torch.backends.cuda.matmul.allow_tf32 = type_name == "tf32"
        try:
            return call(t)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
    return with_settings


def whole_pieces(x, rows):
    """x [m, k] with at least so many rows, each of whole pieces and side by side; what is missing is 0."""
    missing = [max(0, rows - x.shape[0]), -x.shape[1] % PIECE]
    if any(missing):
        x = F.pad(x.view(torch.int8), (0, missing[1], 0, missing[0])).view(x.dtype)
    return x.contiguous()


def matrix_by_matrix(multiply, least_rows):
    """multiply(a, b) for operands of any extents and layouts, and for batches: what the library's functions ask of
    them is made in the call, as a user would have to."""
    def of_matrices(a, b):
        m, n = a.shape[0], b.shape[1]
        return multiply(whole_pieces(a, least_rows), whole_pieces(b.t(), n + -n % PIECE).t())[:m, :n]

    def call(a, b):
        if a.dim() == 2:
            return of_matrices(a, b)
        return torch.stack([of_matrices(*pair) for pair in zip(a, b)])
    return call


@functools.cache
def scale_of_one(device):
    """Made once: no part of what is timed."""
    return torch.ones((), device=device)


def ways_of_8_bits(type_name, operands, epilogue):
    def scaled_mm(fast):
        def multiply(a, b):
            one = scale_of_one(a.device)
            return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)
        return multiply
    if type_name == "i8":
        calls = {"_int_mm": matrix_by_matrix(lambda a, b: torch._int_mm(a, b), LEAST_ROWS)}
    else:
        calls = {"_scaled_mm" + (" fast" if fast else ""): matrix_by_matrix(scaled_mm(fast), 1) for fast in (False, True)}
    return {name: lambda t, call=call: epilogue(t, call(*operands(t))) for name, call in calls.items()}


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


def gated(formula, operands, add_bias, type_name, multiply, along):
    """The peer has the weights of gates and of what they gate as matrices of their own, or one below the other."""
    def halves(columns):  # [.., n, k] or [n]: the eights by turns
        last = columns.shape[-1:] if columns.dim() > 1 else ()
        batch = columns.shape[:-2]
        pairs = columns.reshape(*batch, -1, 2, 8, *last)
        return [pairs.select(len(batch) + 1, half).reshape(*batch, -1, *last).contiguous() for half in (0, 1)]

    def prepare(t):
        gate, up = halves(operands(t)[1].transpose(-1, -2))
        result = {**t, "gate": gate, "up": up, "both": torch.cat((gate, up), -2)}
        if add_bias:
            result["gate_bias"], result["up_bias"] = halves(t["bias"])
            result["both_bias"] = torch.cat((result["gate_bias"], result["up_bias"]))
        return result

    def linear(t, weights):
        c = multiply(operands(t)[0], t[weights].transpose(-1, -2))
        return c + t[f"{weights}_bias"].to(c.dtype) if add_bias else c

    def two_weights(t, s=None):
        return F.silu(linear(t, "gate")) * linear(t, "up")

    def stacked(t):
        gate, up = linear(t, "both").chunk(2, -1)
        return F.silu(gate) * up
    ways = {"two weights": two_weights, "stacked weights": stacked}
    if type_name == "tf32":
        ways = {name: preferring("cublaslt", type_name, way) for name, way in ways.items()}
    return Family(formula, ways=ways, compiled=type_name != "tf32", compiled_formula=two_weights, prepare=prepare,
                  terms="a", along=along, unit_terms=UNIT_TERMS[type_name] // 2)  # of each factor


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
