// Delays: what stands under a loop in two parts, of which the second one runs iterations behind the first.
#pragma once
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

/// The buffers that the statement loads from or stores to, each once.
std::vector<BufferRef> loaded_in(const Stmt& stmt);
std::vector<BufferRef> stored_in(const Stmt& stmt);

}  // namespace tw
