"""What PyTorch computes for attention, its gradients, and what rules make of their scores."""
import math
import re

import torch
import torch._functorch.config
import torch.nn.attention
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from harness.family import Family

torch._functorch.config.donated_buffer = False  # a backward pass is timed again and again


ATTENTION = re.compile(r"attention_(?:bf16|f16)_\d+x\d+x\d+x\d+(?:_keys\d+)?(?:_width\d+)?(?:_group(\d+))?(_causal)?"
                       r"((?:_softcap\d+a?|_alibi|_bias|_documents|_window\d+)*(?:_sinks)?)(?:_tile\w+)?")


def score_rules(t, names, causal):
    """What the rules make of a score, and which pairs they leave in, as flex attention asks for them: functions of the
    batch, the head, the row and the key, numbers or tensors that broadcast. A single row stands at the last key."""
    changes, masks = [], []
    before = t["k"].shape[1] - 1 if t["q"].shape[1] == 1 and not causal else 0
    if causal:
        masks.append(lambda b, h, i, j: j <= i)
    for name, number in re.findall(r"_([a-z]+)(\d*)", names):
        if name == "softcap":
            cap = float(number)
            changes.append(lambda score, b, h, i, j, cap=cap: torch.tanh(score / cap) * cap)
        elif name == "alibi":
            changes.append(lambda score, b, h, i, j: score + t["slopes"][h] * (j - i - before))
        elif name == "bias":
            changes.append(lambda score, b, h, i, j: score + t["bias"][0, h, i, j])
        elif name == "window":
            masks.append(lambda b, h, i, j, width=int(number): (j <= i + before) & (i + before - j < width))
        elif name == "documents":
            masks.append(lambda b, h, i, j: t["documents"][b, i] == t["documents"][b, j])

    def score(value, b, h, i, j):
        for change in changes:
            value = change(value, b, h, i, j)
        return value

    def seen(b, h, i, j):
        result = masks[0](b, h, i, j)
        for mask in masks[1:]:
            result = result & mask(b, h, i, j)
        return result
    return score, seen if masks else None


def softmax_of(t, scores, h):
    """Along the keys; sinks are scores of one more, which has no value. With the logarithm of what it divides by."""
    keys = scores.shape[-1]
    if "sinks" in t:
        scores = torch.cat([scores, t["sinks"][h].to(scores.dtype).expand(*scores.shape[:-1], 1)], -1)
    return torch.softmax(scores, -1)[..., :keys], torch.logsumexp(scores, -1) * math.log2(math.e)


def saved_softmax(scores, lse):
    """What kernels save besides, of scores that a bias may have moved far from 0: a row's largest score, and lse beside that."""
    top = scores.max(-1).values
    empty = top == -math.inf
    return (top.masked_fill(empty, 0),
            (lse - torch.nan_to_num(top, neginf=0) * math.log2(math.e)).masked_fill(empty, math.inf))


