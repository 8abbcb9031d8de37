// The printed text: golden kernels, expressions, names that cannot escape, and compilers that accept it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <sstream>

#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "codegen/print/names.h"
#include "codegen/print/print_cuda.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "device/vocabulary.h"
#include "dsl/schedule.h"
#include "tests/support/golden.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<ThreadKernel> whole_kernels() {
    return {copy_kernel(1 << 20), transpose_kernel(), sgemm_kernel(), softmax_kernel()};
}

TEST(PrintCuda, GoldenKernels) {
    for (const ThreadKernel& kernel : whole_kernels()) {
        KernelText text = print_cuda(finished(kernel));
        EXPECT_TRUE(matches_golden(text.cuda, kernel.name + ".cu"));
    }
}

TEST(PrintCuda, SaysWhatALaunchNeeds) {
    ThreadKernel kernel = sgemm_kernel();
    KernelText text = print_cuda(finished(kernel));
    EXPECT_EQ(text.name, "sgemm_kernel");
    EXPECT_EQ(text.threads, 256);
    EXPECT_EQ(text.shared_bytes, 64 * 20 * 4 + 16 * 64 * 4);
    EXPECT_EQ(text.arguments.size(), 3u);
    EXPECT_EQ(text.written, (std::vector<bool>{false, false, true}));
    EXPECT_FALSE(text.approximate);
    EXPECT_TRUE(print_cuda(finished(softmax_kernel())).approximate);
    ThreadKernel copy = copy_kernel(1000);
    EXPECT_TRUE(print_cuda(finished(copy)).sizes[0].same(copy.sizes[0])) << "by identity";
}

TEST(PrintCuda, NotesTheStepOfEachLine) {
    KernelText text = print_cuda(finished(transpose_kernel()));
    std::istringstream lines(text.cuda);
    size_t number = 0;
    for (std::string line; std::getline(lines, line); ++number) {
        ASSERT_LT(number, text.line_steps.size());
        bool stores_b = line.find(" b[b_offset") != line.npos, fills = line.find(" shared.tile[warp") != line.npos;
        if (stores_b || fills) {
            EXPECT_EQ(text.line_steps[number], stores_b ? 3 : 2) << line;
        }
    }
    EXPECT_EQ(number, text.line_steps.size());
}

// ---- expressions ----------------------------------------------------------------------------------------------------

/// How a float expression of x and y, or an integer one of i and j (0..99 and -9..9), is printed.
struct Scratch {
    ThreadKernel kernel = empty_kernel("scratch", 1);
    Expr x = scalar("x", f32), y = scalar("y", f32), p = scalar("p", boolean), q = scalar("q", boolean);
    Expr i = index_variable("i", 0, 99), j = index_variable("j", -9, 9);

    std::string text(const Expr& value) {
        Buffer out = make_buffer("out", value.type(), Memory::Global, {1000});
        kernel.arguments.clear();
        kernel.written.clear();
        add_argument(kernel, out, true);
        kernel.scalars = {x, y, p, q};
        kernel.body = loop(i, 100, {let(j, i % 19 - 9), store(out, {0}, value)});
        std::string cuda = print_cuda(narrow_indices(kernel)).cuda;
        size_t start = cuda.find("out[0] = ") + 9;
        return cuda.substr(start, cuda.find(";\n", start) - start);
    }
};

TEST(PrintCuda, FewParentheses) {
    Scratch s;
    Expr x = s.x, y = s.y, p = s.p, q = s.q;
    EXPECT_EQ(s.text((x + y) * x), "(x + y) * x");
    EXPECT_EQ(s.text(x + y * x), "x + y * x");
    EXPECT_EQ(s.text(x - (y - x)), "x - (y - x)");
    EXPECT_EQ(s.text((x - y) - x), "x - y - x");
    EXPECT_EQ(s.text(x + (y + x)), "x + (y + x)") << "float addition is not associative";
    EXPECT_EQ(s.text(x / (y * x)), "x / (y * x)");
    EXPECT_EQ(s.text(-(-x)), "-(-x)");
    EXPECT_EQ(s.text(-(x + y)), "-(x + y)");
    EXPECT_EQ(s.text((p && q) || !p), "(p && q) || !p");
    EXPECT_EQ(s.text((p || q) && p), "(p || q) && p");
    EXPECT_EQ(s.text(!(x < y)), "!(x < y)");
    EXPECT_EQ(s.text(select(x < y, x, y)), "x < y ? x : y");
    EXPECT_EQ(s.text(select(p, x, select(q, y, x)) + y), "(p ? x : q ? y : x) + y");
    EXPECT_EQ(s.text(fma(x, y, x + y)), "tw::fma(x, y, x + y)");
    EXPECT_EQ(s.text(max(x, y)), "tw::max(x, y)");
}

