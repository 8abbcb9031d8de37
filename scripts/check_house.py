#!/usr/bin/env python3
"""Checks how the rooms of the house stand to each other; `check_house.py` in the project's root, status 1 with findings.

Arrows: a room includes only rooms that stand before it in ROOMS, and no two files of codegen/ or the emulator include each other.
Tape: headers of models and optimizers reach none of the tape's.
Names: codegen/ and device/ know no operator by its name.
Lengths: no file outside of tests/ is over 450 lines, no function over 60 that is no table, no line of the vocabulary,
which kernels show, over 120 columns.
"""
import os
import re
import sys

# From below to on top. A folder inside of another one is a room of its own if it is listed.
ROOMS = ["support", "dsl", "device",
         "codegen/access", "codegen/instructions", "codegen/tile_ir", "codegen/mapping", "codegen/tile_passes", "codegen/async",
         "codegen/thread_ir", "codegen/to_threads", "codegen/thread_passes", "codegen/barriers", "codegen/signals",
         "codegen/print", "codegen", "codegen/cost",
         "runtime/emulator/host", "runtime/emulator/memory", "runtime/emulator/threads", "runtime/emulator/units",
         "runtime/emulator", "runtime/compile", "runtime/driver", "schedules", "ops", "ops/step", "bench", "tuning", "include", "tutorials",
         "verify", "tools", "tests"]
NO_PAIRS = ("codegen/", "runtime/emulator/")  # rooms whose files are a ladder: of two, at most one includes the other

MODELS = ("ops/layers.h", "ops/modules/", "ops/optimizer.h", "ops/optimizers/", "ops/overwriting.h", "ops/tensor.h")
TAPE = ("ops/autograd.h", "ops/tape/")

OPERATORS = ["gemm", "matmul", "softmax", "layernorm", "rmsnorm", "attention", "convolution", "conv2d", "gelu", "silu",
             "swiglu", "embedding", "cross_entropy", "adam"]

LONGEST_FILE, LONGEST_FUNCTION, LONGEST_LINE = 450, 60, 120
TABLES = {  # functions that are one list of cases, or a program that is read from top to bottom
    "dsl/evaluate.cpp": ["run_register"], "dsl/rules.cpp": ["table"], "dsl/replayer.h": ["step"],
    "schedules/families.cpp": ["make_families"], "tutorials/": ["main"],
}


def sources():
    folders = sorted({room.split("/")[0] for room in ROOMS})
    return [os.path.join(folder, name) for top in folders for folder, _, names in os.walk(top) for name in names
            if name.endswith((".h", ".cpp", ".cuh", ".cu"))]


def room_of(path):
    folder = os.path.dirname(path)
    while folder and folder not in ROOMS:
        folder = os.path.dirname(folder)
    return folder


def stem(path):
    return path.rsplit(".", 1)[0]


def includes(path):
    with open(path, encoding="utf-8") as file:
        return [name for name in re.findall(r'^#include "([^"]+)"', file.read(), re.M) if os.path.exists(name)]


def check_arrows(files):
    wants = {}
    for path in files:
        room = room_of(path)
        for name in includes(path) if room else []:
            if room_of(name) and ROOMS.index(room_of(name)) > ROOMS.index(room):
                yield f"{path} includes {name}: {room} stands below {room_of(name)}"
            if stem(name) != stem(path) and path.startswith(NO_PAIRS):
                wants.setdefault(stem(path), set()).add(stem(name))
    for one, others in sorted(wants.items()):
        for other in sorted(others):
            if one < other and one in wants.get(other, ()):
                yield f"{one} and {other} include each other"


def check_tape(files):
    for path in files:
        if not path.startswith(MODELS) or not path.endswith(".h"):
            continue
        ways, reached = [[path]], {path}
        for way in ways:
            for name in set(includes(way[-1])) - reached:
                reached.add(name)
                ways.append([*way, name])
                if name.startswith(TAPE):
                    yield " includes ".join(ways[-1]) + ": that is the tape's"


def check_operator_names(files):
    names = re.compile(r"(?<![a-z])(" + "|".join(OPERATORS) + r")(?![a-z])", re.I)
    for path in files:
        if not path.startswith(("codegen/", "device/")):
            continue
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if found := names.search(line):
                    yield f"{path}:{number}: '{found[1]}': operators are none of its business"


def functions(lines):
    """Name and length of each function whose body begins at the end of a line: from there to the brace as far left."""
    begins = re.compile(r"^( *)(?!(?:if|for|while|switch|else|do|return|namespace|struct|class|enum|union)\b)"
                        r"(?:.*[ &*~>:])?([\w~]+)\(.*\{$")
    for at, line in enumerate(lines):
        begin = begins.match(line)
        if begin and not begin[2].endswith("_"):  # no initializer of a constructor
            last = next((n for n in range(at + 1, len(lines)) if lines[n].startswith(begin[1] + "}")), at)
            yield begin[2], at + 1, last - at + 1


def check_lengths(files):
    for path in files:
        if path.startswith("tests/"):
            continue
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        if len(lines) > LONGEST_FILE:
            yield f"{path} has {len(lines)} lines, more than {LONGEST_FILE}"
        for number, line in enumerate(lines if path.endswith(".cuh") else (), 1):
            if len(line) > LONGEST_LINE and not line.startswith("//:"):
                yield f"{path}:{number}: {len(line)} columns, more than {LONGEST_LINE}"
        tables = [name for start, names in TABLES.items() if path.startswith(start) for name in names]
        for name, line, length in functions(lines) if path.endswith((".h", ".cpp")) else ():
            if length > LONGEST_FUNCTION and name not in tables:
                yield f"{path}:{line}: {name} has {length} lines, more than {LONGEST_FUNCTION}"


def main():
    files = sources()
    findings = [*check_arrows(files), *check_tape(files), *check_operator_names(files), *check_lengths(files)]
    print("\n".join(findings) or f"{len(files)} files: no upward arrow, no pair that includes each other, no tape in "
          "headers of models, no operator, nothing too long")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
