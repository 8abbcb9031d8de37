// What the driver is asked for when a tensor map is encoded.
#include "runtime/driver/tensor_map.h"

#include <cstring>

#include "runtime/driver/cuda_device.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

const TensorLayout Layout{.element = TensorElement::BF16,
                          .sizes = {100, 60},
                          .strides = {208},
                          .box = {32, 40},
                          .swizzle = Swizzle::Bytes64,
                          .offset = 32};

TEST(TensorMapOfCuda, AsksTheDriver) {
    Driver driver = fake_driver();
    auto device = make_cuda_device(driver, 0);
    Buffer x = device->allocate(20000, "x");
    TensorMap map = encode_tensor_map(x, Layout);
    uint64_t given[16];
    static_assert(sizeof given == sizeof map.bits);
    std::memcpy(given, map.bits, sizeof given);
    const uint64_t expected[16] = {9, 2, x.pointer() + 32, 100, 60, 208, 32, 40, 1, 1, 0, 2, 2, 0};
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(given[i], expected[i]) << i;
    const std::pair<TensorElement, uint64_t> elements[] = {
        {TensorElement::U8, 0},  {TensorElement::U16, 1}, {TensorElement::U32, 2}, {TensorElement::S32, 3},
        {TensorElement::U64, 4}, {TensorElement::S64, 5}, {TensorElement::F16, 6}, {TensorElement::F32, 7},
        {TensorElement::F64, 8}, {TensorElement::BF16, 9}};
    for (auto [element, code] : elements) {
        map = encode_tensor_map(x, {.element = element, .sizes = {16, 2}, .strides = {128}, .box = {16, 1}});
        std::memcpy(given, map.bits, sizeof given);
        EXPECT_EQ(given[0], code);
        EXPECT_EQ(given[11], 0u) << "no swizzle";
    }
}

TEST(TensorMapOfCuda, AsksForTraversalStrides) {
    Driver driver = fake_driver();
    auto device = make_cuda_device(driver, 0);
    Buffer x = device->allocate(20000, "x");
    TensorLayout layout = Layout;
    layout.traversal_strides = {1, 8};
    TensorMap map = encode_tensor_map(x, layout);
    uint64_t given[16];
    std::memcpy(given, map.bits, sizeof given);
    EXPECT_EQ(given[6], 32u) << "the box in elements of the tensor, not of those taken";
    EXPECT_EQ(given[7], 40u);
    EXPECT_EQ(given[8], 1u);
    EXPECT_EQ(given[9], 8u);
}

TEST(TensorMapOfCuda, AsksForIm2col) {
    Driver driver = fake_driver();
    auto device = make_cuda_device(driver, 0);
    Buffer x = device->allocate(20000, "x");
    TensorMap map =
        encode_tensor_map(x, {.element = TensorElement::BF16,
                              .sizes = {32, 9, 8, 3},
                              .strides = {64, 640, 5120},
                              .traversal_strides = {1, 2, 3, 1},
                              .im2col = Im2col{.lower = {-1, -128}, .upper = {127, 0}, .channels = 16, .pixels = 1024},
                              .swizzle = Swizzle::Bytes32,
                              .offset = 16});
    uint64_t given[16];
    std::memcpy(given, map.bits, sizeof given);
    const uint64_t expected[16] = {
        9, 4, x.pointer() + 16, 3, 5120, 0xffffffffffffff80, 0x7f00000000, 16, 1024, 1, 2, 3, 0, 1, 2, 0};
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(given[i], expected[i]) << i;
}

TEST(TensorMapOfCuda, NeedsADriverThatKnowsThem) {
    for (bool knows_tiled : {false, true}) {
        Driver driver = fake_driver();
        if (knows_tiled)
            driver.call.tensor_map_encode_im2col = nullptr;
        else
            driver.call.tensor_map_encode_tiled = nullptr;
        auto device = make_cuda_device(driver, 0);
        EXPECT_ERROR(encode_tensor_map(device->allocate(20000, "x"), Layout),
                     "the driver of Fake H200 knows no tensor maps; they need CUDA 12");
    }
}

}  // namespace
}  // namespace tw
