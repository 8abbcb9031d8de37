// The cuda device on a real GPU. What needs none is tested on the fake driver, in cuda_device_test.cpp.
#include <chrono>
#include <cstdlib>

#include "runtime/driver/driver.h"
#include "runtime/driver/timer.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

constexpr int64_t N = 100'000;

constexpr const char* Source = R"(
extern "C" __global__ void scale(float a, const float* x, float* y, long long n) {
    long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
extern "C" __global__ void reverse(float* x) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < 25000; i += 256) tile[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < 25000; i += 256) x[i] = tile[24999 - i];
}
extern "C" __global__ void crash(float* x) { x[1LL << 40] = 1; }
)";

struct Gpu : testing::Test {
    std::shared_ptr<Device> device;
    std::vector<float> values = random_floats(N);

    void SetUp() override {
        try {
            load_nvrtc();
            device = open_device("cuda");
        } catch (const RuntimeError& error) {
            GTEST_SKIP() << "no GPU: " << std::string(error.what()).substr(0, 100);
        }
    }
    Kernel kernel(const std::string& entry) {
        return device->load({.name = "gpu.cu", .source = Source, .entry = entry});
    }
    Buffer buffer_of(const std::vector<float>& content) {
        Buffer buffer = device->allocate(int64_t(content.size() * 4));
        buffer.write(content);
        return buffer;
    }
    Launch scale_by(float a, const Buffer& x, const Buffer& y) {
        return device->prepare(kernel("scale"), {.grid = {(N + 255) / 256}, .block = {256}}, {a, x, y, N});
    }
    static std::vector<float> scaled(std::vector<float> values, float a) {
        for (float& value : values) value *= a;
        return values;
    }
};

TEST_F(Gpu, RunsLaunchesAndGraphs) {
    Buffer x = buffer_of(values), y = buffer_of(values);
    Launch forth = scale_by(2, x, y), back = scale_by(3, y, x);
    forth.run();
    back.run();
    EXPECT_EQ(x.read<float>(), scaled(scaled(values, 2), 3));
    x.write(values);
    std::vector<Launch> launches{forth, back};
    Graph graph = device->record(launches);
    Stream stream = device->create_stream();
    graph.run();
    graph.run(stream);
    stream.synchronize();
    EXPECT_EQ(x.read<float>(), scaled(scaled(scaled(scaled(values, 2), 3), 2), 3));
    launches[1].set(0, 1.0f);
    graph.update(1, launches[1]);
    x.write(values);
    graph.run();
    EXPECT_EQ(x.read<float>(), scaled(values, 2));
}

TEST_F(Gpu, ChecksArgumentsByTheDriversWord) {
    Buffer x = buffer_of(values);
    EXPECT_ERROR((device->prepare(kernel("scale"), {}, {1.0, x, x, N})), "argument 0 is a 8-byte float");
}

TEST_F(Gpu, GivesABlockMoreSharedMemoryThan48KiB) {
    Buffer x = buffer_of(values);
    device->prepare(kernel("reverse"), {.block = {256}, .dynamic_shared_bytes = 100'000}, {x}).run();
    EXPECT_EQ(x.read<float>()[0], values[24999]);
    EXPECT_EQ(x.read<float>()[24999], values[0]);
}

TEST_F(Gpu, OutOfMemoryIsNotSticky) {
    EXPECT_THROW(device->allocate(int64_t{1} << 46, "absurd"), OutOfMemory);
    EXPECT_EQ(buffer_of(values).read<float>(), values);
}

TEST_F(Gpu, TellsWhatALaunchCosts) {
    Buffer x = buffer_of(values), y = buffer_of(values);
    Launch launch = scale_by(2, x, y);
    constexpr int Runs = 500;  // fewer than the queue holds, so that none waits
    double least = 1;
    for (int repeat = 0; repeat < 20; ++repeat) {
        device->synchronize();
        auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < Runs; ++i) launch.run();
        std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
        least = std::min(least, elapsed.count() / Runs);
    }
    Timing timing = time_launch(launch, {.runs_per_sample = 10});
    fmt::print("{}: a launch takes the host {:.2f} us, the device {:.2f} us\n", device->name(), least * 1e6,
               timing.median_seconds * 1e6);
    EXPECT_LT(least, 100e-6);
    EXPECT_GT(timing.min_seconds, 0);
}

// In a process of its own, which it costs.
TEST_F(Gpu, ACrashIsSticky) {
    device = nullptr;
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    auto crash = [&] {
        device = open_device("cuda");
        Buffer x = device->allocate(4 * N, "x");
        Launch launch = device->prepare(kernel("crash"), {}, {x});
        launch.run();
        auto says = [](auto action) {
            try {
                action();
            } catch (const StickyError& error) {
                return std::string(error.what());
            }
            return std::string("nothing");
        };
        std::string first = says([&] { device->synchronize(); });
        bool stays = says([&] { x.read<float>(); }) == first && says([&] { launch.run(); }) == first;
        fmt::print(stderr, "{}; {}\n", first, stays ? "and stays so" : "and changes");
        std::_Exit(0);
    };
    EXPECT_EXIT(crash(), testing::ExitedWithCode(0), "ILLEGAL_ADDRESS.*last launched: crash.*and stays so");
}

}  // namespace
}  // namespace tw
