// What loops are called, in the nest, messages and traces; which traces are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"

#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;
using testing::Not;

struct ReplayedProduct {
    Tensor a = input("a", f32, {12, 10}), b = input("b", f32, {10, 8});
    Axis k = reduce_axis("k", 10);
    Tensor c = compute("c", {12, 8}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    Schedule s{{c}, target("sm_90a")};
    Schedule replayed(const std::string& saved) const { return replay(saved, {c}, target("sm_90a")); }
};

/// The trace without the places of its steps.
std::string steps_of(const Schedule& s) {
    std::string text;
    for (const Step& step : s.trace()) text += step.handles + step.text + "\n";
    return text;
}

TEST(LoopNames, AreWhatAStructuredBindingSuggests) {
    ReplayedProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    auto [outer, inner] = p.s.split(i, 4);
    p.s.split(inner, 2);
    p.s.fuse(outer, p.s.all_loops(p.c)[1]);
    p.s.split(p.s.reduce(p.c), 3, Tail::Mask);
    EXPECT_EQ(steps_of(p.s),
              "auto [i, j] = s.loops<2>(c);\n"
              "auto [i_outer, i_inner] = s.split(i, 4);\n"
              "auto [i_inner_outer, i_inner_inner] = s.split(i_inner, 2);\n"
              "Loop i_outer_i_inner_outer = s.fuse(i_outer, i_inner_outer);\n"
              "Loop k = s.reduce(c);\n"
              "auto [k_outer, k_inner] = s.split(k, 3, Tail::Mask);\n");
    for (const char* loop : {"for i_outer_i_inner_outer in 0..6\n", "for i_inner_inner in 0..2\n",
                             "for k_outer in 0..4\n", "for k_inner in 0..3\n"})
        EXPECT_THAT(p.s.to_string(), HasSubstr(loop));
}

TEST(LoopNames, AreThoseGiven) {
    ReplayedProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    auto [block, it] = p.s.split(i, 5, Tail::Mask, {"block", "it"});
    auto [rows, row] = p.s.split(it, 5, {"", "row"});
    Loop t = p.s.fuse(row, j, "t");
    auto [ko, ki] = p.s.split(p.s.reduce(p.c), 5, {"ko", "ki"});
    p.s.order({block, rows, ko, t, ki});
    p.s.stage(p.c, p.b, Memory::Shared, ko);
    EXPECT_EQ(steps_of(p.s),
              "auto [i, j] = s.loops<2>(c);\n"
              "auto [block, it] = s.split(i, 5, Tail::Mask, {\"block\", \"it\"});\n"
              "auto [it_outer, row] = s.split(it, 5, {\"it_outer\", \"row\"});\n"
              "Loop t = s.fuse(row, j, \"t\");\n"
              "Loop k = s.reduce(c);\n"
              "auto [ko, ki] = s.split(k, 5, {\"ko\", \"ki\"});\n"
              "s.order({block, it_outer, ko, t, ki});\n"
              "Stage b_shared = s.stage(c, b, Memory::Shared, ko);\n");
    EXPECT_THAT(p.s.to_string(), HasSubstr("for block in 0..3\n"));
    EXPECT_THAT(p.s.to_string(), HasSubstr("for t in 0..40\n"));
    EXPECT_ERROR(p.s.split(t, 3), "3 does not divide axis 't' (40)");
    EXPECT_ERROR(p.s.split(it, 3), "split: loop 'it' is gone: step [1] auto [it_outer, row] = s.split(it, 5, ");
    EXPECT_ERROR(p.s.fuse(block, ki), "'block' does not stand directly around 'ki'");
    Schedule again = p.replayed(p.s.save());
    EXPECT_EQ(again.to_string(), p.s.to_string());
    EXPECT_EQ(again.save(), p.s.save());
    EXPECT_EQ(steps_of(again), steps_of(p.s));
}

TEST(LoopNames, OfOneLoopFusedWithNothingStays) {
    ReplayedProduct p;
    p.s.fuse({p.s.reduce(p.c)}, "t");
    EXPECT_TRUE(p.s.trace().empty());
    EXPECT_THAT(p.s.to_string(), HasSubstr("for k in 0..10"));
    auto [i, j] = p.s.loops<2>(p.c);
    p.s.fuse({i, j}, "t");
    EXPECT_THAT(p.s.to_string(), HasSubstr("for t in 0..96"));
}

/// The format of traces before loops had names.
TEST(LoopNames, TracesWithoutThemAreRead) {
    ReplayedProduct p;
    Schedule read = p.replayed(
        "tilewright trace 1\n"
        "split 0 4 divide\n"
        "split 1 3 mask\n"
        "split 2 5 divide\n"
        "order 3 5 7 4 6 8\n"
        "fuse 3 5\n"
        "bind 9 grid.x\n"
        "stage 0 t:a 0 shared 7\n"
        "stage 0 t:b 0 shared 7\n"
        "cut 7 1 - 2 1\n");
    auto [i, j] = p.s.loops<2>(p.c);
    auto [io, ii] = p.s.split(i, 4);
    auto [jo, ji] = p.s.split(j, 3, Tail::Mask);
    auto [ko, ki] = p.s.split(p.s.reduce(p.c), 5);
    p.s.order({io, jo, ko, ii, ji, ki});
    p.s.bind(p.s.fuse(io, jo), grid.x);
    p.s.stage(p.c, p.a, Memory::Shared, ko);
    p.s.stage(p.c, p.b, Memory::Shared, ko);
    p.s.cut(ko, {constant(Type::I64, 2) - constant(Type::I64, 1)});
    EXPECT_EQ(read.to_string(), p.s.to_string());
    EXPECT_THAT(read.to_string(), HasSubstr("for i_outer_j_outer in 0..9  (grid.x)"));
    EXPECT_THAT(read.trace_as_cpp(), HasSubstr("auto [k_outer, k_inner] = s.split(k, 5);"));
}

TEST(LoopNames, OfAnyTextAreShownAsTheyAreAndDeclaredAsIdentifiers) {
    ReplayedProduct p;
    auto [i, j] = p.s.loops<2>(p.c);
    auto [first, second] = p.s.split(i, 4, {"for", "größe \"x\""});
    auto [third, fourth] = p.s.split(j, 4, {"for", "thread"});
    auto [fifth, sixth] = p.s.split(p.s.reduce(p.c), 5, {"a", "1"});
    EXPECT_EQ(steps_of(p.s),
              "auto [i, j] = s.loops<2>(c);\n"
              "auto [for_2, gr_e_x] = s.split(i, 4, {\"for\", \"größe \\\"x\\\"\"});\n"
              "auto [for_3, thread_2] = s.split(j, 4, {\"for\", \"thread\"});\n"
              "Loop k = s.reduce(c);\n"
              "auto [a_2, v1] = s.split(k, 5, {\"a\", \"1\"});\n");
    EXPECT_THAT(p.s.to_string(), HasSubstr("for größe \"x\" in 0..4\n"));
    EXPECT_ERROR(p.s.split(second, 3), "3 does not divide axis 'größe \"x\"' (4)");
    Schedule again = p.replayed(p.s.save());
    EXPECT_EQ(again.to_string(), p.s.to_string());
    EXPECT_EQ(again.save(), p.s.save());
}

TEST(LoopNames, WithAZeroInsideSurvive) {
    ReplayedProduct p;
    const std::string name("a\0b", 3);
    p.s.split(p.s.loops<2>(p.c)[0], 4, {name, "\n"});
    EXPECT_THAT(steps_of(p.s), HasSubstr("{std::string(\"a\\000b\", 3), \"\\012\"});"));
    EXPECT_EQ(p.replayed(p.s.save()).to_string(), p.s.to_string());
}

TEST(LoopNames, InsideOfOthersOfTheirNameHaveANumber) {
    Tensor x = input("x", f32, {6, 9});
    Tensor y = compute("y", {6, 9}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Tensor z = compute("z", {6, 8}, [&](Expr i, Expr j) { return y(i, j) * y(i, j + 1); });
    Schedule s({z}, target("sm_90a"));
    auto [i, j] = s.loops<2>(z);
    auto [rows, row] = s.split(i, 2, {"r", "r"});
    s.at(y, rows);
    EXPECT_THAT(s.to_string(), HasSubstr("for r in 0..3\n"));
    EXPECT_THAT(s.to_string(), HasSubstr("for r_2 in 0..2\n"));
    EXPECT_THAT(s.to_string(), HasSubstr("z[r * 2 + r_2, j] = "));
    EXPECT_THAT(steps_of(s), HasSubstr("auto [r, r_2] = s.split(i, 2, {\"r\", \"r\"});\n"));
}

TEST(LoopNames, OfCopiesAreThoseOfTheAxesTheyAreReadAt) {
    ReplayedProduct p;
    Loop ko = p.s.split(p.s.reduce(p.c), 5)[0];
    p.s.stage(p.c, p.a, Memory::Shared, ko);
    EXPECT_THAT(p.s.to_string(), HasSubstr("for k in 0..5\n"));
    EXPECT_THAT(p.s.to_string(), HasSubstr("a_shared[0, k] = a[d0 + i, k_outer * 5 + k]"));
    // Where a loop around has that name, or no axis decides alone, dimensions are numbered.
    EXPECT_THAT(p.s.to_string(), HasSubstr("for d0 in 0..1\n"));
    Tensor x = input("x", f32, {30, 4});
    Tensor y = compute("y", {8, 4}, [&](Expr i, Expr j) { return x(3 * i + j, j); });
    Schedule s({y}, target("sm_90a"));
    s.stage(y, x, Memory::Global);
    EXPECT_THAT(s.to_string(), HasSubstr("x_global[d0, j] = x[d0, j]"));
}

TEST(LoopNames, OfStagesThatNoStepReturnedAreTakenBeforeTheStep) {
    Tensor x = input("x", f32, {6, 9});
    Axis k = reduce_axis("k", 9);
    Tensor y = compute("y", {6}, [&](Expr i) { return sum(x(i, k), k) / reduce_max(x(i, k), k); });
    Schedule s({y}, target("sm_90a"));
    std::vector<Stage> stages = s.all_stages();
    s.split(s.reduce(stages[1]), 3);
    s.split(s.loops<1>(y)[0], 2);
    s.at(stages[0], s.all_loops(y)[0]);
    s.bind(s.loops<1>(stages[0])[0], thread);
    EXPECT_EQ(steps_of(s),
              "Stage y_max = s.all_stages()[1];\n"
              "Loop k = s.reduce(y_max);\n"
              "auto [k_outer, k_inner] = s.split(k, 3);\n"
              "auto [i] = s.loops<1>(y);\n"
              "auto [i_outer, i_inner] = s.split(i, 2);\n"
              "Stage y_sum = s.all_stages()[0];\n"
              "s.at(y_sum, i_outer);\n"
              "auto [i_y_sum] = s.loops<1>(y_sum);\n"
              "s.bind(i_y_sum, thread);\n");
}

/// As docs/language.md has them.
TEST(Names, OfTracesAreIdentifiers) {
    std::vector<Tensor> given;
    for (const char* name : {"row sums", "2nd", "s", "row_sums"}) given.push_back(input(name, f32, {8}));
    const Tensor y =
        compute("gr\u00f6\u00dfe", {8}, [&](Expr i) { return given[0](i) + given[1](i) + given[2](i) + given[3](i); });
    Schedule s({y}, target("sm_90a"));
    const Loop i = s.loops<1>(y)[0];
    for (const Tensor& x : given) s.stage(y, x, Memory::Shared, i);
    for (const char* name : {"row_sums", "v2nd", "s_2", "row_sums_2"})
        EXPECT_THAT(s.trace_as_cpp(), HasSubstr(fmt::format(" = s.stage(gr_e, {}, Memory::Shared, i);", name)));
}

}  // namespace
}  // namespace tw
