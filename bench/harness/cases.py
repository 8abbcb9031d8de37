"""Cases of a suite: JSON lines, each an object with the keys that the suite knows."""
import json
from pathlib import Path

SIZE = {"is": lambda value: type(value) is int and value >= 0, "means": "a whole number, 0 or more"}
NAME = {"is": lambda value: isinstance(value, str) and value, "means": "a name"}
FLAG = {"is": lambda value: isinstance(value, bool), "means": "true or false"}
NUMBERS = {"is": lambda value: isinstance(value, dict) and all(is_number(x) for x in value.values()),
           "means": "an object of numbers"}
SIZES = {"is": lambda value: isinstance(value, dict) and all(SIZE["is"](x) for x in value.values()),
         "means": "an object of whole numbers"}
RANGES = {"is": lambda value: isinstance(value, dict) and all(is_range(x) for x in value.values()),
          "means": "an object of [low, high]"}
TYPE = {"is": lambda value: value in ("bf16", "f16", "tf32", "i8", "e4m3"),
        "means": '"bf16", "f16", "tf32", "i8" or "e4m3"'}
EPILOGUES = ("none", "bias", "gelu", "bias_gelu", "gelu_tanh", "bias_gelu_tanh", "swiglu", "bias_swiglu")
EPILOGUE = {"is": lambda value: value in EPILOGUES, "means": "one of " + ", ".join(EPILOGUES)}
RESULT = {"is": lambda value: value == "f32", "means": '"f32"'}
PASSES = ("forward", "data", "weight")
PASS = {"is": lambda value: value in PASSES, "means": "one of " + ", ".join(PASSES)}
LAYOUTS = ("nhwc", "nchw")
LAYOUT = {"is": lambda value: value in LAYOUTS, "means": "one of " + ", ".join(LAYOUTS)}
KIND = {"is": lambda value: value in ("launch", "graph", "operator", "step"),
        "means": '"launch", "graph", "operator" or "step"'}
STEPS = ("mlp", "feed_forward", "residual", "residual_nchw", "transformer")
STEP = {"is": lambda value: value in STEPS, "means": '"mlp", "feed_forward", "residual", "residual_nchw" or "transformer"'}
VALUES = {"is": lambda value: value in ("f32", "bf16"), "means": '"f32" or "bf16"'}
PEER = {"is": lambda value: value in ("eager", "compile"), "means": '"eager" or "compile"'}
OUTLIERS = {"is": lambda value: value in ("none", "rows", "columns"), "means": '"none", "rows" or "columns"'}

# The keys that a case of each suite must have, and those that it may have.
GEMM = ({"m": SIZE, "n": SIZE, "k": SIZE},
        {"type": TYPE, "transpose_a": FLAG, "transpose_b": FLAG, "epilogue": EPILOGUE, "batch": SIZE, "experts": SIZE,
         "block_scales": FLAG, "result": RESULT, "tile": NAME, "seed": SIZE})
BY_NAME = ({"kernel": NAME},
           {"case": NAME, "seed": SIZE, "scalars": NUMBERS, "sizes": NUMBERS, "ranges": RANGES, "ascending": RANGES,
            "bytes": SIZE})
