// Decoding with pages: results of sequences of any lengths, wherever their pages are.
#include "schedules/attention_paged.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

class PagedKernels : public RandomCases {
protected:
    PagedKernels() : RandomCases(163) {}

    PagedShape random_shape() {
        PagedShape shape{.attention = {.batch = between(1, 5),
                                       .heads = between(1, 2),
                                       .rows = 1,
                                       .keys = 1,
                                       .depth = 8 * between(1, 16),
                                       .width = 8 * between(1, 16),
                                       .group = between(1, 8)},
                         .pages = 1,
                         .page_size = 16 << between(0, 3)};
        AttentionShape& of = shape.attention;
        of.keys = shape.page_size * between(1, 300 / static_cast<int>(shape.page_size) + 1);
        of.heads *= of.group;
        if (chance()) of.type = f16;
        shape.pages = of.batch * (of.keys / shape.page_size) + between(0, 5);
        return shape;
    }

    /// Pages in any order, none twice; lengths of 0, 1 and others. What no sequence has is far out of the way.
    Bindings random_launch(const PagedShape& shape, const std::vector<Tensor>& outputs, unsigned seed) {
        Bindings launch = random_bindings(outputs, seed);
        const AttentionShape& of = shape.attention;
        std::vector<int64_t> pages(static_cast<size_t>(shape.pages));
        std::iota(pages.begin(), pages.end(), 0);
        for (size_t p = pages.size(); p > 1; --p)
            std::swap(pages[p - 1], pages[static_cast<size_t>(between(0, static_cast<int>(p) - 1))]);
        for (int64_t b = 0; b < of.batch; ++b) {
            const int64_t length = b == 0 && chance() ? between(0, 1) : between(0, static_cast<int>(of.keys));
            launch.inputs.at("lengths").set({b}, make_value(i32, length));
            for (int64_t p = 0; p < of.keys / shape.page_size; ++p) {
                const bool is_there = p * shape.page_size < length;
                const int64_t page = pages[static_cast<size_t>(b * (of.keys / shape.page_size) + p)];
                launch.inputs.at("table").set({b, p}, make_value(i32, is_there ? page : int64_t{1} << 30));
            }
        }
        return launch;
    }

    using RuleOfNumbers = std::function<double(double score, int64_t head, int64_t key, int64_t position)>;
    static void expect_sequences(const std::vector<HostArray>& got, const Bindings& launch, const PagedShape& shape,
                                 bool sinks, const RuleOfNumbers& rule = {}) {
        const AttentionShape& of = shape.attention;
        auto read = [&](const char* name, const std::vector<int64_t>& at) { return launch.inputs.at(name).at(at); };
        for (int64_t b = 0; b < of.batch; ++b)
            for (int64_t h = 0; h < of.heads; ++h) {
                double total = sinks ? std::exp(read("sinks", {h}).real) : 0;
                std::vector<double> values(static_cast<size_t>(of.width));
                const int64_t length = read("lengths", {b}).integer;
                for (int64_t j = 0; j < length; ++j) {
                    const int64_t page = read("table", {b, j / shape.page_size}).integer, slot = j % shape.page_size;
                    double score = 0;
                    for (int64_t d = 0; d < of.depth; ++d)
                        score += read("q", {b, 0, h, d}).real * read("k", {page, slot, h / of.group, d}).real;
                    score /= std::sqrt(static_cast<double>(of.depth));
                    const double weight = std::exp(rule ? rule(score, h, j, length - 1) : score);
                    total += weight;
                    for (int64_t e = 0; e < of.width; ++e)
                        values[static_cast<size_t>(e)] += weight * read("v", {page, slot, h / of.group, e}).real;
                }
                const double lse = got[1].at({b, h, 0}).real;
                if (total == 0)
                    EXPECT_EQ(lse, -std::numeric_limits<double>::infinity()) << b;
                else
                    EXPECT_NEAR(lse, std::log2(total), 2e-3) << b;
                for (int64_t e = 0; e < of.width; ++e) {
                    const double expected = total == 0 ? 0 : values[static_cast<size_t>(e)] / total;
                    ASSERT_NEAR(got[0].at({b, 0, h, e}).real, expected, 2e-2) << "sequence " << b << ", head " << h;
                }
            }
    }
};
TW_ON_EACH_DEVICE(PagedKernels);

