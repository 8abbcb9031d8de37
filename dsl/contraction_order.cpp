#include "dsl/contraction_order.h"

#include <algorithm>
#include <optional>
#include <set>

namespace tw {
namespace {

FactorPair pair_of(const LetteredFactors& factors, size_t a, size_t b) {
    FactorPair pair{a, b, {}, 0};
    const std::string both = factors.letters[a] + factors.letters[b];
    std::string wanted = factors.result;
    for (size_t other = 0; other < factors.letters.size(); ++other)
        if (other != a && other != b) wanted += factors.letters[other];
    for (char letter : both)
        if (wanted.find(letter) != std::string::npos && pair.made.find(letter) == std::string::npos)
            pair.made += letter;
    pair.multiplications = factors.iterations(both);
    return pair;
}

LetteredFactors with_product(LetteredFactors factors, const FactorPair& pair) {
    factors.letters[pair.a] = pair.made;
    factors.letters.erase(factors.letters.begin() + static_cast<std::ptrdiff_t>(pair.b));
    return factors;
}

}  // namespace

double LetteredFactors::iterations(const std::string& of) const {
    double all = 1;
    for (char letter : std::set<char>(of.begin(), of.end())) all *= extents.at(letter);
    return all;
}

PairOrder best_order_of_pairs(const LetteredFactors& factors) {
    constexpr size_t few = 6;
    const size_t count = factors.letters.size();
    if (count < 2) return {};
    std::vector<FactorPair> pairs;
    for (size_t a = 0; a < count; ++a)
        for (size_t b = a + 1; b < count; ++b) pairs.push_back(pair_of(factors, a, b));
    if (count > few) pairs = {*std::ranges::min_element(pairs, {}, &FactorPair::multiplications)};
    std::optional<PairOrder> best;
    for (const FactorPair& pair : pairs) {
        PairOrder order = best_order_of_pairs(with_product(factors, pair));
        order.pairs.insert(order.pairs.begin(), pair);
        order.multiplications += pair.multiplications;
        if (!best || order.multiplications < best->multiplications) best = std::move(order);
    }
    return *best;
}

}  // namespace tw
