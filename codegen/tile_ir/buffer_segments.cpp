#include "codegen/tile_ir/buffer_segments.h"

#include <algorithm>

namespace tw::codegen {

int BufferSegments::of(const BufferNode* buffer, const TileOp& op) const {
    auto found = uses_.find(buffer);
    if (found == uses_.end()) return 0;
    const std::vector<Use>& uses = found->second;
    size_t common = common_depth(uses);
    auto segment = [&](const Use& use) { return use.path.size() > common ? use.path[common] : -1; };
    std::map<int, bool> starts_with_write;
    for (const Use& use : uses) starts_with_write.try_emplace(segment(use), use.writes);
    for (const auto& [number, writes] : starts_with_write)
        if (!writes) return 0;  // one fills what another reads
    for (const Use& use : uses)
        if (use.op == &op) return segment(use);
    return 0;
}

void BufferSegments::walk(const TileStmt& stmt) {
    const std::vector<TileStmt> kids = children(stmt);
    for (size_t k = 0; k < kids.size(); ++k) {
        path_.push_back(static_cast<int>(k));
        walk(kids[k]);
        path_.pop_back();
    }
    const TileOp* op = stmt.as<TileOp>();
    if (!op) return;
    for (const Buffer& buffer : loads_of(*op)) uses_[buffer.get()].push_back({op, false, path_});
    for (const StoreTo& store : op->stores) uses_[store.buffer.get()].push_back({op, true, path_});
}

size_t BufferSegments::common_depth(const std::vector<Use>& uses) {
    size_t depth = uses.empty() ? 0 : uses[0].path.size();
    for (const Use& use : uses) {
        auto [end, other] = std::mismatch(use.path.begin(), use.path.end(), uses[0].path.begin(), uses[0].path.end());
        depth = std::min(depth, static_cast<size_t>(end - use.path.begin()));
    }
    return depth;
}

}  // namespace tw::codegen
