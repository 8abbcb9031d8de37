// Outputs in the memory of inputs whose rows a block has read before, and in parts of larger arrays.
#include <random>

#include "ops/check.h"
#include "ops/runner.h"
#include "schedules/choose.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class ResultMemory : public OnEachDevice {
protected:
    std::mt19937 random_{std::random_device()()};
    int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }
};
TW_ON_EACH_DEVICE(ResultMemory);

/// Rows in the other direction, which blocks keep in shared memory.
TEST_P(ResultMemory, ReversedRowsOverwriteWhatTheBlockHasRead) {
    for (int trial = 0; trial < 6; ++trial) {
        const int64_t rows = draw(1, 20), columns = draw(2, 70), of_block = draw(1, 3), threads = draw(2, 40);
        SCOPED_TRACE(fmt::format("{} x {}, {} rows a block, {} threads", rows, columns, of_block, threads));
        Tensor x = input("x", i32, {rows, columns});
        Tensor y = compute("y", {rows, columns}, [&](Expr i, Expr j) { return x(i, columns - 1 - j) + 1; });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [block, row] = s.split(i, of_block, Tail::Mask);
        auto [step, t] = s.split(j, threads, Tail::Mask);
        s.bind(block, grid.x);
        s.bind(t, thread);
        const Stage kept = s.stage(y, x, Memory::Shared, block);
        auto [part, lane_of] = s.split(s.data_loops(kept).back(), threads, Tail::Mask);
        s.bind(lane_of, thread);
        s.in_place(y, x);
        HostArray values = host_array(i32, {rows, columns});
        fill_integers(values, -99, 99, static_cast<uint32_t>(random_()));
        expect_declared(s, {{{"x", values}}, {}, {}});
    }
}

TEST_P(ResultMemory, NoRowsOverwriteNothing) {
    Tensor x = input("x", i32, {0, 30});
    Tensor y = compute("y", {0, 30}, [&](Expr i, Expr j) { return x(i, 29 - j) + 1; });
    Schedule s({y}, device_target());
    const auto [block, row] = s.split(s.loops<2>(y)[0], 32, Tail::Mask);
    s.bind(block, grid.x);
    s.stage(y, x, Memory::Shared, row);
    s.in_place(y, x);
    EXPECT_EQ(s.tree().in_place.size(), 1U);
}

/// Logits to their gradient: largest element, sum of powers, then the row anew.
TEST_P(ResultMemory, RowsThatThreadsKeepOverwriteWhatTheyAreMadeOf) {
    for (int64_t columns : {5, 96, 1000}) {
        const int64_t rows = draw(1, 9);
        Tensor x = input("x", f32, {rows, columns});
        Axis k = reduce_axis("k", columns);
        Tensor largest = compute("largest", {rows}, [&](Expr i) { return reduce_max(x(i, k), k); });
        Tensor total = compute("total", {rows}, [&](Expr i) { return sum(exp(x(i, k) - largest(i)), k); });
        Tensor y = compute("y", {rows, columns}, [&](Expr i, Expr j) { return exp(x(i, j) - largest(i)) / total(i); });
        Schedule s = schedules::choose_schedule({y}, device_target());
        s.in_place(s.outputs()[0], x);
        Runner runner(s, device_);
        runner.set(random_bindings({y}, random_()));
        const CheckResult check = runner.check();
        EXPECT_TRUE(check.ok) << columns << ": " << check.text;
    }
}

