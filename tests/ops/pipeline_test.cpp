// Pipelines change when copies are made, and nothing else: random shapes, depths and ways to copy, bit for bit.
#include <random>

#include <fmt/format.h>

#include "tests/ops/on_each_device.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class Pipelines : public OnEachDevice {
protected:
    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
    bool chance() { return between(0, 1) == 1; }

    /// Asks for one of the ways to copy, or leaves it open.
    void choose_copy(Schedule& s, const Stage& copy) {
        const Copy ways[] = {Copy::Automatic, Copy::Automatic, Copy::Vector, Copy::Async};
        s.via(copy, ways[between(0, 3)]);
    }

    /// What is not legal says why, and is legal when it is left open.
    void expect_declared_or_refused(Schedule s, const std::vector<Stage>& copies, const Bindings& bindings) {
        try {
            expect_declared(s, bindings);
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("cannot be copied asynchronously: "), std::string::npos)
                << error.what();
            ++refused_;
            for (const Stage& copy : copies) s.via(copy, Copy::Automatic);
            expect_declared(s, bindings);
        }
    }

    std::mt19937 random_{20261121};
    int refused_ = 0;
};
TW_ON_EACH_DEVICE(Pipelines);

TEST_P(Pipelines, OfAProduct) {
    for (int round = 0; round < 24; ++round) {
        int64_t m = between(1, 70), n = between(1, 70), k = between(1, 90);
        Type type = chance() ? f32 : chance() ? bf16 : i8;
        bool transposed = chance();
        Tensor a = input("a", type, {m, k}), b = transposed ? input("b", type, {n, k}) : input("b", type, {k, n});
        Axis r = reduce_axis("k", k);
        Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) {
            return sum(cast(f32, a(i, r)) * cast(f32, transposed ? b(j, r) : b(r, j)), r);
        });
        Schedule s({c}, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [bi, it] = s.split(i, 16, Tail::Mask);
        auto [bj, jt] = s.split(j, 32, Tail::Mask);
        auto [ti, ri] = s.split(it, 4);
        auto [ko, ki] = s.split(s.reduce(c), 8, Tail::Mask);
        s.order({bi, bj, ti, jt, ko, ki, ri});
        s.bind(bi, grid.y);
        s.bind(bj, grid.x);
        s.bind(ti, thread);
        s.bind(jt, thread);
        std::vector<Stage> copies{s.stage(c, a, Memory::Shared, ko), s.stage(c, b, Memory::Shared, ko)};
        s.pipeline(ko, {.stages = between(1, 5)});
        for (const Stage& copy : copies) choose_copy(s, copy);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared_or_refused(s, copies, whole_numbers({c}, round));
    }
    EXPECT_GT(refused_, 0);
}

// The largest of a sliding window over rows: a halo, and edges whose masks zeros must not stand for.
TEST_P(Pipelines, OfAWindow) {
    for (int round = 0; round < 16; ++round) {
        int64_t rows = between(1, 60), columns = 4 * between(1, 20), width = between(1, 5);
        Tensor x = input("x", f32, {rows, columns});
        Axis w = reduce_axis("w", width);
        Tensor y = compute("y", {rows, columns},
                           [&](Expr i, Expr j) { return reduce_max(padded(x, -infinity)(i + w - width / 2, j), w); });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [io, ii] = s.split(i, 4, Tail::Mask);
        auto [jo, ji] = s.split(j, 64, Tail::Mask);
        s.order({jo, ji, io, ii, s.reduce(y)});
        s.bind(jo, grid.x);
        s.bind(ji, thread);
        Stage copy = s.stage(y, x, Memory::Shared, io);
        s.pipeline(io, {.stages = between(1, 4)});
        choose_copy(s, copy);
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared_or_refused(s, {copy}, whole_numbers({y}, round));
    }
}

