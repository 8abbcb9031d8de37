// Kernels of layers over images, forward and backward, by the compiler for a GPU, where there is one: no GPU is needed.
#include "dsl/differentiate.h"
#include "ops/executable.h"
#include "runtime/driver/arch.h"
#include "schedules/choose.h"
#include "schedules/convolve.h"
#include "schedules/normalization.h"
#include "schedules/pooling.h"
#include "schedules/upsampling.h"
#include "tests/ops/random_windows.h"

namespace tw {
namespace {

using namespace schedules;

void expect_compiles(const std::vector<Tensor>& outputs) {
    Executable(build(choose_schedule(outputs, target("sm_90a"))), open_device("null:sm_90a"));
}

/// `y` and the gradients of what it is made of.
void expect_layer(const Tensor& y, const std::vector<Tensor>& inputs) {
    expect_compiles({y});
    const Tensor dy = input("dy", y.type(), shape_of_extents(extents_of(y)));
    expect_compiles(gradients(y, dy, inputs));
}

TEST(LayersCompile, ForwardAndBackward) {
    for (Type type : {f32, bf16}) {
        const Tensor x = input("x", type, {4, 12, 10, 8}), w = input("w", type, {16, 3, 3, 4}),
                     b = input("b", type, {16});
        const Tensor gain = input("gain", type, {8}), bias = input("bias", type, {8});
        try {
            for (PaddingMode mode :
                 {PaddingMode::Zeros, PaddingMode::Reflect, PaddingMode::Replicate, PaddingMode::Circular})
                expect_layer(
                    convolve("y", x, w, b, {.stride = {2, 1}, .padding = {{1, 2}, 1}, .groups = 2, .mode = mode}),
                    {x, w, b});
            const Tensor flipped = input("flipped", type, {8, 3, 3, 6});
            expect_layer(convolve_transposed("y", x, flipped, {}, {.stride = {2}, .output_padding = {1}}),
                         {x, flipped});
            const PoolingOptions windows{.window = {3}, .stride = {2}, .padding = {1}};
            expect_layer(max_pool("y", x, windows), {x});
            expect_compiles({max_pool_places("places", x, windows)});
            expect_layer(average_pool("y", x, windows, CountPadding::No), {x});
            expect_layer(adaptive_average_pool("y", x, {5, 1}), {x});
            expect_layer(upsample_nearest("y", x, {2, 3}), {x});
            expect_layer(upsample_linear("y", x, {2, 3}), {x});
            expect_layer(batch_norm("y", x, {gain, bias}), {x, gain, bias});
            expect_layer(group_norm("y", x, 2, {gain, bias}), {x, gain, bias});
            expect_layer(layer_norm("y", x, 1, {gain, bias}), {x, gain, bias});
        } catch (const NvrtcMissing& missing) {
            GTEST_SKIP() << missing.what();
        }
    }
}

}  // namespace
}  // namespace tw
