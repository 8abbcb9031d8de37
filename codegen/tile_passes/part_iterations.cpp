#include "codegen/tile_passes/part_iterations.h"

#include "dsl/simplify.h"

namespace tw::codegen {

OfIteration in_terms_of(const Expr& common, const Expr& iteration, const std::vector<Expr>& around,
                        const Expr& condition) {
    Substitution only;
    for (const Expr& variable : around)
        if (bounds_of(variable).max == 0) only.emplace_back(variable, integer(0));
    OfIteration result{simplify(substitute(iteration, only)), true, simplify(substitute(condition, only))};
    const Affine affine = affine_of(result.iteration);
    for (const Expr& variable : around) {
        if (!contains(result.iteration, variable)) continue;
        result.is_single = false;
        auto step = coefficient(affine, variable);
        if (!step || (*step != 1 && *step != -1)) continue;
        const Expr rest = simplify(result.iteration - variable * *step);
        result.condition = simplify(substitute(result.condition, {{variable, simplify((common - rest) * *step)}}));
    }
    return result;
}

Expr where_equal(const Expr& condition, const Expr& one, const Expr& other) {
    for (const auto& [term, factor] : affine_of(one).terms)
        if (term.as<Variable>() && (factor == 1 || factor == -1))
            return simplify(substitute(condition, {{term, simplify(term - (one - other) * factor)}}));
    return condition;
}

}  // namespace tw::codegen
