"""What PyTorch computes for the kernels of tests/unknown: the plain formula, as one would write it."""
import re

import torch
import torch.nn.functional as F

from harness.family import Family
from harness.product_peers import UNIT_TERMS

NAME = re.compile(r"unknown_([a-z_]+?)_(\d+(?:x\d+)*)")


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


def squared_distances(t):
    """Directly, as declared, in rows that fit into memory: |a|^2 + |b|^2 - 2 a.b would lose digits."""
    a, b = t["a"], t["b"]
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()


def shortest_paths(t):
    """In parts of the rows: as one, sums of all three axes would be kept."""
    return torch.cat([(rows[:, :, None] + t["b"]).amin(1) for rows in t["a"].split(64)])


def complex_product(t):
    (ar, ai), (br, bi) = (t["ar"], t["ai"]), (t["br"], t["bi"])
    return wide(ar @ br - ai @ bi), wide(ar @ bi + ai @ br)


def similarity_matrix(t):
    a, b = t["a"], t["b"]
    squares = (wide(a) ** 2).sum(-1)[:, None] * (wide(b) ** 2).sum(-1)
    return wide(a @ b.t()) * torch.rsqrt(squares)


def chain_of_three(t):
    return wide(torch.einsum("bik,bkj,bjl->bil", t["u"], t["v"], t["w"]))


def low_rank(t):
    return wide(torch.einsum("bik,rk,or->bio", t["u"], t["down"], t["up"]))


def four_bit_product(t):
    u, packed, scale = t["u"], t["packed"], t["scale"]
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    nibbles = torch.stack((packed & 15, packed >> 4), -1).view(rows, columns)
    shifted = (nibbles.to(u.dtype) - 8).view(*scale.shape, -1)
    w = (shifted * scale[:, :, None]).bfloat16().to(u.dtype).view(rows, columns)
    return u @ w.t()


def block_sparse_product(t):
    values, places, u = t["values"], t["places"].long(), t["u"]
    rows, stored, block, _ = values.shape
    blocks = u.view(-1, block, u.shape[1])[places]  # [rows, stored, block, n]
    return (values.transpose(1, 2).reshape(rows, block, -1) @ blocks.reshape(rows, stored * block, -1)).flatten(0, 1)


def lstm_cell(t):
    gates = wide(t["u"] @ t["w"].t()) + wide(t["h"] @ t["r"].t()) + t["bias"]
    enters, forgets, fresh, leaves = gates.chunk(4, -1)
    cell = torch.sigmoid(forgets) * t["c"] + torch.sigmoid(enters) * torch.tanh(fresh)
    return (torch.sigmoid(leaves) * torch.tanh(cell)).to(t["h"].dtype), cell


def odd_product(t):
    return torch.relu(t["a"] @ t["b"].t() + t["bias"])


def gram_matrix(t):
    return wide(t["a"] @ t["a"].t())


def gram_of_channels(t):
    u = t["u"].flatten(2)
    return wide(u @ u.transpose(1, 2)) / u.shape[2]


def covariance(t):
    apart = t["u"] - t["u"].mean(0)
    return apart.t() @ apart / (len(apart) - 1)


def eight_bit_product(t):
    return (wide(t["u"] @ t["w"].to(t["u"].dtype).t()) * t["scale"]).to(t["u"].dtype)


def gathered_product(t):
    return t["table"][t["ids"].long()] @ t["w"].t()


def gathered_experts(t):
    rows = t["u"][t["ids"].long()].view(t["expert"].shape[0], 128, -1)
    return (rows @ t["w"][t["expert"].long()]).flatten(0, 1)


def few_rows_each(t):
    return (wide(t["u"] @ t["w"].t()) + t["bias"]).to(t["u"].dtype)


def mixed_channels(t):
    return F.conv2d(t["u"], t["w"][:, :, None, None])


def three_matrices(t):
    return torch.einsum("ap,pq,qb->ab", t["u"], t["v"], t["w"])


def softmax_between(t):
    return torch.softmax(t["u"], 1)


def norm_of_channels(t):
    x = wide(t["x"])
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).square().mean(1, keepdim=True)
    y = (x - mean) * torch.rsqrt(variance + 1e-5) * t["gain"][:, None, None] + t["bias"][:, None, None]
    return y.to(t["x"].dtype), mean[:, 0]


def means_between(t):
    return wide(t["u"]).mean(1)


def sums_along_time(t):
    return t["u"].cumsum(1)


def histogram(bins):
    return lambda t: torch.bincount(t["u"], minlength=bins)[:bins].int()


def symmetric_part(t):
    return 0.5 * (t["u"] + t["u"].t())


def gaussian_sums(t):
    """In parts of the queries: as one, eager PyTorch would keep all pairs."""
    return torch.cat([(t["w"] * torch.exp(-(q[:, None] - t["p"]) ** 2)).sum(-1) for q in t["q"].split(4096)])


