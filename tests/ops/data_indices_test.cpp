// Indices that data decide: the emulator looks at each in its own dimension, where the element is used.
#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "ops/check.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

HostArray integers(const std::vector<int64_t>& values) {
    HostArray array = host_array(i32, {static_cast<int64_t>(values.size())});
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) array.set({i}, make_value(i32, values[i]));
    return array;
}

size_t occurrences(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
    return count;
}

std::string kernel_of(const Schedule& schedule) {
    std::string text = build(schedule).cuda();
    return text.substr(text.find("__global__"));
}

class DataIndices : public RandomCases {
protected:
    DataIndices() : RandomCases(4711) {}

    bool checks() const { return device_->kind() == DeviceKind::Emulated; }

    /// The emulator names the index; a GPU is not asked.
    void expect_reported(const Schedule& schedule, const Bindings& bindings, const std::string& text) {
        if (!checks()) return;
        Executable executable(build(schedule), device_);
        EXPECT_ERROR(run_on(executable, bindings), text);
    }
};
TW_ON_EACH_DEVICE(DataIndices);

/// y[i] = x[i, ids[i]]
struct Picked {
    Tensor x = input("x", f32, {10, 200}), ids = input("ids", i32, {10});
    Tensor y = compute("y", {10}, [&](Expr i) { return x(i, ids(i)); });

    Bindings with(const std::vector<int64_t>& indices) const {
        Bindings bindings = random_bindings({y}, 3);
        bindings.inputs["ids"] = integers(indices);
        return bindings;
    }
};

TEST_P(DataIndices, BeyondTheRowAreReported) {
    Picked p;
    Schedule s({p.y}, device_target());
    expect_reported(s, p.with({0, 1, 205, 3, 4, 5, 6, 7, 8, 9}),
                    "uses index 205 of dimension 1 of 'x', whose extent is 200, at y_kernel.cu:");
    expect_reported(s, p.with({0, 1, 2, 3, 4, 5, 6, -1, 8, 9}), "uses index -1 of dimension 1 of 'x'");
    expect_reported(s, p.with({0, 1, 2, 3, 4, 5, 6, 7, 8, 200}), "uses index 200 of dimension 1 of 'x'");
    expect_declared(s, p.with({0, 199, 199, 0, 1, 198, 100, 0, 0, 199}));
}

TEST_P(DataIndices, NameTheLineOfTheKernel) {
    if (!checks()) GTEST_SKIP() << "only the emulator looks at indices";
    Picked p;
    Schedule s({p.y}, device_target());
    std::string text = build(s).cuda();
    auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("tw::inside(ids")), '\n');
    expect_reported(s, p.with({0, 1, 2, 3, 4, 205, 6, 7, 8, 9}), fmt::format("y_kernel.cu:{}", line + 1));
}

TEST_P(DataIndices, OfNamedSizes) {
    Expr n = size("n", {.min = 1, .max = 1000}), m = size("m", {.min = 1, .max = 1 << 20});
    Tensor x = input("x", f32, {n, m}), ids = input("ids", i32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return x(i, cast(i64, ids(i)) + 1) * 2.0; });
    Schedule s({y}, device_target());
    for (int64_t first : {-1, 0, 5, 6, 7, -2}) {
        Bindings bindings;
        bindings.sizes = {{"n", 3}, {"m", 7}};
        bindings.inputs["x"] = host_array(f32, {3, 7});
        fill_integers(bindings.inputs["x"], -9, 9, 5);
        bindings.inputs["ids"] = integers({first, 2, 0});
        if (first >= -1 && first < 6)
            expect_declared(s, bindings);
        else
            expect_reported(s, bindings, fmt::format("index {} of dimension 1 of 'x', whose extent is 7", first + 1));
    }
}

