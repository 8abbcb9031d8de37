// Which reductions can share a pass, or be made in parts: the laws of their terms, and what has none.
#include <gmock/gmock.h>

#include <set>

#include "tests/ops/random_stream.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

/// sum_j exp(x - max_j x) and what else a test streams.
struct Softmax {
    Tensor x = input("x", f32, {6, 8}), y = input("y", f32, {6, 8});
    Axis j = reduce_axis("j", 8), k = reduce_axis("k", 8);
    Tensor largest = compute("largest", {6}, [&](Expr i) { return reduce_max(x(i, j), j); });

    Tensor summed(const std::function<Expr(const Expr& i, const Expr& k)>& term) const {
        return compute("total", {6}, [&](Expr i) { return sum(term(i, k), k); });
    }
    static void stream(const std::vector<Tensor>& reductions, const std::vector<Tensor>& also = {}) {
        std::vector<Tensor> outputs{reductions.back()};
        outputs.insert(outputs.end(), also.begin(), also.end());
        Schedule s(outputs, target("sm_90a"));
        std::vector<StageRef> refs(reductions.begin(), reductions.end());
        s.stream(refs, s.reduce(reductions.back()));
    }
};

/// Terms with a factor that changes alone have a law, whatever their form; others are refused with the part that has
/// none.
TEST(StreamLaws, FactorsAreFoundInAllForms) {
    Softmax c;
    auto is_streamed = [&](const std::function<Expr(const Expr&, const Expr&)>& term) {
        EXPECT_NO_THROW(Softmax::stream({c.largest, c.summed(term)}));
    };
    is_streamed([&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)); });
    is_streamed([&](Expr i, Expr k) { return exp2((c.x(i, k) - c.largest(i)) * 1.5) * c.y(i, k); });
    is_streamed([&](Expr i, Expr k) { return exp2(c.x(i, k) * 1.5 - c.largest(i) * 1.5) * c.y(i, k) * 2.0; });
    is_streamed([&](Expr i, Expr k) { return c.y(i, k) / (exp(c.largest(i)) + 1.0); });
    is_streamed([&](Expr i, Expr k) { return c.y(i, k) * rsqrt(c.largest(i) * c.largest(i) + 1.0); });
    is_streamed([&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)) + 3.0 * exp(-c.largest(i)); });
    is_streamed([&](Expr i, Expr k) { return sqrt(exp(c.x(i, k) - c.largest(i) / 2.0)); });
    is_streamed([&](Expr i, Expr k) { return select(c.y(i, k) > 0, exp(c.x(i, k) - c.largest(i)), 0.0); });
    is_streamed([&](Expr i, Expr k) { return exp(log(exp(c.x(i, k)) * exp(-c.largest(i)))); });
    is_streamed([&](Expr i, Expr k) {
        return cast(f32, cast(bf16, exp(c.x(i, k) - c.largest(i)))) * abs(c.y(i, k) * c.largest(i));
    });

    auto is_refused = [&](const std::function<Expr(const Expr&, const Expr&)>& term, const std::string& part) {
        EXPECT_ERROR(Softmax::stream({c.largest, c.summed(term)}), part);
    };
    is_refused([&](Expr i, Expr k) { return (c.x(i, k) - c.largest(i)) * (c.x(i, k) - c.largest(i)); },
               "'total' cannot run in one pass with 'largest'");
    is_refused([&](Expr i, Expr k) { return c.y(i, k) * (c.x(i, k) - c.largest(i)); }, "do not change alike");
    is_refused([&](Expr i, Expr k) { return max(c.x(i, k) - c.largest(i), 0.0); }, "do not change alike");
    is_refused([&](Expr i, Expr k) { return select(c.x(i, k) < c.largest(i), c.y(i, k), 0.0); }, "do not change alike");
    is_refused([&](Expr i, Expr k) { return select(tanh(c.largest(i)) > c.x(i, k), c.y(i, k), 0.0); },
               "do not change alike");
    is_refused([&](Expr i, Expr k) { return tanh(c.x(i, k) - c.largest(i)); }, "has no factor that changes alone");
    is_refused([&](Expr i, Expr k) { return exp(c.x(i, k) * c.largest(i)); }, "has no summand that changes alone");
}

