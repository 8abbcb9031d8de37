#include "codegen/instructions/operands.h"

#include "support/overloaded.h"

namespace tw::codegen {

const Access* operand_place(const Operand& operand) {
    return std::visit(Overloaded{[](const Expr&) -> const Access* { return nullptr; },
                                 [](const MapOperand&) -> const Access* { return nullptr; },
                                 [](const auto& other) { return &other.place; }},
                      operand);
}

void visit_exprs(const Operand& operand, const std::function<void(const Expr&)>& see) {
    if (auto number = std::get_if<Expr>(&operand)) see(*number);
    if (auto matrix = std::get_if<MatrixOperand>(&operand); matrix && matrix->further.defined()) see(matrix->further);
    if (const Access* place = operand_place(operand))
        for (const Expr& index : place->indices) see(index);
}

Operand map_exprs(Operand operand, const std::function<Expr(const Expr&)>& rule) {
    if (auto number = std::get_if<Expr>(&operand)) return rule(*number);
    if (auto matrix = std::get_if<MatrixOperand>(&operand); matrix && matrix->further.defined())
        matrix->further = rule(matrix->further);
    return map_place(std::move(operand), [&](const Access& place) {
        Access result{place.buffer, {}};
        for (const Expr& index : place.indices) result.indices.push_back(rule(index));
        return result;
    });
}

Operand map_place(Operand operand, const std::function<Access(const Access&)>& rule) {
    std::visit(Overloaded{[](Expr&) {}, [](MapOperand&) {}, [&](auto& other) { other.place = rule(other.place); }},
               operand);
    return operand;
}

}  // namespace tw::codegen
