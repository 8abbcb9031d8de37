// Sums of products of several factors, multiplied in pairs: in which order that takes the fewest multiplications.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace tw {

/// Factors by the letters of their axes, as in einsum(); a sum runs over those that the result lacks.
struct LetteredFactors {
    std::vector<std::string> letters;  ///< of each
    std::string result;
    std::map<char, double> extents;  ///< of each letter

    /// Iterations over all of these letters.
    double iterations(const std::string& letters) const;
};

/// Two of the factors that are left, by their places, and their product's letters: those that others or the result
/// have, in their order. It takes the place of `a`; `b` is left out.
struct FactorPair {
    size_t a, b;
    std::string made;
    double multiplications;
};

/// Pairs to multiply one after another, each of what the ones before left.
struct PairOrder {
    std::vector<FactorPair> pairs = {};
    double multiplications = 0;
};

/// Of all orders the one of the fewest multiplications; of more than six factors the cheapest pair first, until few are
/// left.
PairOrder best_order_of_pairs(const LetteredFactors& factors);

}  // namespace tw
