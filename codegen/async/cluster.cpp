#include "codegen/async/cluster.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::codegen {

BlockGroup::BlockGroup(const TileKernel& kernel, const std::vector<Expr>& along) {
    for (const ClusterDigit& digit : kernel.cluster_digits) {
        bool inside = std::ranges::any_of(along, [&](const Expr& variable) { return variable.same(digit.variable); });
        (inside ? inside_ : outside_).push_back(digit);
        if (inside) blocks_ *= digit.extent;
    }
}

Expr BlockGroup::place() const {
    Expr place = integer(0);
    for (const ClusterDigit& digit : inside_) place = place * digit.extent + digit.variable;
    return simplify(place);
}

Expr BlockGroup::rank_of(const Expr& place) const {
    Expr rank = first_rank(), rest = place;
    int64_t below = blocks_;
    for (const ClusterDigit& digit : inside_) {
        below /= digit.extent;
        rank = rank + rest / below * digit.stride;
        rest = rest % below;
    }
    return simplify(rank);
}

Expr BlockGroup::first_rank() const {
    Expr rank = integer(0);
    for (const ClusterDigit& digit : outside_) rank = rank + digit.variable * digit.stride;
    return simplify(rank);
}

int64_t BlockGroup::ranks() const {
    std::vector<int64_t> ranks{0};
    for (const ClusterDigit& digit : inside_) {
        std::vector<int64_t> shifted;
        for (int d = 0; d < digit.extent; ++d)
            for (int64_t rank : ranks) shifted.push_back(rank + d * digit.stride);
        ranks = std::move(shifted);
    }
    int64_t bits = 0;
    for (int64_t rank : ranks) bits |= int64_t{1} << rank;
    return bits;
}

}  // namespace tw::codegen
