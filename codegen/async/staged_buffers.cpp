#include "codegen/async/staged_buffers.h"

#include <set>

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

void separate_turns(TileKernel& kernel) {
    std::set<const BufferNode*> common;
    for (const BarrierArray& array : kernel.barriers) common.insert(array.buffer.get());
    visit_ops(kernel.body, [&](const TileOp& op) {
        if (op.role == 0) return;
        visit_places(op, [&](const Buffer& buffer) { common.insert(buffer.get()); });
    });
    StagedBuffers staged;
    for (size_t b = 0; b < kernel.shared.size(); ++b) {
        Buffer buffer = kernel.shared[b].buffer;
        if (!common.count(buffer.get())) staged[buffer.get()] = repeated(kernel, buffer, turns_of(kernel));
    }
    kernel.body = map_ops(kernel.body, [&](const TileOp& op) { return in_stage(op, staged, always(kernel.turn)); });
}

}  // namespace tw::codegen
