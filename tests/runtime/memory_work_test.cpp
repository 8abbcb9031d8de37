// Launches that copy and set memory: by themselves, and as nodes of graphs between kernels.
#include <array>
#include <cstring>

#include "runtime/driver/cuda_device.h"
#include "tests/runtime/support.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

constexpr size_t N = 48;

class MemoryWorkTests : public OnDevice {
protected:
    Buffer of(const std::vector<unsigned>& values, const std::string& name) const {
        const Buffer buffer = device_->allocate(int64_t(4 * values.size()), name);
        buffer.write(values);
        return buffer;
    }
    static std::vector<unsigned> random_values() {
        std::vector<unsigned> values;
        for (size_t n = 0; n < N; ++n) values.push_back(unsigned(random_source()()));
        return values;
    }
};
TW_ON_EACH_DEVICE(MemoryWorkTests);

template <class T>
std::span<const std::byte> bytes_of_value(const T& value) {
    return std::as_bytes(std::span(&value, 1));
}

TEST_P(MemoryWorkTests, CopiesAndSetsBytes) {
    const std::vector<unsigned> values = random_values();
    const Buffer x = of(values, "x"), y = device_->allocate(4 * N, "y");
    device_->prepare_copy(y, x).run();
    EXPECT_EQ(y.read<unsigned>(), values);
    const auto word = unsigned(random_source()());
    const auto half = uint16_t(word);
    const auto byte = uint8_t(word);
    device_->prepare_fill(y.view(0, 16), bytes_of_value(word)).run(device_->create_stream());
    device_->prepare_fill(y.view(16, 6), bytes_of_value(half)).run();
    device_->prepare_fill(y.view(22, 5), bytes_of_value(byte)).run();
    device_->prepare_fill(y.view(30, 0), bytes_of_value(word)).run();
    std::vector<unsigned> expected = values;
    auto* bytes = reinterpret_cast<unsigned char*>(expected.data());
    for (size_t n = 0; n < 4; ++n) expected[n] = word;
    for (size_t n = 0; n < 3; ++n) std::memcpy(bytes + 16 + 2 * n, &half, 2);
    std::memset(bytes + 22, byte, 5);
    EXPECT_EQ(y.read<unsigned>(), expected);
}

/// A kernel reads what a node has copied, which a second fill replaces behind it.
TEST_P(MemoryWorkTests, AreNodesOfGraphs) {
    const Kernel kernel = device_->load({.name = "twice.cu",
                                         .source = "extern \"C\" __global__ void twice(const unsigned* x, unsigned* y) "
                                                   "{ y[threadIdx.x] = 2u * x[threadIdx.x]; }\n",
                                         .entry = "twice"});
    const std::vector<unsigned> values = random_values();
    const Buffer x = of(values, "x"), y = device_->allocate(4 * N, "y"), z = device_->allocate(4 * N, "z");
    const unsigned seven = 7;
    const std::vector<Launch> launches{device_->prepare_copy(y, x), device_->prepare(kernel, {.block = {N}}, {y, z}),
                                       device_->prepare_fill(y, bytes_of_value(seven))};
    const Graph graph = device_->graph(launches, {{}, {0}, {1}});
    for (int run = 0; run < 2; ++run) {
        graph.run();
        const std::vector<unsigned> got = z.read<unsigned>();
        for (size_t n = 0; n < N; ++n) ASSERT_EQ(got[n], 2 * values[n]);
        EXPECT_EQ(y.read<unsigned>(), std::vector<unsigned>(N, 7));
    }
    EXPECT_ERROR(graph.update(0, launches[0]), "graph.update(0): launch 0 is a copy of memory, which stays as it was");
}

TEST_P(MemoryWorkTests, RefuseWhatDoesNotFit) {
    const Buffer x = device_->allocate(64, "x"), y = device_->allocate(32, "y");
    EXPECT_ERROR(device_->prepare_copy(y, x), "copy: 64 bytes of 'x' into the 32 bytes of 'y'; give parts of equal");
    EXPECT_ERROR(device_->prepare_copy(x.view(8, 32, "later"), x.view(0, 32, "first")),
                 "copy: 'first' and 'later' overlap; copy to memory of its own first");
    EXPECT_ERROR(device_->prepare_copy(y, {}), "copy: argument 1 is a buffer without memory");
    const std::array<std::byte, 3> three{};
    EXPECT_ERROR(device_->prepare_fill(x, three), "fill: a pattern of 3 bytes; give 1, 2 or 4");
    EXPECT_ERROR(device_->prepare_fill(x.view(0, 30), std::as_bytes(std::span("abc"))),
                 "fill: 'x' has 30 bytes, no multiple of the pattern's 4");
}

/// What the driver is asked for. A kernel that may start early does so behind a kernel, not behind such a node.
TEST(CudaMemoryWork, HasNodesOfItsOwnKind) {
    const Driver driver = fake_driver();
    {
        const auto device = make_cuda_device(driver, 0);
        const Kernel kernel = device->load({.name = "scale.cu", .entry = "scale", .cubin = "any bytes"});
        const Buffer x = device->allocate(4 * N, "x"), y = device->allocate(4 * N, "y");
        const Launch early = device->prepare(kernel, {.block = {64}, .starts_early = true}, {2.0f, y, int64_t(N)});
        const float three = 3;
        const Graph graph =
            device->record(std::vector<Launch>{device->prepare_fill(x, bytes_of_value(three)),
                                               device->prepare_copy(y, x), early, early, device->prepare_copy(x, y)});
        EXPECT_EQ(fake().num_copy_nodes, 2);
        EXPECT_EQ(fake().num_fill_nodes, 1);
        EXPECT_EQ(fake().num_edges, 4);
        EXPECT_EQ(fake().num_early_launches, 1);
        graph.run();
        EXPECT_EQ(x.read<float>(), std::vector<float>(N, 12));
        const uint16_t half = 0x4040;
        device->prepare_fill(x, bytes_of_value(half)).run();
        EXPECT_EQ(x.read<uint16_t>(), std::vector<uint16_t>(2 * N, half));
    }
    EXPECT_EQ(fake().num_alive, 0);
    EXPECT_EQ(fake().num_misuses, 0);
}

}  // namespace
}  // namespace tw
