"""Products that are drawn: all that names of the catalog can say and PyTorch has something to set against."""
from harness.extents import BYTES, draw_extents, fits, log_uniform, seconds_of

TYPES = {"bf16": 0.3, "f16": 0.2, "tf32": 0.15, "i8": 0.15, "e4m3": 0.2}
ACTIVATIONS = ("none", "bias", "gelu", "bias_gelu", "gelu_tanh", "bias_gelu_tanh")
GATED = ("swiglu", "bias_swiglu")
MOST_BATCHES = 1024
MOST_LOOPED = 16  # PyTorch multiplies matrices of 8 bits one by one


def draw_layout(draw):
    """NN, NT, TN or TT."""
    return {key: True for key in ("transpose_a", "transpose_b") if draw.random() < 0.5}


def bytes_of_result(case):
    return 4 if case.get("result") or case.get("type") in ("tf32", "i8") else 2


def cost(case, m, n, k):
    """(estimated seconds, bytes of the tensors)."""
    kind, batch = case.get("type", "bf16"), case.get("batch", 1)
    weights = case.get("experts", batch) * n * k
    columns = n // 2 if "swiglu" in case.get("epilogue", "") else n
    moved = (batch * m * k + weights) * BYTES[kind] + batch * m * columns * bytes_of_result(case)
    return seconds_of(2 * batch * m * n * k, moved, kind), moved


def with_extents(draw, case):
    n_unit = 16 if "swiglu" in case.get("epilogue", "") else 1
    m_unit = 128 if case.get("experts") else 1
    k_unit = 128 if case.get("block_scales") else 1
    m, n, k = draw_extents(draw, (m_unit, n_unit, k_unit), lambda *extents: fits(*cost(case, *extents)))
    return {"m": m, "n": n, "k": k, **case}


def gemm_case(draw):
    """bf16, in each layout."""
    return with_extents(draw, draw_layout(draw))


def gemm_kinds_case(draw):
    """Of each type: epilogues, batches, results in f32, experts, scales of blocks."""
    kind = draw.choices(list(TYPES), list(TYPES.values()))[0]
    case = {"type": kind, **draw_layout(draw)}
    form = draw.random()
    if kind == "e4m3" and form < 0.2:
        return with_extents(draw, {"type": kind, "transpose_b": True, "block_scales": True})
    if kind in ("bf16", "f16") and form < 0.1:
        case.pop("transpose_a", None)
        return with_extents(draw, {**case, "experts": 1 + log_uniform(draw, 63)})
    if kind != "i8" and draw.random() < 0.6:
        case["epilogue"] = draw.choice(ACTIVATIONS[1:] + (GATED if kind != "e4m3" else ()))
    if kind in ("bf16", "f16") and draw.random() < 0.15:
        case["result"] = "f32"
    if draw.random() < 0.25:
        case["batch"] = 1 + log_uniform(draw, (MOST_LOOPED if kind in ("i8", "e4m3") else MOST_BATCHES) - 1)
    return with_extents(draw, case)


def gemm_fp32_case(draw):
    """Without tensor cores; a fifth with alpha and beta."""
    case = {**draw_layout(draw), **({"add_c": True} if draw.random() < 0.2 else {})}

    def suits(m, n, k):
        moved = 4 * (m * k + k * n + (2 if case.get("add_c") else 1) * m * n)
        return fits(seconds_of(2 * m * n * k, moved), moved)
    m, n, k = draw_extents(draw, (1, 1, 1), suits)
    return {"m": m, "n": n, "k": k, **case}
