// Delays: what stands under a loop in two parts, of which the late one runs iterations behind the early one.
#pragma once
#include <functional>
#include <vector>

#include "dsl/cut.h"
#include "dsl/tree.h"

namespace tw {

/// Early: `first` and `between`; in an iteration `late`, of one that is over, stands in the middle.
struct Delayed {
    Stmt first, late, between;
    int64_t iterations = 1;
    std::vector<BufferRef> local;  ///< what lives in one iteration
};

/// A buffer of which late statements read what early ones of a later iteration have overwritten; nothing if there is
/// none.
BufferRef needs_versions(const Delayed& delayed);

/// The loop's parts: the early statements of the first iterations, both, the late ones of the last; where both are, in
/// segments. For what needs no versions.
///
///     for i < n: x = a[i]; y[i] = x    for i < min(n, 1): x = a[0]
///     late y before x                  for i < n - min(n, 1): y[i] = x; x = a[i + 1]
///                                      for i < min(n, 1): y[n - 1] = x
Stmt in_parts(const For& loop, const Delayed& delayed, const Segments& segments);

/// The same, of a loop of constant extent, with buffers that both parts use once more for each iteration between.
///
///     for i < 5: x = a[i]; y[i] = x    x_0 = a[0]
///                                      for o < 2: x_1 = a[o * 2 + 1]; y[o * 2] = x_0; x_0 = a[o * 2 + 2]; y[o * 2 + 1]
///                                      = x_1 y[4] = x_0
Stmt with_versions(const For& loop, const Delayed& delayed, const Segments& segments);

/// A buffer, not in `local`, that one of both parts stores to and the other one uses; nothing if there is none. `alike`
/// tells whether two buffers are one array.
BufferRef used_by_both(const Stmt& before, const Stmt& behind, const std::vector<BufferRef>& local,
                       const std::function<bool(const BufferRef&, const BufferRef&)>& alike);

}  // namespace tw