// Boxes begin at multiples of 128 bytes in shared memory, with room behind those of other sizes; their rows are as
// short as 16.
TEST_P(Pipelines, OfShortRows) {
    int copied = 0;
    for (int64_t rows : {1, 2, 5, 8, 24, 128})
        for (int64_t bytes : {16, 32, 48, 64, 144}) {
            bool flat = rows == 1 && chance();
            Type type = chance() ? i8 : bf16;
            int64_t row = bytes / bytes_of(type), columns = row * 4;
            Tensor x = flat ? input("x", type, {columns}) : input("x", type, {2 * rows, columns});
            Axis r = reduce_axis("r", columns);
            Tensor y = compute("y", {2 * rows},
                               [&](Expr i) { return sum(cast(f32, flat ? x(r) : x(i, r)) * cast(f32, i + 1), r); });
            Schedule s({y}, device_target());
            auto [io, ii] = s.split(s.loops<1>(y)[0], rows);
            auto [ro, ri] = s.split(s.reduce(y), row);
            s.order({io, ii, ro, ri});
            s.bind(io, grid.x);
            s.bind(ii, thread);
            s.via(s.stage(y, x, Memory::Shared, ro), Copy::Tma);
            s.pipeline(ro, {.stages = between(2, 4)});
            SCOPED_TRACE(s.trace_as_cpp());
            ++copied;
            EXPECT_NE(build(s).cuda().find("tw::tma_load("), std::string::npos);
            expect_declared(s, whole_numbers({y}, static_cast<unsigned>(copied)));
        }
    EXPECT_EQ(copied, 30);
}

// A table says where in its memory a box begins, once the copy's own loop is split: at matrices of 768 bytes it may, of
// 704 not.
TEST_P(Pipelines, OfBoxesWithinTheirMemory) {
    for (int64_t rows : {11, 12}) {
        Tensor x = input("x", u8, {4, rows, 128}), table = input("table", i32, {3});
        Axis k = reduce_axis("k", 128);
        Tensor y = compute("y", {3, rows}, [&](Expr i, Expr j) { return sum(cast(f32, x(table(i), j, k)), k); });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [ko, ki] = s.split(s.reduce(y), 64);
        s.order({i, ko, j, ki});
        s.bind(i, grid.x);
        s.bind(j, thread);
        Stage copy = s.stage(y, x, Memory::Shared, ko);
        s.via(copy, Copy::Tma);
        s.pipeline(ko, {.stages = 2});
        s.split(s.all_loops(copy)[0], 5, Tail::Mask);
        if (rows == 11) {
            EXPECT_ERROR(build(s), "it begins within 'x_shared', not always at a multiple of 128 bytes");
            continue;
        }
        Bindings bindings = whole_numbers({y}, 1);
        for (int64_t r = 0; r < 3; ++r) bindings.inputs.at("table").set({r}, make_value(i32, 3 - r));
        EXPECT_NE(build(s).cuda().find("tw::tma_load("), std::string::npos);
        expect_declared(s, bindings);
    }
}

// Splits of the copy's own loops that do not divide widen its memory: the box is then no longer all of the rows in
// there.
TEST_P(Pipelines, OfBoxesThatAreNoWholeRowsOfTheirMemory) {
    for (int dimension : {0, 1, 2})
        for (int part : {4, 16, 32})
            for (bool has_roles : {false, true}) {
                Tensor x = input("x", u32, {2, 12, 40});
                Axis k = reduce_axis("k", 40);
                Tensor y = compute("y", {2, 12}, [&](Expr b, Expr i) { return reduce_max(x(b, i, k), k); });
                Schedule s({y}, device_target());
                auto [b, i] = s.loops<2>(y);
                auto [ko, ki] = s.split(s.reduce(y), 16, Tail::Mask);
                Loop rows = s.split(s.fuse(b, i), 128, Tail::Mask)[1];
                s.order({ko, rows, ki});
                s.bind(rows, thread);
                Stage copy = s.stage(y, x, Memory::Shared, ko);
                s.pipeline(ko, {.stages = 2});
                if (has_roles)
                    s.roles({{"math", warpgroups(1), registers(0), {y}}, {"load", warps(1), registers(0), {copy}}});
                s.split(s.all_loops(copy)[dimension], part, Tail::Mask);
                try {
                    expect_declared(s, whole_numbers({y}, 1));
                } catch (const Error& error) {
                    EXPECT_TRUE(has_roles) << error.what();
                    EXPECT_NE(std::string(error.what()).find("cannot copy 'x_shared' by the tensor memory"),
                              std::string::npos)
                        << error.what();
                }
            }
}

