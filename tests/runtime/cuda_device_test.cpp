// The cuda implementation on the fake driver: what it asks of the driver, and how failures come back.
#include "runtime/driver/cuda_device.h"

#include <cmath>
#include <thread>

#include "runtime/driver/null_device.h"
#include "runtime/driver/timer.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

using testing::HasSubstr;

constexpr int64_t N = 1000;

struct CudaDevice : testing::Test {
    Driver driver = fake_driver();
    std::shared_ptr<Device> device = make_cuda_device(driver, 0);
    std::vector<float> values = random_floats(N);
    Kernel kernel = device->load({.name = "scale.cu", .entry = "scale", .cubin = "any bytes"});

    Buffer buffer_of(const std::vector<float>& content, const std::string& name = "x") {
        Buffer buffer = device->allocate(int64_t(content.size() * 4), name);
        buffer.write(content);
        return buffer;
    }
    Launch scale_by(float a, const Buffer& x, LaunchShape shape = {.grid = {4}, .block = {256}}) {
        return device->prepare(kernel, shape, {a, x, N});
    }
    static std::vector<float> scaled(std::vector<float> values, float a) {
        for (float& value : values) value *= a;
        return values;
    }
    void TearDown() override {
        kernel = {};
        device = nullptr;
        EXPECT_EQ(fake().num_alive, 0);
        EXPECT_EQ(fake().num_misuses, 0);
    }
};

TEST_F(CudaDevice, TellsItsProperties) {
    EXPECT_EQ(device->kind(), DeviceKind::Cuda);
    EXPECT_EQ(device->name(), "Fake H200");
    EXPECT_EQ(device->arch(), "sm_90a");
    const DeviceProperties& p = device->properties();
    EXPECT_EQ(p.multiprocessors, 132);
    EXPECT_EQ(p.shared_bytes_per_block, 49152);
    EXPECT_EQ(p.shared_bytes_per_block_optin, 232448);
    EXPECT_EQ(p.shared_bytes_per_multiprocessor, 233472);
    EXPECT_EQ(p.reserved_shared_bytes_per_block, 1024);
    EXPECT_EQ(p.l2_bytes, 62914560);
    EXPECT_EQ(p.max_grid, (Dim3{2147483647, 65535, 65535}));
    EXPECT_EQ(p.max_block, (Dim3{1024, 1024, 64}));
    EXPECT_EQ(p.clock_kilohertz, 1980000);
    EXPECT_EQ(p.memory_bus_bits, 6144);
    EXPECT_EQ(p.memory_bytes, 64 << 20);
    EXPECT_EQ(device->memory_state().total_bytes, 64 << 20);
}

TEST_F(CudaDevice, RunsALaunchAgainAndAgain) {
    Buffer x = buffer_of(values);
    Launch launch = scale_by(2, x);
    launch.run();
    launch.run(device->create_stream());
    EXPECT_EQ(x.read<float>(), scaled(values, 4));
    launch.set(0, 3.0f);
    launch.run();
    EXPECT_EQ(x.read<float>(), scaled(values, 12));
    Buffer y = buffer_of(values, "y");
    launch.set(1, y);
    launch.run();
    EXPECT_EQ(y.read<float>(), scaled(values, 3));
    EXPECT_EQ(x.read<float>(), scaled(values, 12));
}

TEST_F(CudaDevice, CopiesOfALaunchAreIndependent) {
    Buffer x = buffer_of(values);
    Launch twice = scale_by(2, x), thrice = twice;
    thrice.set(0, 3.0f);
    Launch moved = std::move(thrice);
    twice.run();
    EXPECT_EQ(x.read<float>(), scaled(values, 2));
    moved.run();
    EXPECT_EQ(x.read<float>(), scaled(values, 6));
}

TEST_F(CudaDevice, ALaunchKeepsItsBuffersAndKernel) {
    Launch launch = scale_by(2, buffer_of(values));
    kernel = {};
    launch.run();
    EXPECT_EQ(launch.arguments()[1].buffer().read<float>(), scaled(values, 2));
}

TEST_F(CudaDevice, AnEmptyGridLaunchesNothing) {
    Buffer x = buffer_of(values);
    scale_by(2, x, {.grid = {0}, .block = {256}}).run();
    scale_by(2, x, {.grid = {4, 0, 1}, .block = {256}}).run(device->create_stream());
    EXPECT_EQ(fake().num_launches, 0);
    EXPECT_EQ(x.read<float>(), values);
}

