"""What PyTorch computes for a convolution of images, and for its gradients: cuDNN in benchmark mode. Channels come last, or first."""
import re

import torch

from harness.family import Family

NAME = re.compile(r"convolution(_data_gradient|_weight_gradient)?_(?:bf16|f16)_(\d+)x(\d+)x(\d+)x(\d+)_(\d+)_(\d+)x(\d+)"
                  r"(?:_stride(\d+))?(?:_pad(\d+))?(?:_dilation(\d+))?(?:_groups(\d+))?(_nchw)?(?:_tile\w+)?")


def as_images(t):
    """Of [n, h, w, c] in memory, as PyTorch names its dimensions."""
    return t.permute(0, 3, 1, 2)


def from_images(t):
    return t.permute(0, 2, 3, 1)


def convolution_family(kernel):
    """The Family of "convolution_bf16_256x56x56x64_64_3x3_pad1" and of its gradients, or None."""
    name = NAME.fullmatch(kernel)
    if not name:
        return None
    torch.backends.cudnn.benchmark = True
    images, height, width, channels, filters, kernel_h, kernel_w = (int(n) for n in name.groups()[1:8])
    stride, padding, dilation, groups = (int(n or otherwise) for n, otherwise in zip(name.groups()[8:12], (1, 0, 1, 1)))
    places = ([stride] * 2, [padding] * 2, [dilation] * 2)
    first = name[13] is not None  # such tensors are PyTorch's own, contiguous
    given, back = (lambda t: t, lambda t: t) if first else (as_images, from_images)

    def forward(t, s=None):
        return back(torch.conv2d(given(t["x"]), given(t["w"]), None, *places, groups))

    def backward(dy, x, w, wanted):
        return torch.ops.aten.convolution_backward(dy, x, w, None, *places, False, [0, 0], groups,
                                                   [wanted == "x", wanted == "w", False])

    def like(dy, *shape):
        """Of such a shape, [first, inner, inner, channels] with channels last, in the layout of the operands."""
        empty = torch.empty(*shape, dtype=dy.dtype, device=dy.device)
        return as_images(empty).contiguous() if first else as_images(empty)

    def data_gradient(t, s=None):
        x = like(t["dy"], images, height, width, channels)
        return back(backward(given(t["dy"]), x, given(t["w"]), "x")[0])

    def weight_gradient(t, s=None):
        w = like(t["dy"], filters, kernel_h, kernel_w, channels // groups)
        return back(backward(given(t["dy"]), given(t["x"]), w, "w")[1])

    formula = {"_data_gradient": data_gradient, "_weight_gradient": weight_gradient}.get(name[1], forward)
    return Family(formula, ways={"cudnn": formula}, compiled=False)
