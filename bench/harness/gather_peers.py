"""What PyTorch computes for rows of a table by numbers, and for the gradients of its rows."""
import re

import torch
import torch.nn.functional as F

from harness.family import Family

NAME = re.compile(r"embedding(_gradient|_gradient_sorted|_gradient_atomic)?_\d+x(\d+)x(\d+)_(?:f32|bf16|f16)")


def gather_family(kernel):
    """The Family of "embedding_90x9x96_bf16" and of its gradients, or None."""
    name = NAME.fullmatch(kernel)
    if not name:
        return None
    if not name[1]:
        return Family(lambda t, s: F.embedding(t["ids"], t["table"]))
    words, width = int(name[2]), int(name[3])

    def prepare(t):
        """Rows whose number the table does not have count for nothing."""
        ids, rows = t["ids"], t["y_gradient"]
        known = (ids >= 0) & (ids < words)
        return {"ids": ids.clamp(0, words - 1), "y_gradient": torch.where(known[:, None], rows, torch.zeros_like(rows))}

    def gradient(t, s):
        t = prepare(t)
        return sums(t["ids"], in_f32(t["y_gradient"]))

    def sums(ids, rows):
        return torch.zeros(words, width, dtype=rows.dtype, device=rows.device).index_add(0, ids, rows)

    def dense_backward(t, s):
        return lambda: torch.ops.aten.embedding_dense_backward(t["y_gradient"], t["ids"], words, -1, False)

    return Family(gradient, eager=dense_backward, prepare=prepare, terms="y_gradient", along=0,
                  compiled_formula=lambda t, s: sums(t["ids"], in_f32(t["y_gradient"])))


def in_f32(rows):
    return rows if rows.dtype == torch.float64 else rows.float()
