// Tensor maps: what the hardware does not take is refused; boxes of all kinds, there and back, on every device.
#include "runtime/driver/tensor_map.h"

#include <bit>

#include "tests/emulator/run_on.h"
#include "tests/emulator/swizzles.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

TEST(TensorMaps, AreRefusedWithReasons) {
    auto device = open_device("emulated");
    Buffer x = device->allocate(64 * 64 * 2, "x");
    const TensorLayout good{.sizes = {64, 64}, .strides = {128}, .box = {64, 8}, .swizzle = Swizzle::Bytes128};
    EXPECT_NO_THROW(encode_tensor_map(x, good));
    auto refused = [&](auto change, const std::string& text) {
        TensorLayout layout = good;
        change(layout);
        EXPECT_ERROR(encode_tensor_map(x, layout), text);
    };
    refused([](auto& l) { l.sizes = {}; }, "tensor map of 'x': 0 dimensions; it takes 1 to 5");
    refused([](auto& l) { l.strides = {}; }, "2 sizes, 0 strides and a box of 2");
    refused([](auto& l) { l.sizes[1] = 0; }, "dimension 1 has 0 elements; it takes 1 to 2^32");
    refused([](auto& l) { l.box[1] = 257; }, "a box of 257 elements in dimension 1; it takes 1 to 256");
    refused([](auto& l) { l.strides = {130}; }, "strides of 130 bytes; they are multiples of 16");
    refused([](auto& l) { l.box[0] = 4; }, "rows of a box have 8 bytes; they are multiples of 16");
    refused([](auto& l) { l.box[0] = 72; }, "rows of a box have 144 bytes, the lines of the swizzle 128; choose no");
    refused([](auto& l) { l.offset = 8; }, "it begins at byte 8, at no multiple of 16");
    refused([](auto& l) { l.offset = 16; }, "bytes [16, 8208) of a buffer of 8192 bytes");
    EXPECT_ERROR(encode_tensor_map(open_device("null")->allocate(8192, "x"), good), "has no tensor maps");
}

TEST(TensorMaps, TakeNarrowRowsAndTraversalStrides) {
    auto device = open_device("emulated");
    Buffer x = device->allocate(64 * 64 * 2, "x");
    TensorLayout layout{.sizes = {64, 64}, .strides = {128}, .box = {32, 256}, .swizzle = Swizzle::Bytes128};
    EXPECT_NO_THROW(encode_tensor_map(x, layout));
    layout.traversal_strides = {1, 8};
    EXPECT_NO_THROW(encode_tensor_map(x, layout));
    auto refused = [&](std::vector<int64_t> strides, const std::string& text) {
        layout.traversal_strides = std::move(strides);
        EXPECT_ERROR(encode_tensor_map(x, layout), text);
    };
    refused({1}, "tensor map of 'x': 1 traversal strides for 2 dimensions");
    refused({1, 9}, "tensor map of 'x': traversal strides of 1, 9; they are 1 to 8. Stride the tensor itself");
    refused({1, 0}, "traversal strides of 1, 0; they are 1 to 8");
    refused({2, 1}, "a traversal stride of 2 in the innermost dimension, which the hardware ignores; it takes 1");
}