TEST_P(ResultMemory, RefusesWhatIsReadTooLate) {
    Tensor x = input("x", f32, {32, 64});
    auto spread = [&](const Tensor& y) {
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [block, row] = s.split(i, 4);
        s.bind(block, grid.x);
        s.bind(j, thread);
        const Stage kept = s.stage(y, x, Memory::Shared, block);
        s.bind(s.data_loops(kept).back(), thread);
        return s;
    };
    Tensor above = compute("y", {32, 64}, [&](Expr i, Expr j) { return padded(x, 0.0)(i - 1, j) + x(i, j); });
    EXPECT_ERROR(spread(above).in_place(above, x), "another iteration of loop 'i_outer' has overwritten");
    Tensor other = compute("y", {32, 64}, [&](Expr i, Expr j) { return x(31 - i, j); });
    EXPECT_ERROR(spread(other).in_place(other, x), "another iteration of loop");
    // Each of a row's blocks would read what the others overwrite.
    Tensor turned = compute("y", {32, 64}, [&](Expr i, Expr j) { return x(i, 63 - j); });
    Schedule s({turned}, device_target());
    auto [i, j] = s.loops<2>(turned);
    auto [part, t] = s.split(j, 32);
    s.bind(i, grid.y);
    s.bind(part, grid.x);
    s.bind(t, thread);
    s.stage(turned, x, Memory::Shared, part);
    EXPECT_ERROR(s.in_place(turned, x), "another iteration of loop 'j_outer' has overwritten");
    // Behind the result, in a kernel of its own.
    Axis k = reduce_axis("k", 64);
    Tensor y = compute("y", {32, 64}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Tensor z = compute("z", {32}, [&](Expr i) { return sum(x(i, k) * y(i, k), k); });
    Schedule both({y, z}, device_target());
    EXPECT_ERROR(both.in_place(y, x), "'z' reads 'x' in a kernel behind");
    Tensor first = compute("first", {32}, [&](Expr i) { return sum(x(i, k), k); });
    Tensor less = compute("less", {32, 64}, [&](Expr i, Expr j) { return x(i, j) - first(i); });
    Schedule before({less}, device_target());
    before.in_place(less, x);  // 'first' is a kernel in front
    HostArray values = host_array(f32, {32, 64});
    fill_integers(values, -9, 9, 3);
    expect_declared(before, {{{"x", values}}, {}, {}});
}

TEST_P(ResultMemory, RefusesWhatOtherBlocksAndBoxesMayOverwrite) {
    Tensor x = input("x", f32, {16, 64}), square = input("square", f32, {1, 16, 16}),
           length = input("length", i32, {8}), v = input("v", i32, {8, 16});
    // Each block of a cluster has its copy of what lies around the cluster's loop.
    Tensor turned = compute("y", {16, 64}, [&](Expr i, Expr j) { return x(i, 63 - j); });
    Schedule clusters({turned}, target("sm_90a"));
    auto [i, j] = clusters.loops<2>(turned);
    auto [half, t] = clusters.split(j, 32);
    clusters.bind(i, grid.y);
    clusters.bind(half, cluster);
    clusters.bind(t, thread);
    clusters.stage(turned, x, Memory::Shared, i);
    EXPECT_ERROR(clusters.in_place(turned, x), "that another block has overwritten");
    // As has each block of a row, if the loop along it is one of the grid inside.
    Schedule blocks({turned}, device_target());
    auto [row, column] = blocks.loops<2>(turned);
    blocks.bind(row, grid.x);
    blocks.bind(column, grid.y);
    blocks.stage(turned, x, Memory::Shared, row);
    EXPECT_ERROR(blocks.in_place(turned, x), "that another block has overwritten");
    // A length that is read from what other blocks overwrite.
    Tensor sums = compute("y", {8}, [&](Expr i) {
        const Axis k = reduce_axis("k", min(max(cast(i64, length(7 - i)), 0), 16));
        return sum(v(i, k), k);
    });
    Schedule lengths({sums}, device_target());
    EXPECT_ERROR(lengths.in_place(sums, length), "the length of loop 'k' is read from 'length'");
    // Dimensions of one of both are other ones than those of the other.
    Tensor flipped = compute("y", {1, 16, 16}, [&](Expr b, Expr i, Expr j) { return square(b, j, i); });
    Schedule joined({flipped}, device_target());
    joined.join_axes(square, 0, 1);
    EXPECT_ERROR(joined.in_place(flipped, square), "join those of both alike, or of none");
}

/// Boxes are under way while threads go on: what leaves so overwrites what it is made of, and nothing beside.
TEST_P(ResultMemory, BoxesOverwriteWhatTheyAreMadeOf) {
    if (!device_target().has_tma) GTEST_SKIP() << "the target has no tensor memory accelerator";
    Tensor x = input("x", f32, {64, 256});
    Tensor y = compute("y", {64, 256}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Tensor z = compute("z", {64, 256}, [&](Expr i, Expr j) { return x(i, 255 - j) * 2.0; });
    auto by_boxes = [&](const std::vector<Tensor>& outputs) {
        Schedule s(outputs, device_target());
        auto [i, j] = s.loops<2>(y);
        s.bind(i, grid.x);
        s.bind(j, thread);
        s.via(s.stage(y, Memory::Shared, i), Copy::Tma);
        return s;
    };
    Schedule alone = by_boxes({y});
    alone.in_place(y, x);
    EXPECT_EQ(build(alone).cuda().find("__restrict__ x"), std::string::npos) << build(alone).cuda();
    HostArray values = host_array(f32, {64, 256});
    fill_integers(values, -9, 9, static_cast<uint32_t>(random_()));
    expect_declared(alone, {{{"x", values}}, {}, {}});
    Schedule beside = by_boxes({y, z});
    const Loop row = beside.loops<2>(y)[0];
    beside.at(z, row);
    beside.bind(beside.data_loops(z).back(), thread);
    EXPECT_ERROR(beside.in_place(y, x), "reads 'x' beside what leaves as boxes, which do not wait for it");
}

/// Some columns of one array each.
TEST_P(ResultMemory, ResultsAreColumnsOfOneArray) {
    const int64_t rows = draw(1, 40), left = draw(1, 50), right = draw(1, 50), gap = draw(0, 3);
    const int64_t pitch = left + right + gap;
    SCOPED_TRACE(fmt::format("{} rows, {} and {} columns of {}", rows, left, right, pitch));
    Tensor a = input("a", f32, {rows, left}), b = input("b", f32, {rows, right});
    Tensor twice = compute("twice", {rows, left}, [&](Expr i, Expr j) { return a(i, j) * 2.0; });
    Tensor more = compute("more", {rows, right}, [&](Expr i, Expr j) { return b(i, j) + 1.0; });
    Schedule s = schedules::choose_schedule({twice, more}, device_target());
    s.strides(s.outputs()[0], {pitch, 1});
    s.strides(s.outputs()[1], {pitch, 1});
    Executable executable(build(s), device_);
    Buffer all = device_->allocate(rows * pitch * 4, "all"), of_a = device_->allocate(rows * left * 4, "a"),
           of_b = device_->allocate(rows * right * 4, "b");
    std::vector<float> given_a(size_t(rows * left)), given_b(size_t(rows * right)), wanted(size_t(rows * pitch), -7);
    for (float& each : given_a) each = static_cast<float>(draw(-99, 99));
    for (float& each : given_b) each = static_cast<float>(draw(-99, 99));
    all.write(wanted), of_a.write(given_a), of_b.write(given_b);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < left; ++j) wanted[size_t(i * pitch + j)] = given_a[size_t(i * left + j)] * 2;
        for (int64_t j = 0; j < right; ++j) wanted[size_t(i * pitch + left + j)] = given_b[size_t(i * right + j)] + 1;
    }
    const int64_t span_left = ((rows - 1) * pitch + left) * 4, span_right = ((rows - 1) * pitch + right) * 4;
    executable.bind({.buffers = {{"a", of_a},
                                 {"b", of_b},
                                 {"twice", all.view(0, span_left)},
                                 {"more", all.view(left * 4, span_right)}},
                     .sizes = {},
                     .scalars = {}});
    executable.run();
    device_->synchronize();
    EXPECT_EQ(all.read<float>(), wanted);
}

