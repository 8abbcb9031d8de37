#include "schedules/factors_in_pairs.h"

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/contraction_order.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/joined_axes.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// What is multiplied, from left to right.
void add_factors(const Expr& term, std::vector<Expr>& factors) {
    const Binary* times = term.as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return factors.push_back(term);
    add_factors(times->a, factors);
    add_factors(times->b, factors);
}

/// A sum of factors, each with a letter for every axis that it depends on.
struct Contraction {
    std::vector<Expr> axes;  ///< by letters, 'a' first: those of the result, then those of the sum
    std::vector<Expr> factors;
    LetteredFactors letters;

    const Expr& axis_of(char letter) const { return axes[static_cast<size_t>(letter - 'a')]; }
    std::vector<Expr> axes_of(const std::string& own) const {
        std::vector<Expr> found;
        for (char letter : own) found.push_back(axis_of(letter));
        return found;
    }
    /// The axes that a product of these letters sums over.
    std::vector<Expr> summed(const std::string& both, const std::string& made) const {
        std::vector<Expr> found;
        for (size_t k = 0; k < axes.size(); ++k) {
            const char letter = static_cast<char>('a' + k);
            if (both.find(letter) != std::string::npos && made.find(letter) == std::string::npos)
                found.push_back(axes[k]);
        }
        return found;
    }
};

std::optional<Contraction> contraction_in(const Tensor& tensor) {
    constexpr size_t most_letters = 26, least_factors = 3;
    const Reduce* sum = only_reduction(body_of(tensor));
    if (!sum || sum->axes.size() < 2 || sum->values.size() != 1 || sum->values[0].type() != f32) return {};
    if (atomic_operation(*sum->reducer) != BinaryOp::Add) return {};
    Contraction found;
    add_factors(sum->values[0], found.factors);
    found.axes = tensor.operation()->axes;
    found.axes.insert(found.axes.end(), sum->axes.begin(), sum->axes.end());
    if (found.factors.size() < least_factors || found.axes.size() > most_letters) return {};
    for (size_t k = 0; k < found.axes.size(); ++k) {
        const int64_t extent = extent_of(found.axes[k]);
        const char letter = static_cast<char>('a' + k);
        if (extent == 0) return {};
        found.letters.extents[letter] = static_cast<double>(extent);
        if (k < tensor.operation()->axes.size()) found.letters.result += letter;
    }
    for (const Expr& factor : found.factors) {
        std::string own;
        for (size_t k = 0; k < found.axes.size(); ++k)
            if (contains(factor, found.axes[k])) own += static_cast<char>('a' + k);
        found.letters.letters.push_back(own);
    }
    return found;
}

Expr sum_over(const Expr& term, const std::vector<Expr>& axes) {
    if (axes.empty()) return term;
    std::vector<Axis> own;
    Substitution renamed;
    for (const Expr& axis : axes) {
        own.push_back(reduce_axis(to_string(axis), extent_of(axis)));
        renamed.emplace_back(axis, own.back().variable);
    }
    return sum(substitute(term, renamed), own);
}

/// All at once, for each term.
double multiplications_at_once(const Contraction& c) {
    std::string all = c.letters.result;
    for (const std::string& own : c.letters.letters) all += own;
    return c.letters.iterations(all) * static_cast<double>(c.factors.size() - 1);
}

/// Whether two factors make a product of large matrices: each has axes of its own, and both have those of its sum.
bool makes_matrices(const Contraction& c, const FactorPair& pair) {
    constexpr double least_side = 64;
    const std::string &a = c.letters.letters[pair.a], &b = c.letters.letters[pair.b];
    std::string rows, columns, terms;
    for (char letter : a + b) {
        const bool of_a = a.find(letter) != std::string::npos, of_b = b.find(letter) != std::string::npos;
        const bool is_made = pair.made.find(letter) != std::string::npos;
        if (!(of_a && of_b)) (of_a ? rows : columns) += letter;
        if (of_a && of_b && !is_made) terms += letter;
    }
    return std::min({c.letters.iterations(rows), c.letters.iterations(columns), c.letters.iterations(terms)}) >=
           least_side;
}

/// The tensor by products of two, one after another; `parts` are the names of those in front.
Tensor in_pairs(const Tensor& tensor, Contraction left, const PairOrder& order, FreeNames& names,
                std::vector<std::string>& parts) {
    std::vector<std::string>& letters = left.letters.letters;
    for (const auto& pair : order.pairs) {
        const bool is_last = left.factors.size() == 2;
        const std::string made = is_last ? left.letters.result : pair.made;
        const Expr own =
            sum_over(left.factors[pair.a] * left.factors[pair.b], left.summed(letters[pair.a] + letters[pair.b], made));
        if (is_last) return declared_as(tensor, with_reduction(body_of(tensor), own));
        const std::vector<Expr> axes = left.axes_of(made);
        Shape shape;
        for (const Expr& axis : axes) shape.emplace_back(extent_of(axis));
        const Tensor part = compute(
            names.take(tensor.name() + "_part"), shape,
            [&](const std::vector<Expr>& at) { return over(axes, own, at); }, tensor.operation()->where);
        parts.push_back("'" + part.name() + "'");
        left.factors[pair.a] = part.read({axes.begin(), axes.end()});
        letters[pair.a] = made;
        left.factors.erase(left.factors.begin() + static_cast<std::ptrdiff_t>(pair.b));
        letters.erase(letters.begin() + static_cast<std::ptrdiff_t>(pair.b));
    }
    return {};
}

}  // namespace

Redeclared factors_in_pairs(const std::vector<Tensor>& outputs) {
    constexpr double least_gain = 2, least_of_matrices = 1.5;  // which tiles read from faster memory
    Redeclared result;
    Replacement whole;
    FreeNames names(outputs);
    for (const auto& operation : operations_of(outputs)) {
        if (operation->is_input() || operation->outputs.size() != 1) continue;
        const Tensor given(operation, 0), tensor = whole.of(given);
        const auto contraction = contraction_in(tensor);
        if (!contraction) continue;
        const PairOrder order = best_order_of_pairs(contraction->letters);
        const double gain = multiplications_at_once(*contraction) / order.multiplications;
        if (gain < (makes_matrices(*contraction, order.pairs[0]) ? least_of_matrices : least_gain)) continue;
        std::vector<std::string> parts;
        whole.put(given, in_pairs(tensor, *contraction, order, names, parts));
        result.notes.push_back(
            fmt::format("the factors of '{}' are multiplied in pairs, with {} in front: floats may differ by rounding",
                        tensor.name(), fmt::join(parts, ", ")));
    }
    for (const Tensor& output : outputs) result.outputs.push_back(whole.of(output));
    return result;
}

}  // namespace tw::schedules