TEST_P(PagedKernels, GiveEachSequenceItsOwn) {
    for (unsigned round = 0; round < 8; ++round) {
        const PagedShape shape = random_shape();
        DecodeTiles tiles = paged_tiles(shape, device_target());
        if (chance()) tiles.parts = between(1, 4);
        tiles.stages = between(2, 3);
        const bool with_sinks = chance();
        const Tensor sinks = with_sinks ? input("sinks", f32, {shape.attention.heads}) : Tensor();
        const PagedAttention a = declare_paged_attention(shape, tiles, {.sinks = sinks});
        const Schedule s = paged_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const Bindings launch = random_launch(shape, {a.parts.o, a.parts.lse}, round);
        Executable executable(build(s), device_);
        expect_sequences(run_on(executable, launch), launch, shape, with_sinks);
        expect_compiles(executable.program());
    }
}

TEST_P(PagedKernels, FollowRules) {
    for (unsigned round = 0; round < 8; ++round) {
        const PagedShape shape = random_shape();
        DecodeTiles tiles = paged_tiles(shape, device_target());
        if (chance()) tiles.parts = between(1, 4);
        tiles.stages = between(2, 3);
        const int64_t width = between(1, 100), heads = shape.attention.heads;
        AttentionRules rules;
        Bindings launch;
        RuleOfNumbers rule;
        constexpr double none = -std::numeric_limits<double>::infinity();
        if (round % 3 == 0) {
            rules.score = in_turn({soft_cap(3), linear_bias(input("slopes", f32, {heads}))});
            rule = [&](double score, int64_t head, int64_t key, int64_t position) {
                return 3 * std::tanh(score / 3) +
                       launch.inputs.at("slopes").at({head}).real * static_cast<double>(key - position);
            };
        } else if (round % 3 == 1) {
            rules.score = sliding_window(width), rules.skips = true;
            rule = [&](double score, int64_t, int64_t key, int64_t position) {
                return position - key < width ? score : none;
            };
        } else {
            rules.score = [](const Expr& score, const ScorePlace& at) {
                return select(at.position % 3 == 1 || at.key % 4 == 0, -infinity, score * 1.5);
            };
            rule = [&](double score, int64_t, int64_t key, int64_t position) {
                return position % 3 == 1 || key % 4 == 0 ? none : score * 1.5;
            };
        }
        const bool with_sinks = chance();
        if (with_sinks) rules.sinks = input("sinks", f32, {heads});
        const PagedAttention a = declare_paged_attention(shape, tiles, rules);
        const Schedule s = paged_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        launch = random_launch(shape, {a.parts.o, a.parts.lse}, round);
        Executable executable(build(s), device_);
        expect_sequences(run_on(executable, launch), launch, shape, with_sinks, rule);
        expect_compiles(executable.program());
    }
}

TEST(Paged, IsAskedForByName) {
    const auto named = parse_paged("attention_paged_f16_3x12x500x40_page64_pages100_width24_group3_sinks");
    ASSERT_TRUE(named);
    const PagedShape& shape = named->shape;
    EXPECT_TRUE(named->rules == "_sinks" && shape.attention.type == f16 && shape.pages == 100 && shape.page_size == 64);
    EXPECT_EQ(shape.attention.keys, 512);  // whole pages
    EXPECT_EQ(shape.attention.width, 24);
    EXPECT_EQ(parse_paged("attention_paged_bf16_3x12x500x40_page64")->shape.pages, 24);
    for (const char* name : {"attention_paged_bf16_3x12x500x40", "attention_paged_bf16_3x12x500x40_page20",
                             "attention_paged_bf16_3x12x500x44_page16", "attention_paged_bf16_3x12x500x264_page16",
                             "attention_paged_bf16_3x12x500x40_page16_group5"})
        EXPECT_FALSE(parse_paged(name)) << name;
    EXPECT_EQ(parse_paged("attention_paged_bf16_3x12x500x40_page64_softcap30_alibi_window64")->rules,
              "_softcap30_alibi_window64");
    for (const char* name :
         {"attention_paged_bf16_3x12x500x128_page16_group4", "attention_paged_bf16_3x12x500x128_page16_alibi_window64",
          "attention_paged_bf16_1x8x9000x256_page128"})
        EXPECT_NO_THROW(build(find_kernel(name)->make(tw::target("sm_90a")))) << name;
}

TEST(PagedErrors, SayWhatToGive) {
    PagedShape shape{.attention = {.batch = 1, .heads = 4, .rows = 1, .keys = 128, .depth = 8, .width = 8, .group = 2},
                     .pages = 4,
                     .page_size = 32};
    EXPECT_ERROR(declare_paged_attention(shape, {.keys = 64}),
                 "paged attention: pages of 32 keys, of 128 in all, in steps of 64; pages are multiples of 16 and of a "
                 "step, and keys of a page");
    shape.attention.heads = 5;
    EXPECT_ERROR(declare_paged_attention(shape, {.keys = 32}),
                 "paged attention: 1 rows of 5 heads in groups of 2; declare one row, and whole groups");
}

}  // namespace
}  // namespace tw::schedules
