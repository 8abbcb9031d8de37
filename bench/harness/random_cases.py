"""Cases that no suite has: shapes such as users have, drawn from a seed."""
import math
import random
from collections import ChainMap

from harness.random_memory import memory_case
from harness.random_products import gemm_case, gemm_fp32_case, gemm_kinds_case

MOST_ELEMENTS = 1 << 27  # of one operand
MOST_SCORES = 1 << 36
MOST_SUMS = 1 << 37


def attention_case(draw):
    """Any number of rows up to 32768, more often few; head sizes in steps of 8, half of them 64 or 128."""
    depth = draw.choice((64, 128)) if draw.random() < 0.5 else 8 * draw.randint(4, 32)
    heads = draw.choice((1, 2, 4, 8, 12, 16, 24, 32, 40))
    rows = int(2 ** draw.uniform(0, 15))
    case = {"batch": 1, "heads": heads, "rows": rows, "depth": depth}
    if draw.random() < 0.3:
        case["group"] = draw.choice([g for g in (1, 2, 4, 8) if heads % g == 0])
    if draw.random() < 0.5:
        case["causal"] = True
    elif draw.random() < 0.2:
        case["keys"] = int(2 ** draw.uniform(0, 15))
    if draw.random() < 0.2:
        case["width"] = 8 * draw.randint(4, 32)
    keys = case.get("keys", rows)
    room = min(MOST_ELEMENTS // (heads * max(rows, keys) * max(depth, case.get("width", 0))),
               MOST_SCORES // (heads * rows * keys))
    case["batch"] = max(1, int(2 ** draw.uniform(0, min(6, max(0, room.bit_length() - 1)))))
    return case


def conv_case(draw):
    """Images such as networks have, from the first layer's to 1 x 1; channels in steps of 8, half of them powers of two; some in groups."""
    def channels():
        return 2 ** draw.randint(4, 11) if draw.random() < 0.5 else 8 * draw.randint(1, 160)
    kernel_h = kernel_w = draw.choice((1, 1, 2, 3, 3, 3, 3, 4, 5, 7))
    if draw.random() < 0.1:
        kernel_w = draw.choice((1, 3, 5, 7))
    case = {"height": int(2 ** draw.uniform(0, 8)), "channels": 3 if draw.random() < 0.05 else channels(),
            "filters": channels(), "kernel_h": kernel_h, "kernel_w": kernel_w}
    case["width"] = case["height"] if draw.random() < 0.7 else int(2 ** draw.uniform(0, 8))
    if draw.random() < 0.3:
        case["stride"] = draw.choice((2, 2, 2, 3, 4))
    if draw.random() < 0.1 and max(kernel_h, kernel_w) > 1:
        case["dilation"] = draw.choice((2, 2, 4))
    reach = (max(kernel_h, kernel_w) - 1) * case.get("dilation", 1)
    if reach:
        case["pad"] = reach // 2 if draw.random() < 0.8 else draw.randint(0, reach)
    least = reach + 1 - 2 * case.get("pad", 0)  # for a single pixel
    case["height"], case["width"] = max(case["height"], least), max(case["width"], least)
    elements = case["height"] * case["width"] * max(case["channels"], case["filters"])
    sums = elements * min(case["channels"], case["filters"]) * kernel_h * kernel_w
    room = max(1, min(MOST_ELEMENTS // elements, MOST_SUMS // sums, 256))
    case["images"] = int(2 ** draw.uniform(0, room.bit_length() - 1))
    common = math.gcd(case["channels"], case["filters"])
    groups = [number for number in range(2, 65) if common % number == 0]
    if draw.random() < 0.15 and groups:
        case["groups"] = draw.choice(groups)
    return case


def depthwise_case(draw):
    """Images of mobile and of large-kernel networks: channels in steps of 8, some odd; kernels of 3 to 9, some long and narrow."""
    case = {"height": int(2 ** draw.uniform(0, 8)), "channels": 8 * int(2 ** draw.uniform(0, 8)),
            "kernel_h": draw.choice((3, 3, 5, 5, 7, 7, 9))}
    if draw.random() < 0.1:
        case["channels"] += draw.randint(1, 7)
    case["width"] = case["height"] if draw.random() < 0.7 else int(2 ** draw.uniform(0, 8))
    case["kernel_w"] = case["kernel_h"] if draw.random() < 0.9 else draw.choice((1, 3, 5, 7))
    if draw.random() < 0.3:
        case["stride"] = draw.choice((2, 2, 2, 3))
    elif draw.random() < 0.15:
        case["dilation"] = 2
    reach = (max(case["kernel_h"], case["kernel_w"]) - 1) * case.get("dilation", 1)
    case["pad"] = reach // 2 if draw.random() < 0.8 else draw.randint(0, reach)
    least = reach + 1 - 2 * case["pad"]  # for a single pixel
    case["height"], case["width"] = max(case["height"], least), max(case["width"], least)
    elements = case["height"] * case["width"] * case["channels"]
    case["images"] = int(2 ** draw.uniform(0, max(1, min(MOST_ELEMENTS // elements, 256)).bit_length() - 1))
    return case


def train_case(draw):
    """Steps of any sizes such as networks have: tokens and images up to what one GPU trains in a few milliseconds, widths
    in steps of 8, some of them odd; in float64, scores of attention take at most 4 GiB."""
    def width(most):
        return 8 * draw.randint(4, most // 8) - (draw.randint(1, 7) if draw.random() < 0.15 else 0)
    step = draw.choice(("mlp", "feed_forward", "residual", "residual_nchw", "transformer"))
    if step == "mlp":
        sizes = {"batch": int(2 ** draw.uniform(3, 12)), "inputs": width(2048), "hidden": width(2048),
                 "classes": draw.randint(2, 1000)}
    elif step == "feed_forward":
        sizes = {"tokens": int(2 ** draw.uniform(6, 15)), "width": width(1536), "hidden": width(6144)}
    elif step in ("residual", "residual_nchw"):
        extent, channels = draw.randint(4, 64), 8 * draw.randint(2, 48)
        sizes = {"extent": extent, "channels": channels}
        sizes["images"] = int(2 ** draw.uniform(0, math.log2(max(1, min(256, (1 << 26) // (extent**2 * channels))))))
    else:
        heads, depth = draw.choice((2, 4, 6, 8, 12, 16)), draw.choice((32, 64, 64, 64, 96, 128))
        length = int(2 ** draw.uniform(5, 11))
        room = min((1 << 29) // (heads * length**2), (1 << 25) // (heads * depth * length))
        sizes = {"batch": int(2 ** draw.uniform(0, max(0, min(6, math.log2(max(1, room)))))), "length": length,
                 "heads": heads, "width": heads * depth, "hidden": heads * depth * draw.choice((2, 3, 4, 4))}
    return {"step": step, "sizes": sizes, "values": "bf16" if draw.random() < 0.75 else "f32"}


MAKERS = {"gemm": gemm_case, "gemm-kinds": gemm_kinds_case, "gemm-fp32": gemm_fp32_case, "attention": attention_case,
          "attention-backward": attention_case, "conv": conv_case, "depthwise": depthwise_case, "memory": memory_case}
DRAWN = ChainMap({"train": train_case}, MAKERS)  # of kernels, and of whole steps


def random_cases(suite, count, seed):
    """Different ones."""
    draw, cases = random.Random(f"{suite} {seed}"), []
    while len(cases) < count:
        case = DRAWN[suite](draw)
        if case not in cases:
            cases.append(case)
    return cases