def attention_by_rules(group, causal, names):
    """Attention whose scores follow rules, or with sinks: against flex attention and an unfused one, both compiled."""
    def of_heads(t, q, k, v, b, h):
        score, seen = score_rules(t, names, causal)
        i, j = torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)[None]
        scores = score((q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1]), b, h, i, j)
        if seen is not None:
            scores = scores.masked_fill(~seen(b, h, i, j), -math.inf)
        weights, lse = softmax_of(t, scores.to(q.dtype), h)
        return (weights @ v, lse, *(saved_softmax(scores, lse) if "bias" in names else ()))

    def formula(t, s=None):
        q, k, v = (t[name].transpose(1, 2) for name in "qkv")
        o = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
        of_rows = [torch.empty(q.shape[:3], dtype=q.dtype, device=q.device) for _ in range(3 if "bias" in names else 1)]
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):  # a head at a time: all scores may not fit
                o[b, h], *numbers = of_heads(t, q[b, h], k[b, h // group], v[b, h // group], b, h)
                for whole, part in zip(of_rows, numbers):
                    whole[b, h] = part
        return (o.transpose(1, 2), *of_rows)

    def unfused(t):
        q, k, v = (t[name].transpose(1, 2) for name in "qkv")
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        b, h = (torch.arange(q.shape[d], device=q.device) for d in (0, 1))
        return of_heads(t, q, k, v, b[:, None, None, None], h[None, :, None, None])[0]
    compiled_unfused, compiled_flex = (torch.compile(f) for f in (unfused, flex_attention))

    def flex(t):
        q, k, v = (t[name].transpose(1, 2) for name in "qkv")
        if "flex" not in t:
            score, seen = score_rules(t, names, causal)
            block_mask = seen and create_block_mask(
                seen, q.shape[0] if "documents" in names else None, None, q.shape[2], k.shape[2], device=q.device)
            t["flex"] = {"score_mod": score, "block_mask": block_mask}
        if "sinks" not in t:
            return compiled_flex(q, k, v, enable_gqa=group > 1, **t["flex"])
        o, lse = compiled_flex(q, k, v, enable_gqa=group > 1, return_lse=True, **t["flex"])
        return o * torch.sigmoid(lse - t["sinks"][:, None])[..., None].to(o.dtype)
    return Family(formula, ways={"flex": flex, "unfused compiled": compiled_unfused}, compiled=False, terms="q",
                  unit_terms=16, yardstick=formula, yardstick_of_all="a" in re.sub(r"[a-z]{2,}", "", names))


def attention(group, causal):
    """Scaled dot-product attention, by cuDNN and by FlashAttention-2 through PyTorch. Results: o, and the logarithm to
    base 2 of the sums. The yardstick rounds scores and probabilities to the operands' type, as an unfused one does."""
    def by_heads(t):
        return [t[name].transpose(1, 2) for name in "qkv"]

    def formula(t, s=None):
        q, k, v = by_heads(t)
        scale = 1 / math.sqrt(q.shape[-1])
        o = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=q.dtype, device=q.device)
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if causal else None
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):  # a head at a time: all scores may not fit
                scores = (q[b, h] @ k[b, h // group].t()) * scale
                if causal:
                    scores.masked_fill_(hidden, -math.inf)
                lse[b, h] = torch.logsumexp(scores, -1) * math.log2(math.e)
                o[b, h] = torch.softmax(scores, -1) @ v[b, h // group]
        return o.transpose(1, 2), lse

    def way(backend):
        def call(t):
            q, k, v = by_heads(t)
            with torch.nn.attention.sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=group > 1)
        return call
    backends = torch.nn.attention.SDPBackend
    ways = {"cudnn": way(backends.CUDNN_ATTENTION), "flash": way(backends.FLASH_ATTENTION)}
    return Family(formula, ways=ways, compiled=False, terms="q", unit_terms=16, yardstick=formula)


GRADIENTS = re.compile(ATTENTION.pattern.replace("attention_", "attention_gradients_", 1))


def attention_gradients(group, causal):
    """dq, dk and dv from what a forward pass saved: ours is given o and lse, the peers make their own before any time is
    taken. The yardstick rounds scores, probabilities and their adjoints to the operands' type, as an unfused one does."""
    def formula(t, s=None):
        q, k, v, g, o = (t[name].transpose(1, 2) for name in "qkvgo")
        scale, wide = 1 / math.sqrt(q.shape[-1]), t["lse"].dtype
        dq = torch.empty_like(q)
        dk, dv = (torch.zeros(x.shape, dtype=torch.float32 if x.dtype == torch.bfloat16 else x.dtype, device=x.device)
                  for x in (k, v))
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if causal else None
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):  # a head at a time: all scores may not fit
                of = h // group
                scores = q[b, h] @ k[b, of].t() * scale
                p = (scores.to(wide) * math.log2(math.e)).sub_(t["lse"][b, h][:, None]).exp2_()
                if causal:
                    p.masked_fill_(hidden, 0)
                delta = (g[b, h].to(wide) * o[b, h].to(wide)).sum(-1)
                ds = ((g[b, h] @ v[b, of].t()).to(wide).sub_(delta[:, None]).mul_(p)).to(q.dtype)
                dv[b, of] += p.to(q.dtype).t() @ g[b, h]
                dq[b, h] = ds @ k[b, of] * scale
                dk[b, of] += ds.t() @ q[b, h] * scale
        return dq.transpose(1, 2), dk.to(k.dtype).transpose(1, 2), dv.to(v.dtype).transpose(1, 2)

    def saved(t, name, forward):
        if name not in t:
            t[name] = forward(*(t[x].transpose(1, 2) for x in "qkv"))
        return t[name]

    def cudnn(t):
        q, k, v, g = (t[x].transpose(1, 2) for x in "qkvg")
        o, lse, begin_q, begin_k, max_q, max_k, seed, offset, _ = saved(
            t, "by cudnn", lambda *x: torch.ops.aten._scaled_dot_product_cudnn_attention(*x, None, True, 0.0, causal))
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, o, lse, seed, offset, None, begin_q, begin_k, max_q, max_k, 0.0, causal)

    def flash(t):
        q, k, v, g = (t[x].transpose(1, 2) for x in "qkvg")
        o, lse, begin_q, begin_k, max_q, max_k, seed, offset, _ = saved(
            t, "by flash", lambda *x: torch.ops.aten._scaled_dot_product_flash_attention(*x, 0.0, causal))
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            g, q, k, v, o, lse, begin_q, begin_k, max_q, max_k, 0.0, causal, seed, offset)
    return Family(formula, ways={"cudnn": cudnn, "flash": flash}, compiled=False, terms="q", unit_terms=16,
                  yardstick=formula, allowed=1.5)


