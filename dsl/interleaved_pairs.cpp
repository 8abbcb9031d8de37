#include "dsl/interleaved_pairs.h"

namespace tw {

Expr interleaved_pairs(const Expr& k) { return k / 16 * 16 + k % 4 / 2 * 8 + k % 16 / 4 * 2 + k % 2; }

}  // namespace tw