// for (r = 0; r < i < 4 ? 7 : 5; ...) would never end. What has to be loaded for it is loaded once.
TEST(PrintCuda, ExtentsAreComparedAsAWhole) {
    auto text = [](bool by_data) {
        Tensor lengths = input("lengths", i32, {9});
        Tensor y = compute("y", {9}, [&](Expr i) {
            Axis r = reduce_axis("r", by_data ? lengths(i) : select(i < 4, Expr(7), Expr(5)));
            return sum(cast(f32, r.variable), r);
        });
        Schedule s({y}, target("sm_80"));
        auto [block, inside] = s.split(s.loops<1>(y)[0], 8, Tail::Mask);
        s.bind(block, grid.x);
        s.bind(inside, tw::thread);
        std::vector<std::string> notes;
        Tree tree = s.tree();
        return print_cuda(finished(lower_to_threads(tree, tree.nests[0], s.target(), {}, notes))).cuda;
    };
    EXPECT_THAT(text(false), HasSubstr("r < (i_outer * 8 + i_inner < 9 ? "));
    EXPECT_THAT(text(true), HasSubstr("int r = 0, r_end = i_outer * 8 + i_inner < 9 ? "));
    EXPECT_THAT(text(true), HasSubstr("; r < r_end;"));
}

TEST(PrintCuda, Literals) {
    Scratch s;
    auto f = [&](double value) { return s.text(constant(f32, value)); };
    EXPECT_EQ(f(0), "0.0f");
    EXPECT_EQ(f(-0.0), "-0.0f");
    EXPECT_EQ(f(1.5), "1.5f");
    EXPECT_EQ(f(static_cast<float>(0.1)), "0.1f");
    EXPECT_EQ(f(1e20), "1e+20f");
    EXPECT_EQ(f(INFINITY), "tw::infinity<float>()");
    EXPECT_EQ(f(-INFINITY), "-tw::infinity<float>()");
    EXPECT_EQ(f(std::nan("")), "tw::nan<float>()");
    EXPECT_EQ(s.text(constant(f64, 0.1)), "0.1");
    EXPECT_EQ(s.text(constant(bf16, 1.0)), "tw::to_bf16(1.0f)");
    EXPECT_EQ(s.text(constant(boolean, int64_t{1})), "true");
    EXPECT_EQ(s.text(constant(u32, int64_t{4294967295})), "4294967295u");
    EXPECT_EQ(s.text(constant(i64, int64_t{1} << 40)), "1099511627776ll");
    EXPECT_EQ(s.text(constant(i32, std::numeric_limits<int32_t>::min())), "-2147483647 - 1");
    EXPECT_EQ(s.text(constant(i64, std::numeric_limits<int64_t>::min())), "-9223372036854775807ll - 1");
}

TEST(PrintCuda, EveryFloatLiteralIsExact) {
    Scratch s;
    uint32_t bits = 1;
    for (int n = 0; n < 300; ++n) {
        bits = bits * 1664525u + 1013904223u;
        float value;
        std::memcpy(&value, &bits, 4);
        if (!std::isfinite(value)) continue;
        EXPECT_EQ(std::strtof(s.text(constant(f32, static_cast<double>(value))).c_str(), nullptr), value);
    }
    EXPECT_EQ(s.text(constant(f32, std::numeric_limits<float>::denorm_min())), "1e-45f");
}

TEST(PrintCuda, IntegerDivision) {
    Scratch s;
    EXPECT_EQ(s.text(s.i / 7), "i / 7");
    EXPECT_EQ(s.text(s.i % 7 * 3), "i % 7 * 3");
    EXPECT_EQ(s.text(s.i / (s.i % 7 + 1)), "i / (i % 7 + 1)");
    EXPECT_EQ(s.text(s.j / 7), "tw::floor_div(j, 7)");
    EXPECT_EQ(s.text(s.j % 7), "tw::floor_mod(j, 7)");
    EXPECT_EQ(s.text(s.j / (s.i + 1)), "tw::floor_div(j, i + 1)");
    EXPECT_EQ(s.text(s.i + -5), "i - 5");
    EXPECT_EQ(s.text(min(s.i, s.j)), "tw::min(i, j)");
}