TEST(StreamLaws, CorrectionsDistributeOverTheReducer) {
    Softmax c;
    Tensor high = compute("high", {6}, [&](Expr i) { return reduce_max(c.y(i, c.k) - c.largest(i), c.k); });
    EXPECT_NO_THROW(Softmax::stream({c.largest, high}));
    Tensor scaled = compute("scaled", {6}, [&](Expr i) { return reduce_max(exp(c.y(i, c.k) - c.largest(i)), c.k); });
    EXPECT_NO_THROW(Softmax::stream({c.largest, scaled}));
    Tensor where = compute_tuple(
        "where", {6}, [&](const std::vector<Expr>& at) { return argmax(c.y(at[0], c.k) - c.largest(at[0]), c.k); })[0];
    EXPECT_NO_THROW(Softmax::stream({c.largest, where}));
    Reducer log_sum = make_reducer("log_sum", {-infinity}, [](const auto& a, const auto& b) {
        Expr high = max(a[0], b[0]);
        return std::vector<Expr>{high + log(exp(a[0] - high) + exp(b[0] - high))};
    });
    Tensor logarithm =
        compute("logarithm", {6}, [&](Expr i) { return reduce(log_sum, {c.y(i, c.k) - c.largest(i)}, {c.k})[0]; });
    EXPECT_NO_THROW(Softmax::stream({c.largest, logarithm}));
    Tensor product = compute("product", {6}, [&](Expr i) { return prod(exp(c.x(i, c.k) - c.largest(i)), c.k); });
    EXPECT_ERROR(Softmax::stream({c.largest, product}), "multiplies what has been reduced");
    Reducer above_zero = make_reducer("above_zero", {0.0},
                                      [](const auto& a, const auto& b) { return std::vector<Expr>{max(a[0], b[0])}; });
    Tensor positive =
        compute("positive", {6}, [&](Expr i) { return reduce(above_zero, {c.y(i, c.k) - c.largest(i)}, {c.k})[0]; });
    EXPECT_ERROR(Softmax::stream({c.largest, positive}), "the identity of the reducer 'above_zero' would be corrected");
    Tensor w = input("w", i32, {6, 8});
    Tensor most = compute("most", {6}, [&](Expr i) { return reduce_max(w(i, c.j), c.j); });
    Tensor whole = compute("whole", {6}, [&](Expr i) { return sum(w(i, c.k) * most(i), c.k); });
    EXPECT_ERROR(Softmax::stream({most, whole}), "has no factor that changes alone");
    Tensor least = compute("least", {6}, [&](Expr i) { return reduce_max(w(i, c.k) - most(i), c.k); });
    EXPECT_ERROR(Softmax::stream({most, least}), "'least' cannot run in one pass with 'most'");
    Tensor negative = compute("negative", {6}, [&](Expr i) { return reduce_max(c.y(i, c.k) * c.largest(i), c.k); });
    EXPECT_ERROR(Softmax::stream({c.largest, negative}), "changes its order if a factor is negative");
}

/// Of rows of 12 terms, in tiles of 4, of which x ascends, so that every tile changes the maximum; behind the diagonal
/// `masked` is empty, the first tiles of most rows first.
struct Ascending {
    Tensor x = input("x", f32, {6, 12}), y = input("y", f32, {6, 12}), w = input("w", f32, {6});
    Axis j = reduce_axis("j", 12), k = reduce_axis("k", 12);
    Tensor masked = compute("masked", {6, 12}, [&](Expr a, Expr b) { return select(b >= 2 * a, x(a, b), -infinity); });
    Tensor m = compute("m", {6}, [&](Expr i) { return reduce_max(x(i, j), j); });