/// A table in shared memory or in registers has no neighbour that a GPU would report either.
TEST_P(DataIndices, OfTablesThatAreStaged) {
    for (Memory memory : {Memory::Shared, Memory::Registers}) {
        Tensor table = input("table", f32, {4, 6}), ids = input("ids", i32, {40});
        Tensor y = compute("y", {40}, [&](Expr i) { return table(i % 4, ids(i)); });
        Schedule s({y}, device_target());
        auto [i] = s.loops<1>(y);
        auto [block, thread_] = s.split(i, 8);
        s.bind(block, grid.x);
        if (memory == Memory::Shared) s.bind(thread_, thread);
        s.stage(y, table, memory, block);
        std::vector<int64_t> indices(40);
        for (int64_t& index : indices) index = between(0, 5);
        indices[3] = 0, indices[7] = 5;
        Bindings bindings = random_bindings({y}, 3);
        bindings.inputs["ids"] = integers(indices);
        expect_declared(s, bindings);
        indices[17] = 6;
        bindings.inputs["ids"] = integers(indices);
        expect_reported(s, bindings, "index 6 of dimension 1 of 'table");
    }
}

/// The check stands where the read stands.
TEST_P(DataIndices, BehindConditionsAreLookedAtOnlyThere) {
    Tensor x = input("x", f32, {8, 16}), ids = input("ids", i32, {64}), flags = input("flags", i32, {64});
    std::vector<int64_t> indices(64), used(64);
    for (size_t i = 0; i < 64; ++i) indices[i] = between(-40, 40), used[i] = indices[i] >= 0 && indices[i] < 16;
    Tensor in_padding = compute("in_padding", {64}, [&](Expr i) { return padded(x, 3.0)(i % 8, ids(i)); });
    Tensor chosen = compute("chosen", {64}, [&](Expr i) {
        return select(ids(i) >= 0 && ids(i) < 16, x(i % 8, ids(i)) * x(i % 8, 15 - cast(i64, ids(i))), 1.0);
    });
    Tensor flagged = compute(
        "flagged", {64}, [&](Expr i) { return select(flags(i) == 1, x(i % 8, ids(i)) + exp(x(i % 8, ids(i))), 2.0); });
    Tensor asked = compute("asked", {64}, [&](Expr i) { return cast(i32, flags(i) == 1 && x(i % 8, ids(i)) > 0.0); });
    for (const Tensor& y : {in_padding, chosen, flagged, asked}) {
        Bindings bindings = random_bindings({y}, 3);
        bindings.inputs["ids"] = integers(indices);
        if (bindings.inputs.count("flags")) bindings.inputs["flags"] = integers(used);
        Match match = y.type() == f32 ? near(4) : bitwise;
        expect_declared(Schedule({y}, device_target()), bindings, match);
        Schedule vectors({y}, device_target());
        auto [i] = vectors.loops<1>(y);
        auto [o, v] = vectors.split(i, 4);
        vectors.bind(o, thread), vectors.bind(v, vector);
        expect_declared(vectors, bindings, match);
        if (!bindings.inputs.count("flags")) continue;
        used[20] = 1, indices[20] = 16;
        bindings.inputs["flags"] = integers(used), bindings.inputs["ids"] = integers(indices);
        expect_reported(vectors, bindings, "index 16 of dimension 1 of 'x'");
        used[20] = 0;
    }
    EXPECT_EQ(occurrences(kernel_of(Schedule({in_padding}, device_target())), "tw::inside"), 0u);
    EXPECT_EQ(occurrences(kernel_of(Schedule({chosen}, device_target())), "tw::inside"), 0u);
}

/// A value used twice that reads a table in registers: it is not computed ahead of the condition.
TEST_P(DataIndices, BehindConditionsLeaveTablesInRegistersAlone) {
    Tensor table = input("table", f32, {6}), ids = input("ids", i32, {40});
    Tensor y = compute("y", {40}, [&](Expr i) {
        Expr read = table(ids(i)) * 5.0 + 1.0;
        return select(ids(i) >= 0 && ids(i) < 6, read * read * (read + 2.0) * (read - 3.0), 0.0);
    });
    Schedule s({y}, device_target());
    auto [i] = s.loops<1>(y);
    auto [block, inner] = s.split(i, 8);
    s.bind(block, grid.x);
    s.stage(y, table, Memory::Registers, block);
    std::vector<int64_t> indices(40);
    for (int64_t& index : indices) index = between(-1000, 1000) / 70;
    Bindings bindings = random_bindings({y}, 3);
    bindings.inputs["ids"] = integers(indices);
    expect_declared(s, bindings);
    std::string kernel = kernel_of(s);
    EXPECT_NE(kernel.find("if (needs_"), std::string::npos) << kernel;
}

