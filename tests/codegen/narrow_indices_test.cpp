// 32 or 64 bits, decided at the boundary of 2^31.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/print/print_cuda.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

using testing::HasSubstr;

constexpr int64_t kTwo31 = int64_t{1} << 31;

std::string body_of(const ThreadKernel& kernel) {
    std::string cuda = print_cuda(narrow_indices(kernel)).cuda;
    return cuda.substr(cuda.find("extern \"C\""));
}

/// out[index] = 1 with row < rows and column < columns, both loops.
std::string stored_at(int64_t rows, int64_t columns, const std::function<Expr(Expr, Expr)>& index) {
    ThreadKernel kernel = empty_kernel("k", 1);
    Buffer out = make_buffer("out", f32, Memory::Global, {constant(i64, int64_t{1} << 50)});
    add_argument(kernel, out, true);
    Expr row = index_variable("row"), column = index_variable("column");
    kernel.body = loop(row, constant(i64, rows),
                       {loop(column, constant(i64, columns), {store(out, {index(row, column)}, constant(f32, 1.0))})});
    return body_of(kernel);
}

TEST(NarrowIndices, LastElementAt2To31) {
    auto flat = [](int64_t columns) { return [=](const Expr& r, const Expr& c) { return r * columns + c; }; };
    // the largest offsets are 2^31 - 1 and 2^31
    EXPECT_THAT(stored_at(1 << 16, 1 << 15, flat(1 << 15)), HasSubstr("out[row * 32768 + column] = 1.0f;"));
    EXPECT_THAT(stored_at((1 << 16) + 1, 1 << 15, flat(1 << 15)),
                HasSubstr("out[(long long)row * 32768 + column] = 1.0f;"));
}

TEST(NarrowIndices, EveryPartMustFit) {
    // the sum fits, the product does not
    auto difference = [](const Expr& r, const Expr& c) { return r * 65536 - r * 65535 + c; };
    EXPECT_THAT(stored_at(1 << 16, 2, difference),
                HasSubstr("(long long)row * 65536 - (long long)row * 65535 + column"));
    auto quotient = [](const Expr& r, const Expr& c) { return r * 65536 / 65536 + c; };
    EXPECT_THAT(stored_at(1 << 16, 2, quotient), HasSubstr("(long long)row * 65536 / 65536 + column"));
    EXPECT_THAT(stored_at(1 << 15, 2, quotient), HasSubstr("out[row * 65536 / 65536 + column]"));
}

TEST(NarrowIndices, LoopVariablesReachTheirExtent) {
    auto first = [](const Expr& r, const Expr&) { return r; };
    EXPECT_THAT(stored_at(kTwo31 - 1, 1, first), HasSubstr("for (int row = 0; row < 2147483647; ++row)"));
    EXPECT_THAT(stored_at(kTwo31, 1, first), HasSubstr("for (long long row = 0; row < 2147483648ll; ++row)"));
}

TEST(NarrowIndices, SizesByTheirMaximum) {
    EXPECT_THAT(body_of(copy_kernel(kTwo31 - 256)), HasSubstr("int n)"));
    EXPECT_THAT(body_of(copy_kernel(kTwo31 - 256)), HasSubstr("const int i = block_x * 256 + thread;"));
    std::string large = body_of(copy_kernel(kTwo31));
    EXPECT_THAT(large, HasSubstr("long long n)"));
    EXPECT_THAT(large, HasSubstr("if (i < n) b[i] = a[i];"));
    // n fits, the rounded-up index of the last thread does not
    std::string between = body_of(copy_kernel(kTwo31 - 1));
    EXPECT_THAT(between, HasSubstr("int n)"));
    EXPECT_THAT(between, HasSubstr("const int i = block_x * 256 + thread;"));
    EXPECT_THAT(body_of(copy_kernel(kTwo31 + 256)),
                HasSubstr("const long long i = (long long)block_x * 256 + thread;"));
}

