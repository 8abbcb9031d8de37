#include "codegen/async/cluster.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::codegen {

BlockGroup::BlockGroup(const TileKernel& kernel, const std::vector<Expr>& along) {
    for (const ClusterCoordinate& coordinate : kernel.cluster_coordinates) {
        bool inside =
            std::ranges::any_of(along, [&](const Expr& variable) { return variable.same(coordinate.variable); });
        (inside ? inside_ : outside_).push_back(coordinate);
        if (inside) blocks_ *= coordinate.extent;
    }
}

Expr BlockGroup::place() const {
    Expr place = integer(0);
    for (const ClusterCoordinate& coordinate : inside_) place = place * coordinate.extent + coordinate.variable;
    return simplify(place);
}

Expr BlockGroup::rank_of(const Expr& place) const {
    Expr rank = first_rank(), rest = place;
    int64_t below = blocks_;
    for (const ClusterCoordinate& coordinate : inside_) {
        below /= coordinate.extent;
        rank = rank + rest / below * coordinate.stride;
        rest = rest % below;
    }
    return simplify(rank);
}

Expr BlockGroup::first_rank() const {
    Expr rank = integer(0);
    for (const ClusterCoordinate& coordinate : outside_) rank = rank + coordinate.variable * coordinate.stride;
    return simplify(rank);
}

int64_t BlockGroup::ranks() const {
    std::vector<int64_t> ranks{0};
    for (const ClusterCoordinate& coordinate : inside_) {
        std::vector<int64_t> shifted;
        for (int d = 0; d < coordinate.extent; ++d)
            for (int64_t rank : ranks) shifted.push_back(rank + d * coordinate.stride);
        ranks = std::move(shifted);
    }
    int64_t bits = 0;
    for (int64_t rank : ranks) bits |= int64_t{1} << rank;
    return bits;
}

}  // namespace tw::codegen
