// A user's kernel that leaves its schedule to the library.
#include <tilewright/kernel.h>

#include "schedules/choose.h"

using namespace tw;

TW_KERNEL("loaded_by_rule", [](const Target& target) -> Schedule {
    Tensor x = input("x", f32, {64, 256});
    Tensor y = compute("y", {64, 256}, [&](Expr i, Expr j) { return x(i, j) * 2.0f + 1.0f; });
    return schedules::choose_schedule({y}, target);
});
