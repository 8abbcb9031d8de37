// Sums whose terms each count for one row: sorted, searched for, or added in memory, of any shape.
#include "schedules/scattered.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "dsl/declare_scatter.h"
#include "ops/check.h"
#include "ops/runner.h"
#include "schedules/array_operators.h"
#include "schedules/candidates.h"
#include "schedules/choices.h"
#include "schedules/choose.h"
#include "schedules/listed_rows.h"
#include "schedules/sorted_terms.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;

/// As "compared", "searched", "listed", "sorted", "few_rows" or "atomic" says, with what else is picked.
Schedule scheduled(const Declared& y, const Target& target, const std::string& way, Picks picks = {}) {
    Schedule s(y.outputs, target);
    const Tensor& gradient = y.outputs[0];
    if (way == "atomic") {
        schedule_scattered_updates(s, gradient);
        return s;
    }
    picks[gradient.name() + ".terms"] = way;
    const Choices choices(picks);
    EXPECT_EQ(schedule_scattered(s, s[gradient], y.outputs), way != "compared");
    EXPECT_TRUE(choices.unmet().empty());
    return s;
}

class ScatteredRowsOfAnyShape : public RandomCases {
protected:
    ScatteredRowsOfAnyShape() : RandomCases(83) {}

    /// Indices of rows, some of them outside, in any order or ascending as those of a batch that was sorted.
    HostArray some_ids(int64_t terms, int64_t rows) {
        HostArray ids = host_array(i32, {terms});
        fill_integers(ids, -1, rows, static_cast<uint64_t>(between(1, 1000)));
        int32_t* begin = reinterpret_cast<int32_t*>(ids.bytes.data());
        if (chance()) std::sort(begin, begin + terms);
        return ids;
    }

    /// The terms of a row are added in their order, to the same bits; by several threads, or atomically, in any order,
    /// whole numbers.
    void check(int64_t terms, int64_t rows, int64_t width, Type type, const std::string& way, const Picks& picks = {}) {
        const Declared y = embedding_gradient(terms, rows, width, type);
        Bindings launch = random_bindings(y.outputs, static_cast<uint64_t>(width));
        launch.inputs["ids"] = some_ids(terms, rows);
        const bool is_shared = picks.contains("gradient.sharers") ? picks.at("gradient.sharers") != "1"
                                                                  : sorted_threads({terms, rows, width}).sharers > 1;
        if (way == "atomic" || way == "few_rows" || (way == "sorted" && is_shared))
            fill_integers(launch.inputs["y_gradient"], -9, 9, 5);
        const Schedule s = scheduled(y, device_target(), way, picks);
        SCOPED_TRACE(fmt::format("{}x{}x{}_{}\n{}", terms, rows, width, name_of(type), s.trace_as_cpp()));
        EXPECT_EQ(s.deterministic(), way != "atomic");
        const bool has_parts = s.trace_as_cpp().find("Stage gradient_partial = ") != std::string::npos;
        const bool has_rows = s.trace_as_cpp().find("{\"part\", \"in_part\"}") != std::string::npos;
        EXPECT_TRUE(has_parts || way != "few_rows");
        EXPECT_TRUE(has_rows || !picks.contains("gradient.sharers"));
        expect_declared(s, launch);
    }
};
TW_ON_EACH_DEVICE(ScatteredRowsOfAnyShape);

TEST_P(ScatteredRowsOfAnyShape, AddTheirTerms) {
    const Type types[] = {f32, bf16, f16};
    for (const char* way : {"searched", "listed", "sorted", "atomic"})
        for (int round = 0; round < 15; ++round) {
            const int most = std::array{3, 40, 400}[static_cast<size_t>(between(0, 2))];
            const int64_t width = chance() ? 8 * between(1, 100) : between(1, 700);
            check(between(1, most), between(1, 60), width, types[between(0, 2)], way);
        }
}

/// Whole rows a block, threads that share terms, several vectors a thread: whatever is picked.
TEST_P(ScatteredRowsOfAnyShape, ShareTheirTerms) {
    const char* sharers[] = {"1", "2", "4", "16", "64"};
    for (int round = 0; round < 20; ++round) {
        const int64_t width = chance() ? 8 * between(1, 100) : between(1, 700);
        Picks picks{{"gradient.spread", "rows"}, {"gradient.sharers", sharers[between(0, 4)]}};
        picks["gradient.parts"] = std::to_string(between(1, 4));
        picks["gradient.vector"] = width % 8 == 0 && chance() ? "8" : width % 4 == 0 ? "4" : "1";
        check(between(1, 600), between(1, 12), width, chance() ? bf16 : f32, "sorted", picks);
    }
}