TEST(PrintCuda, Conversions) {
    Scratch s;
    EXPECT_EQ(s.text(cast(bf16, s.x)), "tw::to_bf16(x)");
    EXPECT_EQ(s.text(cast(f16, s.x + s.y)), "tw::to_f16(x + y)");
    EXPECT_EQ(s.text(cast(f32, cast(e4m3, s.x))), "tw::to_f32(tw::to_e4m3(x))");
    EXPECT_EQ(s.text(cast(f32, s.i + 1)), "(float)(i + 1)");
    EXPECT_EQ(s.text(cast(f64, s.x)), "(double)x");
    EXPECT_EQ(s.text(cast(i32, s.x)), "tw::to_i32(x)");
    EXPECT_EQ(s.text(cast(i8, s.x)), "tw::to_i8(x)");
    EXPECT_EQ(s.text(cast(i8, round(s.x))), "tw::round_to_i8(x)");
    EXPECT_EQ(s.text(cast(i32, round(s.x))), "tw::round_to_i32(x)");
    EXPECT_EQ(s.text(cast(tf32, s.x)), "tw::to_tf32(x)");
    EXPECT_EQ(s.text(truncate_tf32(s.x)), "tw::truncate_tf32(x)");
    EXPECT_EQ(s.text(cast(f32, s.p)), "(float)p");
    EXPECT_EQ(s.text(cast(boolean, s.x)), "x != 0");
    EXPECT_EQ(s.text(cast(i32, s.i)), "i") << "an index that is an int already";
}

TEST(PrintCuda, Updates) {
    ThreadKernel kernel = empty_kernel("updates", 32);
    Buffer x = make_buffer("x", f32, Memory::Registers, {});
    Expr here = load(x, {});
    kernel.body = in_order(
        {declare(x), store(x, {}, here + 1.0), store(x, {}, here * here), store(x, {}, constant(f32, 1.0) - here)});
    std::string cuda = print_cuda(kernel).cuda;
    EXPECT_THAT(cuda, HasSubstr("x += 1.0f;"));
    EXPECT_THAT(cuda, HasSubstr("x *= x;"));
    EXPECT_THAT(cuda, HasSubstr("x = 1.0f - x;"));
}

// ---- names ----------------------------------------------------------------------------------------------------------

TEST(Names, AreIdentifiers) {
    EXPECT_EQ(sanitize("row"), "row");
    EXPECT_EQ(sanitize("my tensor"), "my_tensor");
    EXPECT_EQ(sanitize("a__b_"), "a_b");
    EXPECT_EQ(sanitize("_Reserved"), "Reserved");
    EXPECT_EQ(sanitize("2d"), "v2d");
    EXPECT_EQ(sanitize(""), "v");
    EXPECT_EQ(sanitize("\xc3\xa4"), "v");
    EXPECT_EQ(sanitize("x; } evil() {"), "x_evil");
    EXPECT_EQ(sanitize(std::string(500, 'x')).size(), 48u);
}

TEST(Names, AreNoneOfTheLanguages) {
    for (const char* word : {"float", "threadIdx", "linux", "tw", "TW_EMULATED", "main", "if", "assert"})
        EXPECT_TRUE(is_reserved(word)) << word;
    EXPECT_FALSE(is_reserved("row"));
    Names names;
    int a = 0, b = 0;
    EXPECT_EQ(names.declare(&a, "float"), "float_2");
    EXPECT_EQ(names.declare(&b, "float"), "float_3");
}

TEST(Names, AreUniqueWhereVisible) {
    Names names;
    int a = 0, b = 0, c = 0;
    EXPECT_EQ(names.declare(&a, "i"), "i");
    names.enter();
    EXPECT_EQ(names.declare(&b, "i"), "i_2");
    EXPECT_EQ(names.of(&a, "i"), "i");
    names.leave();
    names.enter();
    EXPECT_EQ(names.declare(&c, "i"), "i_2");
}

