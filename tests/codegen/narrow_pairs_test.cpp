#include <functional>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

using testing::HasSubstr;
using testing::Not;

/// q[n] of x[n], eight registers each, as the value makes them.
std::string narrowed(Type type, const std::function<Expr(const Expr&)>& value, int64_t count = 8) {
    ThreadKernel kernel = empty_kernel("narrowed", 32);
    const Buffer x = make_buffer("x", f32, Memory::Registers, {integer(count)}),
                 q = make_buffer("q", type, Memory::Registers, {integer(count)});
    const Expr n = index_variable("n", 0, count - 1);
    kernel.body = in_order({declare(x), declare(q), unrolled(n, integer(count), {store(q, {n}, value(load(x, {n})))})});
    const ThreadKernel changed = narrow_pairs(kernel);
    verify_thread_ir(changed);
    return to_string(changed.body);
}

TEST(NarrowPairs, OfRegistersAndOfWhatIsPutThere) {
    EXPECT_THAT(narrowed(e4m3, [](const Expr& x) { return cast(e4m3, x); }),
                AllOf(HasSubstr("narrow_pair_e4m3(&q[n * 2], &x[n * 2])"), Not(HasSubstr("wide"))));
    EXPECT_THAT(narrowed(i8, [](const Expr& x) { return cast(i8, round(x)); }),
                HasSubstr("narrow_pair_i8(&q[n * 2], &x[n * 2])"));
    for (const Type type : {i8, u8})
        EXPECT_THAT(narrowed(type, [&](const Expr& x) { return cast(type, round(x * 3.0)); }),
                    AllOf(HasSubstr("q_wide[n] = x[n] * 3.0"),
                          HasSubstr(fmt::format("narrow_pair_{}(&q[n * 2], &q_wide[n * 2])", name_of(type)))));
}

/// What truncates, other types, and an odd number of elements.
TEST(NarrowPairs, NothingElse) {
    EXPECT_THAT(narrowed(i8, [](const Expr& x) { return cast(i8, x); }), Not(HasSubstr("narrow_pair")));
    EXPECT_THAT(narrowed(i32, [](const Expr& x) { return cast(i32, round(x)); }), Not(HasSubstr("narrow_pair")));
    EXPECT_THAT(narrowed(
                    i8, [](const Expr& x) { return cast(i8, round(x)); }, 7),
                Not(HasSubstr("narrow_pair")));
}

}  // namespace
}  // namespace tw::codegen
