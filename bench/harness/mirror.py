"""What drawn cases say together: how often and by how much who is faster, and of which kinds of kernels."""
import math
import re
import time
from collections import defaultdict

TYPES = ("bf16", "f16", "tf32", "f32", "i8", "e4m3")
FAMILY = re.compile(rf"([a-z_]+?)(?=_(?:{'|'.join(TYPES)})(?:_|$)|_\d)")
ARCH = "sm_90a"  # where no GPU tells its own
AT_ONCE = 48  # cases whose kernels are compiled together, before the first of them is measured
WORST = 5
MOST_SECONDS = 30  # to compile a kernel


class Drawn:
    """How the cases of a suite came to be, and for how long they are measured."""

    def __init__(self, seed, within=None):
        self.seed, self.within, self.begin = seed, within, None

    def start(self):
        self.begin = time.monotonic()

    def is_over(self):
        return bool(self.within) and time.monotonic() - self.begin >= self.within


def labels_of(kernel):
    """What a kernel's name says of it beside its extents: ["gemm", "bf16", "NT", "bias", "extents of 64"]."""
    family = FAMILY.match(kernel)
    parts = kernel[family.end():].replace("gelu_tanh", "gelu-tanh").split("_")[1:]
    extents = [int(number) for number in next(part for part in parts if part[0].isdigit()).split("x")]
    words = [re.sub(r"\d+", "", part) for part in parts if not re.fullmatch(r"[\dx]+", part) and part not in TYPES]
    types = [part for part in parts if part in TYPES]
    found = [family[1], *types[:1], *(f"result {name}" for name in types[1:])]
    if family[1] in ("gemm", "product"):
        found.append("".join("T" if which in words else "N" for which in ("ta", "tb")))
        words = [word for word in words if word not in ("ta", "tb")]
        found += ["batches"] if len(extents) == 4 else []
        found += ["+".join(word for word in words if word in ("bias", "gelu", "gelu-tanh", "swiglu")) or "no epilogue"]
        words = [word for word in words if word not in ("bias", "gelu", "gelu-tanh", "swiglu")]
    step = next(step for step in (64, 8, 1) if all(extent % step == 0 for extent in extents[-3:]))
    return [*found, *words, f"extents of {step}" if step > 1 else "other extents"]


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def percentile(values, share):
    """The least value that at least this share of all is not above."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


class Ahead:
    """Has the kernels of the next cases compiled on all processors, and knows which the library refuses."""

    def __init__(self, ours, cases, **details):
        self.ours, self.details, self.refused, self.seconds = ours, details, {}, 0.0
        self.kernels = [kernels_of(case) for case in cases]

    def reach(self, number):
        """Before the case of this number; the reason if it is refused."""
        if number % AT_ONCE == 0:
            names = sorted({name for kernels in self.kernels[number:number + AT_ONCE] for name in kernels})
            answer = self.ours.ask("ahead", kernels=names, most_seconds=MOST_SECONDS, **self.details)
            self.refused.update(answer["refused"])
            self.seconds += answer["seconds"]
        return next((self.refused[name] for name in self.kernels[number] if name in self.refused), None)


def kernels_of(case):
    return [case[key] for key in ("kernel", "then") if key in case]


def by_label(rows, key):
    """Of each label the values of its rows, the most frequent first."""
    found = defaultdict(list)
    for one in rows:
        for label in labels_of(one["case"]):
            found[label].append(one[key])
    return sorted(found.items(), key=lambda item: -len(item[1]))


def summary(rows, seconds=None):
    """Lines of text on the rows of a suite."""
    timed = [one for one in rows if one["ms"] is not None]
    paired = [one for one in timed if one["ratio"]]
    refused = [one for one in rows if one.get("refused")]
    wrong = [one for one in rows if one["correct"] is False]
    failed = [one for one in rows if one.get("failed")]
    pace = f", {seconds:.1f} s, {seconds / len(rows):.2f} s a case" if seconds and rows else ""
    yield (f"{len(rows)} cases: {len(paired)} beside a peer, {len(timed) - len(paired)} without one, {len(refused)} refused, "
           f"{len(failed)} failed, {len(wrong)} WRONG{pace}")
    yield from lines_on("ratio", paired, [one["ratio"] for one in paired], WORST)
    yield from (f"  {len(values):4} {label}: geomean {geomean(values):.3f}, tenth percentile {percentile(values, 0.1):.3f}"
                for label, values in by_label(paired, "ratio"))
    shares = [one for one in timed if one["roof_share"] and one["unit"] == "GB/s"]
    yield from lines_on("share of a copy", shares, [one["roof_share"] for one in shares], WORST)
    tuned = [one for one in timed if one.get("regret")]
    yield from lines_on("tuned / ours", tuned, [1 / one["regret"] for one in tuned], WORST)
    yield from (f"WRONG: {one['case']}" for one in wrong)
    yield from (f"failed: {one['case']}: {one['problem']}" for one in failed)
    reasons = defaultdict(list)
    for one in refused:
        reasons[re.sub(r"\d+", "N", one["refused"])].append(one)
    for same in sorted(reasons.values(), key=len, reverse=True):
        yield f"refused {len(same)} times: {same[0]['refused']} ({', '.join(one['case'] for one in same[:3])})"


def lines_on(what, rows, values, worst):
    if not values:
        return
    yield (f"{what}: geomean {geomean(values):.3f}, tenth percentile {percentile(values, 0.1):.3f}, median "
           f"{percentile(values, 0.5):.3f}, best {max(values):.3f}, of {len(values)}; the worst:")
    for value, one in sorted(zip(values, rows), key=lambda pair: pair[0])[:worst]:
        yield f"  {value:.3f} {one['case']}" + (f" (tuned: {one['tiling']})" if one.get("tiling") else "")


def compile_only(suite, cases, ours, report, lower):
    """Without running any: one row for each refused case, and how many there are."""
    begin = time.monotonic()
    ahead = Ahead(ours, cases, arch=ARCH, lower=lower)
    refused = 0
    for number, case in enumerate(cases):
        reason = ahead.reach(number)
        refused += reason is not None
        report.say(case.get("case", case["kernel"]) + (f" refused: {reason}" if reason else ""))
    report.say(f"{suite}: {len(cases)} kernels, {refused} refused, {'lowered' if lower else 'compiled'} for {ARCH} in "
               f"{time.monotonic() - begin:.1f} s")
    return refused