// Zeros, on which sums rely where a row is not there, are stored to the copy's memory, not beside it.
/// One column and many threads: all but one only wait for the stages, and must not miss one.
TEST_P(Pipelines, OfBoxesThatFewThreadsRead) {
    for (int64_t threads : {32, 96}) {
        Tensor a = input("a", f32, {19, 40}), b = input("b", f32, {40, 1});
        Axis k = reduce_axis("k", 40);
        Tensor c = compute("c", {19, 1}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
        Schedule s({c}, device_target());
        auto [i, j] = s.loops<2>(c);
        auto [jo, ji] = s.split(j, threads, Tail::Mask);
        auto [ko, ki] = s.split(s.reduce(c), 4);
        s.order({i, jo, ko, ji, ki});
        s.bind(ji, thread);
        s.via(s.stage(c, a, Memory::Shared, ko), Copy::Tma);
        s.pipeline(ko, {.stages = 2});
        expect_declared(s, whole_numbers({c}, static_cast<unsigned>(threads)));
    }
}

/// A loop whose stages go on from where it has ended the last time: a stage is filled again once all have read it, also
/// where which stage it is follows from a count.
TEST_P(Pipelines, OfBoxesInALoopThatRunsAgain) {
    Tensor counts = input("counts", i32, {1}), x = input("x", u8, {5, 8, 48}), table = input("table", i64, {1});
    Axis q = reduce_axis("q", max(min(cast(i64, counts(0)), 2), 0)), k = reduce_axis("k", 48);
    Tensor y = compute("y", {8}, [&](Expr j) { return sum(cast(f32, x(table(0), j, k)), {q, k}); });
    Schedule s({y}, device_target());
    auto [outer, j] = s.split(s.loops<1>(y)[0], 32, Tail::Mask);
    auto [step, term] = s.split(s.reduce(y, 1), 16);
    s.order({outer, s.reduce(y), step, j, term});
    s.persistent({outer}, {.blocks = 3});
    s.via(s.stage(y, x, Memory::Shared, step), Copy::Tma);
    s.pipeline(step, {.stages = 2});
    Executable executable(build(s), device_);
    for (int count : {0, 1, 2}) {
        Bindings bindings = whole_numbers({y}, static_cast<unsigned>(count));
        fill_integers(bindings.inputs.at("x"), 0, 3, 7);
        fill_integers(bindings.inputs.at("counts"), count, count, 8);
        fill_integers(bindings.inputs.at("table"), 0, 4, 9);
        expect_declared(executable, {y}, bindings);
    }
}

/// Boxes of whole numbers of 64 bits, that no store writes.
TEST_P(Pipelines, OfBoxesOfLongNumbers) {
    Tensor x = input("x", i64, {8, 48});
    Axis k = reduce_axis("k", 48);
    Tensor y = compute("y", {8}, [&](Expr j) { return sum(cast(f32, x(j, k)), k); });
    Schedule s({y}, device_target());
    auto [step, term] = s.split(s.reduce(y), 16);
    s.order({s.loops<1>(y)[0], step, term});
    s.bind(s.split(s.loops<1>(y)[0], 8)[0], grid.x);
    s.via(s.stage(y, x, Memory::Shared, step), Copy::Tma);
    s.pipeline(step, {.stages = 2});
    expect_declared(s, whole_numbers({y}, 3));
}

/// Copies of a padded tensor: boxes store the zeros around it themselves, before its first element and behind its last.
TEST_P(Pipelines, OfPaddedBoxes) {
    for (int round = 0; round < 6; ++round) {
        const int64_t rows = between(1, 40), columns = 32 * between(1, 3), terms = between(1, 5);
        Tensor x = input("x", f32, {rows, columns}), w = input("w", f32, {terms});
        Tensor around = compute("around", {rows + terms - 1, columns},
                                [&](Expr i, Expr j) { return padded(x, 0.0)(i - terms / 2, j); });
        Axis k = reduce_axis("k", terms);
        Tensor y = compute("y", {rows, columns}, [&](Expr i, Expr j) { return sum(around(i + k, j) * w(k), k); });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [block, row] = s.split(i, 8, Tail::Mask);
        auto [part, column] = s.split(j, 32, Tail::Mask);
        s.order({block, part, row, column, s.reduce(y)});
        s.bind(block, grid.x);
        Stage copy = s.stage(y, around, Memory::Shared, part);
        s.inline_stage(around);
        s.via(copy, Copy::Tma);
        s.pipeline(part, {.stages = 2});
        EXPECT_NE(build(s).cuda().find("tw::tma_load"), std::string::npos);
        expect_declared(s, whole_numbers({y}, static_cast<unsigned>(round)));
    }
}

/// What a stage in shared memory makes of another product's sums cannot be there an iteration ahead of them.
// Seven places of a volume with zeros around, whole vectors apart along rows: boxes of three dimensions.
TEST_P(Pipelines, OfBoxesOfThreeDimensions) {
    for (int round = 0; round < 6; ++round) {
        const int64_t depth = between(3, 9), height = between(5, 9), width = 4 * between(7, 12);
        Tensor x = input("x", f32, {3, depth, height, width});
        Tensor around = compute("around", {3, depth + 2, height + 2, width + 8},
                                [&](Expr n, Expr d, Expr h, Expr w) { return padded(x, 0)(n, d - 1, h - 1, w - 4); });
        Tensor y = compute("y", {3, depth, height, width}, [&](Expr n, Expr d, Expr h, Expr w) {
            auto at = [&](int a, int b, int c) { return around(n, d + 1 + a, h + 1 + b, w + 4 + c); };
            return at(-1, 0, 0) + at(1, 0, 0) + at(0, -1, 0) + at(0, 1, 0) + at(0, 0, -4) + at(0, 0, 4) -
                   6 * at(0, 0, 0);
        });
        Schedule s({y}, device_target());
        auto [n, d, h, w] = s.loops<4>(y);
        auto [bd, id] = s.split(d, 2, Tail::Mask);
        auto [bh, ih] = s.split(h, 4, Tail::Mask);
        auto [bw, iw] = s.split(w, 24, Tail::Mask);
        s.order({bd, bh, bw, n, id, ih, iw});
        s.bind(s.fuse({bd, bh, bw}), grid.x);
        s.bind(ih, thread);
        s.bind(iw, thread);
        const Stage copy = s.stage(y, around, Memory::Shared, n);
        s.inline_stage(around);
        s.pipeline(n, {.stages = 2});
        s.via(copy, Copy::Tma);
        const std::string notes = build(s).explain();
        EXPECT_NE(notes.find("boxes of 32 x 6 x 4 x 1 elements"), std::string::npos) << notes;
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({y}, round));
    }
}