TEST_F(CudaDevice, KernelsThatWaitThemselvesStartEarly) {
    Buffer x = buffer_of(values);
    scale_by(2, x).run();
    EXPECT_EQ(fake().num_early_launches, 0);
    scale_by(2, x, {.grid = {4}, .block = {256}, .starts_early = true}).run();
    EXPECT_EQ(fake().num_early_launches, 1);
    EXPECT_EQ(fake().num_launches, 2);
    EXPECT_EQ(x.read<float>(), scaled(values, 4));
}

TEST_F(CudaDevice, RaisesTheSharedMemoryLimitOfAKernel) {
    Buffer x = buffer_of(values);
    scale_by(2, x, {.grid = {1}, .block = {1}, .dynamic_shared_bytes = 48128}).run();
    EXPECT_EQ(fake().max_dynamic_shared_bytes, 48 << 10) << "47 KiB and 1 KiB of static need no raise";
    Launch large = scale_by(2, x, {.grid = {1}, .block = {1}, .dynamic_shared_bytes = 200000});
    scale_by(2, x, {.grid = {1}, .block = {1}, .dynamic_shared_bytes = 100000});
    EXPECT_EQ(fake().max_dynamic_shared_bytes, 200000) << "a smaller launch lowered it";
    large.run();
    EXPECT_EQ(fake().last_shared_bytes, 200000u);
}

TEST_F(CudaDevice, ChecksShapesBeforeAnyLaunch) {
    Buffer x = buffer_of(values);
    auto prepare = [&](Dim3 grid, Dim3 block, int64_t shared = 0) { scale_by(1, x, {grid, block, shared}); };
    EXPECT_ERROR(prepare({4, 65536, 1}, {256}),
                 "scale: grid (4, 65536, 1) is outside of 0 to (2147483647, 65535, 65535)");
    EXPECT_ERROR(prepare({int64_t{1} << 31}, {256}), "grid (2147483648, 1, 1) is outside");
    EXPECT_ERROR(prepare({-1}, {256}), "grid (-1, 1, 1) is outside");
    EXPECT_ERROR(prepare({1}, {0}), "scale: block (0, 1, 1) is outside of 1 to (1024, 1024, 64)");
    EXPECT_ERROR(prepare({1}, {1, 1, 65}), "block (1, 1, 65) is outside");
    EXPECT_ERROR(prepare({1}, {64, 32}), "block (64, 32, 1) has 2048 threads, the limit is 1024");
    EXPECT_ERROR(prepare({1}, {1}, 232448),
                 "232448 bytes of dynamic and 1024 of static shared memory; the limit of a block is 232448");
    EXPECT_ERROR(prepare({1}, {1}, -1), "-1 bytes of dynamic");
    EXPECT_NO_THROW(prepare({1}, {1}, 232448 - 1024));
}

TEST_F(CudaDevice, ChecksArgumentsAgainstTheKernelsParameters) {
    Buffer x = buffer_of(values);
    auto prepare = [&](std::vector<Argument> arguments) { device->prepare(kernel, {}, std::move(arguments)); };
    EXPECT_ERROR(prepare({1.0f, x}), "scale: 2 arguments for 3 parameters");
    EXPECT_ERROR(prepare({1.0, x, N}), "scale: argument 0 is a 8-byte float, the parameter has 4 bytes");
    EXPECT_ERROR(prepare({1.0f, x, 1000}), "scale: argument 2 is a 4-byte integer, the parameter has 8 bytes");
    EXPECT_ERROR(prepare({1.0f, Buffer(), N}), "scale: argument 1 is a buffer without memory");
    auto null = make_null_device("sm_90a");
    EXPECT_ERROR(prepare({1.0f, null->allocate(4, "far"), N}),
                 "argument 1 ('far') lies on another device (null (sm_90a))");
    Launch launch = scale_by(1, x);
    EXPECT_ERROR(launch.set(3, 1.0f), "scale: set(3): it has 3 arguments");
    EXPECT_ERROR(launch.set(0, 1), "scale: set(0): argument 0 is a 4-byte float, not a 4-byte integer");
    EXPECT_ERROR(launch.set(1, N), "argument 1 is a buffer, not a 8-byte integer");
    EXPECT_ERROR(launch.set(1, null->allocate(4, "far")), "lies on another device");
    EXPECT_ERROR(null->prepare(kernel, {}, {}), "prepare: 'scale' was loaded on another device (Fake H200)");
}

