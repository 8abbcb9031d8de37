// What boxes bring to shared memory, against what tiles of these sides need: no element comes more often than the
// schedule says.
#include <gtest/gtest.h>

#include "runtime/driver/emulated_device.h"
#include "schedules/catalog.h"
#include "tests/ops/on_each_device.h"
#include "tests/ops/whole_numbers.h"

namespace tw::schedules {
namespace {

constexpr int64_t element = 2, blocks = 2;  // bytes of bf16; multiprocessors

int64_t tiles(int64_t extent, int64_t side) { return (extent + side - 1) / side; }

/// By all blocks of the kernel of that name, what lies outside of a tensor included.
int64_t loaded_bytes(const std::string& name) {
    Target few = target("sm_90a");
    few.multiprocessors = blocks;
    const auto device = open_device("emulated:sm_90a");
    as_emulated(*device).set_options({.statistics = true});
    const Schedule s = find_kernel(name)->make(few);
    Executable executable(build(s), device);
    run_on(executable, whole_numbers(s.outputs(), 3));
    return static_cast<int64_t>(as_emulated(*device).statistics().box_bytes);
}

/// Each tile of pixels and filters reads 32 of 40 channels at a time, of nine taps: rows of pixels and of filters.
TEST(LoadedBytes, OfAForwardPass) {
    const int64_t steps = 9 * tiles(40, 32), each = (64 + 32) * 32 * element;
    EXPECT_EQ(loaded_bytes("convolution_bf16_2x9x10x40_48_3x3_pad1_tile64x32x32w1s2p1t1"),
              tiles(2 * 9 * 10, 64) * tiles(48, 32) * steps * each);
}

/// The pixels of a phase read its taps alone, which are nine of all four phases together.
TEST(LoadedBytes, OfADataGradientWithPhases) {
    const int64_t taps = 2 * 2 + 2 * 1 + 1 * 2 + 1 * 1, each = (64 + 32) * 32 * element;
    EXPECT_EQ(loaded_bytes("convolution_data_gradient_bf16_2x9x10x32_40_3x3_stride2_pad1_tile64x32x32w1s2p1t1"),
              tiles(2 * 5 * 5, 64) * tiles(32, 32) * taps * tiles(40, 32) * each);
}

/// Pixels are terms: of dy for each tap, or once for the two taps of a row.
TEST(LoadedBytes, OfAWeightGradient) {
    const std::string layer = "convolution_weight_gradient_bf16_2x9x10x72_40_3x2_pad1_tile64x64x32w1s2p1t1";
    const int64_t steps = tiles(2 * 9 * 11, 32), of_image = tiles(40, 64) * tiles(72, 64) * steps;
    EXPECT_EQ(loaded_bytes(layer), of_image * 3 * 2 * (64 + 64) * 32 * element);
    EXPECT_EQ(loaded_bytes(layer + "k2"), of_image * 3 * (64 + 2 * 64) * 32 * element);
}

/// A tile of places comes once for all taps, with two rows and a place behind it, filters once for each block.
TEST(LoadedBytes, OfTilesWithTheirHalo) {
    const int64_t height = 9 + 1, width = 10 + 1, rows_of_unit = 64;
    EXPECT_EQ(loaded_bytes("convolution_bf16_2x9x10x16_32_3x2_pad1_tilehalo48b16s2t1"),
              tiles(2 * height * width, 48) * (48 + 2 * width + 1) * 16 * element +
                  blocks * 3 * 2 * rows_of_unit * 16 * element);
}

/// Four by four pixels of 32 channels see six by six.
TEST(LoadedBytes, OfADepthwiseForwardPass) {
    EXPECT_EQ(loaded_bytes("depthwise_bf16_2x9x10x40_3x3_pad1_tile2x2t2x2x16s2r3"),
              2 * tiles(9, 4) * tiles(10, 4) * tiles(40, 32) * 6 * 6 * 32 * element);
}

}  // namespace
}  // namespace tw::schedules