KEYS = {
    "gemm": GEMM,
    "gemm-kinds": GEMM,
    "gemm-fp32": ({"m": SIZE, "n": SIZE, "k": SIZE},
                  {"transpose_a": FLAG, "transpose_b": FLAG, "add_c": FLAG, "tile": NAME, "seed": SIZE}),
    "attention": ({"batch": SIZE, "heads": SIZE, "rows": SIZE, "depth": SIZE},
                  {"keys": SIZE, "width": SIZE, "group": SIZE, "causal": FLAG, "rules": NAME, "type": TYPE, "tile": NAME, "seed": SIZE}),
    "attention-backward": ({"batch": SIZE, "heads": SIZE, "rows": SIZE, "depth": SIZE},
                  {"keys": SIZE, "width": SIZE, "group": SIZE, "causal": FLAG, "rules": NAME, "type": TYPE, "tile": NAME, "seed": SIZE}),
    "conv": ({"images": SIZE, "height": SIZE, "width": SIZE, "channels": SIZE, "filters": SIZE, "kernel_h": SIZE,
              "kernel_w": SIZE}, {"stride": SIZE, "pad": SIZE, "dilation": SIZE, "groups": SIZE, "layout": LAYOUT, "pass": PASS, "type": TYPE, "tile": NAME,
                            "seed": SIZE}),
    "conv-fused": ({"images": SIZE, "height": SIZE, "width": SIZE, "channels": SIZE, "filters": SIZE, "kernel_h": SIZE,
                    "kernel_w": SIZE, "fused": NAME},
                   {"stride": SIZE, "pad": SIZE, "dilation": SIZE, "type": TYPE, "tile": NAME, "seed": SIZE}),
    "depthwise": ({"images": SIZE, "height": SIZE, "width": SIZE, "channels": SIZE, "kernel_h": SIZE, "kernel_w": SIZE},
                  {"stride": SIZE, "pad": SIZE, "dilation": SIZE, "pass": PASS, "type": TYPE, "tile": NAME, "seed": SIZE}),
    "accuracy": ({"batch": SIZE, "heads": SIZE, "rows": SIZE, "depth": SIZE},
                 {"keys": SIZE, "width": SIZE, "group": SIZE, "causal": FLAG, "type": TYPE, "outliers": OUTLIERS, "seed": SIZE}),
    "linear-cross-entropy": ({"rows": SIZE, "depth": SIZE, "vocabulary": SIZE},
                             {"type": TYPE, "parts": SIZE, "seed": SIZE}),
    "automatic": BY_NAME,
    "memory": BY_NAME,
    "unknown": BY_NAME,
    "fused": BY_NAME,
    "train": ({"step": STEP}, {"sizes": SIZES, "values": VALUES, "peer": PEER, "branches": FLAG,
                               "seed": SIZE}),
    "compile": ({"kernel": NAME}, {"arch": NAME}),
    "launch": ({"kind": KIND}, {"kernels": SIZE}),
    "emulator": ({"m": SIZE, "n": SIZE, "k": SIZE}, {}),
}


class CaseError(Exception):
    """A case file that cannot be used; the text says where and why."""


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_range(value):
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[0] <= value[1]


def default_file(suite):
    return Path(__file__).parent.parent / "cases" / f"{suite}.jsonl"


def read_cases(suite, path):
    """The cases of the file, checked; blank lines are skipped."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise CaseError(f"{path}: cannot be read: {problem}") from None
    cases = [checked(suite, line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not cases:
        raise CaseError(f"{path}: there is no case in it; write one JSON object a line, {expected(suite)}")
    return cases


def checked(suite, line, where):
    try:
        case = json.loads(line)
    except json.JSONDecodeError as problem:
        raise CaseError(f"{where}: not JSON: {problem}") from None
    if not isinstance(case, dict):
        raise CaseError(f"{where}: {line.strip()} is no JSON object; {expected(suite)}")
    required, optional = KEYS[suite]
    for key in required:
        if key not in case:
            raise CaseError(f"{where}: \"{key}\" is missing; {expected(suite)}")
    for key, value in case.items():
        kind = required.get(key) or optional.get(key)
        if not kind:
            raise CaseError(f"{where}: \"{key}\" means nothing here; {expected(suite)}")
        if not kind["is"](value):
            raise CaseError(f"{where}: \"{key}\" is {json.dumps(value)}, not {kind['means']}")
    return case


def expected(suite):
    required, optional = KEYS[suite]
    also = f" and may have {', '.join(optional)}" if optional else ""
    return f"a case of {suite} has {', '.join(required)}{also}"