// What one thread stores and another loads behind a barrier: with __restrict__ compilers load it before, too.
TEST(PrintCuda, ExchangedElementsAreNotRestricted) {
    for (bool exchanged : {false, true}) {
        ThreadKernel kernel = empty_kernel("hand_on", 32);
        Buffer from = make_buffer("from", f32, Memory::Global, {32}), to = make_buffer("to", f32, Memory::Global, {32}),
               last = make_buffer("last", f32, Memory::Global, {32});
        add_argument(kernel, from, false);
        add_argument(kernel, to, true);
        add_argument(kernel, last, true);
        Expr other = (kernel.thread + 1) % 32;
        kernel.body = in_order({store(to, {kernel.thread}, load(from, {kernel.thread})), make_thread(ThreadBarrier{}),
                                store(last, {kernel.thread}, load(exchanged ? to : from, {other}))});
        std::string cuda = print_cuda(kernel).cuda;
        EXPECT_THAT(cuda, HasSubstr("const float* __restrict__ from"));
        EXPECT_THAT(cuda, HasSubstr(exchanged ? "float* to" : "float* __restrict__ to"));
        EXPECT_THAT(cuda, HasSubstr("float* __restrict__ last"));
    }
}

/// Whatever users call things, the text has the same shape: only names and comments differ.
TEST(Names, CannotInjectCode) {
    const std::string evil =
        "x; } /* */ // \n#include <evil> \\\n\" ?"
        "?/\n asm(\"trap;\"); {";
    ThreadKernel kernel = empty_kernel(evil, 32);
    Buffer a = make_buffer(evil, f32, Memory::Global, {64}), s = make_buffer(evil, f32, Memory::Shared, {64});
    add_argument(kernel, a, true);
    kernel.shared = {s};
    kernel.header = {evil};
    Expr n = size("n" + evil, {1, 64, 1}), i = index_variable(evil, 0, 3);
    kernel.sizes = {n};
    kernel.body =
        in_order({comment(evil), loop(i, 4, {store(s, {i}, constant(f32, 1.0)), store(a, {n - 1}, load(s, {i}))})});
    std::string cuda = print_cuda(narrow_indices(kernel)).cuda;
    cuda = cuda.substr(cuda.find("struct Shared"));
    EXPECT_THAT(cuda, Not(HasSubstr("\n#include")));
    EXPECT_THAT(cuda, Not(HasSubstr("??")));
    EXPECT_THAT(cuda, HasSubstr("x_include_evil_asm_tra_kernel(float* __restrict__ x_include_evil_asm_tra, int "
                                "nx_include_evil_asm_tr) {\n"));
    EXPECT_EQ(std::count(cuda.begin(), cuda.end(), '\\'), 0);
    std::istringstream lines(cuda);
    int code = 0;
    for (std::string line; std::getline(lines, line);) {
        bool is_comment = line.find_first_not_of(' ') == line.find("//") && line.find("//") != line.npos;
        code += !is_comment && !line.empty();
    }
    EXPECT_EQ(code, 11) << cuda;
}

// ---- roles and tiles ------------------------------------------------------------------------------------------------

ThreadStmt role(const std::string& name, int first, int threads, const ThreadStmt& body) {
    return make_thread(ThreadRole{name, index_variable(name + "_thread", 0, threads - 1), first, threads, body}, 7);
}

struct WithRoles {
    ThreadKernel kernel = empty_kernel("with_roles", 256);
    Buffer a = make_buffer("a", f32, Memory::Global, {64});

    WithRoles() {
        kernel.producer_threads = 256;
        add_argument(kernel, a, true);
    }
    ThreadStmt put(int64_t index) { return store(a, {index}, constant(f32, 1.0)); }
    std::string text(std::vector<ThreadStmt> body) {
        kernel.body = in_order(std::move(body));
        std::string cuda = print_cuda(kernel).cuda;
        return cuda.substr(cuda.find(") {\n") + 4);
    }
};

TEST(PrintCuda, RolesAreCasesOfOneChain) {
    WithRoles k;
    EXPECT_EQ(
        k.text({role("load", 256, 128, k.put(1)), role("store", 384, 128, k.put(2)), role("math", 0, 256, k.put(3))}),
        "    if (threadIdx.x >= 256 && threadIdx.x < 384) {  // [7] role load: threads 256 to 383\n"
        "        const int load_thread = threadIdx.x - 256;\n"
        "        a[1] = 1.0f;\n"
        "    } else if (threadIdx.x >= 384) {  // [7] role store: threads 384 to 511\n"
        "        const int store_thread = threadIdx.x - 384;\n"
        "        a[2] = 1.0f;\n"
        "    } else {  // [7] role math: threads 0 to 255\n"
        "        const int math_thread = threadIdx.x;\n"
        "        a[3] = 1.0f;\n"
        "    }\n"
        "}\n");
}

