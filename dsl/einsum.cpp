// einsum(): products and sums over letters.
#include <algorithm>
#include <map>
#include <set>

#include "dsl/check_sizes.h"
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
    Shape shape;
    for (char letter : parsed.result) {
        user_check(extents.count(letter), where, "einsum \"{}\": no operand has the letter '{}' of the result", formula,
                   letter);
        user_check(std::count(parsed.result.begin(), parsed.result.end(), letter) == 1, where,
                   "einsum \"{}\": the result has the letter '{}' more than once; give each dimension a letter of its "
                   "own, and use compute() with a select for a diagonal",
                   formula, letter);
        shape.push_back(extents.at(letter));
    }
    std::vector<Axis> reduced;
    std::map<char, Expr> index;
    for (const auto& [letter, extent] : extents) {
        if (parsed.result.find(letter) != std::string::npos) continue;
        reduced.push_back(reduce_axis(std::string(1, letter), extent, where));
        index[letter] = reduced.back().variable;
    }
    return compute(
        name, shape,
        [&](const std::vector<Expr>& axes) {
            for (size_t d = 0; d < parsed.result.size(); ++d) index[parsed.result[d]] = axes[d];
            Expr product;
            for (size_t o = 0; o < operands.size(); ++o) {
                std::vector<Operand> indices;
                for (char letter : parsed.operands[o]) indices.emplace_back(index.at(letter), where);
                Expr factor = operands[o].read(indices, where);
                if (info(factor.type()).is_storage_only) factor = cast(Type::F32, Operand(factor, where));
                product = product.defined() ? Operand(product, where) * Operand(factor, where) : factor;
            }
            return reduced.empty() ? product : sum(Operand(product, where), reduced);
        },
        where);
}

}  // namespace tw
