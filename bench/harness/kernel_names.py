"""From a case of a suite to what tw_bench prepares: the kernel's name, and how its operands are filled."""
import math

from harness.cases import PASSES


def transposes(case):
    return ("_ta" if case.get("transpose_a") else "") + ("_tb" if case.get("transpose_b") else "")


def product_kernel(case):
    return (f"product_{case['m']}x{case['n']}x{case['k']}{transposes(case)}" + ("_ab" if case.get("add_c") else "")
            + (f"_tile{case['tile']}" if "tile" in case else ""))


def gemm_kernel(case):
    """The name of the kernel on tensor cores, with the tiles that the case asks for."""
    batch = f"{case['batch']}x" if case.get("batch") else ""
    epilogue = case.get("epilogue", "none")
    return (f"gemm_{case.get('type', 'bf16')}_{batch}{case['m']}x{case['n']}x{case['k']}{transposes(case)}"
            + ("" if epilogue == "none" else f"_{epilogue}") + (f"_experts{case['experts']}" if case.get("experts") else "")
            + ("_scaled" if case.get("block_scales") else "") + (f"_{case['result']}" if "result" in case else "")
            + (f"_tile{case['tile']}" if "tile" in case else ""))


def attention_kernel(case):
    """The name of the kernel, with the tiles that the case asks for."""
    optional = "".join(f"_{key}{case[key]}" for key in ("keys", "width", "group") if key in case)
    return (f"attention_{case.get('type', 'bf16')}_{case['batch']}x{case['heads']}x{case['rows']}x{case['depth']}{optional}"
            + ("_causal" if case.get("causal") else "") + (f"_{case['rules']}" if case.get("rules") else "")
            + (f"_tile{case['tile']}" if "tile" in case else ""))


def convolution_kernel(case, which):
    """The name of the kernel of a pass, with the tiles that the case asks for."""
    gradient = {"forward": "", "data": "_data_gradient", "weight": "_weight_gradient"}[which]
    optional = "".join(f"_{key}{case[key]}" for key in ("stride", "pad", "dilation", "groups") if key in case)
    optional += "_nchw" if case.get("layout") == "nchw" else ""
    return (f"convolution{gradient}_{case.get('type', 'bf16')}_{case['images']}x{case['height']}x{case['width']}x"
            f"{case['channels']}_{case['filters']}_{case['kernel_h']}x{case['kernel_w']}{optional}"
            + (f"_tile{case['tile']}" if "tile" in case else ""))


def depthwise_kernel(case, which):
    """The name of the kernel of a pass, with the tiles that the case asks for."""
    gradient = {"forward": "", "data": "_data_gradient", "weight": "_weight_gradient"}[which]
    optional = "".join(f"_{key}{case[key]}" for key in ("stride", "pad", "dilation") if key in case)
    return (f"depthwise{gradient}_{case.get('type', 'bf16')}_{case['images']}x{case['height']}x{case['width']}x"
            f"{case['channels']}_{case['kernel_h']}x{case['kernel_w']}{optional}"
            + (f"_tile{case['tile']}" if "tile" in case else ""))


def ranges_of_rules(case):
    """Of inputs beside operands: scales; what rules read: three documents, and slopes with which no exponential leaves its range."""
    scales = {f"scale_{name}": [0.5, 1.5] for name in "qkv"} if case.get("type") == "e4m3" else {}
    return {name: ends for name, ends in (("documents", [0, 3]), ("slopes", [0, 0.01]))
            if name.replace("slopes", "alibi") in case.get("rules", "")} | scales


def of_gemm(case):
    return {"kernel": gemm_kernel(case), "normal": True,
            "ascending": {"expert": [0, case["experts"]]} if case.get("experts") else {}}


def of_attention(case):
    return {"kernel": attention_kernel(case), "normal": True, "ranges": ranges_of_rules(case)}


def of_attention_backward(case):
    """With logarithms such as softmaxes of random scores have."""
    most = math.log2(case.get("keys", case["rows"]))
    far, sinks = (name in case.get("rules", "") for name in ("bias", "sinks"))
    saved = {"spread": [most, most + 2], "top": [-0.5, 0.5]} if far else {}
    saved |= {"lse": [most, most + 2]} if sinks or not far else {}
    return {"kernel": attention_kernel(case).replace("attention_", "attention_gradients_", 1), "normal": True,
            "ranges": {**saved, **ranges_of_rules(case)}}


def of_conv_fused(case):
    """A convolution with what "fused" names around it, as the kernel's name ends."""
    name = convolution_kernel(case, "forward").replace("convolution_", "convolution_fused_", 1)
    return {"kernel": f"{name}_{case['fused']}", "normal": True,
            "ranges": {"scale": [0.5, 1.5]} if "prologue" in case["fused"] else {}}


def of_linear_cross_entropy(case):
    """Both passes as one unit: losses, then gradients, of so many parts of the rows one after another."""
    parts, vocabulary = case.get("parts", 1), case["vocabulary"]
    name = f"{case.get('type', 'bf16')}_{case['rows'] // parts}x{case['depth']}x{vocabulary}"
    ranges = {"w": [-0.05, 0.05], "label": [0, vocabulary - 1], "dloss": [0.5, 1.5]}
    return {"parts": parts, "case": f"{name} parts {parts}", "kernel": f"linear_cross_entropy_{name}",
            "then": f"linear_cross_entropy_gradients_{name}" + ("_part" if parts > 1 else ""), "normal": True,
            "ranges": ranges, **({"of_rows": ["x", "label", "dloss", "loss", "dx"]} if parts > 1 else {})}


ONE_EACH = {"gemm": of_gemm, "gemm-kinds": of_gemm, "gemm-fp32": lambda case: {"kernel": product_kernel(case)},
            "attention": of_attention, "attention-backward": of_attention_backward, "conv-fused": of_conv_fused,
            "linear-cross-entropy": of_linear_cross_entropy, "memory": lambda case: {},
            "unknown": lambda case: {}, "automatic": lambda case: {"kernel": f"{case['kernel']}_automatic"},
             "fused": lambda case: {"normal": "_linear_" in case["kernel"] or "_weight_" in case["kernel"]}}
BY_PASS = {"conv": convolution_kernel, "depthwise": depthwise_kernel}


def has_kernels(suite):
    """Whether with_kernels() knows its cases."""
    return suite in BY_PASS or suite in ONE_EACH


def with_kernels(suite, cases):
    """The cases with what tw_bench is told of them; of convolutions without "pass" all three passes."""
    if suite in BY_PASS:
        return [{**case, "kernel": BY_PASS[suite](case, which), "normal": True}
                for which in PASSES for case in cases if case.get("pass", which) == which]
    return [{**case, **ONE_EACH[suite](case)} for case in cases]