TEST(NarrowIndices, ProductsOfSizes) {
    ThreadKernel kernel = empty_kernel("k", 1);
    Expr rows = size("rows", {1, 1 << 20, 1}), stride = size("stride", {1, 1 << 20, 1});
    kernel.sizes = {rows, stride};
    Buffer out = make_buffer("out", f32, Memory::Global, {rows * stride});
    add_argument(kernel, out, true);
    Expr row = index_variable("row", 0, (1 << 20) - 1), column = index_variable("column", 0, (1 << 20) - 1);
    kernel.body = loop(row, rows, {loop(column, stride, {store(out, {row * stride + column}, constant(f32, 1.0))})});
    EXPECT_THAT(body_of(kernel), HasSubstr("out[(long long)row * stride + column] = 1.0f;"));
    EXPECT_THAT(body_of(kernel), HasSubstr("int rows, int stride)"));
}

TEST(NarrowIndices, NamedValuesKeepTheirWidth) {
    ThreadKernel kernel = empty_kernel("k", 32);
    kernel.grid[0] = 1 << 20;
    Buffer out = make_buffer("out", f32, Memory::Global, {constant(i64, int64_t{1} << 50)});
    add_argument(kernel, out, true);
    Expr base = index_variable("base"), tile = index_variable("tile");
    kernel.body =
        in_order({let(base, kernel.block[0] * 65536), let(tile, base / 65536),
                  store(out, {base + kernel.thread}, constant(f32, 1.0)), store(out, {tile}, constant(f32, 2.0))});
    std::string text = body_of(kernel);
    EXPECT_THAT(text, HasSubstr("const long long base = (long long)block_x * 65536;"));
    EXPECT_THAT(text, HasSubstr("const int tile = (int)(base / 65536);"));
    EXPECT_THAT(text, HasSubstr("out[base + thread] = 1.0f;"));
}

TEST(NarrowIndices, LoadedIndices) {
    ThreadKernel kernel = empty_kernel("k", 32);
    Buffer index = make_buffer("index", i32, Memory::Global, {32}),
           out = make_buffer("out", f32, Memory::Global, {constant(i64, int64_t{1} << 50)});
    add_argument(kernel, index, false);
    add_argument(kernel, out, true);
    Expr row = cast(i64, load(index, {kernel.thread}));
    kernel.body = in_order({store(out, {row}, constant(f32, 1.0)), store(out, {row * 512 + 1}, constant(f32, 1.0))});
    std::string text = body_of(kernel);
    EXPECT_THAT(text, HasSubstr("out[index[thread]] = 1.0f;"));
    EXPECT_THAT(text, HasSubstr("out[(long long)index[thread] * 512 + 1] = 1.0f;"));
}

TEST(NarrowIndices, ValuesOf64Bits) {
    ThreadKernel kernel = empty_kernel("k", 32);
    Buffer out = make_buffer("out", i64, Memory::Global, {32});
    add_argument(kernel, out, true);
    kernel.body = in_order(
        {store(out, {kernel.thread}, kernel.thread + 1), store(out, {kernel.thread}, load(out, {kernel.thread}) * 3)});
    std::string text = body_of(kernel);
    EXPECT_THAT(text, HasSubstr("out[thread] = thread + 1;")) << "C++ widens on storing";
    EXPECT_THAT(text, HasSubstr("out[thread] = tw::wrapping_mul(out[thread], (long long)3);")) << "data wraps";
}

TEST(NarrowIndices, Negation) {
    auto negated = [](const Expr& r, const Expr& c) { return c - (-(r * 65536)); };
    EXPECT_THAT(stored_at(1 << 15, 2, negated), HasSubstr("column - -(row * 65536)"));
    EXPECT_THAT(stored_at((1 << 15) + 1, 2, negated), HasSubstr("column - -((long long)row * 65536)"));
}

}  // namespace
}  // namespace tw::codegen