TEST_F(CudaDevice, AsksForNoParameterThatIsNotThere) {
    std::string source = "__global__ void scale(float a, float* x, long long n) { x[n] = a; }";
    const long before = fake().num_refused_questions;
    Kernel loaded = device->load({.source = source, .entry = "scale", .cubin = "any bytes"});
    EXPECT_EQ(fake().num_refused_questions, before);
    EXPECT_ERROR(device->prepare(loaded, {}, {1.0f}), "scale: 1 arguments for 3 parameters");
}

TEST_F(CudaDevice, ADriverWithoutParameterInfoChecksLess) {
    driver.call.func_get_param_info = nullptr;
    auto old = make_cuda_device(driver, 0);
    Kernel loaded = old->load({.entry = "scale", .cubin = "any bytes"});
    EXPECT_NO_THROW(old->prepare(loaded, {}, {1.0}));
    std::string source = "__global__ void scale(float a, float* x, long long n) { x[n] = a; }";
    loaded = old->load({.source = source, .entry = "scale", .cubin = "any bytes"});
    EXPECT_ERROR(old->prepare(loaded, {}, {1.0}), "scale: 1 arguments for 3 parameters");
}

TEST_F(CudaDevice, CopiesPartsAndRefusesTheRest) {
    Buffer x = buffer_of(values);
    std::vector<float> part(10);
    x.copy_to_host(part.data(), 40, 40);
    EXPECT_EQ(part, std::vector<float>(values.begin() + 10, values.begin() + 20));
    part = random_floats(10);
    x.copy_from_host(part.data(), 80, 40);
    std::copy(part.begin(), part.end(), values.begin() + 20);
    EXPECT_EQ(x.read<float>(), values);
    EXPECT_ERROR(x.copy_to_host(part.data(), 3968, 40),
                 "copy_to_host: bytes [3968, 3968 + 40) are not in buffer 'x' of 4000 bytes");
    EXPECT_ERROR(x.copy_from_host(part.data(), -4, 8), "copy_from_host: bytes [-4, ");
    EXPECT_ERROR(x.copy_to_host(part.data(), 8, INT64_MAX), "are not in buffer 'x'");
    EXPECT_ERROR(x.write(part), "write: 40 bytes for buffer 'x' of 4000 bytes");
}

TEST_F(CudaDevice, ViewsAndWrappedMemoryOwnNothing) {
    Buffer x = buffer_of(values);
    Buffer view = x.view(400, 80, "part");
    EXPECT_EQ(view.pointer(), x.pointer() + 400);
    EXPECT_EQ(view.name(), "part");
    EXPECT_EQ(x.view(4, 4).view(0, 4).name(), "x");
    EXPECT_TRUE(x.owning());
    EXPECT_FALSE(view.owning());
    EXPECT_ERROR(view.view(0, 81), "view: bytes [0, 0 + 81) are not in buffer 'part' of 80 bytes");
    x = {};
    EXPECT_EQ(view.read<float>(), std::vector<float>(values.begin() + 100, values.begin() + 120)) << "kept by its view";
    {
        Buffer wrapped = device->wrap(view.pointer(), 80, "wrapped");
        EXPECT_FALSE(wrapped.owning());
        wrapped.fill(0);
    }
    EXPECT_EQ(view.read<float>(), std::vector<float>(20, 0.0f));
}

TEST_F(CudaDevice, FillsAndCopiesAcross) {
    Buffer x = buffer_of(values), y = device->allocate(4 * N, "y");
    y.fill(0xff);
    EXPECT_TRUE(std::isnan(y.read<float>()[N - 1]));
    device->copy(y, x);
    device->copy(y, x, device->create_stream());
    EXPECT_EQ(y.read<float>(), values);
    EXPECT_ERROR(device->copy(y, x.view(0, 8)), "copy: 8 bytes of 'x' into the 4000 bytes of 'y'");
    EXPECT_ERROR(device->allocate(-1, "less"), "allocate 'less': -1 bytes");
    Buffer nothing = device->allocate(0, "nothing");
    nothing.fill(1);
    EXPECT_EQ(nothing.read<float>().size(), 0u);
    device->copy(nothing, device->allocate(0));
}

