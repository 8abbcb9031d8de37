// What a user's shared object may look like.
#include <tilewright/kernel.h>

#include "schedules/elementwise.h"

using namespace tw;

TW_KERNEL("loaded_scale_1000", [](const Target& target) -> Schedule {
    Tensor x = input("x", f32, {1000});
    Tensor y = compute("y", {1000}, [&](Expr i) { return x(i) * 2.0f + 1.0f; });
    Schedule s({y}, target);
    schedules::schedule_elementwise(s, y);
    return s;
});

namespace {

/// Sums of rows through shared memory: barriers that a mutation can take away.
Schedule sums_of_columns(const Target& target) {
    Tensor x = input("x", f32, {24, 32});
    Axis k = reduce_axis("k", 24);
    Tensor y = compute("y", {32}, [&](Expr j) { return sum(x(k, j), k); });
    Schedule s({y}, target);
    auto [ko, ki] = s.split(s.reduce(y), 8);
    auto [j] = s.loops<1>(y);
    s.order({j, ko, ki});
    s.bind(j, thread);
    s.stage(y, x, Memory::Shared, ko);
    return s;
}

}  // namespace

TW_KERNEL("loaded_sums", sums_of_columns,
          {.description = "y = sums of columns", .flops = 24.0 * 32, .bytes = 25.0 * 128});