def gaussian_sums_at_once(t):
    return (t["w"] * torch.exp(-(t["q"][:, None] - t["p"]) ** 2)).sum(-1)


def largest_of_segments(segments):
    def formula(t):
        u, ids = t["u"], t["ids"].long()[:, None].expand_as(t["u"])
        return torch.full((segments, u.shape[1]), -torch.inf, device=u.device, dtype=u.dtype).scatter_reduce(
            0, ids, u, "amax")
    return formula


def mean_within(t):
    u = t["u"]
    counts = (t["low"][:, None] <= u) & (u <= t["high"][:, None])
    return torch.where(counts, u, 0).sum(-1) / counts.sum(-1).clamp(min=1)


def mean_without_extremes(t):
    u = t["u"]
    return (u.sum(-1) - u.amin(-1) - u.amax(-1)) / (u.shape[1] - 2)


def cosines(t):
    a, b = wide(t["a"]), wide(t["b"])
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def best_expert(t):
    """The first of equal scores, as declared."""
    score = t["score"]
    highest = score.amax(-1)
    places = torch.arange(score.shape[1], device=score.device)
    expert = torch.where(score == highest[:, None], places, score.shape[1]).amin(-1)
    return highest, expert, 1 / torch.exp(score - highest[:, None]).sum(-1)


def best_expert_of_any(t):
    highest, expert = t["score"].max(-1)
    return highest, expert, 1 / torch.exp(t["score"] - highest[:, None]).sum(-1)


def quantised_groups(group):
    def formula(t):
        u = wide(t["u"])
        grouped = u.view(u.shape[0], -1, group)
        scale = (grouped.abs().amax(-1) / 127).clamp(min=1e-12)
        return torch.round(grouped / scale[:, :, None]).to(torch.int8).view(u.shape), scale
    return formula


def log_sum_exp_pooling(t):
    windows = t["u"].unfold(1, 3, 2).unfold(2, 3, 2)
    return torch.logsumexp(windows, (-2, -1))


def four_diffusion_steps(t):
    u = t["u0"]
    for _ in range(4):
        around = F.pad(u, (1, 1, 1, 1))
        u = u + (around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:] - 4 * u) * 0.2
    return u


def moving_variance(window):
    return lambda t: t["u"].unfold(1, window, 1).var(-1, correction=0)


def of(formula, eager=None):
    if not eager:
        return Family(lambda t, s: formula(t))
    return Family(lambda t, s: formula(t), eager=lambda t, s: lambda: eager(t),
                  compiled_formula=lambda t, s: eager(t))


PLAIN = (shortest_paths, similarity_matrix, four_bit_product, block_sparse_product, lstm_cell, mean_within,
         mean_without_extremes, cosines, log_sum_exp_pooling, four_diffusion_steps, odd_product, gram_matrix,
         eight_bit_product, gathered_product, gathered_experts, few_rows_each, mixed_channels, softmax_between,
         norm_of_channels, means_between, symmetric_part)


def of_rounded_pairs(formula):
    """What two of the operands make is rounded, by us and by PyTorch."""
    return Family(lambda t, s: formula(t), yardstick=formula, yardstick_of_all=True)


def unknown_family(kernel):
    """The Family of "unknown_squared_distances_8192x8192x256", or None."""
    name = NAME.fullmatch(kernel)
    if not name:
        return None
    extents = [int(extent) for extent in name[2].split("x")]
    last = extents[-1]
    families = {plain.__name__: of(plain) for plain in PLAIN} | {
        "squared_distances": Family(lambda t, s: squared_distances(t), terms="a", along=1, of_one_sign=True),
        "complex_product": Family(lambda t, s: complex_product(t), terms="ar", along=1,
                                  unit_terms=UNIT_TERMS["bf16"] // 2),  # two sums
        "chain_of_three": of_rounded_pairs(chain_of_three),
        "low_rank": of_rounded_pairs(low_rank),
        "three_matrices": of_rounded_pairs(three_matrices),
        "covariance": of_rounded_pairs(covariance),
        "gram_of_channels": of_rounded_pairs(gram_of_channels),
        "gaussian_sums": Family(lambda t, s: gaussian_sums(t), eager=lambda t, s: lambda: gaussian_sums_at_once(t),
                                compiled_formula=lambda t, s: gaussian_sums_at_once(t), terms="w", along=0),
        "sums_along_time": Family(lambda t, s: sums_along_time(t), terms="u", along=1),
        "best_expert": of(best_expert, best_expert_of_any),
        "quantised_groups": of(quantised_groups(last)),
        "moving_variance": of(moving_variance(last)),
        "histogram": of(histogram(last)),
        "largest_of_segments": of(largest_of_segments(extents[1] if len(extents) > 1 else 0)),
        "cumulative_sums": Family(lambda t, s: t["u"].cumsum(-1), terms="u")}
    return families.get(name[1])