TEST_F(CudaDevice, ThePoolServesEqualSizes) {
    uint64_t first = buffer_of(values).pointer();
    long allocations = fake().num_allocations;
    EXPECT_EQ(buffer_of(random_floats(N - 1)).pointer(), first) << "4000 and 3996 bytes both round to 4096";
    EXPECT_EQ(fake().num_allocations, allocations);
    EXPECT_EQ(fake().num_synchronizations, 0) << "one stream needs no wait";
    device->release_pool();
    EXPECT_EQ(fake().memory_used, 0);
}

TEST_F(CudaDevice, AFreedBlockWaitsForOtherStreamsBeforeItsNextUse) {
    Stream stream = device->create_stream();
    scale_by(2, buffer_of(values)).run(stream);
    Buffer next = device->allocate(4 * N);
    EXPECT_EQ(fake().num_synchronizations, 1);
    next = {};
    next = device->allocate(4 * N);
    EXPECT_EQ(fake().num_synchronizations, 1) << "nothing was submitted in between";
}

TEST_F(CudaDevice, OutOfMemoryGivesThePoolBackThenTellsTheFacts) {
    { Buffer large = device->allocate(40 << 20, "large"); }
    Buffer other = device->allocate(30 << 20, "other");
    EXPECT_EQ(fake().memory_used, 30 << 20) << "the pool was given back";
    EXPECT_ERROR(device->allocate(int64_t{40} << 20, "too large"),
                 "Fake H200: no 41943040 bytes for 'too large'; 35651584 of 67108864 are free, and the pool");
    EXPECT_THROW(device->allocate(int64_t{1} << 50, "absurd"), OutOfMemory);
    other = {};
    EXPECT_NO_THROW(device->allocate(40 << 20)) << "the error is not sticky";
}

TEST_F(CudaDevice, AGraphReplaysItsLaunches) {
    Buffer x = buffer_of(values);
    Launch twice = scale_by(2, x), thrice = scale_by(3, x), none = scale_by(9, x, {.grid = {0}, .block = {1}});
    std::vector<Launch> launches{twice, none, thrice};
    Graph graph = device->record(launches);
    EXPECT_EQ(graph.size(), 3u);
    twice.set(0, 100.0f);
    graph.run();
    EXPECT_EQ(x.read<float>(), scaled(values, 6)) << "what is set later changes nothing";
    launches[0].set(0, 5.0f);
    graph.update(0, launches[0]);
    graph.run(device->create_stream());
    EXPECT_EQ(x.read<float>(), scaled(scaled(scaled(values, 6), 5), 3));

    EXPECT_ERROR(graph.update(3, twice), "graph.update(3): it has 3 launches");
    EXPECT_ERROR(graph.update(1, twice), "graph.update(1): a launch cannot become empty, or stop being so");
    Kernel same = device->load({.entry = "scale", .cubin = "other bytes"});
    EXPECT_ERROR(graph.update(0, device->prepare(same, {}, {2.0f, x, N})),
                 "launch 0 is of kernel 'scale', not of 'scale'");
    auto null = make_null_device("sm_90a");
    EXPECT_ERROR(null->record(launches), "graph: 'scale' was loaded on another device (Fake H200)");
}

TEST_F(CudaDevice, AGraphOrdersKernelsThatStartEarly) {
    Buffer x = buffer_of(values);
    LaunchShape early{.grid = {4}, .block = {256}, .starts_early = true};
    std::vector<Launch> launches{scale_by(2, x, early), scale_by(4, x), scale_by(8, x, early), scale_by(2, x, early)};
    device->record(launches).run();
    EXPECT_EQ(fake().num_edges, 3);
    EXPECT_EQ(fake().num_early_launches, 2) << "the first has nobody to wait for, the second does not wait itself";
    EXPECT_EQ(x.read<float>(), scaled(values, 128));
}

TEST_F(CudaDevice, AGraphKeepsWhatItUses) {
    Buffer x = buffer_of(values);
    Graph graph;
    {
        std::vector<Launch> launches{scale_by(2, buffer_of(values, "gone")), scale_by(2, x)};
        graph = device->record(launches);
    }
    kernel = {};
    graph.run();
    EXPECT_EQ(x.read<float>(), scaled(values, 2));
}

