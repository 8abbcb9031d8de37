"""The operands and results that tw_bench wrote, on the GPU; and whether the results are right."""
import math
import os
from typing import NamedTuple

import torch

from harness import bursts

# Of u32, which few of PyTorch's functions take, the bits.
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64, "i32": torch.int32,
         "u32": torch.int32, "i64": torch.int64, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool}
if hasattr(torch, "float8_e4m3fn"):
    TYPES["e4m3"] = torch.float8_e4m3fn

# Of so few results the largest error is a matter of luck: it may be so many times that of as few others (the same rules
# as in ops/check_output.cpp).
FEW = 64
LUCK_OF_FEW = 4
# Relative to the largest result: a formula that errs by more in float32 has lost its results, and tells nothing of ours.
MOST_PLAIN_ERROR = 0.25


def load(described):
    """A tensor from one of the "inputs" or "outputs" of a prepare."""
    shape, strides = described["shape"], described["strides"]
    if 0 in shape:
        return torch.empty(shape, dtype=TYPES[described["type"]], device=bursts.DEVICE)
    spanned = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
    dtype = TYPES[described["type"]]
    size = spanned * torch.empty(0, dtype=dtype).element_size()
    flat = torch.from_file(described["file"], shared=False, size=size, dtype=torch.uint8).to(bursts.DEVICE).view(dtype)
    os.unlink(described["file"])
    return flat.as_strided(shape, strides)


def load_all(described):
    return {one["name"]: load(one) for one in described}


def cast_floats(tensors, dtype):
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def as_tuple(results):
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


class Verdict(NamedTuple):
    """Errors are the largest |got - float64| over the largest |float64|."""
    correct: bool
    error: float
    allowed: float
    lost: bool = False  # the formula loses its result in float32; rewrite it


def check(family, facts, inputs, outputs):
    """The verdict on the outputs: of the one that errs most, or the first that is wrong.

    As much as 1.5 times the error of the formula in float32, rounded to our output's type, is allowed (4 times with
    named approximations), or a few roundings of float32. Of few results LUCK_OF_FEW times as much is, or, of types
    narrower than float32, as much of a rounding of the type. For sums also what float32 rounding in another order makes
    likely, or what a tensor core's truncation does. Where the family has another yardstick, its error is what results
    narrower than float32 may have. NaN is right only where float64 has it, too; a formula that loses its result in
    float32 (MOST_PLAIN_ERROR) is wrong whatever we computed."""
    reference = as_tuple(family.formula(cast_floats(inputs, torch.float64), facts["scalars"]))
    plain = as_tuple(family.formula(cast_floats(inputs, torch.float32), facts["scalars"]))
    yardstick = as_tuple(family.yardstick(inputs)) if family.yardstick else plain
    worst = Verdict(True, 0.0, 0.0)
    for got, exact, simple, other in zip(outputs, reference, plain, yardstick):
        if got.shape != exact.shape:
            return Verdict(False, math.inf, 0.0)
        if got.numel() == 0:
            continue
        verdict = judged(family, facts, inputs, got, exact, simple, other)
        if worst.correct and (not verdict.correct or verdict.error >= worst.error):
            worst = verdict
    return worst


def judged(family, facts, inputs, got, exact, simple, other):
    """The verdict on one output, from what the formula gives in float64 and in float32, and the yardstick's result."""
    exact = exact.double()
    value, simple = widened(got, exact, got.dtype), widened(simple, exact, got.dtype)
    compared = exact.isfinite() & ~simple.isinf()
    scale = largest(exact[compared & (exact.abs() <= beyond(got.dtype))]) or 1.0
    error = distance(value[compared], exact[compared]) / scale
    if has_strays(value, simple, exact, compared):
        error = math.inf
    kept = compared & ~simple.isnan()
    plain_error = distance(simple[kept], exact[kept]) / scale
    allowed = max(allowed_error(plain_error, got, 4 if facts["approximate"] else 1.5),
                  likely_rounding(family, inputs, got.dtype, scale, got.numel()),
                  truncation(family, inputs, got.dtype, scale))
    narrow = got.dtype != torch.float32
    if family.yardstick and (narrow or family.yardstick_of_all):
        measured = distance(widened(other, exact, got.dtype if narrow else other.dtype)[compared],
                            exact[compared]) / scale
        if math.isfinite(measured):
            allowed = family.allowed * measured if narrow else max(allowed, family.allowed * measured)
    lost = got.dtype.is_floating_point and got.numel() >= FEW and plain_error > MOST_PLAIN_ERROR
    return Verdict(error <= allowed and not lost, error, allowed, lost)