def attention_gradients_by_rules(group, causal, names):
    """dq, dk, dv and, of a bias, its gradient, from what a forward pass saved, for scores that follow rules: against flex
    attention and an unfused one, both compiled."""
    def of_heads(t, q, k, v, g, o, lse, bias, b, h, score):
        """ds, p, the adjoints of changed scores; the rule's derivative is PyTorch's."""
        scale, exact = 1 / math.sqrt(q.shape[-1]), lse.dtype
        _, seen = score_rules(t, names, causal)
        i, j = torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)[None]
        scores = ((q @ k.transpose(-1, -2)) * scale).to(exact)
        changed, derivative = torch.func.vjp(lambda s: score({**t, "bias": bias}, s, b, h, i, j), scores)
        p = torch.exp2(changed * math.log2(math.e) - lse[..., None])
        if seen is not None:
            p = p.masked_fill(~seen(b, h, i, j), 0)
        delta = (g.to(exact) * o.to(exact)).sum(-1, keepdim=True)
        adjoint = p * ((g @ v.transpose(-1, -2)).to(exact) - delta)
        ds = derivative(adjoint)[0].to(q.dtype)
        return p.to(q.dtype), adjoint, ds, scale

    def score(t, value, b, h, i, j):
        return score_rules(t, names, causal)[0](value, b, h, i, j)

    def lse_of(t):
        return t["top"] * math.log2(math.e) + t["spread"] if "bias" in names else t["lse"]

    def d_sinks(t, g, o):
        exact = t["lse"].dtype
        share = torch.exp2(t["sinks"][:, None] * math.log2(math.e) - t["lse"])
        return -(share * (g.to(exact) * o.to(exact)).sum(-1)).sum((0, 2))

    def formula(t, s=None):
        q, k, v, g, o = (t[name].transpose(1, 2) for name in "qkvgo")
        dq = torch.empty_like(q)
        sums_in = torch.float32 if k.dtype == torch.bfloat16 else k.dtype
        dk, dv = (torch.zeros(x.shape, dtype=sums_in, device=x.device) for x in (k, v))
        lse = lse_of(t)
        d_bias = torch.zeros(t["bias"].shape, dtype=sums_in, device=q.device) if "bias" in t else None
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):  # a head at a time: all scores may not fit
                of = h // group
                p, adjoint, ds, scale = of_heads(t, q[b, h], k[b, of], v[b, of], g[b, h], o[b, h], lse[b, h],
                                                 t.get("bias"), b, h, score)
                dv[b, of] += p.t() @ g[b, h]
                dq[b, h] = ds @ k[b, of] * scale
                dk[b, of] += ds.t() @ q[b, h] * scale
                if d_bias is not None:
                    d_bias[0, h] += adjoint.to(q.dtype)
        results = dq.transpose(1, 2), dk.to(k.dtype).transpose(1, 2), dv.to(v.dtype).transpose(1, 2)
        results = results if d_bias is None else (*results, d_bias.to(t["bias"].dtype))
        return (*results, d_sinks(t, g, o)) if "sinks" in t else results

    def unfused(t):
        q, k, v, g, o = (t[name].transpose(1, 2) for name in "qkvgo")
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        b, h = (torch.arange(q.shape[d], device=q.device) for d in (0, 1))
        p, adjoint, ds, scale = of_heads(t, q, k, v, g, o, lse_of(t), t.get("bias"), b[:, None, None, None],
                                         h[None, :, None, None], score)
        dk, dv = ds.transpose(-1, -2) @ q * scale, p.transpose(-1, -2) @ g
        if group > 1:
            dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))
        results = ds @ k * scale, dk, dv
        results = results if "bias" not in t else (*results, adjoint.sum(0, keepdim=True).to(t["bias"].dtype))
        return (*results, d_sinks(t, g, o)) if "sinks" in t else results
    compiled_unfused, compiled_flex = (torch.compile(f) for f in (unfused, flex_attention))

    def flex(t):
        if "flex" not in t:
            q, k, v = (t[name].transpose(1, 2).detach().requires_grad_() for name in "qkv")
            own = {**t, **({"bias": t["bias"].detach().requires_grad_()} if "bias" in t else {})}
            change, seen = score_rules(own, names, causal)
            block_mask = seen and create_block_mask(
                seen, q.shape[0] if "documents" in names else None, None, q.shape[2], k.shape[2], device=q.device)
            inputs = [q, k, v] + ([own["bias"]] if "bias" in own else [])
            o, lse = compiled_flex(q, k, v, enable_gqa=group > 1, score_mod=change, block_mask=block_mask,
                                   return_lse=True)
            if "sinks" in t:
                inputs.append(t["sinks"].detach().requires_grad_())
                o = o * torch.sigmoid(lse - inputs[-1][:, None])[..., None].to(o.dtype)
            t["flex"] = o, inputs
        o, inputs = t["flex"]
        return torch.autograd.grad(o, inputs, t["g"].transpose(1, 2), retain_graph=True)
    return Family(formula, ways={"flex": flex, "unfused compiled": compiled_unfused}, compiled=False, terms="q",
                  unit_terms=16, yardstick=formula, allowed=1.5)


def attention_family(kernel):
    """The Family of a kernel of attention or of its gradients, or None."""
    for form, plain, by_rules in ((ATTENTION, attention, attention_by_rules),
                                  (GRADIENTS, attention_gradients, attention_gradients_by_rules)):
        if name := form.fullmatch(kernel):
            group, causal, rules = int(name[1] or 1), bool(name[2]), name[3]
            return by_rules(group, causal, rules) if rules else plain(group, causal)
    return None
