"""What PyTorch computes for a depthwise convolution, and for its gradients: in benchmark mode, in both formats of memory."""
import re

import torch

from harness.convolution_peers import as_images, from_images
from harness.family import Family

NAME = re.compile(r"depthwise(_data_gradient|_weight_gradient)?_(?:bf16|f16)_(\d+)x(\d+)x(\d+)x(\d+)_(\d+)x(\d+)"
                  r"(?:_stride(\d+))?(?:_pad(\d+))?(?:_dilation(\d+))?(?:_tile\w+)?")


def with_channels_first(tensors):
    """Beside each image a copy in PyTorch's default format."""
    copies = {f"{name}_first": as_images(tensors[name]).contiguous() for name in ("x", "dy") if name in tensors}
    return {**tensors, **copies}


def depthwise_family(kernel):
    """The Family of "depthwise_bf16_64x56x56x96_7x7_pad3" and of its gradients, or None."""
    name = NAME.fullmatch(kernel)
    if not name:
        return None
    torch.backends.cudnn.benchmark = True
    images, height, width, channels, kernel_h, kernel_w = (int(n) for n in name.groups()[1:7])
    stride, padding, dilation = (int(n or otherwise) for n, otherwise in zip(name.groups()[7:10], (1, 0, 1)))
    places = ([stride] * 2, [padding] * 2, [dilation] * 2)

    def filters(w):
        return w.reshape(channels, 1, kernel_h, kernel_w)

    def backward(dy, x, w, wanted):
        return torch.ops.aten.convolution_backward(dy, x, filters(w), None, *places, False, [0, 0], channels,
                                                   [wanted == "x", wanted == "w", False])

    def forward(x, t):
        return torch.conv2d(x, filters(t["w"]), None, *places, channels)

    def data_gradient(dy, t):
        like = torch.channels_last if dy.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
        x = torch.empty((images, channels, height, width), dtype=dy.dtype, device=dy.device, memory_format=like)
        return backward(dy, x, t["w"], "x")[0]

    def weight_gradient(dy, x):
        w = torch.empty(channels, kernel_h, kernel_w, 1, dtype=dy.dtype, device=dy.device)
        return backward(dy, x, w, "w")[1]

    ways = {  # of an image, or images, as PyTorch names their dimensions
        None: lambda image, t: forward(image("x"), t),
        "_data_gradient": lambda image, t: data_gradient(image("dy"), t),
        "_weight_gradient": lambda image, t: weight_gradient(image("dy"), image("x")),
    }
    way = ways[name[1]]

    def last(t):
        return way(lambda image: as_images(t[image]), t)

    def formula(t, s=None):
        return last(t).reshape(channels, kernel_h, kernel_w, 1) if name[1] == "_weight_gradient" else from_images(last(t))

    return Family(formula, ways={"channels last": last, "channels first": lambda t: way(lambda image: t[f"{image}_first"], t)},
                  compiled=False, prepare=with_channels_first)
