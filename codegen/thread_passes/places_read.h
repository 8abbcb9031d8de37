// What some statements read of global memory, as places along what they have in common.
#pragma once
#include <map>
#include <set>
#include <vector>

#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {

/// Conditions that lead to a read, by their numbers in PlacesRead::conditions, each with what it must be; -1 is one of
/// which nothing is known.
using ReadPath = std::vector<std::pair<int, bool>>;

/// An element that is read, so many elements behind a base. Where loops around the read are unrolled, a place for each
/// iteration.
struct PlaceRead {
    struct At {
        int64_t offset;
        ReadPath path;  ///< of conditions that the iterations do not decide
    };
    Expr load;
    Access row;            ///< at the base, with the element's checks
    Expr behind;           ///< the base: elements, by the variables of unrolled loops
    int64_t divisor;       ///< of the base; 0: it is 0
    size_t stmt;           ///< of those that were asked about
    bool in_loop = false;  ///< inside of unrolled ones; the place moves by `step` with the outermost of them
    int64_t step = 0;
    std::map<int64_t, std::vector<At>> iterations = {};  ///< of the outermost loop; one where it moves nothing
    ReadPath path = {};                                  ///< as it stands there
};

struct PlacesRead {
    std::vector<PlaceRead> reads;
    std::vector<Expr> conditions;
    std::set<const ExprNode*> unknown;  ///< loads that stand at other places, too
    std::vector<Expr> inside;           ///< variables that the statements define
};

/// Reads of global memory by the statements, also in unrolled loops among them, that lie a constant from a base which
/// is the same in all iterations. None behind conditions of statements, which have blocks of their own.
PlacesRead places_read(const std::vector<ThreadStmt>& stmts);

/// Whether one of these ways leads to the read, whatever the conditions say.
bool is_certain(const std::vector<ReadPath>& paths);

}  // namespace tw::codegen
