// Page-locked memory, and copies that the host does not wait for.
#include <cmath>

#include "runtime/driver/cuda_device.h"
#include "runtime/driver/null_device.h"
#include "runtime/driver/pinned_buffer.h"
#include "tests/runtime/support.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

constexpr int64_t N = 1000;

struct Pinned : OnDevice {
    Kernel add() {
        return device_->load({.name = "add.cu",
                              .source = "extern \"C\" __global__ void add(const float* x, float* sum, long long n) {\n"
                                        "    long long i = blockIdx.x * 128LL + threadIdx.x;\n"
                                        "    if (i < n) sum[i] += x[i];\n}\n",
                              .entry = "add"});
    }
    Launch adding(const Buffer& x, const Buffer& sum) {
        return device_->prepare(add(), {.grid = {(N + 127) / 128}, .block = {128}}, {x, sum, N});
    }
};

TW_ON_EACH_DEVICE(Pinned);

TEST_P(Pinned, GoesToTheDeviceAndBack) {
    const std::vector<float> values = random_floats(N);
    PinnedBuffer there = device_->allocate_pinned(4 * N, "there"), back = device_->allocate_pinned(4 * N, "back");
    there.write(values);
    EXPECT_EQ(there.as<float>()[7], values[7]);
    EXPECT_EQ(there.as<double>().size(), size_t(N) / 2);
    Buffer x = device_->allocate(4 * N, "x");
    x.fill(0xff);
    Stream stream = device_->create_stream();
    device_->copy(x, there, stream);
    device_->copy(back, x, stream);
    EXPECT_EQ(back.read<float>(), values) << "read() waits";
    device_->copy(x.view(400, 80), there.view(0, 80));
    device_->copy(back.view(80, 80, "part"), x.view(400, 80));
    device_->default_stream().synchronize();
    EXPECT_EQ(std::vector<float>(back.as<float>().begin() + 20, back.as<float>().begin() + 40),
              std::vector<float>(values.begin(), values.begin() + 20));
    EXPECT_EQ(back.view(80, 80).read<float>(), std::vector<float>(values.begin(), values.begin() + 20));
}

TEST_P(Pinned, IsWrittenAnewOnlyWhenItsCopiesHaveEnded) {
    Stream stream = device_->create_stream();
    Buffer x = device_->allocate(4 * N, "x"), y = device_->allocate(4 * N, "y");
    PinnedBuffer batch = device_->allocate_pinned(4 * N, "batch");
    const std::vector<float> first = random_floats(N), second = random_floats(N);
    batch.write(first);
    device_->copy(x, batch, stream);
    batch.write(second);
    device_->copy(y, batch);
    batch.view(0, 400).write(std::vector<float>(100, 0.0f));
    EXPECT_EQ(x.read<float>(), first);
    EXPECT_EQ(y.read<float>(), second);
}

/// Batches that one stream uploads into two buffers in turn, while the other one adds up what came before.
TEST_P(Pinned, FeedsAStreamThatComputes) {
    Stream uploads = device_->create_stream(), work = device_->create_stream();
    Buffer sum = device_->allocate(4 * N, "sum");
    sum.write(std::vector<float>(N, 0.0f));
    struct Slot {
        PinnedBuffer host;
        Buffer x;
        Launch adds;
        Event full, empty;
    };
    std::vector<Slot> slots;
    for (const char* name : {"even", "odd"}) {
        Buffer x = device_->allocate(4 * N, name);
        slots.push_back({device_->allocate_pinned(4 * N, name), x, adding(x, sum), device_->create_event(),
                         device_->create_event()});
    }
    std::vector<float> expected(N);
    for (size_t batch = 0; batch < 20; ++batch) {
        const Slot& slot = slots[batch % 2];
        std::vector<float> values = random_floats(N);
        for (size_t i = 0; i < values.size(); ++i) expected[i] += values[i];
        slot.host.write(values);
        if (batch >= 2) uploads.wait(slot.empty);
        device_->copy(slot.x, slot.host, uploads);
        slot.full.record(uploads);
        work.wait(slot.full);
        slot.adds.run(work);
        slot.empty.record(work);
    }
    EXPECT_EQ(sum.read<float>(), expected);
}

TEST_P(Pinned, RefusesWhatDoesNotFit) {
    PinnedBuffer pinned = device_->allocate_pinned(400, "batch");
    Buffer x = device_->allocate(404, "x");
    EXPECT_ERROR(device_->copy(x, pinned),
                 "copy from pinned buffer 'batch' of 400 bytes: 'x' has 404; give views of equal sizes, view(offset,");
    EXPECT_ERROR(device_->copy(pinned, x), "copy to pinned buffer 'batch' of 400 bytes: 'x' has 404");
    EXPECT_ERROR(device_->copy(x, PinnedBuffer()), "copy from pinned memory: the pinned buffer has no memory");
    EXPECT_ERROR(device_->copy(Buffer(), pinned), "copy from pinned memory: the device's buffer has no memory");
    EXPECT_ERROR(pinned.view(8, 396), "view: bytes [8, 8 + 396) are not in pinned buffer 'batch' of 400 bytes");
    EXPECT_ERROR(pinned.view(-1, 1), "view: bytes [-1, ");
    EXPECT_ERROR(pinned.view(8, INT64_MAX), "are not in pinned buffer 'batch'");
    EXPECT_ERROR(pinned.write(std::vector<float>(7)), "write: 28 bytes for pinned buffer 'batch' of 400 bytes");
    EXPECT_ERROR(device_->allocate_pinned(-1, "less"), "allocate_pinned 'less': -1 bytes");
    EXPECT_THROW(device_->allocate_pinned(int64_t{1} << 50, "absurd"), RuntimeError);
    auto other = make_null_device("sm_90a");
    EXPECT_ERROR(other->copy(x, pinned), "copy from pinned buffer 'batch' by null (sm_90a): one of 'x' and 'batch' is");
    EXPECT_ERROR(device_->copy(x.view(0, 400), other->allocate_pinned(400, "far")),
                 "of another device (null (sm_90a))");
    PinnedBuffer nothing = device_->allocate_pinned(0, "nothing");
    device_->copy(device_->allocate(0), nothing);
    EXPECT_EQ(nothing.read<float>().size(), 0u);
}