/// What a mask says of i64 indices and a select of elements of i32 is about numbers of two kinds.
TEST_P(DataIndices, ComparedBesideComparedElementsUnderAMask) {
    Tensor x = input("x", i32, {37, 5}), ids = input("ids", i32, {37});
    Axis r = reduce_axis("r", 37);
    Tensor y = compute("y", {6, 5}, [&](Expr i, Expr j) {
        return sum(select(cast(i64, ids(r)) == i && x(r, j) > 0, x(r, j), constant(i32, int64_t{0})), r);
    });
    for (bool split_reduction : {true, false}) {
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        auto [outer, inner] = split_reduction ? s.split(s.reduce(y, 0), 4, Tail::Mask) : s.split(j, 4, Tail::Mask);
        (void)inner;
        s.bind(i, thread);
        std::vector<int64_t> indices(37);
        for (int64_t& index : indices) index = between(0, 5);
        Bindings bindings;
        bindings.inputs["x"] = host_array(i32, {37, 5});
        fill_integers(bindings.inputs["x"], -9, 9, 5);
        bindings.inputs["ids"] = integers(indices);
        expect_declared(s, bindings);
    }
}

/// Rows that are gathered by asynchronous copies, the last ones with zeros behind them.
TEST_P(DataIndices, OfAsynchronousCopies) {
    Tensor x = input("x", f32, {20, 64}), ids = input("ids", i32, {50});
    Axis k = reduce_axis("k", 64);
    Tensor y = compute("y", {50}, [&](Expr i) { return sum(x(ids(i), k), k); });
    Schedule s({y}, device_target());
    auto [i] = s.loops<1>(y);
    auto [block, row] = s.split(i, 16, Tail::Mask);
    auto [ko, ki] = s.split(s.reduce(y), 16);
    s.order({block, ko, row, ki});
    s.bind(block, grid.x), s.bind(row, thread);
    s.stage(y, x, Memory::Shared, ko);
    std::vector<int64_t> indices(50);
    for (int64_t& index : indices) index = between(0, 19);
    indices[3] = 0, indices[49] = 19;
    Bindings bindings = random_bindings({y}, 3);
    bindings.inputs["ids"] = integers(indices);
    expect_declared(s, bindings, near(4, 1e-5));
    indices[49] = 20;
    bindings.inputs["ids"] = integers(indices);
    expect_reported(s, bindings, "of dimension 0 of 'x");
}

/// As many iterations as data say, of columns that are there.
TEST_P(DataIndices, OfLoopsAsLongAsDataSay) {
    Tensor x = input("x", f32, {6, 12}), lengths = input("lengths", i32, {6});
    Tensor y = compute("y", {6}, [&](Expr i) {
        Axis r = reduce_axis("r", lengths(i));
        return sum(x(i, r), r);
    });
    Bindings bindings = random_bindings({y}, 3);
    bindings.inputs["lengths"] = integers({0, 12, 3, 1, 12, -5});
    for (int split : {0, 4}) {
        Schedule s({y}, device_target());
        if (split) s.split(s.reduce(y), split, Tail::Mask);
        bindings.inputs["lengths"] = integers({0, 12, 3, 1, 12, -5});
        expect_declared(s, bindings);
        bindings.inputs["lengths"] = integers({0, 12, 3, 13, 12, -5});
        expect_reported(s, bindings, "index 12 of dimension 1 of 'x', whose extent is 12");
    }
}

