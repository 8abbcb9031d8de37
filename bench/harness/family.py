"""What PyTorch computes for a family of kernels: the formula, and the ways to have it."""
from dataclasses import dataclass, field
from typing import Callable, Optional


@dataclass
class Family:
    formula: Callable  # (tensors, scalars) -> a tensor or a tuple of them
    eager: Optional[Callable] = None  # another eager peer: (tensors, scalars) -> a call without arguments
    ways: dict = field(default_factory=dict)  # eager peers by name instead: tensors -> results
    candidates: Optional[Callable] = None  # (tensors, results) -> more ways, of which the fastest takes part
    compiled: bool = True
    compiled_formula: Optional[Callable] = None  # what is compiled, if not `formula`
    prepare: Callable = lambda t: t  # tensors -> tensors, before any time is taken
    terms: str = ""  # the input whose elements are summed, along `along`
    along: int = -1
    of_one_sign: bool = False  # all terms of those sums
    unit_terms: int = 0  # of those sums, so many at a time by a tensor core
    yardstick: Optional[Callable] = None  # tensors in their own types -> results that err as ours may
    allowed: float = 1.0  # times the error of the yardstick
    yardstick_of_all: bool = False  # results of float32 may have the yardstick's error, too
    memory_beside: tuple = ()  # operands; a case's note tells the peak of each side's memory beside them
