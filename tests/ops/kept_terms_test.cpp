// Stages behind the body of a reduce loop: what an iteration makes for the terms that it reduces is kept for others.
// Whole numbers, bit for bit.
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class KeptTerms : public RandomCases {
protected:
    KeptTerms() : RandomCases(53) {}
};
TW_ON_EACH_DEVICE(KeptTerms);

// Sums of rows, with the terms for all who read them: column sums in a kernel behind.
TEST_P(KeptTerms, OfRows) {
    for (int round = 0; round < 16; ++round) {
        const int64_t rows = between(1, 70), columns = between(1, 90);
        Tensor x = input("x", f32, {rows, columns});
        Tensor e = compute("e", {rows, columns}, [&](Expr i, Expr j) { return x(i, j) * x(i, j) + 1.0; });
        Axis j = reduce_axis("j", columns), i = reduce_axis("i", rows);
        Tensor l = compute("l", {rows}, [&](Expr i) { return sum(e(i, j), j); });
        Tensor kept = compute("kept", {columns, rows}, [&](Expr j, Expr i) { return cast(bf16, e(i, j) * 2.0); });
        Tensor columns_of = compute("columns_of", {columns}, [&](Expr j) { return sum(cast(f32, kept(j, i)), i); });
        std::vector<Tensor> outputs{l, columns_of};
        if (chance()) outputs.push_back(kept);
        Schedule s(outputs, device_target());
        auto [block, row] = s.split(s.loops<1>(l)[0], between(1, 32), Tail::Mask);
        auto [step, term] = s.split(s.reduce(l), between(1, 24), Tail::Mask);
        s.order(chance() ? std::vector<Loop>{block, row, step, term} : std::vector<Loop>{block, step, row, term});
        s.bind(block, grid.x);
        s.bind(row, thread);
        s.at(kept, step);
        s.at(e, step);
        if (chance()) s.stage(e, x, Memory::Shared, step);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(outputs, round));
        EXPECT_EQ(replay(s.save(), outputs, device_target()).to_string(), s.to_string());
    }
}

// Sums of columns, and beside them what is made of sums of the same rows: one pass over both, as of the gradients of a
// norm and of its gain.
TEST_P(KeptTerms, MadeOfRows) {
    for (int round = 0; round < 16; ++round) {
        const int64_t rows = between(1, 40), columns = between(1, 70),
                      neighbours = std::array{1, 2, 4}[size_t(between(0, 2))];
        const Tensor dy = input("dy", bf16, {rows, columns}), x = input("x", f32, {rows, columns});
        const Tensor gain = input("gain", f32, {columns});
        const Axis k = reduce_axis("k", columns), r = reduce_axis("r", rows);
        const Tensor d = compute("d", {rows, columns}, [&](Expr i, Expr j) { return cast(f32, dy(i, j)); });
        const Tensor shifted = compute("shifted", {rows, columns}, [&](Expr i, Expr j) { return x(i, j) - 1.0; });
        const Tensor by_row = compute("by_row", {rows}, [&](Expr i) { return sum(d(i, k) * gain(k), k); });
        const bool has_another = chance();
        const Tensor another =
            compute("another", {rows}, [&](Expr i) { return by_row(i) + sum(d(i, k) * shifted(i, k), k); });
        const Tensor dx = compute("dx", {rows, columns}, [&](Expr i, Expr j) {
            return d(i, j) * gain(j) - (has_another ? another : by_row)(i)*shifted(i, j);
        });
        const Tensor sums = compute("sums", {columns}, [&](Expr j) { return sum(d(r, j) * shifted(r, j), r); });
        const std::vector<Tensor> outputs{dx, sums};
        Schedule s(outputs, device_target());
        const bool is_in_parts = chance();
        Stage leader = s[sums];
        if (is_in_parts) leader = s.rfactor(sums, s.split(s.reduce(sums), between(1, 12), Tail::Mask)[0]);
        std::vector<Loop> data = s.data_loops(leader);
        const Loop row = s.reduce(leader);
        const auto [share, element] = s.split(data.back(), neighbours, Tail::Mask, {"share", "element"});
        s.order(is_in_parts ? std::vector<Loop>{data[0], row, share, element} : std::vector<Loop>{row, share, element});
        if (is_in_parts) s.bind(data[0], grid.x);
        s.bind(share, thread);
        s.at(dx, row);
        const Loop inside = s.data_loops(s[dx])[0];
        std::vector<Tensor> spread{dx, d, shifted};
        if (has_another) s.at(another, inside);
        s.at(by_row, inside);
        for (const Tensor& each : {shifted, d}) {
            s.at(each, row);
            s.set_memory(each, Memory::Registers);
        }
        for (const Tensor& each : {by_row, another}) {
            if (each.same(another) && !has_another) continue;
            s.set_memory(each, Memory::Registers);
            s.bind(s.split(s.reduce(each), neighbours, Tail::Mask, {"share", "element"})[0], thread);
        }
        for (const Tensor& each : spread)
            s.bind(s.split(s.data_loops(s[each]).back(), neighbours, Tail::Mask, {"share", "element"})[0], thread);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(outputs, static_cast<unsigned>(round)));
    }
}

