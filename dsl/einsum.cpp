// einsum(): products and sums over letters.
#include <algorithm>
#include <map>

#include "dsl/check_sizes.h"
#include "dsl/contraction_order.h"
#include "dsl/simplify.h"
#include "dsl/tensor.h"
#include "support/error.h"

namespace tw {
namespace {

struct Formula {
    std::vector<std::string> operands;
    std::string result;
};

Formula parse_formula(const std::string& formula, std::source_location where) {
    size_t arrow = formula.find("->");
    user_check(arrow != std::string::npos, where, "einsum \"{}\": needs an arrow, as in \"ik,kj->ij\"", formula);
    Formula parsed{{}, formula.substr(arrow + 2)};
    std::string left = formula.substr(0, arrow), part;
    for (char c : left + ",") {
        if (c != ',')
            part += c;
        else
            parsed.operands.push_back(std::exchange(part, ""));
    }
    return parsed;
}

struct Contraction {
    std::vector<std::string> letters;  ///< of each operand
    std::vector<Tensor> operands;
    std::string result;
    std::map<char, Expr> extents;
    std::source_location where;
};

/// As one sum over all letters that the result lacks.
Tensor in_one_sum(const std::string& name, const Contraction& c, bool rounds) {
    std::vector<Axis> reduced;
    std::map<char, Expr> index;
    for (const auto& [letter, extent] : c.extents) {
        const bool is_read = std::ranges::any_of(
            c.letters, [&](const std::string& own) { return own.find(letter) != std::string::npos; });
        if (!is_read || c.result.find(letter) != std::string::npos) continue;
        reduced.push_back(reduce_axis(std::string(1, letter), extent, c.where));
        index[letter] = reduced.back().variable;
    }
    Shape shape;
    for (char letter : c.result) shape.push_back(c.extents.at(letter));
    return compute(
        name, shape,
        [&](const std::vector<Expr>& axes) {
            for (size_t d = 0; d < c.result.size(); ++d) index[c.result[d]] = axes[d];
            Expr product;
            for (size_t o = 0; o < c.operands.size(); ++o) {
                std::vector<Operand> indices;
                for (char letter : c.letters[o]) indices.emplace_back(index.at(letter), c.where);
                Expr factor = c.operands[o].read(indices, c.where);
                if (info(factor.type()).is_storage_only) factor = cast(Type::F32, Operand(factor, c.where));
                product = product.defined() ? Operand(product, c.where) * Operand(factor, c.where) : factor;
            }
            const Expr made = reduced.empty() ? product : sum(Operand(product, c.where), reduced);
            return rounds ? cast(c.operands[0].type(), Operand(made, c.where)) : made;
        },
        c.where);
}

/// A named size is taken for a long one.
LetteredFactors factors_of(const Contraction& c) {
    constexpr double unknown_extent = 4096;
    LetteredFactors factors{c.letters, c.result, {}};
    for (const auto& [letter, extent] : c.extents)
        factors.extents[letter] = static_cast<double>(as_constant(extent).value_or(int64_t(unknown_extent)));
    return factors;
}

/// What a pair makes is rounded as its factors are; sums of other types stay as they are.
bool rounds_pairs(const std::vector<Tensor>& operands) {
    return std::ranges::all_of(operands, [&](const Tensor& t) {
        return t.type() == operands[0].type() && (t.type() == Type::BF16 || t.type() == Type::F16);
    });
}

Tensor in_pairs(const std::string& name, const Contraction& whole) {
    std::string all;
    for (const auto& [letter, extent] : whole.extents) all += letter;
    const LetteredFactors factors = factors_of(whole);
    const double at_once = factors.iterations(all) * static_cast<double>(whole.operands.size() - 1);
    const PairOrder order = best_order_of_pairs(factors);
    if (whole.operands.size() < 3 || order.multiplications * 2 > at_once) return in_one_sum(name, whole, false);
    Contraction left = whole;
    const bool rounds = rounds_pairs(whole.operands);
    for (const FactorPair& pair : order.pairs) {
        const bool is_last = left.operands.size() == 2;
        Contraction two = left;
        two.letters = {left.letters[pair.a], left.letters[pair.b]};
        two.operands = {left.operands[pair.a], left.operands[pair.b]};
        two.result = is_last ? whole.result : pair.made;
        const Tensor product = in_one_sum(is_last ? name : name + "_" + two.result, two, rounds && !is_last);
        left.letters[pair.a] = pair.made;
        left.letters.erase(left.letters.begin() + static_cast<std::ptrdiff_t>(pair.b));
        left.operands[pair.a] = product;
        left.operands.erase(left.operands.begin() + static_cast<std::ptrdiff_t>(pair.b));
    }
    return left.operands[0];
}

}  // namespace

Tensor einsum(const std::string& name, const std::string& formula, const std::vector<Tensor>& operands,
              std::source_location where) {
    Formula parsed = parse_formula(formula, where);
    user_check(parsed.operands.size() == operands.size(), where, "einsum \"{}\": {} operands in the formula, {} given",
               formula, parsed.operands.size(), operands.size());
    std::map<char, Expr> extents;
    for (const Tensor& operand : operands)
        user_check(operand.defined(), where, "einsum \"{}\": an operand is an undefined tensor", formula);
    for (size_t o = 0; o < operands.size(); ++o) {
        const std::string& letters = parsed.operands[o];
        user_check(static_cast<int>(letters.size()) == operands[o].rank(), where,
                   "einsum \"{}\": '{}' names {} dimensions, but '{}' is {}", formula, letters, letters.size(),
                   operands[o].name(), shape_text(operands[o].shape()));
        for (size_t d = 0; d < letters.size(); ++d) {
            auto [entry, fresh] = extents.emplace(letters[d], operands[o].shape()[d]);
            user_check(fresh || equal(entry->second, operands[o].shape()[d]), where,
                       "einsum \"{}\": '{}' is {} elsewhere, but {} in '{}' {}", formula, letters[d],
                       to_string(entry->second), to_string(operands[o].shape()[d]), operands[o].name(),
                       shape_text(operands[o].shape()));
        }
    }
    for (char letter : parsed.result) {
        user_check(extents.count(letter), where, "einsum \"{}\": no operand has the letter '{}' of the result", formula,
                   letter);
        user_check(std::count(parsed.result.begin(), parsed.result.end(), letter) == 1, where,
                   "einsum \"{}\": the result has the letter '{}' more than once; give each dimension a letter of its "
                   "own, and use compute() with a select for a diagonal",
                   formula, letter);
    }
    const Contraction whole{parsed.operands, operands, parsed.result, extents, where};
    return in_pairs(name, whole);
}

}  // namespace tw
