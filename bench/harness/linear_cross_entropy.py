"""What PyTorch computes for both passes of linear cross-entropy: loss, dx and dw, given x, w, label and dloss."""
import torch
import torch.nn.functional as F

from harness.family import Family

ROWS_AT_ONCE = 2048  # of the formula, whose float64 logits would not fit as a whole


def formula(t, s=None):
    """Logits are rounded to bf16, as both ours and PyTorch's are; all else is in the operands' type."""
    x, w, label, dloss = t["x"], t["w"], t["label"], t["dloss"]
    narrow = torch.bfloat16 if x.dtype in (torch.float32, torch.float64) else x.dtype
    wide = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
    loss, dx = torch.empty_like(dloss, dtype=wide), torch.empty_like(x)
    dw = torch.zeros_like(w, dtype=wide)
    for begin in range(0, x.shape[0], ROWS_AT_ONCE):
        rows = slice(begin, begin + ROWS_AT_ONCE)
        logits = (x[rows] @ w.t()).to(narrow).to(wide)
        lse = torch.logsumexp(logits, -1)
        places = label[rows][:, None]
        loss[rows] = lse - logits.gather(1, places)[:, 0]
        shares = torch.exp(logits - lse[:, None])
        shares.scatter_add_(1, places, torch.full_like(shares[:, :1], -1))
        dlogits = (shares * dloss[rows].to(wide)[:, None]).to(x.dtype)
        dx[rows] = dlogits @ w
        dw += (dlogits.t() @ x[rows]).to(wide)
    return loss, dx, dw


def forward(x, w, label):
    return F.cross_entropy(F.linear(x, w), label, reduction="none")


def forward_in_f32(x, w, label):
    return F.cross_entropy(F.linear(x, w).float(), label, reduction="none")


def both_passes(loss_of):
    def call(t):
        x, w = (t[name].detach().requires_grad_() for name in "xw")
        loss = loss_of(x, w, t["label"])
        return loss, *torch.autograd.grad(loss, (x, w), t["dloss"].to(loss.dtype))
    return call


def family():
    torch._dynamo.reset()
    ways = {"eager": both_passes(forward), "compile": both_passes(torch.compile(forward, dynamic=False)),
            "compile f32": both_passes(torch.compile(forward_in_f32, dynamic=False))}
    return Family(formula, ways=ways, compiled=False, terms="x", unit_terms=16, yardstick=formula, allowed=1.5,
                  yardstick_of_all=True, memory_beside=("x", "w", "label", "dloss"))