TEST_F(CudaDevice, TimesByEvents) {
    Launch launch = scale_by(1, buffer_of(values));
    int before = 0;
    Timing timing =
        time_launch(launch, {.warmups = 2, .samples = 9, .runs_per_sample = 4, .before_sample = [&] { ++before; }});
    EXPECT_EQ(fake().num_launches, 2 + 9 * 4);
    EXPECT_EQ(before, 9);
    EXPECT_EQ(timing.samples.size(), 9u);
    // The fake's events are 1, 2, 3, 1, ... milliseconds apart.
    EXPECT_NEAR(timing.min_seconds, 1e-3 / 4, 1e-9);
    EXPECT_NEAR(timing.median_seconds, 2e-3 / 4, 1e-9);
    EXPECT_NEAR(timing.max_seconds, 3e-3 / 4, 1e-9);
    EXPECT_ERROR((time_launch(launch, {.samples = 0})), "timing needs at least one sample of one run, not 0 of 1");
}

TEST_F(CudaDevice, LoadsManyAndTimesTheirLaunches) {
    std::vector<KernelImage> images(3, {.entry = "scale", .cubin = "any bytes"});
    Buffer x = buffer_of(values);
    std::vector<Launch> launches;
    for (const Kernel& one : device->load_all(images))
        launches.push_back(device->prepare(one, {.grid = {4}, .block = {256}}, {2.0f, Argument::read_only(x), N}));
    EXPECT_EQ(time_launches(launches, {.warmups = 1, .samples = 4}).samples.size(), 4u);
    EXPECT_EQ(fake().num_launches, 3 * 5);
    images[1].entry = "nothing";
    EXPECT_THROW(device->load_all(images), DriverError);
}

TEST_F(CudaDevice, StreamsAndEventsOrderEachOther) {
    Stream a = device->create_stream(), b = device->create_stream();
    Event event = device->create_event();
    event.record(a);
    b.wait(event);
    event.synchronize();
    b.synchronize();
    EXPECT_NE(a.handle(), nullptr);
    EXPECT_NE(a.handle(), b.handle());
    EXPECT_EQ(device->default_stream().handle(), device->default_stream().handle());
}

TEST_F(CudaDevice, EveryThreadGetsTheContext) {
    Buffer x = buffer_of(values);
    std::vector<float> seen;
    std::jthread([&] { seen = x.read<float>(); }).join();
    EXPECT_EQ(seen, values);
}

TEST_F(CudaDevice, ACrashedKernelPoisonsTheDevice) {
    Buffer x = buffer_of(values);
    Launch launch = scale_by(2, x);
    launch.run();
    fake().stuck_code = 700;
    EXPECT_ERROR(
        device->synchronize(),
        "Fake H200 is lost to this process: cuCtxSetCurrent: error 700 (CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory "
        "access was encountered); last launched: scale. Only a new process helps.");
    fake().stuck_code = 719;
    long calls = fake().num_calls;
    EXPECT_ERROR(launch.run(), "cuCtxSetCurrent: error 700") << "the first cause stays";
    EXPECT_THROW(x.read<float>(), StickyError);
    EXPECT_EQ(fake().num_calls, calls) << "the driver was asked again";
}

TEST_F(CudaDevice, FailuresThatHarmNothingAreNotSticky) {
    Launch launch = scale_by(2, buffer_of(values));
    auto fail_next = [&](int code, long skip) {
        fake().fail_code = code;
        fake().fail_at = fake().num_calls + skip;
    };
    fail_next(701, 1);
    EXPECT_ERROR(launch.run(),
                 "cuLaunchKernel: error 701 (CUDA_ERROR_OTHER: something else); the kernel needs more registers");
    fail_next(1, 1);
    EXPECT_ERROR(launch.run(), "cuLaunchKernel: error 1 (CUDA_ERROR_OTHER: something else) on Fake H200");
    fail_next(2, 1);
    EXPECT_ERROR(launch.run(), "cuLaunchKernel: error 2 (CUDA_ERROR_OTHER: something else) on Fake H200");
    EXPECT_NO_THROW(launch.run());
    EXPECT_ERROR(device->load({.entry = "nothing", .cubin = "any bytes"}),
                 "cuModuleGetFunction of 'nothing': error 500");
}

TEST(CudaProperties, NameTheDeviceThatIsNotThere) {
    Driver driver = fake_driver();
    EXPECT_ERROR(make_cuda_device(driver, 2),
                 fmt::format("there is no CUDA device 2; the driver ({}) sees 2", fake_cuda_path()));
    EXPECT_THROW(make_cuda_device(driver, -1), NoDevice);
    fake().fail_at = fake().num_calls;
    fake().fail_code = 999;
    EXPECT_ERROR(make_cuda_device(driver, 1), "cuDeviceGetCount of device 1: error 999");
    EXPECT_EQ(fake().num_alive, 0);
}

}  // namespace
}  // namespace tw