/// Their accumulators are a thread's: with chunks that end beyond the terms, tiles beyond the columns.
TEST_P(ScatteredRowsOfAnyShape, MayBeFew) {
    for (int round = 0; round < 12; ++round) {
        const int64_t width = chance() ? 8 * between(1, 100) : between(1, 1500);
        check(between(1, 900), between(1, 16), width, chance() ? bf16 : f32, chance() ? "few_rows" : "atomic");
    }
}

/// Tables of counts that are not compared: of one chunk of rows, or several.
TEST_P(ScatteredRowsOfAnyShape, MayHaveLargeTables) {
    for (int round = 0; round < 2; ++round) {
        check(between(2600, 3400), between(1800, 2048), between(1, 3), f32, "sorted");
        check(between(300, 900), between(4200, 5600), between(1, 3), f32, "sorted");
        check(between(1, 40), between(17000, 26000), between(1, 9), f32, "searched");  // several rows a warp
    }
}

/// Elements without columns, whose terms threads share where these are many; of very many terms, blocks of these are
/// added up by runs.
TEST_P(ScatteredRowsOfAnyShape, MayHaveNoColumns) {
    for (const auto& [terms, rows] : {std::pair<int64_t, int64_t>{between(100, 900), between(1, 30)},
                                      {between(2000, 3000), between(700, 900)},
                                      {between(90000, 99000), between(100, 300)}}) {
        Tensor ids = input("ids", i32, {terms}), x = input("x", f32, {terms});
        const Axis p = reduce_axis("p", terms);
        const Tensor y = scatter("y", {rows}, sum, {ids(p)}, x(p), {p});
        Bindings launch = random_bindings({y}, 3);
        launch.inputs["ids"] = some_ids(terms, rows);
        fill_integers(launch.inputs["x"], -9, 9, 5);
        const Choices choices(Picks{{"y.terms", "sorted"}});
        Schedule s({y}, device_target());
        schedule_scattered(s, s[y], {y});
        SCOPED_TRACE(fmt::format("{}x{}\n{}", terms, rows, s.trace_as_cpp()));
        EXPECT_EQ(s.trace_as_cpp().find("\"share\"") != std::string::npos, terms >= 16 * rows);
        EXPECT_EQ(s.to_string().find("kernel y_run") != std::string::npos, terms > 50000);
        expect_declared(s, launch);
    }
}

/// By blocks of rows, in one kernel, to the same bits: sums and maxima, several lists one after another, popular rows,
/// rows without terms, indices outside.
TEST_P(ScatteredRowsOfAnyShape, MayBeListedByBlocks) {
    for (int round = 0; round < 8; ++round) {
        const int64_t terms = between(1, 900), rows = between(1, 90),
                      width = chance() ? 4 * between(1, 90) : between(1, 200);
        Tensor ids = input("ids", i32, {terms}), x = input("x", chance() ? f32 : bf16, {terms, width});
        const Axis p = reduce_axis("p", terms), j = reduce_axis("j", width);
        const Reduction reduction = chance() ? Reduction(sum) : Reduction(reduce_max);
        const Tensor y = scatter("y", {rows, width}, reduction, {ids(p), j}, cast(f32, x(p, j)), {p, j});
        Bindings launch = random_bindings({y}, static_cast<uint64_t>(width));
        HostArray& index = launch.inputs["ids"] = some_ids(terms, rows);
        if (chance())  // most of them one row's
            for (int64_t t = 0; t < terms; t += between(1, 2))
                reinterpret_cast<int32_t*>(index.bytes.data())[t] = static_cast<int32_t>(rows / 2);
        ListedTiles tiles = listed_tiles({terms, rows, width});
        tiles.terms = 256 * between(1, 2);
        Schedule s({y}, device_target());
        schedule_listed(s, s[y], terms, tiles);
        SCOPED_TRACE(fmt::format("{}x{}x{}\n{}", terms, rows, width, s.trace_as_cpp()));
        EXPECT_EQ(build(s).kernels().size(), 1u);
        EXPECT_TRUE(s.deterministic());
        expect_declared(s, launch);
    }
}

