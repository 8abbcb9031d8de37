// What terms read in the place of a reduction that still runs: late values, shifted ones, constants. All give the same.
#include <cmath>
#include <regex>

#include <gmock/gmock.h>

#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

constexpr int64_t rows = 6, terms = 24, width = 3;
const Reference References[] = {Reference::lazy(0),     Reference::lazy(2),   Reference::lazy(100),
                                Reference::offset(-8),  Reference::offset(3), Reference::constant(4),
                                Reference::constant(-1)};

/// Sums weighted by the exponentials of masked scores, and the logarithm of their sum.
struct Weighted {
    Tensor x = input("x", f32, {rows, terms}), v = input("v", f32, {terms, width});
    Axis j1 = reduce_axis("j1", terms), j2 = reduce_axis("j2", terms), j3 = reduce_axis("j3", terms);
    Tensor masked =
        compute("masked", {rows, terms}, [&](Expr i, Expr j) { return select(j % 8 + 1 >= i, x(i, j), -infinity); });
    Tensor m = compute("m", {rows}, [&](Expr i) { return reduce_max(masked(i, j1), j1); });
    Tensor l = compute("l", {rows}, [&](Expr i) { return sum(exp2(masked(i, j2) - m(i)), j2); });
    Tensor o = compute("o", {rows, width},
                       [&](Expr i, Expr e) { return sum(exp2(masked(i, j3) - m(i)) * v(j3, e), j3) / l(i); });
    Tensor lse = compute("lse", {rows}, [&](Expr i) { return m(i) + log2(l(i)); });

    Schedule schedule(const Target& target, const Reference& reference) const {
        Schedule s({o, lse}, target);
        auto [i, e] = s.loops<2>(o);
        auto [tile, term] = s.split(s.reduce(o), 4, {"tile", "term"});
        s.order({i, tile, e, term});
        s.bind(i, grid.x);
        s.stream({m, l, o}, tile, {{m, reference}});
        s.at(lse, i);
        return s;
    }
};

class StreamReferences : public RandomCases {
protected:
    StreamReferences() : RandomCases(211) {}

    std::vector<HostArray> run(const Schedule& s, const Bindings& launch) const {
        Executable executable(build(s), device_);
        return run_on(executable, launch);
    }
    void expect_equal(const std::vector<HostArray>& got, const std::vector<HostArray>& expected) const {
        for (size_t k = 0; k < got.size(); ++k)
            EXPECT_EQ(difference("output", got[k], expected[k], equal_values), std::nullopt);
    }
};
TW_ON_EACH_DEVICE(StreamReferences);

TEST_P(StreamReferences, GiveTheBitsOfWholeNumbers) {
    const Weighted c;
    for (const Reference& reference : References) {
        const Schedule s = c.schedule(device_target(), reference);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(s.outputs(), 3), equal_values);
        EXPECT_EQ(replay(s.save(), s.outputs(), s.target()).to_string(), s.to_string());
    }
}

/// Each step is compared with the declaration in double precision.
TEST_P(StreamReferences, RoundAsAnotherOrderDoes) {
    const Weighted c;
    for (const Reference& reference : References) {
        const Schedule s = c.schedule(device_target(), reference);
        Bindings launch = random_bindings(s.outputs(), 5);
        fill_uniform(launch.inputs.at("x"), -9, 9, 7);
        EXPECT_NO_THROW(s.check_each_step(launch)) << s.to_string();
        expect_declared(s, launch, near(64, 1e-4));
    }
}

/// Rows that are masked all over, and infinite scores, as values so far have them.
TEST_P(StreamReferences, InfinitiesAreThoseOfRunningValues) {
    const Weighted c;
    const Schedule running = c.schedule(device_target(), Reference::running());
    for (const Reference& reference : References) {
        const Schedule s = c.schedule(device_target(), reference);
        SCOPED_TRACE(s.trace_as_cpp());
        Bindings launch = whole_numbers(s.outputs(), 3);
        HostArray& x = launch.inputs.at("x");
        for (int64_t j = 0; j < terms; ++j) {
            x.set({0, j}, make_value(f32, -INFINITY));
            if (j < 9) x.set({1, j}, make_value(f32, -INFINITY));  // two whole tiles first
            if (j > 6) x.set({2, j}, make_value(f32, -INFINITY));
        }
        x.set({3, 11}, make_value(f32, INFINITY));
        expect_equal(run(s, launch), run(running, launch));
    }
}

