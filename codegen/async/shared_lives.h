// When each array of a block's shared memory holds what is still needed.
#pragma once
#include <map>
#include <set>
#include <vector>

#include "codegen/tile_ir/tile_ir.h"

namespace tw::codegen {

/// From its first access to its last one, by the numbers of ops in program order. Over all of a loop, unless each
/// iteration has values of its own.
struct SharedLife {
    int first = 0, last = -1;
    bool by_others = false;                ///< boxes or other roles fill it, at times that only its barriers tell
    bool as_matrix = false;                ///< warpgroups' products read it until they are waited for
    std::set<const ExprNode*> renewed_in;  ///< variables of loops around in each of whose iterations it begins anew
};

class SharedLives {
public:
    explicit SharedLives(const TileKernel& kernel);

    const SharedLife& of(const Buffer& buffer) const { return lives_.at(buffer.get()); }
    bool is_used(const Buffer& buffer) const { return of(buffer).last >= 0; }
    /// Whether one has ended before the other begins, and a barrier of the threads that compute can part them.
    bool are_apart(const Buffer& a, const Buffer& b) const;
    /// Whether `other`, which is apart from it, is accessed before the buffer begins.
    bool begins_behind(const Buffer& buffer, const Buffer& other) const;

private:
    std::map<const BufferNode*, SharedLife> lives_;
};

/// Whether the loop may have several iterations.
bool repeats(const TileLoop& loop);

}  // namespace tw::codegen