    static void expect_equal(Schedule& s, double first) {
        Bindings launch = whole_numbers(s.outputs(), 5);
        for (int64_t row = 0; row < 6; ++row)
            for (int64_t column = 0; column < 12; ++column)
                launch.inputs.at("x").set({row, column}, make_value(f32, first + static_cast<double>(column) * 0.5));
        SCOPED_TRACE(s.trace_as_cpp());
        auto got = interpret_tree(s.tree(), launch), expected = interpret_plain(s.outputs(), launch);
        for (size_t k = 0; k < got.size(); ++k)
            EXPECT_EQ(difference("output", got[k], expected[k], near(64, 1e-4)), std::nullopt) << s.to_string();
    }
    static void expect_equal(const std::vector<Tensor>& reductions, double first,
                             const std::vector<Tensor>& also = {}) {
        std::vector<Tensor> outputs{reductions.back()};
        outputs.insert(outputs.end(), also.begin(), also.end());
        std::vector<StageRef> refs(reductions.begin(), reductions.end());
        Schedule s(outputs, target("sm_90a"));
        s.stream(refs, s.split(s.reduce(reductions.back()), 4)[0]);
        expect_equal(s, first);
        for (int64_t terms : {1, 4, 5}) {  // of a part
            Schedule passes(outputs, target("sm_90a"));
            const Loop part = passes.split(passes.reduce(reductions.back()), terms, Tail::Mask)[0];
            const std::vector<Stage> parts = passes.rfactor(refs, part);
            expect_equal(passes, first);
            passes.stream({parts.begin(), parts.end()}, passes.split(passes.reduce(parts.back()), 2, Tail::Mask)[0]);
            expect_equal(passes, first);
        }
    }
    Tensor total(const std::function<Expr(Expr y, Expr r)>& term) const {
        return compute("total", {6}, [&](Expr i) { return sum(term(y(i, k), m(i)), k); });
    }
};

TEST(Stream, ValuesThatHaveNoInverseOnTheirWay) {
    Ascending c;
    Ascending::expect_equal({c.m, c.total([](Expr y, Expr r) { return y * log2(r); })}, -0.5);
    Ascending::expect_equal({c.m, c.total([](Expr y, Expr r) { return y * (r - 1.0); })}, -0.5);
    Ascending::expect_equal({c.m, c.total([](Expr y, Expr r) { return y / (1.0 - r); })}, -0.5);
    EXPECT_ERROR(Ascending::expect_equal({c.m, c.total([](Expr y, Expr r) { return y * log2(r - 100.0); })}, 0),
                 "to stand for values of 'm' without an inverse; compute 'm' in a pass before");
    Tensor other = compute("other", {6}, [&](Expr i) { return sum(c.y(i, c.k) * (c.m(i) + c.w(i)), c.k); });
    EXPECT_ERROR(Ascending::expect_equal({c.m, other}, 0), "which depends on more than 'm'");
}

TEST(Stream, EmptyTilesFirst) {
    Ascending c;
    Tensor largest = compute("largest", {6}, [&](Expr i) { return reduce_max(c.masked(i, c.j) * 2.0, c.j) * 0.5; });
    Tensor sums = compute("sums", {6}, [&](Expr i) { return sum(exp2(c.masked(i, c.k) - largest(i)), c.k); });
    Ascending::expect_equal({largest, sums}, -3);
    Tensor shifted = compute("shifted", {6}, [&](Expr i) { return reduce_max(c.masked(i, c.k) - c.m(i), c.k); });
    Ascending::expect_equal({c.m, shifted}, -3);
    Tensor none = compute("none", {6, 12}, [&](Expr a, Expr b) { return select(b < a - 20, c.x(a, b), -infinity); });
    Tensor of_none = compute("of_none", {6}, [&](Expr i) { return reduce_max(none(i, c.k) - c.m(i), c.k); });
    Ascending::expect_equal({c.m, of_none}, -3);
    Tensor narrow = compute("narrow", {6}, [&](Expr i) { return cast(bf16, reduce_max(c.masked(i, c.j), c.j)); });
    Tensor of_narrow =
        compute("of_narrow", {6}, [&](Expr i) { return sum(exp2(c.masked(i, c.k) - cast(f32, narrow(i))), c.k); });
    Ascending::expect_equal({narrow, of_narrow}, -3);
}

/// A sum that goes through the terms of an iteration in another order than its maximum has nothing to lose while there
/// were none; one that is ahead of it has.
TEST(Stream, TermsInAnotherOrder) {
    const auto is_said = testing::HasSubstr("without any terms it is 0, even where the declaration makes NaN of that");
    const Ascending c;
    const Tensor largest = compute("largest", {6}, [&](Expr i) { return reduce_max(c.masked(i, c.j), c.j); });
    auto sums = [&](const Expr& place) {
        return compute("sums", {6}, [&](Expr i) { return sum(exp2(c.masked(i, place) - largest(i)), c.k); });
    };
    auto note = [&](const Tensor& reduction) {
        Schedule s({reduction}, target("sm_90a"));
        s.stream({largest, reduction}, s.split(s.reduce(reduction), 4)[0]);
        return s.explain();
    };
    const Tensor inside = sums(c.k / 4 * 4 + (3 - c.k % 4)), across = sums(11 - c.k);
    Ascending::expect_equal({largest, inside}, -3);
    Ascending::expect_equal({largest, across}, -3);
    EXPECT_THAT(note(inside), is_said);
    EXPECT_THAT(note(across), testing::Not(is_said));
}