TEST(TensorMaps, OfIm2colAreRefusedWithReasons) {
    auto device = open_device("emulated");
    Buffer x = device->allocate(64 * 14 * 13 * 3 * 2, "x");
    const TensorLayout good{.sizes = {64, 14, 13, 3},
                            .strides = {128, 128 * 14, 128 * 14 * 13},
                            .traversal_strides = {1, 2, 2, 1},
                            .im2col = Im2col{.lower = {-1, -1}, .upper = {-1, -1}, .channels = 64, .pixels = 128},
                            .swizzle = Swizzle::Bytes128};
    EXPECT_NO_THROW(encode_tensor_map(x, good));
    auto refused = [&](auto change, const std::string& text) {
        TensorLayout layout = good;
        change(layout, *layout.im2col);
        EXPECT_ERROR(encode_tensor_map(x, layout), text);
    };
    auto flatten = [](TensorLayout& l, size_t rank) { l.sizes.resize(rank), l.strides.resize(rank - 1); };
    refused([&](auto& l, auto&) { flatten(l, 2), l.traversal_strides = {}; },
            "im2col map of 'x': 2 dimensions; it takes 3 to 5");
    refused([](auto& l, auto&) { l.box = {64, 8}; }, "im2col map of 'x': it has a box of 64, 8; it takes channels");
    refused([](auto&, auto& i) { i.channels = 257; }, "im2col map of 'x': 257 channels of a pixel; it takes 1 to 256");
    refused([](auto&, auto& i) { i.pixels = 1025; }, "1025 pixels; it takes 1 to 1024, so copy several columns");
    refused([](auto&, auto& i) { i.pixels = 0; }, "0 pixels; it takes 1 to 1024");
    refused([](auto&, auto& i) { i.lower = {-1}; },
            "im2col map of 'x': 1 lower and 2 upper corners; with 4 dimensions it takes 2 of each");
    refused([](auto&, auto& i) { i.lower[1] = -129; }, "a corner of -129; with 4 dimensions it takes -128 to 127");
    refused([](auto&, auto& i) { i.upper[0] = 128; }, "a corner of 128; with 4 dimensions it takes -128 to 127");
    refused([&](auto& l, auto& i) { flatten(l, 3), l.traversal_strides = {}, i.lower = {-32769}, i.upper = {0}; },
            "a corner of -32769; with 3 dimensions it takes -32768 to 32767");
    refused([](auto&, auto& i) { i.upper[0] = -15; }, "a bounding box [-1, -1) in dimension 1, which is empty");
    refused([](auto& l, auto&) { l.traversal_strides[2] = 9; }, "traversal strides of 1, 2, 9, 1; they are 1 to 8");
    refused([](auto&, auto& i) { i.channels = 72; }, "rows of a box have 144 bytes, the lines of the swizzle 128");
    refused([](auto&, auto& i) { i.channels = 4; }, "rows of a box have 8 bytes; they are multiples of 16");
    refused([](auto& l, auto&) { l.strides[0] = 130; }, "strides of 130, 1792, 23296 bytes; they are multiples of 16");
}

/// Boxes are loaded, and stored elsewhere; the emulator's results are the expected ones, a GPU's the emulator's.
class TmaConformance : public testing::TestWithParam<Swizzle> {};

struct BoxKernel {
    std::set<std::string> names;
    std::string body;
    int64_t cluster = 1, blocks = 1;

    std::string text() const {
        return device::vocabulary_text(names) +
               fmt::format(
                   "struct Shared {{ alignas(1024) unsigned char a[8192]; tw::Barrier full; }};\n"
                   "extern \"C\" __global__ void __cluster_dims__({}, 1, 1) __launch_bounds__(64)\n"
                   "k(const __grid_constant__ tw::TensorMap x_map, const __grid_constant__ tw::TensorMap y_map,"
                   " unsigned char* out) {{\n"
                   "    Shared& s = tw::shared_memory<Shared>();\n    const int t = threadIdx.x;\n"
                   "    if (t == 0) {{ tw::mbarrier_init(s.full, 1); tw::fence_mbarrier_init(); }}\n"
                   "    tw::cluster_arrive();\n    tw::cluster_wait();\n{}\n"
                   "    tw::cluster_arrive();\n    tw::cluster_wait();\n}}\n",
                   cluster, body);
    }
};

const std::set<std::string> Names = {"Barrier",
                                     "TensorMap",
                                     "shared_memory",
                                     "mbarrier_init",
                                     "fence_mbarrier_init",
                                     "mbarrier_expect_tx",
                                     "mbarrier_wait",
                                     "tma_load_1d",
                                     "tma_load_2d",
                                     "tma_load_3d",
                                     "tma_load_multicast_2d",
                                     "tma_store_2d",
                                     "tma_store_3d",
                                     "tma_reduce_add_2d",
                                     "tma_store_commit",
                                     "tma_store_wait",
                                     "fence_proxy_async",
                                     "cluster_arrive",
                                     "cluster_wait",
                                     "cluster_rank"};

struct Result {
    Bytes y, out;
    bool operator==(const Result&) const = default;
};

/// x and y have 64 KiB; y begins as `y`, out as 0xff.
Result run_boxes(const std::string& which, const BoxKernel& kernel, const TensorLayout& x_layout,
                 const TensorLayout& y_layout, const Bytes& x, const Bytes& y) {
    auto device = open_device(which);
    Kernel loaded = device->load({.name = "k.cu", .source = kernel.text(), .entry = "k"});
    Buffer xs = device->allocate(int64_t(x.size()), "x"), ys = device->allocate(int64_t(y.size()), "y"),
           out = device->allocate(8192 * kernel.blocks, "out");
    xs.write(x);
    ys.write(y);
    out.fill(0xff);
    TensorMap x_map = encode_tensor_map(xs, x_layout), y_map = encode_tensor_map(ys, y_layout);
    device
        ->prepare(
            loaded,
            {.grid = {kernel.blocks}, .block = {64}, .dynamic_shared_bytes = 8192 + 1024, .cluster = kernel.cluster},
            {Argument::bytes(as_bytes(x_map)), Argument::bytes(as_bytes(y_map)), out})
        .run();
    device->synchronize();
    return {ys.read<uint8_t>(), out.read<uint8_t>()};
}

