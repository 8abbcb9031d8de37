"""A result is a row: printed as a line, and written as a line of JSON."""
import json
import math

KEYS = ("suite", "case", "ms", "rate", "unit", "peer", "peer_ms", "ratio", "roof_share", "correct", "device")


def row(suite, case, device, **values):
    """A row with every key of KEYS, null where nothing is said, and with what else is given."""
    return {**dict.fromkeys(KEYS), "suite": suite, "case": case, "device": device, **values}


def text_of(result):
    if result.get("problem"):
        return f"{result['case']:<34} {result['problem']}"
    if "worst" in result:
        return text_of_errors(result)
    parts = [f"{result['case']:<34} {result['ms']:10.4f} ms {result['rate']:10.4g} {result['unit']:<10}"]
    if result["peer"]:
        parts.append(f"{result['peer']} {result['peer_ms']:.4f} ms, ratio {result['ratio']:.3f}")
    if result.get("tuned_ms"):
        parts.append(f"tuned {result['tuned_ms']:.4f} ms ({result['tiling']}), regret {result['regret']:.3f}")
    if result["roof_share"] is not None:
        parts.append(f"roof {result['roof_share']:.3f}")
    if result.get("clock_mhz"):
        parts.append(f"{result['clock_mhz']:.0f} MHz {result['power_w']:.0f} W")
    if result.get("note"):
        parts.append(result["note"])
    parts.append({True: "correct", False: "WRONG", None: "not checked"}[result["correct"]])
    if result["correct"] is False and "error" in result:
        parts.append(f"error {result['error']:.2g} of the largest element, allowed {result['allowed_error']:.2g}")
    return "  ".join(parts)


def text_of_errors(result):
    """Of a row of the accuracy suite."""
    parts = [f"{result['case']:<60}"]
    for name, errors in (("frobenius", result["frobenius"]), ("worst", result["worst"])):
        over = "" if errors["ours"] <= errors["allowed"] else " OVER THE BAR"
        parts.append(f"{name} {errors['ours']:.3e}, {result['peer']} {errors['peer']:.3e}, "
                     f"ratio {errors['ratio']:.3f}{over}")
    parts.append(f"bar {result['bar']}")
    parts.append("correct" if result["correct"] else "WRONG")
    return "  ".join(parts)


def finite(value):
    """JSON has no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Report:
    """Prints each row when it is there; keeps all."""

    def __init__(self, json_path=None):
        self.rows = []
        self.file = open(json_path, "w") if json_path else None

    def add(self, result):
        self.rows.append(result)
        print(text_of(result), flush=True)
        if self.file:
            self.file.write(json.dumps({key: finite(value) for key, value in result.items()}) + "\n")
            self.file.flush()

    def say(self, text):
        print(text, flush=True)

    def say_geomean(self, suite):
        for key in ("ratio", "roof_share"):
            values = [r[key] for r in self.rows if r["suite"] == suite and r[key]]
            if values:
                mean = math.exp(sum(map(math.log, values)) / len(values))
                self.say(f"{suite}: {key} geomean {mean:.3f}, least {min(values):.3f}, of {len(values)} cases")

    def failed(self):
        return any(r["correct"] is False or r.get("failed") for r in self.rows)