// The factor of a product is made for it tile by tile, in registers or for a tensor core, and kept.
TEST_P(KeptTerms, OfProducts) {
    for (int round = 0; round < 8; ++round) {
        const int64_t m = between(1, 100), k = 8 * between(1, 16), n = 8 * between(1, 6);
        Tensor a = input("a", bf16, {m, k}), b = input("b", bf16, {n, k});
        Tensor f = compute("f", {m, k}, [&](Expr i, Expr r) { return cast(bf16, relu(cast(f32, a(i, r)))); });
        Axis r = reduce_axis("r", k);
        Tensor c =
            compute("c", {m, n}, [&](Expr i, Expr j) { return sum(cast(f32, f(i, r)) * cast(f32, b(j, r)), r); });
        Tensor kept = compute("kept", {m, k}, [&](Expr i, Expr r) { return cast(f32, f(i, r)) - 1.0; });
        std::vector<Tensor> outputs{c, kept};
        Schedule s(outputs, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [block, in_block] = s.split(i, 32, Tail::Mask);
        auto [warp_row, row] = s.split(in_block, 16);
        auto [tile, column] = s.split(j, 48, Tail::Mask);
        auto [step, term] = s.split(s.reduce(c), 16 * between(1, 2), Tail::Mask);
        s.order({block, tile, warp_row, step, row, column, term});
        s.bind(block, grid.x);
        s.bind(warp_row, warp);
        s.at(kept, step);
        s.at(f, step);
        s.set_memory(f, Memory::Shared);
        s.stage(c, b, Memory::Shared, step);
        s.mma(c, mma_sync, {.m = row, .n = column, .k = term});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(outputs, round));
    }
}

/// A band of a matrix, whose rows are summed, and what is kept of it.
struct Band {
    int64_t rows, columns, from, to;
    Tensor x = input("x", f32, {rows, columns});
    Axis j = reduce_axis("j", columns), i = reduce_axis("i", rows);
    Tensor inside = compute("inside", {rows, columns},
                            [&](Expr i, Expr j) { return select(i + from <= j && j < i + to, x(i, j), 0.0); });
    Tensor sums = compute("sums", {rows}, [&](Expr i) { return sum(inside(i, j), j); });
    Tensor kept = compute("kept", {rows, columns}, [&](Expr i, Expr j) { return inside(i, j) * 2.0; });
    Tensor of_columns = compute("of_columns", {columns}, [&](Expr j) { return sum(kept(i, j), i); });
    Tensor both = compute("both", {columns}, [&](Expr j) { return sum(kept(i, j) + kept(i, columns - 1 - j), i); });
    Tensor next = compute("next", {rows, columns}, [&](Expr i, Expr j) { return kept(i, j) + 1.0; });

    /// The loop over steps, under which the band is made.
    Loop placed(Schedule& s, int64_t block_rows, int64_t terms) const {
        auto [block, row] = s.split(s.loops<1>(sums)[0], block_rows, Tail::Mask);
        auto [step, term] = s.split(s.reduce(sums), terms, Tail::Mask);
        s.order({block, step, row, term});
        s.bind(block, grid.x);
        s.bind(row, thread);
        s.at(kept, step);
        s.at(inside, step);
        return step;
    }
};

// Iterations that are left out write nothing, and readers take zeros for that.
TEST_P(KeptTerms, OfBands) {
    int skipped = 0;
    for (int round = 0; round < 24; ++round) {
        const int64_t from = between(-50, 20);
        Band band{between(1, 60), between(1, 70), from, from + between(1, 30)};
        std::vector<Tensor> outputs{band.sums, band.of_columns, band.both, band.next};
        Schedule s(outputs, device_target());
        const Loop step = band.placed(s, between(1, 16), between(1, 16));
        if (chance()) {
            Loop along = s.reduce(band.of_columns);
            s.stage(band.of_columns, band.kept, Memory::Shared, s.split(along, 8, Tail::Mask)[0]);
        }
        try {
            s.skip(step, band.inside);
            ++skipped;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("nothing to leave out"), std::string::npos) << error.what();
        }
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers(outputs, round));
    }
    EXPECT_GT(skipped, 12);
}