TEST(Stream, StagesBetweenThatReadEachOther) {
    Ascending c;
    Tensor weights = compute("weights", {6, 12}, [&](Expr i, Expr b) { return exp2(c.x(i, b) - c.m(i)); });
    Tensor products = compute("products", {6, 12}, [&](Expr i, Expr b) { return weights(i, b) * c.y(i, b); });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(weights(i, c.k), c.k); });
    Axis n = reduce_axis("n", 12);
    Tensor o = compute("o", {6}, [&](Expr i) { return sum(products(i, n), n) / l(i); });
    Ascending::expect_equal({c.m, l, o}, -2);
}

TEST(Stream, AllOutputsOfATuple) {
    Ascending c;
    std::vector<Tensor> at =
        compute_tuple("at", {6}, [&](const std::vector<Expr>& i) { return argmax(c.x(i[0], c.j), c.j); });
    Tensor total = compute("total", {6}, [&](Expr i) { return sum(exp2(c.x(i, c.k) - at[0](i)), c.k); });
    Schedule s({total, at[0], at[1]}, target("sm_90a"));
    s.stream({at[0], total}, s.split(s.reduce(total), 4)[0]);
    Ascending::expect_equal(s, -2);
    std::set<std::string> names;
    for (const BufferRef& output : s.tree().outputs) names.insert(output->name);
    EXPECT_EQ(names, (std::set<std::string>{"total", "at_0", "at_1"}));
}

/// Parts of rows some of which see no term, or none in any part: the sum of exponentials, its logarithm, and a largest
/// value that has a factor.
TEST(StreamInParts, GiveTheSameBits) {
    Ascending c;
    Tensor m = compute("largest", {6}, [&](Expr i) { return reduce_max(c.masked(i, c.j), c.j); });
    Tensor p = compute("p", {6, 12}, [&](Expr i, Expr b) { return exp2(c.masked(i, b) - m(i)); });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(p(i, c.k), c.k); });
    Tensor lse = compute("lse", {6}, [&](Expr i) { return m(i) + log2(l(i)); });
    Axis n = reduce_axis("n", 12);
    Tensor top = compute("top", {6}, [&](Expr i) { return reduce_max(p(i, n) * c.y(i, n), n) / l(i); });
    for (int64_t terms : {1, 2, 3, 4, 5, 12})
        for (bool streamed : {false, true}) {
            Schedule s({top, lse}, target("sm_90a"));
            const Loop part = s.split(s.reduce(top), terms, Tail::Mask, {"part", "in_part"})[0];
            auto [m_part, p_part, l_part, top_part] = s.rfactor<4>({m, p, l, top}, part);
            EXPECT_EQ(s.name(p_part), "p_partial");
            EXPECT_ERROR(s.reduce(p), "'p' is not computed in this schedule");
            auto [each, row] = s.loops<2>(top_part);
            s.order({each, row});
            s.bind(each, grid.x);
            if (streamed) s.stream({m_part, l_part, top_part}, s.reduce(top_part));
            SCOPED_TRACE(s.trace_as_cpp());
            Bindings launch = whole_numbers(s.outputs(), 3);
            auto got = interpret_tree(s.tree(), launch), expected = interpret_plain(s.outputs(), launch);
            EXPECT_EQ(differs_in_numbers(got, expected, equal_values), std::nullopt) << s.to_string();
        }
}

TEST(StreamInParts, StagesBetweenThatReadEachOther) {
    Ascending c;
    Tensor shifted = compute("shifted", {6, 12}, [&](Expr i, Expr b) { return c.x(i, b) - c.m(i); });
    Tensor weights = compute("weights", {6, 12}, [&](Expr i, Expr b) { return exp2(shifted(i, b)); });
    Tensor products = compute("products", {6, 12}, [&](Expr i, Expr b) {
        return weights(i, b) * c.y(i, b) + exp2(shifted(i, b));  // read twice
    });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(products(i, c.k), c.k); });
    Schedule s({l}, target("sm_90a"));
    s.rfactor({c.m, l}, s.split(s.reduce(l), 4)[0]);
    std::set<std::string> names;
    for (const Stage& stage : s.all_stages()) names.insert(s.name(stage));
    EXPECT_EQ(names, (std::set<std::string>{"m", "m_partial", "shifted_partial", "weights_partial", "products_partial",
                                            "l_partial", "l"}));
    Ascending::expect_equal(s, -2);
}

