"""Kernels bound by memory that are drawn: every family that PyTorch has something to set against."""
import math

from harness.extents import BYTES, draw_extents, fits, seconds_of

TYPES = ("bf16", "f32", "f16")
MATRICES = {  # passes over the matrix: each operand and result once
    "softmax": 2, "row_sum": 1, "layernorm": 2, "rmsnorm": 2, "argmax": 1, "moments": 1, "similarity": 1,
    "softmax_gradient": 3, "layernorm_gradient": 3, "rmsnorm_gradient": 3, "cross_entropy": 1,
    "cross_entropy_gradient": 2, "column_sum": 1, "transpose": 2, "gelu_bias": 2}
ARRAYS = {"full_sum": 1, "dot": 2, "dot_atomic": 2, "adamw": 7}
GATHERS = ("embedding", "embedding_gradient", "embedding_gradient_atomic")
ADAMW = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.01, "correction1": 1.25, "correction2": 1.5}


def matrix_case(draw, family, kind):
    def suits(rows, columns):
        moved = MATRICES[family] * rows * columns * BYTES[kind]
        return fits(seconds_of(0, moved), moved)
    rows, columns = draw_extents(draw, (1, 1), suits)
    return {"kernel": f"{family}_{rows}x{columns}_{kind}", **data_of(family, columns)}


def data_of(family, columns):
    """Operands such as there are in use: probabilities, what a forward pass saved."""
    ranges = {"softmax_gradient": {"x": [0, 2 / columns]},
              "layernorm_gradient": {"mean": [-0.1, 0.1], "scale": [0.5, 2]},
              "rmsnorm_gradient": {"scale": [0.5, 2]},
              "cross_entropy": {"label": [0, columns - 1]},
              "cross_entropy_gradient": {"label": [0, columns - 1], "dloss": [0, 1],
                                         "loss": [math.log(columns), math.log(columns) + 2]}}
    return {"ranges": ranges[family]} if family in ranges else {}


def array_case(draw, family, kind):
    """As many elements as a matrix has."""
    kind = "f32" if family == "adamw" else kind
    passes = ARRAYS[family]

    def suits(rows, columns):
        moved = passes * rows * columns * BYTES[kind]
        return fits(seconds_of(0, moved), moved)
    count = math.prod(draw_extents(draw, (1, 1), suits))
    of_adamw = {"ranges": {"v": [0, 1]}, "scalars": ADAMW}
    return {"kernel": f"{family}_{count}_{kind}", **(of_adamw if family == "adamw" else {})}


def gather_case(draw, family, kind):
    """Rows of a table by numbers, and the gradients of its rows."""
    def suits(positions, words, width):
        rows, table = positions * width * BYTES[kind], words * width * BYTES[kind]
        if family == "embedding":
            return fits(seconds_of(0, 2 * rows + 4 * positions), rows + table)
        moved = rows + 4 * positions + 4 * words * width
        return fits(seconds_of(0, moved), moved)
    positions, words, width = draw_extents(draw, (1, 1, 1), suits)
    return {"kernel": f"{family}_{positions}x{words}x{width}_{kind}"}


def memory_case(draw):
    family = draw.choice([*MATRICES, *ARRAYS, *GATHERS])
    make = matrix_case if family in MATRICES else array_case if family in ARRAYS else gather_case
    return make(draw, family, draw.choice(TYPES))
