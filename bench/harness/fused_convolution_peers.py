"""What PyTorch computes for a convolution and its neighbours: cuDNN in benchmark mode, what stands around it eager or compiled."""
import re

import torch
import torch.nn.functional as F

from harness.convolution_peers import as_images, from_images
from harness.family import Family

NAME = re.compile(r"convolution_fused_(bf16|f16)_\d+x\d+x\d+x\d+_\d+_\d+x\d+(?:_stride(\d+))?(?:_pad(\d+))?(?:_dilation(\d+))?"
                  r"(?:_tile[0-9a-z]+)?(_prologue)?((?:_bias|_relu|_silu|_residual)*)(_statistics)?")
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def fused_convolution_family(kernel):
    """The Family of "convolution_fused_bf16_256x56x56x64_64_3x3_pad1_bias_relu", or None."""
    name = NAME.fullmatch(kernel)
    if not name:
        return None
    torch.backends.cudnn.benchmark = True
    kept = TYPES[name[1]]
    places = tuple(int(n or otherwise) for n, otherwise in zip(name.groups()[1:4], (1, 0, 1)))
    steps = name[6].split("_")[1:]

    def wide(t):
        return t if t.dtype == torch.float64 else t.float()

    def image(t):
        if not name[5]:
            return t["x"]
        a = F.relu(wide(t["x"]) * wide(t["scale"]) + wide(t["shift"]))
        return a.to(kept).to(t["x"].dtype)

    def apply(step, y, t):
        if step in ("relu", "silu"):
            return F.relu(y) if step == "relu" else F.silu(y)
        return y + t[step].to(y.dtype)

    def formula(t, s=None):
        y = from_images(torch.conv2d(as_images(image(t)), as_images(t["w"]), None, *places))
        y = wide(y) if steps else y
        for step in steps:
            y = apply(step, y, t)
        y = y.to(t["x"].dtype)
        if not name[7]:
            return y
        sums = wide(y.to(kept).to(y.dtype))  # of what is kept
        return y, sums.sum((0, 1, 2)), (sums * sums).sum((0, 1, 2))

    if not name[7]:
        return Family(formula, compiled=True)
    # Sums of all pixels differ by those that lie between two of the kept type: as much as cuDNN's do, twice.
    return Family(formula, compiled=True, yardstick=formula, allowed=2.0, yardstick_of_all=True)
