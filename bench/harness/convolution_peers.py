"""What PyTorch computes for a convolution of images with channels last, and for its gradients: cuDNN in benchmark mode."""
import re

import torch

from harness.family import Family

NAME = re.compile(r"convolution(_data_gradient|_weight_gradient)?_(?:bf16|f16)_(\d+)x(\d+)x(\d+)x(\d+)_(\d+)_(\d+)x(\d+)"
                  r"(?:_stride(\d+))?(?:_pad(\d+))?(?:_dilation(\d+))?(?:_groups(\d+))?(?:_tile\w+)?")


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

    def forward(t, s=None):
        return from_images(torch.conv2d(as_images(t["x"]), as_images(t["w"]), None, *places, groups))

    def backward(dy, x, w, wanted):
        return torch.ops.aten.convolution_backward(as_images(dy), as_images(x), as_images(w), None, *places, False,
                                                   [0, 0], groups, [wanted == "x", wanted == "w", False])

    def data_gradient(t, s=None):
        x = torch.empty(images, height, width, channels, dtype=t["dy"].dtype, device=t["dy"].device)
        return from_images(backward(t["dy"], x, t["w"], "x")[0])

    def weight_gradient(t, s=None):
        w = torch.empty(filters, kernel_h, kernel_w, channels // groups, dtype=t["dy"].dtype, device=t["dy"].device)
        return from_images(backward(t["dy"], t["x"], w, "w")[1])

    formula = {"_data_gradient": data_gradient, "_weight_gradient": weight_gradient}.get(name[1], forward)
    return Family(formula, ways={"cudnn": formula}, compiled=False)