TEST(PrintCuda, RolesThatShareThreadsFollowEachOther) {
    WithRoles k;
    std::string text = k.text({role("first", 0, 256, k.put(1)), role("second", 128, 256, k.put(2))});
    EXPECT_THAT(text, HasSubstr("    if (threadIdx.x < 256) {  // [7] role first"));
    EXPECT_THAT(text, HasSubstr("    }\n    if (threadIdx.x >= 128 && threadIdx.x < 384) {  // [7] role second"));
    EXPECT_THAT(k.text({role("all", 0, 512, k.put(1))}), HasSubstr("    if (threadIdx.x < 512) {  // [7] role all"));
    EXPECT_THAT(k.text({role(std::string(120, 'x'), 256, 256, k.put(1))}),
                HasSubstr("    if (threadIdx.x >= 256) {\n        // [7] role\n        //     xxx"));
}

/// A persistent block's tiles: for (round < rounds) {tile = round * 132 + first; ...}
struct Tiles {
    WithRoles k;
    Expr round = index_variable("round", 0, 9), tile = index_variable("tile", 0, 1199);
    Expr first = k.kernel.block[0];

    std::string text(const Expr& value, const Expr& used, int64_t ends_at) {
        k.kernel.grid[0] = 132;
        Expr rounds = simplify((constant(i64, ends_at) - first + 131) / 132);
        ThreadLoop loop{round, rounds, false, in_order({let(tile, value), store(k.a, {used}, constant(f32, 1.0))})};
        loop.ends_at = ends_at;
        k.kernel.body = make_thread(std::move(loop));
        std::string cuda = print_cuda(narrow_indices(hoist_invariants(k.kernel))).cuda;
        return cuda.substr(cuda.find("blockIdx.x;") + 12);
    }
};

TEST(PrintCuda, WalksAlongTiles) {
    Tiles t;
    EXPECT_EQ(t.text(t.round * 132 + t.first, t.tile, 1000),
              "    for (int tile = block_x; tile < TILES; tile += 132) {\n"
              "        a[tile] = 1.0f;\n"
              "    }\n"
              "}\n");
    EXPECT_EQ(t.text(t.round * 132 + t.first, t.tile + t.round, 1000),
              "    for (int tile = block_x; tile < TILES; tile += 132) {\n"
              "        const int round = tile / 132;\n"
              "        a[tile + round] = 1.0f;\n"
              "    }\n"
              "}\n");
}

TEST(PrintCuda, NamesTheNumberOfTiles) {
    Tiles t;
    t.text(t.round * 132 + t.first, t.tile, 1000);
    EXPECT_THAT(print_cuda(narrow_indices(hoist_invariants(t.k.kernel))).cuda,
                HasSubstr("constexpr int TILES = 1000;\n\nextern"));
    EXPECT_THAT(print_cuda(finished(copy_kernel(1000))).cuda, Not(HasSubstr("TILES")));
}

TEST(PrintCuda, CountsRoundsWhereNoWalkIsTheSame) {
    Tiles t;
    auto counts = HasSubstr("for (int round = 0; round < tw::floor_div(");
    EXPECT_THAT(t.text(t.round * 132 + t.first, t.tile, 1000), Not(counts));
    EXPECT_THAT(t.text(t.first - t.round * 132, t.tile, 1000), counts) << "backwards";
    EXPECT_THAT(t.text(t.round / 2 + t.first, t.tile, 1000), counts) << "not evenly";
    EXPECT_THAT(t.text(t.round * 132 + t.first + 5, t.tile + t.round, 1000), counts)
        << "tile / 132 may be another round";
    EXPECT_THAT(t.text(t.round * 132 + t.first, t.tile, 2147483640), counts) << "tile + 132 may wrap";
}

TEST(PrintCuda, BytesOfBoxesAreSizesWhereTheyComeToThat) {
    auto text = [](int64_t bytes) {
        ThreadKernel kernel = empty_kernel("boxes", 32);
        Buffer a = make_buffer("a_shared", f16, Memory::Shared, {3, 64, 32}),
               b = make_buffer("b_shared", f32, Memory::Shared, {3, 8, 32}),
               map = make_buffer("a_map", f32, Memory::Global, {});
        Buffer full = std::make_shared<const BufferNode>(BufferNode{
            .name = "full", .type = i64, .memory = Memory::Shared, .shape = {3}, .strides = {}, .is_barrier = true});
        kernel.shared = {a, b, full};
        kernel.maps = {{map, map, {32, 8}}};
        const Expr zero = constant(i64, int64_t{0});
        auto load = [&](const Buffer& to) {
            return make_thread(Instruction(TmaLoad{{{to, {0, 0, 0}}}, {map}, {zero, zero}, {{full, {0}}}}));
        };
        Instruction expect = MbarrierExpectTx{{{full, {0}}}, constant(i64, bytes)};
        kernel.body = in_order({make_thread(std::move(expect)), load(a), load(a), load(b)});
        return print_cuda(kernel).cuda;
    };
    EXPECT_THAT(
        text(64 * 32 * 2 + 8 * 32 * 4),
        HasSubstr("tw::mbarrier_expect_tx(shared.full[0], sizeof shared.a_shared[0] + sizeof shared.b_shared[0]);"));
    EXPECT_THAT(text(999), HasSubstr("tw::mbarrier_expect_tx(shared.full[0], 999);"));
}