/// Only a reference of the size of the scores keeps their exponentials in the range of f32.
TEST_P(StreamReferences, AreWhatTheTermsRead) {
    Tensor x = input("x", f32, {3});
    Axis j = reduce_axis("j", 3), k = reduce_axis("k", 3);
    Tensor m = compute("m", {1}, [&](Expr) { return reduce_max(x(j), j); });
    Tensor l = compute("l", {1}, [&](Expr i) { return sum(exp2(x(k) - m(i)), k); });
    auto sum_of = [&](const Reference& reference) {
        Schedule s({l}, device_target());
        s.bind(s.data_loops(l)[0], grid.x);
        s.stream({m, l}, s.split(s.reduce(l), 1)[0], {{m, reference}});
        Bindings launch;
        launch.inputs = {{"x", host_array(f32, {3})}};
        for (int64_t at = 0; at < 3; ++at) launch.inputs.at("x").set({at}, make_value(f32, 100.0 * double(at)));
        return run(s, launch)[0].at({0}).real;
    };
    for (const Reference& reference : {Reference::running(), Reference::lazy(99), Reference::lazy(100),
                                       Reference::offset(-100), Reference::constant(100)})
        EXPECT_EQ(sum_of(reference), 1);
    for (const Reference& reference :
         {Reference::lazy(200), Reference::constant(0), Reference::constant(350)})  // of the last no term is left
        EXPECT_FALSE(std::isfinite(sum_of(reference)));
}

/// Maxima, minima and arguments are shifted, norms divide, and sums that are read run along with what they read.
TEST_P(StreamReferences, OfOtherReductions) {
    Tensor x = input("x", f32, {rows, terms}), y = input("y", f32, {rows, terms});
    Axis j = reduce_axis("j", terms), k = reduce_axis("k", terms), n = reduce_axis("n", terms);
    Tensor least = compute("least", {rows}, [&](Expr i) { return reduce_min(x(i, j), j); });
    Tensor high = compute("high", {rows}, [&](Expr i) { return reduce_max(y(i, k) - least(i), k); });
    Tensor squares = compute("squares", {rows}, [&](Expr i) { return sum(x(i, j) * x(i, j), j); });
    Tensor scaled = compute("scaled", {rows}, [&](Expr i) { return sum(y(i, k) * rsqrt(squares(i) * 0.5 + 1.0), k); });
    Tensor largest = compute("largest", {rows}, [&](Expr i) { return reduce_max(x(i, j), j); });
    Tensor norm = compute("norm", {rows}, [&](Expr i) { return sum(exp2(x(i, n) - largest(i)), n); });
    Tensor shares =
        compute("shares", {rows}, [&](Expr i) { return sum(exp2(x(i, k) - largest(i)) / norm(i) * y(i, k), k); });
    const std::vector<std::vector<Tensor>> chains = {{least, high}, {squares, scaled}, {largest, norm, shares}};
    for (const std::vector<Tensor>& chain : chains)
        for (const Reference& reference : References)
            for (size_t of = 0; of + 1 < chain.size(); ++of) {
                if (reference.by < 0 && reference.kind == Reference::Kind::Constant) continue;  // of norms
                Schedule s({chain.back(), chain[0]}, device_target());
                const Loop row = s.data_loops(chain.back())[0];
                s.bind(row, grid.x);
                const Loop tile = s.split(s.reduce(chain.back()), 3, {"tile", "term"})[0];
                s.stream({chain.begin(), chain.end()}, tile, {{chain[of], reference}});
                SCOPED_TRACE(s.trace_as_cpp());
                const bool is_exact = chain.size() == 2 && chain[0].same(least);
                expect_declared(s, whole_numbers(s.outputs(), 9), is_exact ? equal_values : near(64, 1e-5));
            }
}