TEST(EmulatedPinned, CopiesComeAsLateAsTheyMay) {
    auto device = open_device("emulated");
    Kernel kernel = device->load({.name = "take.cu",
                                  .source = "extern \"C\" __global__ void take(const int* x, int* y) { *y = *x; }\n",
                                  .entry = "take"});
    Buffer x = device->allocate(4, "x"), y = device->allocate(4, "y");
    x.write(std::vector<int>{1});
    Launch take = device->prepare(kernel, {}, {x, y});
    PinnedBuffer two = device->allocate_pinned(4, "two"), seen = device->allocate_pinned(4, "seen");
    two.write(std::vector<int>{2});
    Stream uploads = device->create_stream(), work = device->create_stream();
    Event there = device->create_event();
    auto seen_by = [&](const auto& wait) {
        x.write(std::vector<int>{1});
        device->copy(x, two, uploads);
        there.record(uploads);
        wait();
        take.run(work);
        device->copy(seen, y, work);
        return seen.read<int>()[0];
    };
    EXPECT_EQ(seen_by([] {}), 1) << "nobody has waited";
    EXPECT_EQ(seen_by([&] { device->create_stream().wait(there); }), 2) << "somebody has";
    EXPECT_EQ(seen_by([&] { work.wait(there); }), 2);
    EXPECT_EQ(seen_by([&] { there.synchronize(); }), 2);
    EXPECT_EQ(seen_by([&] { uploads.synchronize(); }), 2);
    EXPECT_EQ(seen_by([&] { device->synchronize(); }), 2);
    EXPECT_EQ(seen_by([&] { two.wait(); }), 2);
    EXPECT_EQ(seen_by([&] { y.fill(0); }), 2) << "host copies and fills come behind all";
    EXPECT_EQ(seen_by([&] { take.run(uploads); }), 2) << "so does what the stream is given next";
    EXPECT_EQ(seen_by([&] { device->copy(y, x, uploads); }), 2);
    device->copy(x, two, uploads);
    two.as<int>()[0] = 3;
    EXPECT_EQ(x.read<int>()[0], 3) << "the host did not wait";
}

TEST(NullPinned, RefusesToCopy) {
    auto device = open_device("null");
    PinnedBuffer pinned = device->allocate_pinned(8, "pinned");
    pinned.write(std::vector<int>{1, 2});
    EXPECT_ERROR(device->copy(device->allocate(8), pinned), "copy: the null device only compiles");
    EXPECT_ERROR(device->copy(pinned, device->allocate(8)), "copy: the null device only compiles");
    EXPECT_ERROR(device->allocate_pinned(int64_t{1} << 50, "absurd"),
                 "null (sm_90a): no 1125899906842624 bytes of host");
}

struct PinnedOnCuda : testing::Test {
    Driver driver = fake_driver();
    std::shared_ptr<Device> device = make_cuda_device(driver, 0);
};

TEST_F(PinnedOnCuda, IsFreedAndNobodyWaitsForTheDevice) {
    {
        PinnedBuffer pinned = device->allocate_pinned(4 * N, "batch");
        Buffer x = device->allocate(4 * N, "x");
        std::vector<float> values = random_floats(N);
        pinned.write(values);
        Stream stream = device->create_stream();
        device->copy(x, pinned, stream);
        const long alive = fake().num_alive;
        for (int k = 0; k < 5; ++k) device->copy(x, pinned, stream);
        EXPECT_EQ(fake().num_alive, alive) << "one event for a stream";
        device->copy(pinned, x, stream);
        EXPECT_EQ(fake().num_later_copies, 7);
        EXPECT_EQ(fake().num_synchronizations, 0);
        EXPECT_EQ(pinned.read<float>(), values);
        EXPECT_EQ(fake().num_synchronizations, 0);
    }
    device = nullptr;
    EXPECT_EQ(fake().num_alive, 0);
    EXPECT_EQ(fake().num_misuses, 0);
}

TEST_F(PinnedOnCuda, CitesTheBufferThatIsNotThere) {
    EXPECT_ERROR(device->allocate_pinned(int64_t{1} << 40, "absurd"), "cuMemHostAlloc of 'absurd': error 2");
    EXPECT_THROW(device->allocate_pinned(int64_t{1} << 40, "absurd"), OutOfMemory);
}

}  // namespace
}  // namespace tw