TEST(KeptTermsRefused, WhereAnIterationHasNotAllOfThem) {
    Tensor x = input("x", f32, {64, 48}), v = input("v", f32, {48, 8});
    Tensor e = compute("e", {64, 48}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Axis j = reduce_axis("j", 48), again = reduce_axis("again", 96);
    Tensor y = compute("y", {64, 8}, [&](Expr i, Expr c) { return sum(e(i, j) * v(j, c), j); });
    Tensor twice = compute("twice", {64}, [&](Expr i) { return sum(e(i, again % 48), again); });
    Tensor kept = compute("kept", {64, 48}, [&](Expr i, Expr j) { return e(i, j) * 2.0; });
    Tensor other = compute("other", {64}, [&](Expr i) { return x(i, 0); });
    {
        Schedule s({y, kept}, target("sm_90a"));
        auto [i, c] = s.loops<2>(y);  // each column's sums would make the terms anew
        EXPECT_ERROR(s.at(kept, s.reduce(y)), "'kept' cannot keep what 'e' makes for the terms of 'y'");
    }
    {
        Schedule s({twice, kept}, target("sm_90a"));
        EXPECT_ERROR(s.at(kept, s.reduce(twice)), "cannot keep what 'e' makes for the terms of 'twice'");
    }
    {
        Schedule s({y, kept, other}, target("sm_90a"));
        EXPECT_ERROR(s.at(other, s.reduce(y)), "'other'");
    }
    {
        Expr n = size("n", {.min = 1, .max = 100});
        Tensor x3 = input("x3", f32, {4, 6, n});
        Axis of_6 = reduce_axis("of_6", 6), of_n = reduce_axis("of_n", n);
        Tensor e3 = compute("e3", {4, 6, n}, [&](Expr i, Expr j, Expr k) { return x3(i, j, k) + 1.0; });
        Tensor sums = compute("sums", {4}, [&](Expr i) { return sum(e3(i, of_6, of_n), {of_6, of_n}); });
        Tensor kept3 = compute("kept3", {4, 6, n}, [&](Expr i, Expr j, Expr k) { return e3(i, j, k) * 2.0; });
        Schedule s({sums, kept3}, target("sm_90a"));
        EXPECT_ERROR(s.at(kept3, s.reduce(sums, 0)), "one iteration of 'of_6' reads no box of constant size at of_n");
    }
    Tensor largest = compute("largest", {64}, [&](Expr i) { return reduce_max(x(i, j), j); });
    Tensor shifted = compute("shifted", {64}, [&](Expr i) { return largest(i) + 1.0; });
    Schedule s({largest, shifted}, target("sm_90a"));
    EXPECT_ERROR(s.at(shifted, s.reduce(largest)), "it could keep what their terms read, element by element");
}

TEST(KeptTermsRefused, WithSkip) {
    Band band{.rows = 40, .columns = 60, .from = -100, .to = 1};
    {
        Tensor e = compute("e", {40, 60}, [&](Expr i, Expr j) { return band.x(i, j) + 1.0; });
        Tensor below =
            compute("below", {40}, [&](Expr i) { return sum(select(band.j <= i, e(i, band.j), 0.0), band.j); });
        Tensor kept = compute("kept", {40, 60}, [&](Expr i, Expr j) { return e(i, j) * 2.0; });
        Schedule s({below, kept}, target("sm_90a"));
        auto [block, row] = s.split(s.loops<1>(below)[0], 8);
        auto [step, term] = s.split(s.reduce(below), 8, Tail::Mask);
        s.order({block, step, row, term});
        Schedule skips = s;
        skips.skip(step, below);
        EXPECT_ERROR(skips.at(kept, step), "skip leaves iterations of");
        s.at(kept, step);
        EXPECT_ERROR(s.skip(step, below), "'kept' is an output, whose elements would not be written");
    }
    {
        Schedule s({band.sums, band.kept}, target("sm_90a"));
        const Loop step = band.placed(s, 8, 8);
        EXPECT_ERROR(s.skip(step, band.inside), "'kept' is an output, whose elements would not be written");
    }
    Tensor more = compute("more", {40, 60}, [&](Expr i, Expr j) { return band.inside(i, j) + 1.0; });
    Axis i = reduce_axis("i", 40);
    Tensor of_more = compute("of_more", {60}, [&](Expr j) { return sum(more(i, j), i); });
    Schedule s({band.sums, of_more}, target("sm_90a"));
    auto [block, row] = s.split(s.loops<1>(band.sums)[0], 8);
    auto [step, term] = s.split(s.reduce(band.sums), 8, Tail::Mask);
    s.order({block, step, row, term});
    s.at(more, step);
    s.at(band.inside, step);
    EXPECT_ERROR(s.skip(step, band.inside), "the elements of 'more', which would not be made, are not shown to be 0");
}

}  // namespace
}  // namespace tw