/// A single number has no loop around its reduction: its parts do.
TEST(StreamInParts, OfANumber) {
    Tensor x = input("x", f32, {37});
    Axis j = reduce_axis("j", 37), k = reduce_axis("k", 37);
    Tensor m = compute("m", {}, [&] { return reduce_max(x(j), j); });
    Tensor l = compute("l", {}, [&] { return sum(exp2(x(k) - m()), k); });
    Schedule s({m, l}, target("sm_90a"));
    auto [m_part, l_part] = s.rfactor<2>({m, l}, s.split(s.reduce(l), 10, Tail::Mask)[0]);
    s.stream({m_part, l_part}, s.split(s.reduce(l_part), 5)[0]);
    Bindings launch = whole_numbers(s.outputs(), 3);
    auto got = interpret_tree(s.tree(), launch), expected = interpret_plain(s.outputs(), launch);
    for (size_t n = 0; n < got.size(); ++n)
        EXPECT_EQ(difference("output", got[n], expected[n], equal_values), std::nullopt) << s.to_string();
    EXPECT_EQ(got.size(), 2);
}

TEST(StreamInParts, WhatOthersReadStaysWhole) {
    Ascending c;
    Tensor p = compute("p", {6, 12}, [&](Expr i, Expr b) { return exp2(c.x(i, b) - c.m(i)); });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(p(i, c.k), c.k); });
    Schedule s({l, p}, target("sm_90a"));
    s.rfactor({c.m, l}, s.split(s.reduce(l), 4)[0]);
    EXPECT_EQ(s.name(p), "p");
    EXPECT_NE(s.explain().find("'l' are combined in parts along 'k_outer', each corrected from its own values"),
              std::string::npos)
        << s.explain();
    Ascending::expect_equal(s, -2);
}

TEST(StreamErrors, TermsThatAreNoBox) {
    Ascending c;
    Tensor total = c.total([](Expr y, Expr r) { return exp2(y - r); });
    auto attempt = [&](const std::function<Loop(Schedule&)>& shared) {
        Schedule s({total}, target("sm_90a"));
        s.stream({c.m, total}, shared(s));
    };
    const char* message = "is no box of neighbouring terms, each once: others could not share it";
    EXPECT_ERROR(attempt([&](Schedule& s) {
                     auto [outer, inner] = s.split(s.reduce(total), 4);
                     s.order({inner, outer});
                     return inner;
                 }),
                 message);
    EXPECT_ERROR(attempt([&](Schedule& s) {
                     auto [outer, inner] = s.split(s.reduce(total), 4);
                     s.split(inner, 3, Tail::Mask);
                     return outer;
                 }),
                 message);
    attempt([&](Schedule& s) { return s.split(s.split(s.reduce(total), 4)[0], 2, Tail::Mask)[0]; });
    Schedule s({total}, target("sm_90a"));
    auto [outer, inner] = s.split(s.reduce(total), 4);
    s.stream({c.m, total}, outer);
    EXPECT_ERROR(s.split(inner, 3, Tail::Mask), message);
    Tensor weights = compute("weights", {6, 12}, [&](Expr i, Expr b) { return exp2(c.x(i, b) - c.m(i)); });
    Tensor l = compute("l", {6}, [&](Expr i) { return sum(weights(i, c.k), c.k); });
    Schedule outside({l}, target("sm_90a"));
    outside.stream({c.m, l}, outside.split(outside.reduce(l), 4)[0]);
    EXPECT_ERROR(outside.stage(weights, c.m, Memory::Shared, outside.data_loops(l)[0]),
                 "stands outside of loop 'k_outer', but 'weights' reads it inside, where 'm' still runs");
}