/// What is scattered outside goes nowhere.
TEST_P(DataIndices, OfScattersMayBeOutside) {
    Tensor ids = input("ids", i32, {70}), dy = input("dy", i32, {70, 5});
    Axis p = reduce_axis("p", 70);
    Tensor d = compute("d", {9, 5}, [&](Expr i, Expr j) { return sum(select(ids(p) == i, dy(p, j), 0), p); });
    std::vector<int64_t> indices(70);
    for (int64_t& index : indices) index = between(-20, 20);
    Bindings bindings = random_bindings({d}, 3);
    bindings.inputs["ids"] = integers(indices);
    for (int way = 0; way < 3; ++way) {
        Schedule s({d}, device_target());
        if (way == 1) s.scatter(d);
        if (way == 2) s.scatter(d, Combine::Atomic);
        expect_declared(s, bindings);
    }
}

TEST_P(DataIndices, ThatBoundsShowToBeInsideAreLeftAlone) {
    Tensor x = input("x", f32, {8, 256}), ids = input("ids", u8, {8}), any = input("any", i32, {8});
    Tensor y = compute("y", {8}, [&](Expr i) { return x(i, cast(i64, ids(i))); });
    Tensor z = compute("z", {8}, [&](Expr i) { return x(i, max(min(any(i), 255), 0)) + x(i, any(i) % 256); });
    Tensor none = compute("none", {8, 256}, [&](Expr i, Expr j) { return x(7 - i, 255 - j); });
    for (const Tensor& tensor : {y, z, none})
        EXPECT_EQ(occurrences(build(Schedule({tensor}, device_target())).cuda(), "inside"), 0u) << tensor.name();
}

/// Each index is checked once, inside of the address if it is a part of it.
TEST_P(DataIndices, AreCheckedInReadableText) {
    Picked p;
    std::string kernel = kernel_of(Schedule({p.y}, device_target()));
    EXPECT_NE(kernel.find("+ tw::inside(ids"), std::string::npos) << kernel;
    EXPECT_NE(kernel.find(", 200, \"x\", 1)]"), std::string::npos) << kernel;
    EXPECT_EQ(occurrences(kernel, "ids["), 1u) << kernel;
}

/// Gathers of any rank and schedule: right where all indices are inside, reported where one is not.
TEST_P(DataIndices, RandomGathers) {
    for (int trial = 0; trial < 30; ++trial) {
        int rank = between(1, 3), by_data = between(0, rank - 1);
        int64_t rows = between(1, 40), columns = 4 * between(1, 9);
        std::vector<int64_t> shape;
        Shape extents;
        for (int d = 0; d < rank; ++d) shape.push_back(d == by_data ? between(2, 30) : d + 1 == rank ? columns : rows);
        for (int64_t extent : shape) extents.emplace_back(extent);
        int64_t group = between(1, 2), groups = shape[by_data] / group;
        Tensor x = input("x", f32, extents), ids = input("ids", i32, {rows});
        Tensor y = compute("y", {rows, columns}, [&](Expr i, Expr j) {
            std::vector<Operand> indices;
            for (int d = 0; d < rank; ++d)
                indices.emplace_back(d == by_data ? cast(i64, ids(i)) * group + j % group : d + 1 == rank ? j : i);
            return x.read(indices) + 1.0;
        });
        Schedule s({y}, device_target());
        auto [i, j] = s.loops<2>(y);
        if (chance()) {
            auto [o, v] = s.split(j, 4);
            s.bind(o, thread), s.bind(v, chance() ? vector : unrolled);
        }
        if (chance()) s.bind(i, grid.x);
        std::vector<int64_t> indices(rows);
        for (int64_t& index : indices) index = between(0, static_cast<int>(groups) - 1);
        indices[between(0, static_cast<int>(rows) - 1)] = chance() ? 0 : groups - 1;
        Bindings bindings = random_bindings({y}, trial);
        bindings.inputs["ids"] = integers(indices);
        expect_declared(s, bindings);
        indices[between(0, static_cast<int>(rows) - 1)] = chance() ? -1 : (shape[by_data] + group - 1) / group;
        bindings.inputs["ids"] = integers(indices);
        expect_reported(s, bindings,
                        fmt::format("of dimension {} of 'x', whose extent is {}", by_data, shape[by_data]));
    }
}

}  // namespace
}  // namespace tw
