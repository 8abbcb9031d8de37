// Graphs with branches: random ones, in any order that their edges allow; an edge that is missing; what the driver is
// asked for.
#include <set>

#include <fmt/ranges.h>

#include "runtime/driver/cuda_device.h"
#include "runtime/driver/emulated_device.h"
#include "runtime/driver/null_device.h"
#include "tests/runtime/support.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

constexpr size_t N = 64;

/// b becomes something of a and b, which `log` keeps: whoever comes too early or too late is seen there.
std::string source_of(bool waits_itself) {
    const char* wait = waits_itself ? "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"
                                      "    asm volatile(\"griddepcontrol.launch_dependents;\");"
                                    : "";
    return fmt::format(R"(
extern "C" __global__ void mix(const unsigned* a, unsigned* b, unsigned* log, unsigned salt, int steps) {{
    {}
    unsigned x = a[threadIdx.x] * 3u + b[threadIdx.x] * 5u + salt;
    for (int step = 0; step < steps; ++step) x = x * 1664525u + 1013904223u;
    b[threadIdx.x] = x;
    log[threadIdx.x] = x;
}}
)",
                       wait);
}

struct Mix {
    size_t a, b;
    unsigned salt;
    int steps;
};
using After = std::vector<std::vector<size_t>>;
using Memory = std::vector<std::vector<unsigned>>;

size_t below(size_t bound) { return random_source()() % bound; }

std::vector<Mix> random_mixes(size_t count, size_t buffers, int most_steps) {
    std::vector<Mix> mixes;
    for (size_t n = 0; n < count; ++n)
        mixes.push_back({below(buffers), below(buffers), unsigned(below(1000)), int(below(size_t(most_steps)))});
    return mixes;
}

/// The fewest edges that keep conflicting ones in order.
After edges_of(const std::vector<Mix>& mixes) {
    After after(mixes.size());
    std::vector<std::set<size_t>> behind(mixes.size());
    for (size_t n = 0; n < mixes.size(); ++n)
        for (size_t before = n; before-- > 0;) {
            const Mix &one = mixes[before], &other = mixes[n];
            const bool conflict = one.b == other.a || one.b == other.b || one.a == other.b;
            if (!conflict || behind[n].contains(before)) continue;
            after[n].push_back(before);
            behind[n].insert(before);
            behind[n].insert(behind[before].begin(), behind[before].end());
        }
    return after;
}

struct Graphs : OnDevice {
    static constexpr size_t Buffers = 6, Launches = 14;

    std::vector<Launch> launches_of(const std::vector<Mix>& mixes) {
        const bool early = device_->kind() == DeviceKind::Cuda && device_->properties().compute_major >= 9;
        Kernel kernel = device_->load({.name = "mix.cu", .source = source_of(early), .entry = "mix"});
        std::vector<Launch> launches;
        for (size_t n = 0; n < mixes.size(); ++n)
            launches.push_back(device_->prepare(
                kernel, {.grid = {1}, .block = {N}, .starts_early = early},
                {buffers_[mixes[n].a], buffers_[mixes[n].b], logs_[n], mixes[n].salt, mixes[n].steps}));
        return launches;
    }
    void allocate() {
        for (size_t b = 0; b < Buffers; ++b) buffers_.push_back(device_->allocate(4 * N, fmt::format("buffer{}", b)));
        for (size_t n = 0; n < Launches; ++n) logs_.push_back(device_->allocate(4 * N, fmt::format("log{}", n)));
    }
    /// New values; returns what each launch logs of them, in the order of the list.
    Memory start(const std::vector<Mix>& mixes) {
        Memory memory, logs;
        for (const Buffer& buffer : buffers_) {
            memory.emplace_back();
            for (size_t i = 0; i < N; ++i) memory.back().push_back(unsigned(random_source()()));
            buffer.write(memory.back());
        }
        for (const Mix& mix : mixes) {
            for (size_t i = 0; i < N; ++i) {
                unsigned x = memory[mix.a][i] * 3 + memory[mix.b][i] * 5 + mix.salt;
                for (int step = 0; step < mix.steps; ++step) x = x * 1664525u + 1013904223u;
                memory[mix.b][i] = x;
            }
            logs.push_back(memory[mix.b]);
        }
        return logs;
    }
    Memory logged() const {
        Memory logs;
        for (const Buffer& log : logs_) logs.push_back(log.read<unsigned>());
        return logs;
    }

