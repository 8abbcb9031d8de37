// Which ops of a buffer belong together.
#pragma once
#include <map>
#include <vector>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// Segments of a loop that was cut each fill a buffer anew before they read it.
class BufferSegments {
public:
    explicit BufferSegments(const TileStmt& body) { walk(body); }

    /// The number of the op's segment among those that use the buffer, the same for all of a segment.
    int of(const BufferNode* buffer, const TileOp& op) const;

private:
    struct Use {
        const TileOp* op;
        bool writes;
        std::vector<int> path;  // the statement's place in each one around it, outermost first
    };

    void walk(const TileStmt& stmt);
    static size_t common_depth(const std::vector<Use>& uses);

    std::map<const BufferNode*, std::vector<Use>> uses_;
    std::vector<int> path_;
};

}  // namespace tw::codegen