TEST_P(ScatteredRowsOfAnyShape, MayBeEmpty) {
    for (const char* way : {"searched", "sorted", "few_rows", "atomic"}) {
        if (way == std::string("few_rows")) {
            check(0, 5, 9, f32, way);
            continue;
        }
        check(0, 5, 9, f32, way);
        check(4, 5, 0, f32, way);
        check(4, 0, 9, f32, way);
    }
}

/// One kernel, whose rows without terms read nothing but indices.
TEST(ScatteredRows, OfFewTermsAreOneKernel) {
    const Declared y = embedding_gradient(60, 5000, 768, bf16);
    for (const char* way : {"searched", "listed"}) {
        const Schedule s = scheduled(y, target("sm_90a"), way);
        const Program program = build(s);
        EXPECT_EQ(program.kernels().size(), 1u);
        EXPECT_THAT(program.cuda(), HasSubstr("tw::store<4>(&gradient["));
        EXPECT_THAT(s.explain(), HasSubstr(way == std::string("listed") ? "list their terms"
                                                                        : "looks for its first and its last term"));
    }
}

/// A product that terms read is made once, not again for each row.
TEST(ScatteredRows, SearchedForReadWhatOtherKernelsSum) {
    const Tensor ids = input("ids", i32, {9}), a = input("a", f32, {9, 5}), b = input("b", f32, {40, 5});
    const Axis k = reduce_axis("k", 5), r = reduce_axis("r", 9);
    const Tensor p = compute("p", {9, 40}, [&](Expr i, Expr j) { return sum(a(i, k) * b(j, k), k); });
    const Tensor y = compute("y", {700, 40}, [&](Expr i, Expr j) { return sum(select(ids(r) == i, p(r, j), 0.0), r); });
    const Schedule s = schedule_with({{"y.terms", "searched"}}, [&] { return choose_schedule({y}, target("sm_90a")); });
    EXPECT_EQ(build(s).kernels().size(), 2u) << s.trace_as_cpp();
    Bindings launch = random_bindings({y}, 3);
    fill_integers(launch.inputs["ids"], -1, 700, 7);
    Runner runner(s, open_device("emulated"));
    runner.set(launch);
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text;
}

/// So are rows of which blocks list some thousand terms: indices are read four at a time, also where they end within a
/// list.
TEST(ScatteredRows, ListedByBlocksAreOneKernel) {
    const Declared y = embedding_gradient(3264, 12344, 376, f16);
    const Schedule s = choose_schedule(y.outputs, target("sm_90a"));
    const Program program = build(s);
    EXPECT_EQ(program.kernels().size(), 1u);
    EXPECT_THAT(program.cuda(), HasSubstr("tw::load<4>(ids_values, &ids["));
    EXPECT_THAT(s.explain(), HasSubstr("blocks of elements of 'gradient' list their terms"));
}

/// Neighbouring threads update neighbouring elements: sectors are whole.
TEST(ScatteredRows, UpdatesOfAWarpAreNeighbours) {
    const Declared y = embedding_gradient(100, 50, 1001, f16);
    const Schedule s = scheduled(y, target("sm_90a"), "atomic");
    EXPECT_THAT(build(s).cuda(), testing::ContainsRegex("atomic_add.*element \\* [0-9]+"));
}

