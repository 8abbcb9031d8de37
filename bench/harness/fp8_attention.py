"""Attention of operands of 8 bits with a scale for each head: its formula, and PyTorch's in bf16, which has no other."""
import math
import re

import torch
import torch.nn.attention
import torch.nn.functional as F

from harness.family import Family

NAME = re.compile(r"attention_e4m3_\d+x\d+x\d+x\d+(?:_keys\d+)?(?:_width\d+)?(?:_group(\d+))?(_causal)?(?:_tile\w+)?")
LARGEST = 256  # what exponentials are multiplied by before they are rounded


def scaled(t, name, dtype):
    """[batch, heads, rows, depth]"""
    return t[name].transpose(1, 2).to(dtype) * t[f"scale_{name}"][:, :, None, None].to(dtype)


def attention(t, group, causal, dtype, of_scores, of_weights):
    """o and the logarithms, in dtype; scores and the weights of values go through what may round them."""
    q, k, v = (scaled(t, name, dtype) for name in "qkv")
    o = torch.empty(*q.shape[:3], v.shape[-1], dtype=dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=dtype, device=q.device)
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if causal else None
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):  # a head at a time: all scores may not fit
            scores = of_scores(q[b, h] @ k[b, h // group].t() / math.sqrt(q.shape[-1]))
            if causal:
                scores.masked_fill_(hidden, -math.inf)
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            lse[b, h] = torch.logsumexp(scores, -1) * math.log2(math.e)
            o[b, h] = of_weights(weights) @ v[b, h // group] / weights.sum(-1, keepdim=True)
    return o.transpose(1, 2), lse


def family_of(kernel):
    """The Family of "attention_e4m3_1x16x4096x128", or None."""
    name = NAME.fullmatch(kernel)
    if not name:
        return None
    group, causal = int(name[1] or 1), bool(name[2])

    def formula(t, s=None):
        return attention(t, group, causal, t["scale_q"].dtype, lambda x: x, lambda x: x)

    def yardstick(t):
        """Scores in bf16, weights in 8 bits, as ours are."""
        return attention(t, group, causal, torch.float32, lambda x: x.bfloat16().float(),
                         lambda x: (x * LARGEST).to(torch.float8_e4m3fn).float() / LARGEST)

    def prepare(t):
        return {**t, **{f"{name}16": scaled(t, name, torch.float32).bfloat16() for name in "qkv"}}

    def way(backend):
        def call(t):
            with torch.nn.attention.sdpa_kernel(backend):
                return F.scaled_dot_product_attention(t["q16"], t["k16"], t["v16"], is_causal=causal,
                                                      enable_gqa=group > 1)
        return call
    backends = torch.nn.attention.SDPBackend
    ways = {"cudnn bf16": way(backends.CUDNN_ATTENTION), "flash bf16": way(backends.FLASH_ATTENTION)}
    return Family(formula, ways=ways, compiled=False, prepare=prepare, yardstick=yardstick, allowed=1.5,
                  yardstick_of_all=True)
