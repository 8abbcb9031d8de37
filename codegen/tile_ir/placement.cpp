#include "codegen/tile_ir/placement.h"

#include "codegen/access/access.h"
#include "codegen/access/conditions.h"
#include "dsl/simplify.h"

namespace tw::codegen {

Placement::Placement(const TileKernel& kernel) : data_(kernel), unions_(kernel.unions) {
    for (const SharedBuffer& shared : kernel.shared) {
        BufferNode node = *shared.buffer;
        node.shape = shared.layout.physical_shape();
        if (shared.layout.is_transposed()) node.name += "_transposed";
        node.swizzle = shared.layout.swizzle;
        node.alignment = shared.alignment;
        Place place{std::make_shared<const BufferNode>(node), shared.layout};
        shared_.push_back(place.buffer);
        places_.emplace(shared.buffer.get(), std::move(place));
    }
    for (SharedUnion& shared : unions_)
        for (std::vector<Buffer>& alternative : shared.alternatives)
            for (Buffer& buffer : alternative) buffer = places_.at(buffer.get()).buffer;
}

std::vector<Expr> Placement::lowered(const std::vector<Expr>& indices) const {
    std::vector<Expr> result;
    for (const Expr& index : indices) result.push_back(cast_unchecked(Type::I64, physical(index)));
    return result;
}

Access Placement::physical(const Buffer& buffer, const std::vector<Expr>& indices) const {
    return placed(buffer, lowered(indices));
}

Access Placement::checked(const Buffer& buffer, const std::vector<Expr>& indices) const {
    std::vector<Expr> own = lowered(indices);
    return with_checks(placed(buffer, own), data_.checks(*buffer, own));
}

Expr Placement::physical(const Expr& expr) const {
    return transform(expr, [&](const Expr& node) -> Expr {
        if (const Select* choice = node.as<Select>()) {
            Expr yes = without_implied_checks(choice->yes, conjuncts_of(choice->condition));
            return yes.same(choice->yes) ? Expr() : select_unchecked(choice->condition, yes, choice->no);
        }
        if (const Binary* both = node.as<Binary>(); both && both->op == BinaryOp::And) {
            Expr second = without_implied_checks(both->b, conjuncts_of(both->a));
            return second.same(both->b) ? Expr() : binary(BinaryOp::And, both->a, second);
        }
        const Load* load = node.as<Load>();
        if (!load) return {};
        std::vector<Expr> indices = load->indices;
        for (Expr& index : indices) index = cast_unchecked(Type::I64, index);
        Access access = with_checks(placed(load->buffer, indices), data_.checks(*load->buffer, indices));
        return make_expr(node.type(), Load{access.buffer, access.indices});
    });
}

Access Placement::placed(const Buffer& buffer, const std::vector<Expr>& indices) const {
    if (buffer->memory == Memory::Global) return flat_access(buffer, indices);
    auto place = places_.find(buffer.get());
    if (place == places_.end()) return {buffer, indices};
    return {place->second.buffer, place->second.layout.physical(indices)};
}

}  // namespace tw::codegen