TEST_P(Pipelines, OfWhatSumsOfTheIterationMake) {
    for (const int64_t stages : {1, 2, 3}) {
        Tensor q = input("q", bf16, {64, 64}), k = input("k", bf16, {128, 64}), v = input("v", bf16, {64, 128});
        Axis d = reduce_axis("d", 64), j = reduce_axis("j", 128);
        Tensor t =
            compute("t", {64, 128}, [&](Expr i, Expr j) { return sum(cast(f32, q(i, d)) * cast(f32, k(j, d)), d); });
        Tensor p = compute("p", {64, 128}, [&](Expr i, Expr j) { return cast(bf16, t(i, j) * 2.0); });
        Tensor o =
            compute("o", {64, 64}, [&](Expr i, Expr e) { return sum(cast(f32, p(i, j)) * cast(f32, v(e, j)), j); });
        Schedule s({o}, device_target());
        auto [i, e] = s.loops<2>(o);
        auto [group, row] = s.split(i, 64);
        auto [tile, term] = s.split(s.reduce(o), 64);
        s.order({group, tile, row, e, term});
        s.bind(group, warpgroup);
        s.at(p, tile);
        s.set_memory(p, Memory::Shared);
        s.at(t, tile);
        s.set_memory(t, Memory::Registers);
        s.stage(t, q, Memory::Shared, group);
        s.stage(t, k, Memory::Shared, tile);
        s.stage(o, v, Memory::Shared, tile);
        auto [t_i, t_j] = s.loops<2>(t);
        s.mma(o, wgmma, {.m = row, .n = e, .k = term});
        auto [ko, ki] = s.split(s.reduce(t), 64);
        s.order({ko, t_i, t_j, ki});
        s.mma(t, wgmma, {.m = t_i, .n = t_j, .k = ki});
        if (stages > 1) s.pipeline(tile, {.stages = static_cast<int>(stages)});
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, whole_numbers({o}, 3));
    }
}

/// A sum of no terms, whose boxes would come from a tensor without elements.
TEST_P(Pipelines, OfBoxesOfTensorsWithoutElements) {
    Expr n = size("n", {.min = 0, .max = 100});
    Tensor x = input("x", f32, {n, 16});
    Axis r = reduce_axis("r", n);
    Tensor total = compute("total", {16}, [&](Expr i) { return sum(x(r, i), r) + 3.0; });
    Schedule s({total}, device_target());
    auto [i] = s.loops<1>(total);
    auto [ro, ri] = s.split(s.reduce(total), 32, Tail::Mask);
    s.order({ro, i, ri});
    s.via(s.stage(total, x, Memory::Shared, ro), Copy::Tma);
    s.pipeline(ro, {.stages = 2});
    Executable executable(build(s), device_);
    for (int64_t rows : {0, 1, 32, 75, 0}) {
        Bindings bindings{{{"x", host_array(f32, {rows, 16})}}, {{"n", rows}}, {}};
        fill_integers(bindings.inputs.at("x"), -4, 4, 6);
        expect_declared(executable, {total}, bindings);
    }
}

