// Whether a kernel has a race does not depend on the order in which its threads happen to run: every seed finds it.
#include <random>

#include <gtest/gtest.h>

#include "runtime/emulator/emulator.h"

namespace tw::emulator {
namespace {

/// Three warps, two blocks; `shared.a` (zeros, behind a barrier) and `g` have 96 ints a block.
std::string kernel_text(const std::string& name, const std::string& body) {
    return R"(
struct Shared { int a[96]; };
extern "C" __global__ void __launch_bounds__(96) )" + name + R"((int* g, int* out) {
    Shared& shared = tw::shared_memory<Shared>();
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    int sum = 0;
    shared.a[thread] = 0;
    __syncthreads();
)" + body + R"(
    out[blockIdx.x * 96 + thread] = sum + warp + lane;
}
)";
}

Report run_kernel(const Module& module, const std::string& name, uint64_t seed) {
    std::vector<int> g(2 * 96, 1), out(2 * 96);
    int *g_pointer = g.data(), *out_pointer = out.data();
    Region all{.base = g_pointer, .bytes = g.size() * 4, .name = "g"};
    Region results{.base = out_pointer, .bytes = out.size() * 4, .name = "out"};
    results.initialised = false;
    Launch launch{.kernel = name, .grid = {2, 1, 1}, .threads = 96, .shared_bytes = 96 * 4};
    launch.arguments = {&g_pointer, &out_pointer};
    launch.regions = {all, results};
    return run(module, launch, {.seed = seed});
}

std::shared_ptr<const Module> compile_kernels(const std::vector<std::string>& bodies) {
    std::vector<Source> sources;
    for (size_t k = 0; k < bodies.size(); ++k) {
        std::string name = fmt::format("k{}", k);
        sources.push_back({.name = name, .text = kernel_text(name, bodies[k]), .line_notes = {}});
    }
    return compile(sources);
}

// An atomic operation stands neither for a write nor for a read that was ordered before it: what comes later may
// conflict with that alone.
TEST(Races, WithAtomicsAreFoundInAnyOrder) {
    const std::vector<std::string> bodies = {
        "if (thread == 0) shared.a[0] = 1; if (thread < 32) tw::atomic_add(&shared.a[0], 1);",
        "if (thread == 0) g[blockIdx.x * 96] = 1; if (thread < 32) tw::atomic_add(&g[blockIdx.x * 96], 1);",
        "if (thread == 0) sum += shared.a[0]; if (thread < 8) tw::atomic_add(&shared.a[0], 1);",
        "if (warp == 1) sum += shared.a[0]; __syncwarp(); tw::atomic_add(&shared.a[0], 1);",
        "if (thread == 0) shared.a[0] = 1; __syncwarp(); if (lane == 0) tw::atomic_add(&shared.a[0], 1);",
        "if (lane == 0) tw::atomic_add(&shared.a[0], 1); __syncwarp(); if (warp == 2) sum += shared.a[0];",
        "tw::atomic_add(&shared.a[thread / 4], 1); if (thread == 0) sum += ((unsigned short*)shared.a)[1];",
        "tw::atomic_add(&g[0], 1); if (blockIdx.x == 1 && thread == 0) sum += g[0];",
    };
    auto module = compile_kernels(bodies);
    for (size_t k = 0; k < bodies.size(); ++k)
        for (uint64_t seed = 0; seed < 20; ++seed) {
            Report report = run_kernel(*module, fmt::format("k{}", k), seed);
            ASSERT_FALSE(report.ok()) << bodies[k] << ", seed " << seed;
            EXPECT_EQ(report.findings[0].kind, Finding::Kind::Race) << bodies[k];
        }
}

TEST(Races, AtomicsAmongThemselvesAndBehindBarriersAreNone) {
    const std::vector<std::string> bodies = {
        "tw::atomic_add(&shared.a[0], 1); tw::atomic_max(&g[0], thread);",
        "tw::atomic_add(&shared.a[0], 1); __syncthreads(); sum += shared.a[0]; __syncthreads(); shared.a[thread] = 1;",
        "if (thread == 0) shared.a[0] = 1; __syncthreads(); tw::atomic_add(&shared.a[0], 1); __syncthreads(); sum += shared.a[0];",
        "if (warp == 1) tw::atomic_add(&shared.a[0], 1); __syncwarp(); if (warp == 1) sum += shared.a[0];",
        "if (warp < 2) { tw::atomic_add(&shared.a[0], 1); tw::barrier_sync(1, 64); sum += shared.a[0]; }",
    };
    auto module = compile_kernels(bodies);
    for (size_t k = 0; k < bodies.size(); ++k)
        for (uint64_t seed = 0; seed < 20; ++seed) {
            Report report = run_kernel(*module, fmt::format("k{}", k), seed);
            ASSERT_TRUE(report.ok()) << bodies[k] << ", seed " << seed << ": " << report.findings[0].message;
        }
}

/// A few random statements: accesses of all widths by some of the threads, barriers of warps, of two warps and of blocks.
class RandomBody {
public:
    explicit RandomBody(unsigned seed) : random_(seed) {}

