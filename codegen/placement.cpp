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
    for (const Expr& index : indices) lowered.push_back(physical(index));
    return placed(buffer, lowered);
}

Expr Placement::physical(const Expr& expr) const {
    return transform(expr, [&](const Expr& node) -> Expr {
        const Load* load = node.as<Load>();
        if (!load) return {};
        Access access = placed(load->buffer, load->indices);
        return make_expr(node.type(), Load{access.buffer, access.indices});
    });
}

Access Placement::placed(const Buffer& buffer, std::vector<Expr> indices) const {
    for (Expr& index : indices) index = cast_unchecked(Type::I64, index);
    if (buffer->memory == Memory::Global) return flat_access(buffer, indices);
    auto place = places_.find(buffer.get());
    if (place == places_.end()) return {buffer, indices};
    return {place->second.buffer, place->second.layout.physical(indices)};
}

}  // namespace tw::codegen