/// A product whose tiles leave as boxes, into the middle third of packed rows; and the trace says so.
TEST_P(ResultMemory, AProductIsAPartOfPackedRows) {
    constexpr int64_t m = 128, n = 64, k = 64, pitch = 3 * n;
    Tensor x = input("x", bf16, {m, k}), w = input("w", bf16, {n, k});
    Axis t = reduce_axis("t", k);
    Tensor y = compute("y", {m, n},
                       [&](Expr i, Expr j) { return cast(bf16, sum(cast(f32, x(i, t)) * cast(f32, w(j, t)), t)); });
    Schedule s = schedules::choose_schedule({y}, device_target());
    s.strides(s.outputs()[0], {pitch, 1});
    const Schedule again = replay(s.save(), s.outputs(), device_target());
    EXPECT_EQ(to_string(again.tree()), to_string(s.tree()));
    Runner runner(again, device_);
    runner.set(random_bindings({y}, random_()));
    const CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text;
    EXPECT_EQ(runner.read_array("y").strides, (std::vector<int64_t>{pitch, 1}));
}

TEST_P(ResultMemory, RefusesStridesThatShareMemory) {
    Tensor x = input("x", f32, {4, 8});
    Tensor y = compute("y", {4, 8}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Tensor z = compute("z", {4, 8}, [&](Expr i, Expr j) { return y(i, j) + 1.0; });
    Schedule s({z}, device_target());
    EXPECT_ERROR(s.strides(Tensor(), {8, 1}), "strides: the output is an undefined tensor");
    EXPECT_ERROR(s.strides(y, {8, 1}), "'y' is no output");
    EXPECT_ERROR(s.strides(z, {8}), "has 2 dimensions; give one stride a dimension");
    EXPECT_ERROR(s.strides(z, {7, 1}), "neighbours along dimension 0 must be 8 elements apart at least");
    EXPECT_ERROR(s.strides(z, {8, 0}), "neighbours along dimension 1 must be 1 elements apart");
    s.inline_stage(y);
    s.strides(z, {9, 1});
    EXPECT_ERROR(s.in_place(z, x), "'z' has strides of its own");
    Schedule in({z}, device_target());
    in.inline_stage(y);
    in.in_place(z, x);
    EXPECT_ERROR(in.strides(z, {9, 1}), "overwrites an input (in_place)");
    Tensor image = input("image", f32, {2, 4, 8});
    Tensor out = compute("out", {2, 4, 8}, [&](Expr b, Expr i, Expr j) { return image(b, i, j) + 1.0; });
    Schedule joined({out}, device_target());
    joined.strides(out, {64, 9, 1});
    EXPECT_ERROR(joined.join_axes(out, 0, 1), "'out' has strides of its own; leave out the strides, or the join_axes");
    Schedule first({out}, device_target());
    first.join_axes(out, 0, 1);
    EXPECT_ERROR(first.strides(out, {64, 9, 1}), "dimensions of 'out' are joined; give its strides instead");
    const Expr n = size("n", {.max = 8});
    Tensor row = input("row", f32, {4, n});
    Tensor more = compute("more", {4, n}, [&](Expr i, Expr j) { return row(i, j) + 1.0; });
    Schedule named({more}, device_target());
    EXPECT_ERROR(named.strides(more, {64, 1}), "dimension 1 of 'more' is n, which is not known");
    EXPECT_ERROR(replay("tilewright trace 1\nstrides t:out 0 3 64 9", {out}, device_target()), "a number is missing");
}

}  // namespace
}  // namespace tw
