#include "codegen/async/staged_buffers.h"

#include "dsl/simplify.h"

namespace tw::codegen {

TileOp in_stage(const TileOp& op, const StagedBuffers& staged, const std::function<Expr(const Buffer&)>& which) {
    return map_places(op, [&](Access place) {
        auto found = staged.find(place.buffer.get());
        if (found == staged.end()) return place;
        place.buffer = found->second;
        place.indices.insert(place.indices.begin(), which(found->second));
        return place;
    });
}

std::function<Expr(const Buffer&)> always(const Expr& stage) {
    return [=](const Buffer&) { return stage; };
}

Buffer repeated(TileKernel& kernel, const Buffer& buffer, int64_t times) {
    BufferNode node = *buffer;
    node.shape.insert(node.shape.begin(), integer(times));
    Buffer staged = std::make_shared<const BufferNode>(std::move(node));
    for (SharedBuffer& shared : kernel.shared) {
        if (shared.buffer != buffer) continue;
        shared.buffer = staged;
        for (LayoutDigit& digit : shared.layout.digits) ++digit.dimension;
        shared.layout.digits.insert(shared.layout.digits.begin(), {0, 1, times});
    }
    return staged;
}

}  // namespace tw::codegen
