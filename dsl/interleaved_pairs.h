// The order in which products of elements of 1 byte take terms that sums of another product have left in registers.
#pragma once
#include "dsl/expr.h"

namespace tw {

/// A permutation of each 16 neighbours, pairs of their two halves in turn: 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15. A
/// lane has pairs of columns of sums, and an instruction takes four neighbouring terms of 1 byte from it (see Atom):
/// these are the pairs 2 t and 2 t + 8 of columns, at places 4 t to 4 t + 3. So a sum over k of p(i,
/// interleaved_pairs(k)) * v(interleaved_pairs(k), e), which is that of p(i, k) * v(k, e) in another order, has its
/// rows p from registers. k: an integer, not negative.
Expr interleaved_pairs(const Expr& k);

}  // namespace tw
