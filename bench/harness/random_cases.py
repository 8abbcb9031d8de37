"""Cases that no suite has: shapes such as users have, drawn from a seed."""
import random

MOST_ELEMENTS = 1 << 27  # of one operand
MOST_SCORES = 1 << 36


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


MAKERS = {"attention": attention_case, "attention-backward": attention_case}


def random_cases(suite, count, seed):
    draw = random.Random(f"{suite} {seed}")
    return [MAKERS[suite](draw) for _ in range(count)]