TEST(ScatteredRows, FindTheirTermsByTheFewestInstructions) {
    EXPECT_EQ(scattered_way(608, 43008, 512), ScatteredWay::Listed);
    EXPECT_EQ(scattered_way(3264, 12344, 376), ScatteredWay::Listed);
    EXPECT_EQ(scattered_way(1320, 42304, 1048), ScatteredWay::Listed);  // rows are stored meanwhile: 53 of 71 us
    EXPECT_EQ(scattered_way(20833, 66, 165), ScatteredWay::Sorted);     // 300 terms of a row, one behind the other
    EXPECT_EQ(scattered_way(120, 30976, 6080), ScatteredWay::Listed);
    EXPECT_EQ(scattered_way(128, 7296, 862), ScatteredWay::Listed);   // 0.0084 ms, sorted 0.0194
    EXPECT_EQ(scattered_way(300, 1000, 4096), ScatteredWay::Listed);  // 0.0075 ms, sorted 0.0152
    EXPECT_EQ(scattered_way(9824, 192, 853), ScatteredWay::Listed);   // 0.0205 ms, sorted 0.0291
    EXPECT_EQ(scattered_way(50, 9, 64), ScatteredWay::Compared);
    EXPECT_EQ(scattered_way(152, 648, 8768), ScatteredWay::Listed);
    EXPECT_EQ(scattered_way(901, 22, 20544), ScatteredWay::Sorted);
    EXPECT_EQ(scattered_way(701, 1 << 19, 64), ScatteredWay::Listed);
    EXPECT_EQ(scattered_way(8192, 50257, 768), ScatteredWay::Listed);
    EXPECT_EQ(scattered_way(34496, 9160, 94), ScatteredWay::Sorted);
    EXPECT_EQ(scattered_way(2048, 500, 8192), ScatteredWay::Sorted);
    EXPECT_EQ(scattered_way(3, 5, 1), ScatteredWay::Compared);
}

TEST(ScatteredRows, AreSharedAsTheirTermsAndWidthsTell) {
    const SortedThreads wide = sorted_threads({357, 9024, 46272});  // hardly a term: few blocks store much each
    EXPECT_EQ(wide.sharers, 1);
    EXPECT_EQ(wide.vector, 4);
    EXPECT_EQ(wide.parts, 4);
    EXPECT_EQ(wide.lanes, 256);
    const SortedThreads many = sorted_threads({44032, 256, 248});  // 172 terms a row, of 15872 vectors
    EXPECT_EQ(many.sharers, 16);
    EXPECT_EQ(many.lanes, 16);
    EXPECT_EQ(many.parts, 1);
    EXPECT_EQ(sorted_threads({32768, 50304, 768}).lanes, 0);  // vectors of all rows
    EXPECT_EQ(sorted_threads({9824, 192, 853}).lanes, 0);     // 51 terms of a row, few rows: 0.029 ms, 0.039 in parts
    EXPECT_EQ(sorted_threads({32768, 50304, 768}).vector, 8);
    EXPECT_EQ(sorted_threads({2240, 8384, 1128}).lanes * sorted_threads({2240, 8384, 1128}).parts, 288);
    EXPECT_EQ(sorted_threads({0, 0, 0}).lanes, 0);
    EXPECT_TRUE(are_few_rows({36288, 7, 504}, Combine::Workspace));
    EXPECT_FALSE(are_few_rows({36288, 17, 504}, Combine::Workspace));
    EXPECT_FALSE(are_few_rows({300, 7, 504}, Combine::Workspace));
    EXPECT_FALSE(are_few_rows({3765, 8, 59472}, Combine::Workspace));  // comparing takes longer than memory and sorting
    EXPECT_TRUE(are_few_rows({3765, 8, 59472}, Combine::Atomic));
}

/// One kernel beside that of parts, or zeros: each element of the operand is loaded once, whatever its row.
TEST(ScatteredRows, FewRowsAreNotSorted) {
    const Declared y = embedding_gradient(2048, 5, 640, bf16);
    const Program program = build(choose_schedule(y.outputs, target("sm_90a")));
    EXPECT_EQ(program.kernels().size(), 2u);
    EXPECT_THAT(program.cuda(), HasSubstr("tw::load<4>(y_gradient_registers"));
    const Program atomic = build(scheduled(y, target("sm_90a"), "atomic"));
    EXPECT_EQ(atomic.kernels().size(), 2u);
    EXPECT_THAT(atomic.cuda(), HasSubstr("gradient_partial_sum[5][4]"));
}

/// Threads of a block reduce a row's terms together; rows with few are stored whole by each thread.
/// Results side by side have numbers of terms of their own: a thread has one of them, though they share what they add.
TEST(ScatteredRows, OfResultsSideBySideAreAThreadsEach) {
    const Tensor at = input("at", i64, {2, 5, 24});
    const Axis term = reduce_axis("term", 24), again = reduce_axis("again", 10);
    const Tensor counts = compute("counts", {2, 48, 5}, [&](Expr i, Expr j, Expr p) {
        return min(sum(select(at(i, p, term) == j, 1.0, 0.0), {term, again}), 40.0);
    });
    const Schedule s = choose_schedule({counts}, target("sm_90a"));
    SCOPED_TRACE(s.trace_as_cpp());
    Runner runner(s, open_device("emulated"));
    runner.set(random_bindings({counts}, 5));
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text;
}