TEST(PrintCuda, Im2colLoadsHaveOffsets) {
    ThreadKernel kernel = empty_kernel("pixels", 32);
    Buffer a = make_buffer("a_shared", f16, Memory::Shared, {3, 64, 32}),
           map = make_buffer("a_map", f16, Memory::Global, {});
    Buffer full = std::make_shared<const BufferNode>(BufferNode{
        .name = "full", .type = i64, .memory = Memory::Shared, .shape = {3}, .strides = {}, .is_barrier = true});
    kernel.shared = {a, full};
    kernel.maps = {{.map = map, .tensor = map, .box = {}, .im2col = Im2colUse{{-1, -1}, {-1, -1}, 32, 64}}};
    EXPECT_EQ(kernel.maps[0].elements(), 32 * 64);
    TmaLoad load{{{a, {0, 0, 0}}}, {map}, {0, 4, 5, 6}, {{full, {0}}}};
    load.offsets = {1, 2};
    kernel.body = make_thread(Instruction(load));
    EXPECT_THAT(print_cuda(kernel).cuda,
                HasSubstr("tw::tma_load_im2col(&shared.a_shared[0][0][0], a_map, 0, 4, 5, 6, 1, 2, shared.full[0]);"));
    load.ranks = 3;
    kernel.body = make_thread(Instruction(load));
    EXPECT_THAT(print_cuda(kernel).cuda,
                HasSubstr("tw::tma_load_im2col_multicast(&shared.a_shared[0][0][0], a_map, 0, 4, 5, "
                          "6, 1, 2, shared.full[0], 3);"));
}

TEST(TensorMapUses, CountElementsThatMove) {
    TensorMapUse use;
    use.box = {64, 17, 8, 1};
    EXPECT_EQ(use.elements(), 64 * 17 * 8);
    use.traversal_strides = {1, 2, 3, 4};
    EXPECT_EQ(use.elements(), 64 * 9 * 3);
}

// ---- compilers ------------------------------------------------------------------------------------------------------

/// Runs a compiler on the text; its messages if it fails or warns.
std::string compile(const std::string& command, const std::string& text, const std::string& name) {
    auto directory = std::filesystem::temp_directory_path() / ("tw_print_cuda_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(directory);
    auto source = directory / (name + ".cu"), log = directory / "log";
    std::ofstream(source) << text;
    int status = std::system(fmt::format("{} {} > {} 2>&1", command, source.string(), log.string()).c_str());
    std::stringstream messages;
    messages << std::ifstream(log).rdbuf();
    std::filesystem::remove_all(directory);
    return status == 0 ? "" : messages.str();
}

TEST(PrintCuda, NvccAcceptsIt) {
    if (std::system("nvcc --version > /dev/null 2>&1") != 0 && !std::filesystem::exists("/usr/local/cuda/bin/nvcc"))
        GTEST_SKIP() << "no nvcc";
    const std::string nvcc = "PATH=$PATH:/usr/local/cuda/bin nvcc -arch=sm_90a --fmad=false -cubin -o /dev/null";
    for (const ThreadKernel& kernel : whole_kernels())
        EXPECT_EQ(compile(nvcc, print_cuda(finished(kernel)).cuda, kernel.name), "");
}

TEST(PrintCuda, TheEmulatorsCompilerAcceptsIt) {
    for (const ThreadKernel& kernel : whole_kernels()) {
        std::string text = device::emulator_prelude() + "\n" + device::for_emulator(print_cuda(finished(kernel)).cuda);
        EXPECT_EQ(compile("g++ -x c++ -std=c++20 -fsyntax-only -fno-exceptions -DTW_EMULATED", text, kernel.name), "");
    }
}

}  // namespace
}  // namespace tw::codegen
