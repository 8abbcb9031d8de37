// Delays: what stands under a loop in two parts, of which the second one runs iterations behind the first.
#pragma once
#include <functional>
#include <vector>

#include "dsl/tree.h"

namespace tw {

/// The loop with `behind` so many iterations later than `before`. Of the buffers in `local`, which live in one
/// iteration, those that both use are there once more for each iteration between.
///
///     for i < 5: x = a[i]; y[i] = x    x_0 = a[0]
///                                      for o < 2: x_1 = a[o * 2 + 1]; y[o * 2] = x_0; x_0 = a[o * 2 + 2]; y[o * 2 + 1]
///                                      = x_1 y[4] = x_0
Stmt delayed_loop(const For& loop, const Stmt& before, const Stmt& behind, const std::vector<BufferRef>& local,
                  int64_t iterations);

/// A buffer, not in `local`, that one of both parts stores to and the other one uses; nothing if there is none. `alike`
/// tells whether two buffers are one array.
BufferRef used_by_both(const Stmt& before, const Stmt& behind, const std::vector<BufferRef>& local,
                       const std::function<bool(const BufferRef&, const BufferRef&)>& alike);

}  // namespace tw
