"""Extents that are drawn: from 1 to 65536, of each size equally many, half of them multiples of 64 and a fifth of 8."""
import math

MOST_EXTENT = 65536
STEPS = (64, 8, 1)  # what extents are multiples of
SHARES = (0.5, 0.2, 0.3)
MOST_BYTES = 4 << 30  # of all tensors of a case
LEAST_SECONDS, MOST_SECONDS = 2e-6, 10e-3

# Of an H100 with dense operands: operations a second by type, bytes a second. They choose cases and judge nothing.
BYTES_A_SECOND = 3.35e12
FLOPS_A_SECOND = {"bf16": 989e12, "f16": 989e12, "tf32": 494e12, "i8": 1979e12, "e4m3": 1979e12, "f32": 67e12}
BYTES = {"bf16": 2, "f16": 2, "tf32": 4, "f32": 4, "i8": 1, "e4m3": 1}


def log_uniform(draw, most):
    """A whole number from 1 to `most`: as many below its root as above."""
    return min(most, int((most + 1) ** draw.random()))


def draw_step(draw):
    return draw.choices(STEPS, SHARES)[0]


def draw_extent(draw, step, unit=1):
    """A multiple of the unit and of the step; of a step of 8 none of 64, if the unit leaves that choice."""
    each = math.lcm(step, unit)
    while True:
        extent = each * log_uniform(draw, MOST_EXTENT // each)
        if step != 8 or each % 64 == 0 or extent % 64:
            return extent


def seconds_of(flops, moved, kind="f32"):
    """The least that a GPU takes: bound by operations or by memory."""
    return max(flops / FLOPS_A_SECOND[kind], moved / BYTES_A_SECOND)


def fits(seconds, memory):
    return LEAST_SECONDS <= seconds <= MOST_SECONDS and memory <= MOST_BYTES


def draw_extents(draw, units, suits):
    """One extent for each unit. Their steps are drawn once, so that what suits does not change how many are multiples;
    sizes until suits(*extents), and steps anew only where no size suits."""
    while True:
        steps = [draw_step(draw) for _ in units]
        for _ in range(1000):
            extents = [draw_extent(draw, step, unit) for step, unit in zip(steps, units)]
            if suits(*extents):
                return extents
