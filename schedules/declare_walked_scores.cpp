// What scores are in the kernels of gradients whose tiles go through what tables name.
#include <cmath>

#include "schedules/walked_gradients.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

const double to_base_2 = std::log2(std::exp(1.0));

Expr element_of(const Tensor& tensor, const ScoresAt::Indices& at) {
    return tensor.read(std::vector<Operand>(at.begin(), at.end()));
}

}  // namespace

WalkedScores declare_walked_scores(int64_t depth, const AttentionRules& rules, const ScoresAt& at) {
    using Indices = ScoresAt::Indices;
    const double to_score = 1 / std::sqrt(as_double(depth)), scale = rules.score ? to_base_2 : to_base_2 * to_score;
    WalkedScores of;
    of.s = compute("s" + at.suffix, at.extents,
                   [&](const Indices& e) { return rules.score ? at.score(e) * to_score : at.score(e); });
    auto changed = [&](const Indices& e) {
        const Expr score = element_of(of.s, e);
        return rules.score ? changed_by(rules.score, score, at.place(e)) : score;
    };
    auto by_views = [&](const Expr& value, const Indices& e) { return at.by_views ? at.by_views(value, e) : value; };
    of.p = compute("p" + at.suffix, at.extents, [&](const Indices& e) {
        return select(at.is_seen(e), exp2(exponent_of(by_views(changed(e), e), scale, at.row_numbers(e))), 0.0);
    });
    of.w = of.p;
    if (rules.weights)
        of.w = compute("w" + at.suffix, at.extents, [&](const Indices& e) {
            // What is not seen has no place at which a rule might read.
            return select(at.is_seen(e), by_views(weighed_by(rules.weights, element_of(of.p, e), at.place(e)), e), 0.0);
        });
    of.dp = compute("dp" + at.suffix, at.extents, [&](const Indices& e) { return at.of_values(e); });
    of.ds = compute("ds" + at.suffix, at.extents, [&](const Indices& e) {
        const Expr p = element_of(of.p, e);
        Expr of_weight = element_of(of.dp, e);
        if (rules.weights) of_weight = adjoint_of_argument(weighed_by(rules.weights, p, at.place(e)), of_weight, of.p);
        const Expr adjoint = p * (of_weight - at.delta(e));
        const Expr of_score = rules.score ? adjoint_of_argument(changed(e), adjoint, of.s) : adjoint;
        // What is not seen weighs 0: a slope of 1 needs no place, unless the weights' rule does.
        return equal(of_score, adjoint) && !rules.weights ? by_views(adjoint, e)
                                                          : select(at.is_seen(e), by_views(of_score, e), 0.0);
    });
    return of;
}

}  // namespace tw::schedules