TEST(StreamErrors, WhatCannotShareALoop) {
    Softmax c;
    Tensor other = c.summed([&](Expr i, Expr k) { return c.x((i + 1) % 6, k) * c.largest((i + k) % 6); });
    EXPECT_ERROR(Softmax::stream({c.largest, other}), "at an index that differs from term to term");
    Tensor plain = compute("plain", {6}, [&](Expr i) { return c.x(i, i) + 1.0; });
    Tensor total = c.summed([&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)); });
    EXPECT_ERROR(Softmax::stream({plain, total}, {plain}), "it reduces nothing");
    EXPECT_ERROR(Softmax::stream({total}), "name at least two reductions");
    EXPECT_ERROR(Softmax::stream({total, total}), "'total' is named twice");
    EXPECT_ERROR(Softmax::stream({total, c.largest}, {total}), "'total' reads 'largest', which is named last");
    Axis half = reduce_axis("half", 4);
    Tensor shorter = compute("shorter", {6}, [&](Expr i) { return sum(c.x(i, half), half); });
    EXPECT_ERROR(Softmax::stream({shorter, total}, {shorter}), "'shorter' reduces 4 terms, 'total' 8");
    Reducer last = make_reducer(
        "last", {0.0}, [](const auto& a, const auto& b) { return std::vector<Expr>{select(b[0] != 0.0, b[0], a[0])}; },
        false);
    Tensor ordered = compute("ordered", {6}, [&](Expr i) { return reduce(last, {c.y(i, c.k)}, {c.k})[0]; });
    EXPECT_ERROR(Softmax::stream({ordered, total}, {ordered}), "its reducer 'last' is not commutative");
    Axis some = reduce_axis("some", Expr(8));
    Tensor triangle = compute("triangle", {6}, [&](Expr i) {
        Axis to = reduce_axis("to", i + 1);
        return sum(c.x(i, to), to);
    });
    EXPECT_ERROR(Softmax::stream({triangle, total}, {triangle}), "'triangle' reduces i + 1 terms, 'total' 8");
    Tensor mean = compute("mean", {6}, [&](Expr i) { return sum(c.y(i, c.k), c.k) / 8.0; });
    Tensor between = compute("between", {6, 8}, [&](Expr i, Expr j) {
        Axis d = reduce_axis("d", 8);
        return sum(c.x(i, d) * exp(c.y(i, j) - c.largest(i)), d);
    });
    Tensor behind = c.summed([&](Expr i, Expr k) { return between(i, k); });
    EXPECT_ERROR(Softmax::stream({c.largest, behind}), "'between' is a reduction between those that are named");
    Tensor mixed =
        compute("mixed", {6}, [&](Expr i) { return sum(exp(c.x(i, c.k) - c.largest(i)), c.k) + c.largest(i); });
    Tensor reader = c.summed([&](Expr i, Expr k) { return c.y(i, k) / mixed(i); });
    EXPECT_ERROR(Softmax::stream({c.largest, mixed, reader}), "would need that of 'largest' so far");
    Tensor number = compute("number", {}, [&] { return sum(c.x(0, c.k), c.k); });
    Axis all = reduce_axis("all", 8);
    Tensor peak = compute("peak", {}, [&] { return reduce_max(c.x(0, all), all); });
    EXPECT_ERROR(Softmax::stream({peak, number}, {peak}), "no loop stands around the reduce loops of 'number'");
}

TEST(StreamErrors, WhatHasNoParts) {
    Softmax c;
    Tensor weights = compute("weights", {6, 8}, [&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)); });
    Tensor plain = compute("plain", {6}, [&](Expr i) { return c.x(i, i) + 1.0; });
    Tensor total = c.summed([&](Expr i, Expr k) { return weights(i, k); });
    Schedule s({total, plain}, target("sm_90a"));
    const Loop k = s.reduce(total);
    EXPECT_ERROR(s.rfactor(std::vector<StageRef>{}, k), "rfactor: name at least one reduction");
    EXPECT_ERROR(s.rfactor({total, total}, k), "rfactor: 'total' is named twice; name each once");
    EXPECT_ERROR(s.rfactor({c.largest, plain, total}, k), "it is neither a reduction nor read by terms between them");
    EXPECT_ERROR((s.rfactor<2>({c.largest, weights, total}, k)), "rfactor<2>: 3 stages are named; write rfactor<3>");
    EXPECT_ERROR(s.rfactor({c.largest, total}, s.reduce(c.largest)), "the loop is no reduce loop of 'total'");
    EXPECT_ERROR(s.rfactor({total, c.largest}, s.reduce(c.largest)), "'total' reads 'largest', which is named last");
    const char* message = "'weights', between the reductions, was placed, bound, split or rounded already";
    Schedule placed = s, bound = s, rounded = s;
    placed.at(weights, placed.loops<1>(total)[0]);
    EXPECT_ERROR(placed.rfactor({c.largest, total}, k), message);
    bound.bind(bound.loops<2>(weights)[0], grid.x);
    EXPECT_ERROR(bound.rfactor({c.largest, total}, k), message);
    rounded.round_to(weights, bf16);
    EXPECT_ERROR(rounded.rfactor({c.largest, total}, k), message);
    Tensor squares = c.summed([&](Expr i, Expr at) { return (c.x(i, at) - c.largest(i)) * c.x(i, at); });
    Schedule refused({squares}, target("sm_90a"));
    EXPECT_ERROR(refused.rfactor({c.largest, squares}, refused.reduce(squares)),
                 "rfactor: 'total' cannot run in one pass with 'largest'");
    Tensor mixed =
        compute("mixed", {6}, [&](Expr i) { return sum(exp(c.x(i, c.k) - c.largest(i)), c.k) + c.largest(i); });
    Axis n = reduce_axis("n", 8);
    Tensor reader = compute("reader", {6}, [&](Expr i) { return sum(c.y(i, n) / mixed(i), n); });
    Schedule three({reader}, target("sm_90a"));
    EXPECT_ERROR(three.rfactor({c.largest, mixed, reader}, three.reduce(reader)),
                 "the value of 'mixed' in a part would need that of 'largest'");
}