Result run_everywhere(const BoxKernel& kernel, const TensorLayout& x_layout, const TensorLayout& y_layout,
                      const Bytes& x, const Bytes& y) {
    expect_compiles_for_hopper(kernel.text());
    Result emulated = run_boxes("emulated", kernel, x_layout, y_layout, x, y);
    if (best_device().device->kind() == DeviceKind::Cuda) {
        EXPECT_TRUE(run_boxes("cuda", kernel, x_layout, y_layout, x, y) == emulated) << "GPU and emulator differ:\n"
                                                                                     << kernel.text();
    }
    return emulated;
}

TEST_P(TmaConformance, BoxesOfMatrices) {
    const int span = span_of(GetParam()), columns = span / 2, lines = 24, x_columns = 88, x_rows = 40;
    const TensorLayout layout{.element = TensorElement::U16,
                              .sizes = {x_columns, x_rows},
                              .strides = {192},
                              .box = {columns, lines},
                              .swizzle = GetParam(),
                              .offset = 64};
    const Bytes x = random_bytes(64 << 10, 1), y = random_bytes(64 << 10, 2);
    for (auto [cx, cy] : {std::pair{0, 0}, {16, 8}, {-8, -3}, {x_columns - 8, x_rows - 2}, {200, 0}}) {
        BoxKernel kernel{
            Names,
            fmt::format(
                R"(if (t == 0) {{ tw::mbarrier_expect_tx(s.full, {bytes}); tw::tma_load<2>(s.a, x_map, {x}, {y}, s.full); }}
tw::mbarrier_wait(s.full, 0);
for (int i = t; i < {bytes}; i += 64) out[i] = s.a[i];
__syncthreads();
if (t == 0) {{ tw::tma_store<2>(y_map, {x} + 8, {y} + 3, s.a); tw::tma_store_commit(); tw::tma_store_wait<0>(); }})",
                fmt::arg("bytes", span * lines), fmt::arg("x", cx), fmt::arg("y", cy))};
        Result result = run_everywhere(kernel, layout, layout, x, y);
        Result expected{y, Bytes(8192, 0xff)};
        auto at = [&](int row, int column) { return size_t(64 + row * 192 + column * 2); };
        auto is_inside = [&](int row, int column) {
            return row >= 0 && row < x_rows && column >= 0 && column < x_columns;
        };
        for (int line = 0; line < lines; ++line)
            for (int column = 0; column < columns; ++column)
                for (int byte = 0; byte < 2; ++byte) {
                    const uint8_t value =
                        is_inside(cy + line, cx + column) ? x[at(cy + line, cx + column) + size_t(byte)] : 0;
                    expected.out[size_t(swizzled(line * span + column * 2 + byte, span))] = value;
                    if (is_inside(cy + line + 3, cx + column + 8))
                        expected.y[at(cy + line + 3, cx + column + 8) + size_t(byte)] = value;
                }
        EXPECT_TRUE(result == expected) << cx << ", " << cy;
    }
}

INSTANTIATE_TEST_SUITE_P(Swizzles, TmaConformance,
                         testing::Values(Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128),
                         [](const auto& info) { return fmt::format("{}", span_of(info.param)); });

TEST(TmaConformance, ThreeDimensions) {
    const TensorLayout cube{.element = TensorElement::F32, .sizes = {8, 5, 7}, .strides = {48, 256}, .box = {4, 2, 3}};
    const Bytes x = random_bytes(4096, 3), y = random_bytes(4096, 4);
    BoxKernel kernel{
        Names,
        R"(if (t == 0) { tw::mbarrier_expect_tx(s.full, 96); tw::tma_load<3>(s.a, x_map, 4, -1, 5, s.full); }
tw::mbarrier_wait(s.full, 0);
for (int i = t; i < 96; i += 64) out[i] = s.a[i];)"};
    Result result = run_everywhere(kernel, cube, cube, x, y);
    for (int i = 0; i < 96; ++i) {
        const int column = 4 + i / 4 % 4, row = -1 + i / 16 % 2, plane = 5 + i / 32;
        const bool inside = row >= 0 && plane < 7;
        EXPECT_EQ(result.out[size_t(i)], inside ? x[size_t(plane * 256 + row * 48 + column * 4 + i % 4)] : 0) << i;
    }
}

