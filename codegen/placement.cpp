#include "codegen/placement.h"

#include "dsl/simplify.h"

namespace tw::codegen {

Placement::Placement(const TileKernel& kernel) {
    for (const SharedBuffer& shared : kernel.shared) {
        BufferNode node = *shared.buffer;
        node.shape = shared.layout.physical_shape();
        node.swizzle = shared.layout.swizzle;
        node.alignment = shared.alignment;
        Place place{std::make_shared<const BufferNode>(node), shared.layout};
        shared_.push_back(place.buffer);
        places_.emplace(shared.buffer.get(), std::move(place));
    }
}

Access Placement::physical(const Buffer& buffer, const std::vector<Expr>& indices) const {
    std::vector<Expr> lowered;
    for (const Expr& index : indices) lowered.push_back(cast_unchecked(Type::I64, physical(index)));
    if (buffer->memory == Memory::Global) return flat_access(buffer, lowered);
    auto place = places_.find(buffer.get());
    if (place == places_.end()) return {buffer, lowered};
    return {place->second.buffer, place->second.layout.physical(lowered)};
}

Expr Placement::physical(const Expr& expr) const {
    if (const Load* load = expr.as<Load>()) {
        Access access = physical(load->buffer, load->indices);
        return make_expr(expr.type(), Load{access.buffer, access.indices});
    }
    std::vector<Expr> kids = children(expr);
    for (Expr& kid : kids) kid = physical(kid);
    return with_children(expr, kids);
}

}  // namespace tw::codegen
