#include "codegen/access/access.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/access/conditions.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr size_t numbers_of_check = 3;  // index, extent, dimension

Expr at_least_zero(const IndexCheck& check) { return simplify(check.index >= 0); }
Expr below_extent(const IndexCheck& check) { return simplify(check.index < check.extent); }

/// The comparison of integers as one of indices: the same of i64.
Expr as_index(const Expr& condition) {
    const Binary* node = condition.as<Binary>();
    bool orders = node && (node->op == BinaryOp::Less || node->op == BinaryOp::LessEqual);
    if (!orders || node->a.type() != Type::I32) return condition;
    return simplify(binary(node->op, cast_unchecked(Type::I64, node->a), cast_unchecked(Type::I64, node->b)));
}

/// The bounds of variables where the conditions hold: i + 2 < n bounds i.
BoundsOverride bounds_under(const std::vector<Expr>& conditions) {
    BoundsOverride bounds;
    for (const Expr& condition : conditions) {
        const Binary* node = condition.as<Binary>();
        if (!node || !is_integer(node->a.type()) || (node->op != BinaryOp::Less && node->op != BinaryOp::LessEqual))
            continue;
        Affine smaller = affine_of(node->a), larger = affine_of(node->b);
        if (smaller.terms.size() != 1 || smaller.terms[0].second != 1) continue;
        const Expr& variable = smaller.terms[0].first;
        auto most = bounds_of(to_expr(larger)).max;
        if (!variable.as<Variable>() || !most) continue;
        Interval& own = bounds.try_emplace(variable.id(), bounds_of(variable)).first->second;
        int64_t last = *most - smaller.offset - (node->op == BinaryOp::Less ? 1 : 0);
        own.max = own.max ? std::min(*own.max, last) : last;
    }
    return bounds;
}

bool implied(const Expr& condition, const std::vector<Expr>& conditions) {
    if (prove(condition) == true) return true;
    auto says_so = [&](const Expr& known) { return same_condition(as_index(known), condition); };
    if (std::any_of(conditions.begin(), conditions.end(), says_so)) return true;
    return bounds_of(condition, bounds_under(conditions)).min == 1;
}

}  // namespace

size_t rank_of(const BufferNode& buffer) { return buffer.memory == Memory::Global ? 1 : buffer.shape.size(); }

Access place_of(const Access& access) {
    auto first = access.indices.begin();
    size_t rank = rank_of(*access.buffer), count = access.indices.size();
    if (count <= rank || (count - rank) % numbers_of_check != 0) return access;
    return {access.buffer, std::vector<Expr>(first, first + static_cast<std::ptrdiff_t>(rank))};
}

std::vector<IndexCheck> checks_of(const Access& access) {
    std::vector<IndexCheck> checks;
    for (size_t n = rank_of(*access.buffer); n + numbers_of_check <= access.indices.size(); n += numbers_of_check)
        checks.push_back(
            {access.indices[n], access.indices[n + 1], static_cast<int>(require_constant(access.indices[n + 2]))});
    return checks;
}

Access with_checks(Access place, const std::vector<IndexCheck>& checks) {
    for (const IndexCheck& check : checks)
        for (const Expr& number : {check.index, check.extent, constant(Type::I64, check.dimension)})
            place.indices.push_back(number);
    return place;
}

Access without_implied_checks(const Access& access, const std::vector<Expr>& conditions) {
    std::vector<IndexCheck> checks = checks_of(access), kept;
    for (const IndexCheck& check : checks)
        if (!implied(at_least_zero(check), conditions) || !implied(below_extent(check), conditions))
            kept.push_back(check);
    return kept.size() == checks.size() ? access : with_checks(place_of(access), kept);
}

Expr without_implied_checks(const Expr& expr, const std::vector<Expr>& conditions) {
    if (conditions.empty()) return expr;
    return transform(expr, [&](const Expr& node) -> Expr {
        const Load* load = node.as<Load>();
        if (!load || load->indices.size() == rank_of(*load->buffer)) return {};
        Access access = without_implied_checks(Access{load->buffer, load->indices}, conditions);
        const bool is_as_before = access.indices.size() == load->indices.size();
        if (is_as_before) return {};  // the node itself: what shares it shares it still
        return make_expr(node.type(), Load{access.buffer, access.indices});
    });
}

Buffer register_array(const std::string& name, Type type, const std::vector<int64_t>& shape) {
    BufferNode node{.name = name, .type = type, .memory = Memory::Registers, .shape = {}, .strides = {}};
    for (int64_t extent : shape) node.shape.push_back(integer(extent));
    return std::make_shared<const BufferNode>(std::move(node));
}

std::string to_string(const Access& access) {
    std::string text = access.buffer->name;
    for (const Expr& index : access.indices) text += fmt::format("[{}]", tw::to_string(index));
    return text;
}

Access at_start(const Access& access, const Expr& variable) {
    Access result = access;
    for (Expr& index : result.indices) index = simplify(substitute(index, {{variable, integer(0)}}));
    return result;
}

}  // namespace tw::codegen