TEST_P(Pipelines, OfCopiesWhoseThreadsAreMoreThanTheirElements) {
    for (int part : {8, 32, 64}) {
        Tensor x = input("x", f32, {7, 17});
        Axis q = reduce_axis("q", 17);
        Tensor y = compute("y", {7, 17}, [&](Expr i, Expr j) { return sum(select(q <= j, x(i, q), 0.0), q); });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        Stage copy = s.stage(y, x, Memory::Shared, j);
        s.split(i, 2, Tail::Mask);
        s.split(s.split(s.loops<2>(copy)[1], part, Tail::Mask)[0], 2, Tail::Mask);
        expect_declared(s, whole_numbers({y}, 1));
    }
}

TEST(PipelineErrors, BoxesAreWholeRowsOfTheirMemory) {
    Tensor x = input("x", u32, {4, 40});
    Axis k = reduce_axis("k", 40);
    Tensor y = compute("y", {4}, [&](Expr i) { return reduce_max(x(i, k), k); });
    Schedule s({y}, target("sm_90a"));
    auto [ko, ki] = s.split(s.reduce(y), 16, Tail::Mask);
    Loop rows = s.split(s.loops<1>(y)[0], 128, Tail::Mask)[1];
    s.order({ko, rows, ki});
    s.bind(rows, thread);
    Stage copy = s.stage(y, x, Memory::Shared, ko);
    s.via(copy, Copy::Tma);
    s.pipeline(ko, {.stages = 2});
    s.split(s.loops<2>(copy)[1], 32, Tail::Mask);
    EXPECT_ERROR(build(s), "its rows are not all of the tile's, one behind another");
}

/// Rows of f32 or bf16 through shared memory.
struct Rows {
    explicit Rows(Type type, Type copied) : x(input("x", type, {64, 32})) {
        y = compute("y", {64, 32}, [&](Expr i, Expr j) { return cast(f32, x(i, j)) + 1.0; });
        s = Schedule({y}, target("sm_90a"));
        auto [i, j] = s.loops<2>(y);
        s.bind(j, thread);
        copy = s.stage(y, x, Memory::Shared, i);
        if (copied != type) s.round_to(copy, copied);
        s.pipeline(i, {.stages = 3});
    }
    Tensor x, y;
    Schedule s{{compute("none", {1}, [](Expr) { return constant(f32, 0.0); })}, target("sm_90a")};
    Stage copy;
};

TEST(AsyncCopies, AreChosenInDeepPipelines) {
    Rows rows(f32, f32);
    Program program = build(rows.s);
    EXPECT_NE(program.cuda().find("tw::cp_async<4>(&shared.x_shared"), std::string::npos) << program.cuda();
    EXPECT_NE(program.explain().find("x_shared: 3 stages, filled asynchronously, 16 bytes at once, 2 iterations ahead"),
              std::string::npos)
        << program.explain();
    rows.s.via(rows.copy, Copy::Vector);
    EXPECT_EQ(build(rows.s).cuda().find("tw::cp_async"), std::string::npos);
}

TEST(AsyncCopies, ArePromises) {
    Rows rows(f32, bf16);
    EXPECT_NE(build(rows.s).explain().find("filled through registers, one iteration ahead: it"), std::string::npos)
        << build(rows.s).explain();
    rows.s.via(rows.copy, Copy::Async);
    EXPECT_ERROR(build(rows.s), "cannot be copied asynchronously: ");
    EXPECT_ERROR(rows.s.via(rows.y, Copy::Async), "it is no copy; name what stage(");
    rows.s.via(rows.copy, Copy::Automatic);
    EXPECT_ERROR(rows.s.set_memory(rows.copy, Memory::Registers),
                 "is pipelined, and nothing in shared memory would stand under it, which is all that has several");
    EXPECT_EQ(rows.s.explain().find("is no pipeline"), std::string::npos);
    rows.s.pipeline(rows.s.loops<2>(rows.y)[0], {.stages = 1});
    EXPECT_NE(rows.s.explain().find("' is no pipeline: with 1 stage each copy has one buffer"), std::string::npos);
    rows.s.set_memory(rows.copy, Memory::Registers);
    EXPECT_ERROR(rows.s.via(rows.copy, Copy::Async),
                 "it lives in registers; asynchronous copies go into shared memory");
    EXPECT_ERROR(rows.s.pipeline(rows.s.loops<2>(rows.y)[0], {.stages = 17}), "each copy can have 2 to 16 buffers");
}

}  // namespace
}  // namespace tw
