// A kernel that cannot be built, between two that can.
#include <tilewright/kernel.h>

using namespace tw;

namespace {

Schedule twice(const Target& target) {
    Tensor x = input("x", f32, {64});
    Tensor y = compute("y", {64}, [&](Expr i) { return x(i) * 2.0f; });
    Schedule s({y}, target);
    s.bind(s.loops<1>(y)[0], thread);
    return s;
}

}  // namespace

TW_KERNEL("loaded_first", twice);

TW_KERNEL("loaded_broken", [](const Target& target) -> Schedule {
    Schedule s = twice(target);
    s.split(s.loops<1>(s.outputs()[0])[0], 0);
    return s;
});

TW_KERNEL("loaded_last", twice);