/// A row whose lazy reference stays goes past all of its products by one branch; constants need no values so far.
TEST(StreamReferenceKernels, CorrectWhatHasMoved) {
    const Weighted c;
    auto text_of = [&](const Reference& reference) {
        Schedule s({c.o, c.lse}, target("sm_90a"));
        auto [i, e] = s.loops<2>(c.o);
        auto [block, row] = s.split(i, 2, {"block", "row"});
        auto [tile, term] = s.split(s.reduce(c.o), 4, {"tile", "term"});
        s.order({block, tile, e, row, term});
        s.bind(block, grid.x);
        s.unroll(e), s.unroll(row);
        s.stream({c.m, c.l, c.o}, tile, {{c.m, reference}});
        s.at(c.lse, block);
        return build(s).cuda();
    };
    const std::string lazy = text_of(Reference::lazy(8));
    const std::regex all_of_a_row(
        R"(if \(m_before\[row\] != m_so_far\[row\]\) \{\s+#pragma unroll\s+for \(int (\w+) = 0; \1 < 3; )"
        R"(\+\+\1\) o_sum\[\1\]\[row\] \*= o_sum_factor\[row\];)");
    EXPECT_TRUE(std::regex_search(lazy, all_of_a_row)) << lazy;
    const std::string constant = text_of(Reference::constant(4));
    for (const char* array : {"m_before", "m_so_far", "o_sum_factor"})
        EXPECT_EQ(constant.find(array), std::string::npos) << constant;
}

TEST(StreamReferenceErrors, WhatIsNoReference) {
    const Weighted c;
    auto with = [&](const std::vector<ReferenceOf>& references) {
        Schedule s({c.o, c.lse}, target("sm_90a"));
        const Loop terms_of_all = s.reduce(c.o);
        auto [i, e] = s.loops<2>(c.o);
        s.order({i, terms_of_all, e});
        s.stream({c.m, c.l, c.o}, terms_of_all, references);
    };
    EXPECT_ERROR(with({{c.m, Reference::lazy(-1)}}), "'m', Reference::lazy(-1)");
    EXPECT_ERROR(with({{c.m, Reference::lazy(-1)}}), "give 0 or more");
    for (const Reference& reference :
         {Reference::lazy(INFINITY), Reference::offset(NAN), Reference::constant(-INFINITY), Reference::offset(1e39)})
        EXPECT_ERROR(with({{c.m, reference}}), "give a finite number");
    EXPECT_ERROR(with({{c.o, Reference::lazy(8)}}), "name one in front of the last");
    EXPECT_ERROR(with({{c.masked, Reference::lazy(8)}}), "name one in front of the last");
    EXPECT_ERROR(with({{c.m, Reference::lazy(8)}, {c.m, Reference::offset(8)}}), "it has a reference already");
    EXPECT_ERROR(with({{c.l, Reference::lazy(8)}}), "no terms read it, so it needs no reference; leave it out");
    EXPECT_NO_THROW(with({{c.l, Reference::running()}}));
    Tensor scaled = compute("scaled", {rows}, [&](Expr i) { return sum(c.x(i, c.j2) / c.m(i), c.j2); });
    auto divided_by = [&](double by) {
        Schedule s({scaled}, target("sm_90a"));
        s.stream({c.m, scaled}, s.reduce(scaled), {{c.m, Reference::constant(by)}});
    };
    const Schedule s = c.schedule(target("sm_90a"), Reference::lazy(8));
    auto replayed_with = [&](const std::string& other) {
        std::string saved = s.save();
        saved.replace(saved.find("lazy 8"), 6, other);
        replay(saved, s.outputs(), s.target());
    };
    EXPECT_ERROR(replayed_with("late 8"), "\"late\" is no kind of reference");
    EXPECT_ERROR(replayed_with("lazy"), "a number is missing");
    EXPECT_ERROR(divided_by(0), "nothing leads back to the true 'm'; choose another constant");
    EXPECT_NO_THROW(divided_by(2));
}

