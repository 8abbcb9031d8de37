// Ratios: by what a reduction is corrected when a value that its terms depend on changes.
//
// While sum(exp(x(j) - r)) runs, r may become r': the sum so far is multiplied by exp(r - r') then, and goes on with
// r'. That holds for every reduction over which the correction distributes, whatever values r takes on its way; only
// their size is bounded by how r is chosen (online softmax: Milakov and Gimelshein 2018; Dao et al. 2022).
#pragma once
#include <string>
#include <vector>

#include "dsl/expr.h"

namespace tw {

/// What changes while a reduction runs.
struct Changing {
    Substitution later;         ///< Variables that stand for the values before, and the values now
    std::vector<Expr> differs;  ///< Variables that differ from term to term: the axes of the reduction
};

/// How an accumulator changes along.
struct Correction {
    enum class Kind { None, Scale, Shift } kind = Kind::None;
    Expr by = {};  ///< the factor, or what is added, of `before` and `now`
};

/// A function of one value alone, whose quotient or difference, later and before, is a correction. Where it is not
/// finite or, of a quotient, 0, there is none: another value has to stand for that one meanwhile.
struct Invertible {
    Expr value;
    bool is_factor = false;
};

/// What the rules say of a reduction.
struct Law {
    std::vector<Correction> corrections;  ///< one an accumulator; none if there is no law
    std::vector<Invertible> inverted;  ///< of values before, each of one of them; not those that are the value itself
    bool rounds = false;               ///< holds up to a cast to a narrower float
    std::string reason;                ///< why there is none: "'x * x' ..."
};

/// Looks for corrections with which update(accumulators corrected, values now) is update(accumulators, values before),
/// corrected, and combined(left corrected, right corrected) is combined(left, right), corrected. `update` is one
/// expression an accumulator, of `accumulators` and the values before.
Law law_of(const std::vector<Expr>& update, const std::vector<Expr>& accumulators, const ReducerNode& reducer,
           const Changing& changing);

}  // namespace tw