TEST(StreamErrors, WhatWasScheduledBefore) {
    Softmax c;
    Tensor total = c.summed([&](Expr i, Expr k) { return exp(c.x(i, k) - c.largest(i)); });
    Schedule s({total}, target("sm_90a"));
    auto [i] = s.loops<1>(total);
    Loop k = s.reduce(total), j = s.reduce(c.largest);
    EXPECT_ERROR(s.stream({c.largest, total}, i), "the loop is no reduce loop of 'total'");
    Schedule split = s;
    split.split(j, 4);
    EXPECT_ERROR(split.stream({c.largest, total}, k), "its loops were split, bound, cut, pipelined");
    Schedule placed = s;
    placed.at(c.largest, i);
    EXPECT_ERROR(placed.stream({c.largest, total}, k), "it has a place already");
    Schedule bound = s;
    bound.bind(k, thread);
    EXPECT_ERROR(bound.stream({c.largest, total}, k), "which others share, is bound to thread");
    Schedule inside = s;
    auto [io, ii] = inside.split(i, 2);
    inside.order({io, k, ii});
    auto [ko, ki] = inside.split(k, 4);
    inside.order({ko, ii, ki});
    EXPECT_ERROR(inside.stream({c.largest, total}, ki), "the data loop 'i_inner' of 'total' stands between");

    s.stream({c.largest, total}, k);
    EXPECT_ERROR(s.stream({c.largest, total}, k), "it shares a loop already");
    EXPECT_ERROR(s.order({k, i}), "'largest' is made where 'total' begins to reduce, and this step moves one of them");
    EXPECT_ERROR(s.rfactor(total, k), "'total' shares its loop with others");
    EXPECT_ERROR(s.accumulators(total), "'total' shares its loop with others");
    EXPECT_ERROR(s.stage(c.largest, c.x, Memory::Shared, s.loops<1>(c.largest)[0]), "cannot stand under loop");

    Tensor flat = compute("flat", {6}, [&](Expr i) { return sum(c.y(i, c.k), c.k); });
    Schedule atomic({flat, total}, target("sm_90a"));
    Stage parts = atomic.rfactor(flat, atomic.split(atomic.reduce(flat), 4)[0], Combine::Atomic);
    EXPECT_ERROR(atomic.stream({parts, total}, atomic.reduce(total)), "its elements are made by atomic updates");

    const Expr n = size("n", {.min = 1, .max = 100});
    Tensor x = input("x", f32, {6, n});
    Axis a = reduce_axis("a", n), b = reduce_axis("b", n);
    Tensor high = compute("high", {6}, [&](Expr i) { return reduce_max(x(i, a), a); });
    Tensor low = compute("low", {6}, [&](Expr i) { return reduce_min(x(i, b), b); });
    Schedule sized({low, high}, target("sm_90a"));
    auto [row] = sized.loops<1>(low);
    auto [outer, inner] = sized.split(sized.reduce(low), 8, Tail::Mask);
    sized.order({row, inner, outer});
    EXPECT_ERROR(sized.stream({high, low}, inner), "reduces no constant number of terms");
}

}  // namespace
}  // namespace tw