def beyond(result_type):
    """Two ulps beyond the largest number: what is larger overflows in whatever order its terms are added."""
    if not result_type.is_floating_point:
        return math.inf
    return torch.finfo(result_type).max * (1 + torch.finfo(result_type).eps)


def widened(values, exact, result_type):
    """In float64, as rounded to the type: where float64 has a number that may round to infinity, an infinity stands for
    the nearest to it that does."""
    values = values.to(result_type).double()
    if not result_type.is_floating_point:
        return values
    info = torch.finfo(result_type)
    may_round_so = values.isinf() & exact.isfinite() & (values.sign() * exact > info.max * (1 - info.eps))
    nearest = exact.sign() * exact.abs().clamp(min=info.max * (1 + info.eps / 4))  # half an ulp beyond the largest
    return torch.where(may_round_so, nearest, values)


def has_strays(got, simple, exact, compared):
    """Whether there is NaN that float64 does not have, or, where nothing is compared, another value than the formula's."""
    same = (got == simple) | (got.isnan() & simple.isnan())
    return bool(((got.isnan() & ~exact.isnan()) | (~compared & ~same)).any())


def allowed_error(plain_error, got, factor):
    """Relative to the largest result: a multiple of the plain error, which of few results may be small by luck."""
    if got.numel() >= FEW or not got.dtype.is_floating_point:
        return max(factor * plain_error, 2.5e-7)
    if got.dtype.itemsize < 4:
        return factor * max(plain_error, torch.finfo(got.dtype).eps / 2)
    return LUCK_OF_FEW * max(factor * plain_error, 2.5e-7)


def largest(values):
    return values.abs().max().item() if values.numel() else 0.0


def distance(got, exact):
    """The largest; infinite if there is a NaN."""
    error = largest(got.double() - exact)
    return math.inf if math.isnan(error) else error


def likely_rounding(family, inputs, result_type, scale, results):
    """Relative to the largest result, `scale`: the error of a sum in float32.

    Of n terms of either sign up to 1, one after another: each of n roundings errs by up to 2^-24 of a partial sum near
    the root of n, and their signs differ, which makes 2^-24 n likely; half more is allowed, and of more than a million
    results more, as their worst grows with the logarithm of how many there are: of sums of 3072 terms, 1.07 times
    2^-24 n is the worst of 400000, 1.62 times of 79 million. Of terms of one sign the
    partial sums grow to the largest result, and n roundings, each by an error of some 2^-25 in the mean, make a walk of
    2^-25 sqrt(n / 3) times that; six times as much is what the worst of very many results may have. Sums of more than
    16384 terms are sums of such sums."""
    if not family.terms or family.unit_terms or result_type != torch.float32:
        return 0.0
    count = count_of_terms(family, inputs)
    chain = max(1, min(count, 16384))
    sums_of_sums = max(1.0, math.sqrt(count / chain))
    if family.of_one_sign:
        return 6 * 2.0**-25 * math.sqrt(chain / 3) * sums_of_sums
    worst = max(1.5, 0.11 * math.log(max(results, 1)))
    return worst * 2.0**-24 * chain * sums_of_sums / scale


def truncation(family, inputs, result_type, scale):
    """Relative to the largest result, `scale`: a tensor core truncates its sum to float32 after every instruction, in
    the mean by half an ulp, which is at most 2^-24 of the partial sum: at most that of the result, or of what sums
    usually are if all results are smaller. Operands of tf32 are exact: the formula truncates them, too."""
    if not family.unit_terms or result_type != torch.float32:
        return 0.0
    steps = math.ceil(count_of_terms(family, inputs) / family.unit_terms)
    return 2.0**-24 * steps * max(1.0, typical_sum(family, inputs) / scale)


def typical_sum(family, inputs):
    """Of a product of two matrices: where it has few elements, all may be smaller than the sums on their way were."""
    if family.terms != "a":
        return 0.0
    a, b = (inputs[name].double().square().mean().sqrt().item() for name in "ab")
    return math.sqrt(count_of_terms(family, inputs)) * a * b


def count_of_terms(family, inputs):
    terms = inputs[family.terms]
    return terms.numel() if terms.dim() == 1 else terms.shape[family.along]