    std::vector<Buffer> buffers_, logs_;
};

TW_ON_EACH_DEVICE(Graphs);

TEST_P(Graphs, ComputeTheSameInAnyOrder) {
    allocate();
    const int most_steps = device_->kind() == DeviceKind::Cuda ? 20000 : 3;
    for (int trial = 0; trial < 10; ++trial) {
        const std::vector<Mix> mixes = random_mixes(Launches, Buffers, most_steps);
        const After after = edges_of(mixes);
        SCOPED_TRACE(fmt::format("edges {}", after));
        const Graph graph = device_->graph(launches_of(mixes), after);
        for (int run = 0; run < 4; ++run) {
            const Memory expected = start(mixes);
            graph.run();
            ASSERT_EQ(logged(), expected);
        }
    }
}

TEST_P(Graphs, ChainsRunInTheirOrder) {
    allocate();
    const std::vector<Mix> mixes = random_mixes(Launches, 2, 200);
    const Graph graph = device_->record(launches_of(mixes));
    for (int run = 0; run < 4; ++run) {
        const Memory expected = start(mixes);
        graph.run(device_->create_stream());
        ASSERT_EQ(logged(), expected);
    }
}

TEST_P(Graphs, MissAnEdgeThatWasDropped) {
    if (device_->kind() == DeviceKind::Cuda) GTEST_SKIP() << "a GPU may be lucky";
    allocate();
    int dropped = 0, noticed = 0;
    for (int trial = 0; trial < 40; ++trial) {
        const std::vector<Mix> mixes = random_mixes(Launches, Buffers, 3);
        After after = edges_of(mixes);
        const size_t n = below(Launches);
        if (after[n].empty()) continue;
        after[n].erase(after[n].begin() + std::ptrdiff_t(below(after[n].size())));
        const Graph graph = device_->graph(launches_of(mixes), after);
        ++dropped;
        for (int run = 0; run < 24; ++run) {
            const Memory expected = start(mixes);
            graph.run();
            if (logged() == expected) continue;
            ++noticed;
            break;
        }
    }
    fmt::print("{} of {} dropped edges noticed\n", noticed, dropped);
    EXPECT_GE(noticed, dropped * 8 / 10);
    EXPECT_GT(dropped, 10);
}

TEST_P(Graphs, RefuseWhatCannotRun) {
    allocate();
    const std::vector<Launch> launches = launches_of(random_mixes(3, Buffers, 1));
    EXPECT_ERROR(device_->graph(launches, {{}, {0}}), "graph: 2 lists of what to wait for, for 3 launches; give one");
    EXPECT_ERROR(
        device_->graph(launches, {{}, {2}, {}}),
        "graph: launch 1 ('mix') waits for launch 2, which does not stand in front of it; list launches in an");
    EXPECT_THROW(device_->graph(launches, {{0}, {}, {}}), LaunchError);
    EXPECT_ERROR(make_null_device("sm_90a")->graph(launches, {{}, {}, {}}),
                 "graph: 'mix' was loaded on another device");
}

/// The orders of ten runs of six launches on a new device.
std::vector<std::vector<int>> orders_by(uint64_t seed) {
    auto device = make_emulated_device("sm_90a");
    as_emulated(*device).set_options({.seed = seed});
    Kernel kernel =
        device->load({.name = "append.cu",
                      .source = "extern \"C\" __global__ void append(int* all, int own) { all[1 + all[0]++] = own; }\n",
                      .entry = "append"});
    Buffer all = device->allocate(4 * 7, "all");
    std::vector<Launch> launches;
    for (int own = 0; own < 6; ++own) launches.push_back(device->prepare(kernel, {}, {all, own}));
    const Graph graph = device->graph(launches, {{}, {}, {0}, {1}, {}, {2, 3}});
    std::vector<std::vector<int>> orders;
    for (int run = 0; run < 10; ++run) {
        all.fill(0);
        graph.run();
        std::vector<int> order = all.read<int>();
        order.erase(order.begin());
        orders.push_back(order);
    }
    return orders;
}