    std::string operator()() {
        std::string body;
        for (int statements = 2 + below(6); statements > 0; --statements) body += "    " + statement() + "\n";
        return body;
    }

private:
    using Choices = std::vector<std::string>;
    int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
    std::string one_of(const Choices& choices) { return choices[static_cast<size_t>(below(static_cast<int>(choices.size())))]; }

    std::string statement() {
        const int kind = below(100);
        if (kind < 22) return "__syncthreads();";
        if (kind < 32) return "__syncwarp();";
        if (kind < 37) return one_of({"if (warp < 2) tw::barrier_sync(1, 64);", "tw::barrier_sync(2, 96);"});
        return one_of({"", "", "", "if (thread < 32) ", "if (warp == 1) ", "if (lane == 0) ", "if (thread == 0) ",
                       "if (lane < 8) ", "if (blockIdx.x == 0) ", "if (thread % 2 == 0) "}) +
               access();
    }

    std::string access() {
        const bool shared = below(4) != 0;
        const std::string array = shared ? "shared.a" : one_of({"(g + blockIdx.x * 96)", "(g + blockIdx.x * 96)", "g"});
        const std::string index = one_of({"thread", "thread", "thread", "thread % 16", "thread / 4", "warp", "lane", "0", "3",
                                          "(thread + 1) % 96", "(thread ^ 1)", "(thread ^ 33) % 64"});
        const int kind = below(100);
        if (kind < 32) return fmt::format("{}[{}] = thread;", array, index);
        if (kind < 64) return fmt::format("sum += {}[{}];", array, index);
        if (kind < 76) return fmt::format("tw::atomic_add(&{}[{}], 1);", array, index);
        if (kind < 83) return fmt::format("((unsigned char*){})[{}] = 1;", array, one_of({"thread", "thread * 4 + 1", "(thread ^ 1)", "lane"}));
        if (kind < 90) return fmt::format("sum += ((unsigned short*){})[{}];", array, one_of({"thread", "thread * 2", "(thread ^ 1)"}));
        if (kind < 95) return fmt::format("{{ int r[4]; tw::load<4>(r, &{}[thread % 16 * 4]); sum += r[0] + r[3]; }}", array);
        return fmt::format("{{ int r[2] = {{1, 2}}; tw::store<2>(&{}[thread % 32 * 2], r); }}", array);
    }

    std::mt19937 random_;
};

TEST(Races, OfRandomKernelsAreFoundByAllSeedsOrByNone) {
    const unsigned first = 2026;
    std::vector<std::string> bodies;
    for (unsigned k = 0; k < 200; ++k) bodies.push_back(RandomBody(first + k)());
    auto module = compile_kernels(bodies);
    int num_races = 0;
    for (size_t k = 0; k < bodies.size(); ++k) {
        int found = 0;
        std::string message;
        for (uint64_t seed = 0; seed < 6; ++seed) {
            Report report = run_kernel(*module, fmt::format("k{}", k), seed);
            if (report.ok()) continue;
            ++found;
            message = report.findings[0].message;
            ASSERT_EQ(report.findings[0].kind, Finding::Kind::Race) << message;
        }
        EXPECT_TRUE(found == 0 || found == 6) << found << " of 6 seeds find\n" << message << "\nin\n" << bodies[k];
        num_races += found > 0;
    }
    EXPECT_GT(num_races, 60);
    EXPECT_LT(num_races, 180);
}

}  // namespace
}  // namespace tw::emulator