TEST(TmaConformance, OneDimension) {
    const TensorLayout line{.element = TensorElement::U8, .sizes = {1000}, .box = {256}};
    const Bytes x = random_bytes(4096, 3), y = random_bytes(4096, 4);
    BoxKernel kernel{Names,
                     R"(if (t == 0) { tw::mbarrier_expect_tx(s.full, 256); tw::tma_load<1>(s.a, x_map, 896, s.full); }
tw::mbarrier_wait(s.full, 0);
for (int i = t; i < 256; i += 64) out[i] = s.a[i];)"};
    Result result = run_everywhere(kernel, line, line, x, y);
    for (int i = 0; i < 256; ++i) EXPECT_EQ(result.out[size_t(i)], 896 + i < 1000 ? x[size_t(896 + i)] : 0) << i;
}

/// The values of `elements` of a type, small integers, so that additions are exact in any order.
TEST(TmaConformance, ReductionsAddElements) {
    struct Case {
        TensorElement element;
        int bytes;
    };
    for (auto [element, bytes] : {Case{TensorElement::F32, 4},
                                  {TensorElement::S32, 4},
                                  {TensorElement::U32, 4},
                                  {TensorElement::F16, 2},
                                  {TensorElement::BF16, 2},
                                  {TensorElement::U64, 8}}) {
        std::mt19937 random(5);
        Bytes x, y;
        for (int i = 0; i < 16 * 16; ++i)
            for (Bytes* to : {&x, &y}) {
                const int value = int(random() % 64);
                uint64_t bits = uint64_t(value);
                if (element == TensorElement::F32) bits = std::bit_cast<uint32_t>(float(value));
                if (element == TensorElement::BF16) bits = std::bit_cast<uint32_t>(float(value)) >> 16;
                if (element == TensorElement::F16 && value)
                    bits = (std::bit_cast<uint32_t>(float(value)) >> 13) - (112u << 10);
                for (int byte = 0; byte < bytes; ++byte) to->push_back(uint8_t(bits >> (8 * byte)));
            }
        const TensorLayout layout{.element = element, .sizes = {16, 16}, .strides = {16 * bytes}, .box = {16, 8}};
        BoxKernel kernel{
            Names,
            fmt::format(
                R"(if (t == 0) {{ tw::mbarrier_expect_tx(s.full, {0}); tw::tma_load<2>(s.a, x_map, 0, 0, s.full); }}
tw::mbarrier_wait(s.full, 0);
if (t == 0) {{ tw::tma_reduce_add<2>(y_map, 0, 4, s.a); tw::tma_store_commit(); tw::tma_store_wait<0>(); }})",
                128 * bytes)};
        Result result = run_everywhere(kernel, layout, layout, x, y);
        auto value_at = [&](const Bytes& from, int i) {
            uint64_t bits = 0;
            std::memcpy(&bits, &from[size_t(i * bytes)], size_t(bytes));
            if (element == TensorElement::F32) return double(std::bit_cast<float>(uint32_t(bits)));
            if (element == TensorElement::BF16) return double(std::bit_cast<float>(uint32_t(bits << 16)));
            if (element == TensorElement::F16)
                return bits ? double(std::bit_cast<float>(uint32_t((bits + (112u << 10)) << 13))) : 0.0;
            return double(bits);
        };
        for (int i = 0; i < 256; ++i) {
            const double added = i >= 64 && i < 192 ? value_at(x, i - 64) : 0;
            EXPECT_EQ(value_at(result.y, i), value_at(y, i) + added) << i << ", " << bytes << " bytes";
        }
    }
}

TEST(TmaConformance, MulticastInAClusterOfFour) {
    const TensorLayout layout{.element = TensorElement::U8,
                              .sizes = {128, 64},
                              .strides = {128},
                              .box = {128, 8},
                              .swizzle = Swizzle::Bytes128};
    const Bytes x = random_bytes(8192, 6);
    BoxKernel kernel{Names, R"(if (t == 0) tw::mbarrier_expect_tx(s.full, 3072);
tw::cluster_arrive();
tw::cluster_wait();
if (t == 0 && tw::cluster_rank() != 2) tw::tma_load_multicast<2>(s.a + 1024 * tw::cluster_rank(), x_map, 0, 8 * tw::cluster_rank(), s.full, 15);
tw::mbarrier_wait(s.full, 0);
for (int i = t; i < 4096; i += 64) out[8192 * blockIdx.x + i] = i / 1024 == 2 ? 0 : s.a[i];)",
                     4, 4};
    Result result = run_everywhere(kernel, layout, layout, x, x);
    for (int i = 0; i < 4 * 4096; ++i) {
        const int byte = i % 4096, place = swizzled(byte, 128);
        ASSERT_EQ(result.out[size_t(i / 4096 * 8192 + byte)], byte / 1024 == 2 ? 0 : x[size_t(place)]) << i;
    }
}

}  // namespace
}  // namespace tw
