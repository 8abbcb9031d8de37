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

TEST(TensorMapOfCuda, NeedsADriverThatKnowsThem) {
    Driver driver = fake_driver();
    driver.call.tensor_map_encode_tiled = nullptr;
    auto device = make_cuda_device(driver, 0);
    EXPECT_ERROR(encode_tensor_map(device->allocate(20000, "x"), Layout),
                 "the driver of Fake H200 knows no tensor maps; they need CUDA 12");
}

}  // namespace
}  // namespace tw