// Terms are as far away as an offset says, and may be as far as a lazy reference; how far a constant is, data say.
TEST(StreamReferenceErrors, WhatIsTooFarAway) {
    const Weighted c;
    for (const double by : {-130, 128, 200})
        EXPECT_ERROR(c.schedule(target("sm_90a"), Reference::offset(by)),
                     "terms of 'l' are infinite, or all 0, so far away in their type; give a number closer to 0");
    EXPECT_NO_THROW(c.schedule(target("sm_90a"), Reference::offset(120)));
    const auto is_said = testing::HasSubstr(
        "nothing shows that the reference is close enough for terms and sums to stay in the range of their type");
    for (const Reference& reference : {Reference::constant(4), Reference::lazy(200)})
        EXPECT_THAT(c.schedule(target("sm_90a"), reference).explain(), is_said);
    for (const Reference& reference : {Reference::running(), Reference::lazy(100), Reference::offset(-8)})
        EXPECT_THAT(c.schedule(target("sm_90a"), reference).explain(), testing::Not(is_said));
}

/// What explain() says of a stream.
std::string note_of(const std::vector<Tensor>& stream, const std::vector<ReferenceOf>& references = {}) {
    Schedule s({stream.back()}, target("sm_90a"));
    s.stream({stream.begin(), stream.end()}, s.split(s.reduce(stream.back()), 4)[0], references);
    return s.explain();
}

TEST(StreamNotes, NameEachReference) {
    const Weighted c;
    const Axis j = reduce_axis("j", terms);
    const Tensor mean =
        compute("mean", {rows}, [&](Expr i) { return sum(exp2(c.masked(i, j) - c.m(i)) / c.l(i) * c.v(j, 0), j); });
    const std::string note = note_of({c.m, c.l, mean}, {{c.m, Reference::lazy(3)}, {c.l, Reference::constant(2)}});
    EXPECT_THAT(note,
                testing::HasSubstr("'l' goes on with values so far of 'm' that may be 3 away from the newest, and "
                                   "is corrected when they change"));
    EXPECT_THAT(note, testing::HasSubstr("'mean' goes on with values so far of 'm' that may be 3 away from the newest, "
                                         "and with 2 in the place of 'l', and is corrected when they change"));
}

// Values of argmax are rounded by corrections, so that the first of equal ones need not stay the largest.
TEST(StreamNotes, SayThatAnotherPlaceMayBePicked) {
    const Weighted c;
    const Tensor y = input("y", f32, {rows, terms});
    const Axis j = reduce_axis("j", terms);
    auto best_of = [&](const std::function<Expr(const Expr&)>& value) {
        return compute_tuple("best", {rows}, [&](const std::vector<Expr>& i) { return argmax(value(i[0]), j); })[0];
    };
    const std::string picks = "and of values that are equal up to it another may be picked";
    EXPECT_THAT(note_of({c.m, best_of([&](const Expr& i) { return y(i, j) - c.m(i); })}), testing::HasSubstr(picks));
    EXPECT_THAT(note_of({c.m, c.l}), testing::Not(testing::HasSubstr(picks)));
    const Tensor largest = compute("largest", {rows}, [&](Expr i) { return reduce_max(y(i, j) - c.m(i), j); });
    EXPECT_THAT(note_of({c.m, largest}),
                testing::HasSubstr("when they change: floats may differ by rounding; nothing"));
}

// The sum of x / max |x| is 0 of zeros in a stream, where 0 / 0 is declared: so it is said.
TEST_P(StreamReferences, OfZerosAreWhatTheNoteSays) {
    const Tensor x = input("x", f32, {rows, terms});
    const Axis j = reduce_axis("j", terms), k = reduce_axis("k", terms);
    const Tensor m = compute("m", {rows}, [&](Expr i) { return reduce_max(abs(x(i, j)), j); });
    const Tensor total = compute("total", {rows}, [&](Expr i) { return sum(x(i, k) / m(i), k); });
    Schedule s({total}, device_target());
    s.stream({m, total}, s.split(s.reduce(total), 4)[0]);
    EXPECT_THAT(s.explain(),
                testing::HasSubstr("; where all of its terms are 0.0 it is that, even where the declaration "
                                   "makes NaN of them"));
    Bindings zeros = random_bindings({total}, 1);
    fill_uniform(zeros.inputs.at("x"), 0, 0, 1);
    for (int64_t i = 0; i < rows; ++i) EXPECT_EQ(run(s, zeros)[0].at({i}).real, 0) << i;
}

}  // namespace
}  // namespace tw