TEST(ScatteredRows, WithManyTermsAreSharedByThreads) {
    const Declared y = embedding_gradient(4096, 40, 256, bf16);
    const Program shared = build(choose_schedule(y.outputs, target("sm_90a")));
    EXPECT_THAT(shared.cuda(), HasSubstr("gradient_sum_meet"));
    const Declared wide = embedding_gradient(900, 3000, 8192, bf16);
    const Program stored = build(choose_schedule(wide.outputs, target("sm_90a")));
    EXPECT_THAT(stored.cuda(), HasSubstr("float gradient_sum[4][4];"));
}

/// Numbers of terms, or extrema, by what data say along any of the result's dimensions, one or two of them, and as many
/// axes of terms: blocks have parts of the terms.
TEST_P(ScatteredRowsOfAnyShape, AreCountedInBlocksWhereverTheyStand) {
    using Body = std::function<Expr(const std::vector<Expr>& at, const Expr& term)>;
    const int64_t bins = between(3, 12), others = between(2, 5), side = 190, terms = side * side;
    const Tensor of = input("of", i32, {terms}), too = input("too", i32, {terms}), x = input("x", i32, {terms, others});
    auto is = [&](const Tensor& ids, const Expr& term, const Expr& bin) { return ids(term) == bin; };
    const std::vector<std::pair<std::vector<int64_t>, Body>> all{
        {{bins}, [&](auto& at, auto& t) { return select(is(of, t, at[0]), 1, 0); }},
        {{bins, others}, [&](auto& at, auto& t) { return select(is(of, t, at[0]), x(t, at[1]), 0); }},
        {{others, bins}, [&](auto& at, auto& t) { return select(is(of, t, at[1]), x(t, at[0]), 0); }},
        {{bins, bins}, [&](auto& at, auto& t) { return select(is(of, t, at[1]) && is(too, t, at[0]), 1, 0); }},
        {{others, bins, 3},
         [&](auto& at, auto& t) { return select(is(of, t, at[1]), x(t, at[0]) * cast(i32, at[2]), 0); }},
        {{bins, others, bins},
         [&](auto& at, auto& t) { return select(is(of, t, at[0]) && is(too, t, at[2]), x(t, at[1]), 0); }},
    };
    for (const bool has_two_axes : {false, true})
        for (const auto& [shape, body] : all) {
            const Axis p = reduce_axis("p", has_two_axes ? side : terms), q = reduce_axis("q", side);
            const Expr term = has_two_axes ? p * side + q : Expr(p);
            const std::vector<Axis> axes = has_two_axes ? std::vector<Axis>{p, q} : std::vector<Axis>{p};
            const Tensor d = compute("d", {shape.begin(), shape.end()}, [&, &body = body](const std::vector<Expr>& at) {
                return sum(body(at, term), axes);
            });
            const Choices picked(shape[0] == bins && shape.size() == 2 ? Picks{{"d.terms", "privatized"}} : Picks{});
            const Schedule s = choose_schedule({d}, device_target());
            SCOPED_TRACE(s.trace_as_cpp());
            EXPECT_THAT(s.trace_as_cpp(),
                        HasSubstr("Stage d_partial_updates = s.scatter(d_partial, Combine::Atomic);"));
            EXPECT_TRUE(picked.unmet().empty());
            Bindings launch = random_bindings({d}, 1);
            for (auto& [name, array] : launch.inputs) fill_integers(array, -1, static_cast<int>(bins), 3);
            if (has_two_axes == chance()) expect_declared(s, launch);
        }
}

TEST(ScatteredRows, HaveNoOtherReductions) {
    const Declared y = column_sum(input("x", f32, {40, 30}));
    Schedule s(y.outputs, target("sm_90a"));
    EXPECT_FALSE(schedule_scattered(s, s[y.outputs[0]], y.outputs));
    const Declared sum = full_sum(input("x", f32, {40}));
    Schedule other(sum.outputs, target("sm_90a"));
    EXPECT_ERROR(schedule_scattered_updates(other, sum.outputs[0]), "scattered updates: 'y' has 0 dimensions");
}

}  // namespace
}  // namespace tw::schedules