TEST(EmulatedGraphs, TakeOrdersByTheSeed) {
    const uint64_t seed = random_source()();
    const auto orders = orders_by(seed);
    for (const std::vector<int>& order : orders) {
        auto place = [&](int own) { return std::find(order.begin(), order.end(), own) - order.begin(); };
        EXPECT_TRUE(place(0) < place(2) && place(1) < place(3) && place(2) < place(5) && place(3) < place(5));
    }
    EXPECT_GT(std::set(orders.begin(), orders.end()).size(), 2u);
    EXPECT_EQ(orders_by(seed), orders);
    EXPECT_NE(orders_by(seed + 1), orders);
}

// On the fake driver, whose kernels run in the last order that the edges allow.
struct CudaGraphs : testing::Test {
    Driver driver = fake_driver();
    std::shared_ptr<Device> device = make_cuda_device(driver, 0);
    Kernel kernel = device->load({.name = "scale.cu", .entry = "scale", .cubin = "any bytes"});
    Buffer x = device->allocate(4 * N, "x");

    Launch scale(LaunchShape shape) { return device->prepare(kernel, shape, {2.0f, x, int64_t(N)}); }
    void TearDown() override {
        kernel = {};
        x = {};
        device = nullptr;
        EXPECT_EQ(fake().num_alive, 0);
        EXPECT_EQ(fake().num_misuses, 0);
    }
};

TEST_F(CudaGraphs, OverlapNodesThatWaitForOneAlone) {
    const Launch early = scale({.grid = {1}, .block = {64}, .starts_early = true}), plain = scale({.block = {64}});
    // 0 - 1 - 2   a fork to 3, which joins 2 at 4; 5 waits for nobody
    //  `- 3 ----- 4
    device->graph(std::vector<Launch>{early, early, plain, early, early, early}, {{}, {0}, {1}, {0}, {2, 3}, {}});
    EXPECT_EQ(fake().num_edges, 5);
    EXPECT_EQ(fake().num_early_launches, 2) << "1 and 3: 2 does not wait itself, and 4 waits for two";
}

TEST_F(CudaGraphs, PassThroughEmptyLaunches) {
    const Launch one = scale({.grid = {1}, .block = {64}}), none = scale({.grid = {0}, .block = {64}});
    const Graph graph = device->graph(std::vector<Launch>{one, one, none, none, one}, {{}, {}, {0, 1}, {2}, {3, 2}});
    EXPECT_EQ(fake().num_edges, 2) << "the last one waits for the first two, once each";
    graph.update(4, one);
    EXPECT_ERROR(graph.update(3, one), "graph.update(3): a launch cannot become empty, or stop being so");
    x.write(std::vector<float>(N, 1.0f));
    graph.run();
    EXPECT_EQ(x.read<float>()[N - 1], 8);
}

TEST_F(CudaGraphs, HaveFullEdgesAloneOnOldDrivers) {
    driver.call.graph_add_dependencies = nullptr;
    auto old = make_cuda_device(driver, 0);
    Kernel loaded = old->load({.entry = "scale", .cubin = "any bytes"});
    Buffer y = old->allocate(4 * N, "y");
    const Launch early = old->prepare(loaded, {.block = {64}, .starts_early = true}, {2.0f, y, int64_t(N)});
    old->record(std::vector<Launch>{early, early, early});
    EXPECT_EQ(fake().num_edges, 2);
    EXPECT_EQ(fake().num_early_launches, 0);
}

}  // namespace
}  // namespace tw
