// Illegal steps by kind. Each kind builds a random context and performs one step that must be refused.
#include <algorithm>
#include <memory>

#include "support/error.h"
#include "tools/fuzz/fuzz.h"

namespace tw::fuzz {
namespace {

/// One try of a kind: runs the step and keeps what it threw.
class Attempt {
public:
    explicit Attempt(Random& random) : random(random) {}

    /// The step must stand on the line of this call, or on the two below.
    template <class Action>
    void step(Schedule& schedule, Action action, std::source_location where = std::source_location::current()) {
        std::string tree = schedule.to_string(), trace = schedule.save();
        first_line = where.line();
        try {
            action();
        } catch (const Error& error) {
            refused = true;
            message = error.what();
            site = error.site();
        } catch (const std::exception& error) {
            message = fmt::format("not a tw::Error: {}", error.what());
        }
        unchanged = schedule.to_string() == tree && schedule.save() == trace;
    }

    /// 4 or more, with a divisor.
    int64_t extent() { return random.pick<int64_t>({4, 6, 8, 9, 10, 12, 14, 15, 16}); }
    int64_t stranger(int64_t extent) {  // no divisor of the extent
        int64_t size;
        do size = random.between(2, 2 * extent);
        while (extent % size == 0);
        return size;
    }
    Level parallel() {
        return random.pick<Level>({Level::GridX, Level::GridY, Level::GridZ, Level::Thread, Level::Warp});
    }
    Level threads() { return random.pick<Level>({Level::Thread, Level::Warp}); }

    Random& random;
    bool refused = false, unchanged = false;
    std::string message;
    const CheckSite* site = nullptr;
    unsigned first_line = 0;
};

struct Product {
    explicit Product(Attempt& t) : m(t.extent()), n(t.extent()), depth(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{c}, target("sm_90a"));
        std::tie(i, j) = std::pair(s->loops<2>(c)[0], s->loops<2>(c)[1]);
        k = s->reduce(c);
    }
    int64_t m, n, depth;
    Tensor a = input("a", f32, {m, depth}), b = input("b", f32, {depth, n});
    Axis axis = reduce_axis("k", depth);
    Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(a(i, axis) * b(axis, j), axis); });
    std::unique_ptr<Schedule> s;
    Loop i, j, k;
};

/// x -> y -> z, elementwise; w also reads y.
struct Chain {
    explicit Chain(Attempt& t, bool two_readers = false) : m(t.extent()), n(t.extent()) {
        std::vector<Tensor> outputs = {z};
        if (two_readers) outputs.push_back(w);
        s = std::make_unique<Schedule>(outputs, target("sm_90a"));
        std::tie(i, j) = std::pair(s->loops<2>(z)[0], s->loops<2>(z)[1]);
        std::tie(yi, yj) = std::pair(s->loops<2>(y)[0], s->loops<2>(y)[1]);
    }
    int64_t m, n;
    Tensor x = input("x", f32, {m, n});
    Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Tensor z = compute("z", {m, n}, [&](Expr i, Expr j) { return y(i, j) * 2.0; });
    Tensor w = compute("w", {m, n}, [&](Expr i, Expr j) { return y(i, j) * 3.0; });
    std::unique_ptr<Schedule> s;
    Loop i, j, yi, yj;
};

/// A row sum and what is made of it.
struct Rows {
    explicit Rows(Attempt& t) : m(t.extent()), n(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{y}, target("sm_90a"));
    }
    int64_t m, n;
    Tensor x = input("x", f32, {m, n});
    Axis k = reduce_axis("k", n);
    Tensor total = compute("total", {m}, [&](Expr i) { return sum(x(i, k), k); });
    Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return x(i, j) / total(i); });
    std::unique_ptr<Schedule> s;
};

/// A named size n.
struct Symbolic {
    explicit Symbolic(Attempt& t) : columns(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{total}, target("sm_90a"));
    }
    int64_t columns;
    Expr n = size("n", {.min = 1, .max = 100});
    Axis r = reduce_axis("r", n), q = reduce_axis("q", columns);
    Tensor x = input("x", f32, {n, columns});
    Tensor y = compute("y", {n, columns}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Tensor total = compute("total", {columns}, [&](Expr j) { return sum(y(r, j), r); });
    Tensor rows = compute("rows", {n}, [&](Expr i) { return sum(x(i, q), q); });
    std::unique_ptr<Schedule> s;
};

/// d[ids[r], j] += x[r, j]
struct Scattered {
    explicit Scattered(Attempt& t) : rows(t.extent()), terms(t.extent()), columns(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{d}, target("sm_90a"));
    }
    int64_t rows, terms, columns;
    Tensor ids = input("ids", i32, {terms}), x = input("x", f32, {terms, columns});
    Axis r = reduce_axis("r", terms);
    Tensor d = compute("d", {rows, columns}, [&](Expr i, Expr j) { return sum(select(ids(r) == i, x(r, j), 0.0), r); });
    std::unique_ptr<Schedule> s;
};

/// A maximum of floats.
struct Wide {
    explicit Wide(Attempt& t) : n(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{most}, target("sm_90a"));
    }
    int64_t n;
    Tensor x = input("x", f32, {n, n});
    Axis k = reduce_axis("k", n);
    Tensor most = compute("most", {n}, [&](Expr i) { return reduce_max(x(i, k), k); });
    std::unique_ptr<Schedule> s;
};

/// A reducer that does not commute, its loop split.
struct LastOfEachRow {
    explicit LastOfEachRow(Attempt& t) : m(t.extent()), n(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{y}, target("sm_90a"));
        auto parts = s->split(s->reduce(y), 2, Tail::Mask);
        ko = parts[0];
        ki = parts[1];
    }
    int64_t m, n;
    Tensor x = input("x", i32, {m, n});
    Axis k = reduce_axis("k", n);
    Reducer last = make_reducer(
        "last", {constant(i32, 0)}, [](const std::vector<Expr>&, const std::vector<Expr>& b) { return b; }, false);
    Tensor y = compute("y", {m}, [&](Expr i) { return reduce(last, {x(i, k)}, {k})[0]; });
    std::unique_ptr<Schedule> s;
    Loop ko, ki;
};

struct Kind {
    const char* name;
    const char* expected;
    void (*make)(Attempt&);
};

// clang-format off
const Kind kKinds[] = {
// Handles.
{"foreign_loop", "this loop handle belongs to no loop", [](Attempt& t) {
    Product p(t);
    Loop stray{static_cast<int>(t.random.between(50, 1000))};
    t.step(*p.s, [&] { p.s->split(stray, 2); });
}},
{"no_loop", "this loop handle belongs to no loop", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->bind(Loop{}, t.parallel()); });
}},
{"split_loop_again", "is gone: step [0] auto [l3, l4] = s.split(", [](Attempt& t) {
    Product p(t);
    p.s->split(p.i, t.extent(), Tail::Mask);
    t.step(*p.s, [&] { p.s->split(p.i, 2, Tail::Mask); });
}},
{"fused_loop_again", "is gone: step [0] Loop l3 = s.fuse(l0, l1);", [](Attempt& t) {
    Product p(t);
    p.s->fuse(p.i, p.j);
    t.step(*p.s, [&] { p.s->order({p.k, t.random.chance(0.5) ? p.i : p.j}); });
}},
{"loop_of_a_moved_stage", "is gone: step [0] s.at(y, ", [](Attempt& t) {
    Chain p(t);
    p.s->at(p.y, t.random.chance(0.5) ? p.i : p.j);
    t.step(*p.s, [&] { p.s->bind(p.yi, Level::Unroll); });
}},
{"loop_of_an_inlined_stage", "which was inlined", [](Attempt& t) {
    Chain p(t);
    p.s->inline_stage(p.y);
    t.step(*p.s, [&] { p.s->split(p.yj, 2, Tail::Mask); });
}},
{"stage_of_another_schedule", "is not computed in this schedule", [](Attempt& t) {
    Chain p(t), other(t);
    t.step(*p.s, [&] { p.s->at(other.y, p.i); });
}},
{"stage_handle_of_nobody", "this stage handle belongs to no stage", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->inline_stage(Stage{static_cast<int>(t.random.between(5, 99))}); });
}},
{"an_input_as_a_stage", "'x' is an input, no computation", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->at(p.x, p.i); });
}},
{"wrong_number_of_loops", "has 2 data axes; write loops<2>", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->loops<3>(p.c); });
}},
{"reduce_axis_that_is_not_there", "there is none with index", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->reduce(p.c, static_cast<int>(t.random.chance(0.5) ? -1 : t.random.between(1, 5))); });
}},
{"loop_without_a_counterpart", "no loop of 'total' corresponds", [](Attempt& t) {
    Rows p(t);
    Loop j = p.s->loops<2>(p.y)[1];
    t.step(*p.s, [&] { p.s->loop(p.total, j); });
}},
// Split and fuse.
{"split_by_nothing", "the size must be at least 1", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->split(p.i, -t.random.below(100), Tail::Mask); });
}},
{"split_by_a_giant", "larger than any loop", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->split(p.k, (int64_t{1} << 30) + t.random.between(1, 99), Tail::Mask); });
}},
{"split_that_does_not_divide", "does not divide axis", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->split(p.j, t.stranger(p.n)); });
}},
{"split_of_a_size_that_may_not_divide", "does not divide axis 'i' (n)", [](Attempt& t) {
    Symbolic p(t);
    Loop i = p.s->loops<2>(p.y)[0];
    t.step(*p.s, [&] { p.s->split(i, t.random.between(2, 9)); });
}},
{"split_of_a_bound_loop", "split it before binding", [](Attempt& t) {
    Product p(t);
    p.s->bind(p.i, t.parallel());
    t.step(*p.s, [&] { p.s->split(p.i, 2, Tail::Mask); });
}},
{"fuse_in_the_wrong_order", "does not stand directly around", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->fuse(p.j, p.i); });
}},
{"fuse_of_distant_loops", "does not stand directly around", [](Attempt& t) {
    Product p(t);
    auto [o, inner] = p.s->split(p.j, t.extent(), Tail::Mask);
    t.step(*p.s, [&] { p.s->fuse(p.i, inner); });
}},
{"fuse_of_a_data_and_a_reduce_loop", "one is a data loop, the other a reduce loop", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->fuse(p.j, p.k); });
}},
{"fuse_of_two_stages", "fuse loops of one stage", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->fuse(p.yi, p.j); });
}},
{"fuse_of_a_bound_loop", "fuse it before binding", [](Attempt& t) {
    Product p(t);
    p.s->bind(p.i, t.parallel());
    t.step(*p.s, [&] { p.s->fuse(p.i, p.j); });
}},
{"fuse_around_a_stage", "between them; move it first", [](Attempt& t) {
    Chain p(t);
    p.s->at(p.y, p.i);
    t.step(*p.s, [&] { p.s->fuse(p.i, p.j); });
}},
// Order.
{"order_of_nothing", "name at least one loop", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->order({}); });
}},
{"order_names_a_loop_twice", "is named twice", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->order({p.i, p.k, p.i}); });
}},
{"order_across_stages", "order the loops of one stage at a time", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->order({p.j, p.yi}); });
}},
{"order_of_a_reduction_that_does_not_commute", "is not commutative", [](Attempt& t) {
    LastOfEachRow p(t);
    t.step(*p.s, [&] { p.s->order({p.ki, p.ko}); });
}},
{"symbolic_accumulators", "its accumulators would not fit in registers", [](Attempt& t) {
    Symbolic p(t);
    Schedule s({p.rows}, target("sm_90a"));
    Loop i = s.loops<1>(p.rows)[0], q = s.reduce(p.rows);
    t.step(s, [&] { s.order({q, i}); });
}},
// Levels.
{"reduce_loop_across_blocks", "can be shared among threads, not among blocks", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->bind(p.k, t.random.pick<Level>({Level::GridX, Level::GridY, Level::GridZ})); });
}},
{"reduce_loop_as_vector", "can be shared among threads, not as a vector", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->bind(p.k, Level::Vector); });
}},
{"odd_vector", "a vector has 2, 4, 8 or 16 elements", [](Attempt& t) {
    Product p(t);
    auto [jo, ji] = p.s->split(p.j, t.random.pick<int64_t>({1, 3, 5, 6, 7, 12, 32}), Tail::Mask);
    p.s->order({p.k, ji});
    t.step(*p.s, [&] { p.s->bind(ji, Level::Vector); });
}},
{"vector_outside", "is not innermost; order it last", [](Attempt& t) {
    Chain p(t);
    auto [io, ii] = p.s->split(p.i, t.random.pick<int64_t>({2, 4, 8}), Tail::Mask);
    t.step(*p.s, [&] { p.s->bind(ii, Level::Vector); });
}},
{"order_moves_a_vector_loop_outside", "is not innermost; order it last", [](Attempt& t) {
    Chain p(t);
    auto [jo, ji] = p.s->split(p.j, 4, Tail::Mask);
    p.s->bind(ji, Level::Vector);
    t.step(*p.s, [&] { p.s->order({ji, jo}); });
}},
{"grid_inside", "order the grid loops outermost", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->bind(p.j, Level::GridX); });
}},
{"order_moves_a_grid_loop_inside", "order the grid loops outermost", [](Attempt& t) {
    Product p(t);
    p.s->bind(p.i, Level::GridY);
    t.step(*p.s, [&] { p.s->order({p.j, p.i}); });
}},
{"bound_twice", "is already bound to", [](Attempt& t) {
    Product p(t);
    p.s->bind(p.i, t.parallel());
    t.step(*p.s, [&] { p.s->bind(p.i, t.threads()); });
}},
{"threads_of_a_symbolic_loop", "the extent n is not constant", [](Attempt& t) {
    Symbolic p(t);
    Loop i = p.s->loops<2>(p.y)[0];
    t.step(*p.s, [&] { p.s->bind(i, t.threads()); });
}},
{"unrolled_symbolic_loop", "the extent n is not constant", [](Attempt& t) {
    Symbolic p(t);
    t.step(*p.s, [&] { p.s->unroll(p.s->reduce(p.total)); });
}},
{"huge_unrolling", "makes a huge kernel", [](Attempt& t) {
    Product p(t);
    auto [ko, ki] = p.s->split(p.k, t.random.between(257, 4000), Tail::Mask);
    t.step(*p.s, [&] { p.s->unroll(ki); });
}},
{"too_many_lanes", "a warp has 32 lanes", [](Attempt& t) {
    Product p(t);
    auto [io, ii] = p.s->split(p.i, t.random.between(33, 200), Tail::Mask);
    t.step(*p.s, [&] { p.s->bind(ii, Level::Lane); });
}},
{"too_many_threads", "a block of sm_90a has at most 1024", [](Attempt& t) {
    Product p(t);
    auto [io, ii] = p.s->split(p.i, 32, Tail::Mask);
    p.s->bind(ii, Level::Thread);
    auto [jo, ji] = p.s->split(p.j, t.random.between(33, 64), Tail::Mask);
    t.step(*p.s, [&] { p.s->bind(ji, Level::Thread); });
}},
{"too_many_warps", "a block of sm_90a has at most 1024", [](Attempt& t) {
    Product p(t);
    auto [io, ii] = p.s->split(p.i, t.random.between(33, 500), Tail::Mask);
    t.step(*p.s, [&] { p.s->bind(ii, Level::Warp); });
}},
{"threads_and_lanes", "use one of the two ways", [](Attempt& t) {
    Product p(t);
    p.s->bind(p.i, Level::Thread);
    auto [jo, ji] = p.s->split(p.j, 4, Tail::Mask);
    t.step(*p.s, [&] { p.s->bind(ji, t.random.chance(0.5) ? Level::Lane : Level::Warp); });
}},
{"threads_of_an_empty_loop", "the loop has no iterations", [](Attempt& t) {
    Tensor y = compute("y", {0, t.extent()}, [&](Expr, Expr) { return constant(f32, 1.0); });
    Schedule s({y}, target("sm_90a"));
    Loop i = s.loops<2>(y)[0];
    t.step(s, [&] { s.bind(i, t.threads()); });
}},
{"grid_of_a_stage_inside_a_kernel", "stands inside another kernel", [](Attempt& t) {
    Chain p(t);
    p.s->at(p.y, p.i);
    Loop inner = p.s->loops<2>(p.y)[0];
    t.step(*p.s, [&] { p.s->bind(inner, Level::GridX); });
}},
// Placement.
{"at_its_own_loop", "the loop is the stage's own", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->at(p.z, t.random.chance(0.5) ? p.i : p.j); });
}},
{"at_a_loop_inside_itself", "the loop stands inside 'y' itself", [](Attempt& t) {
    Chain p(t);
    p.s->at(p.z, p.yi);
    Loop inner = p.s->loops<2>(p.z)[1];
    t.step(*p.s, [&] { p.s->at(p.y, inner); });
}},
{"at_takes_a_stage_along", "place that one again after this step", [](Attempt& t) {
    Chain p(t);
    p.s->stage(p.y, p.x, Memory::Shared, t.random.chance(0.5) ? p.yi : p.yj);
    t.step(*p.s, [&] { p.s->at(p.y, p.i); });
}},
{"at_a_vector_loop", "cannot stand under the vector loop", [](Attempt& t) {
    Chain p(t);
    auto [jo, ji] = p.s->split(p.j, 4, Tail::Mask);
    p.s->bind(ji, Level::Vector);
    t.step(*p.s, [&] { p.s->at(p.y, ji); });
}},
{"at_a_reduce_loop_of_what_it_reads", "complete only after its reduce loops", [](Attempt& t) {
    Rows p(t);
    t.step(*p.s, [&] { p.s->at(p.y, p.s->reduce(p.total)); });
}},
{"an_output_under_its_reader", "is an output of the schedule and cannot move under its reader", [](Attempt& t) {
    Chain p(t);
    Schedule s({p.y, p.z}, target("sm_90a"));
    Loop i = s.loops<2>(p.z)[0];
    t.step(s, [&] { s.at(p.y, i); });
}},
{"another_reader_outside", "also reads it outside of that loop", [](Attempt& t) {
    Chain p(t, true);
    t.step(*p.s, [&] { p.s->at(p.y, p.i); });
}},
{"a_neighbour_that_is_not_made", "one iteration makes only a part of it", [](Attempt& t) {
    Chain p(t);
    Tensor v = compute("v", {p.m, p.n}, [&](Expr i, Expr j) { return padded(p.y, 0)(i - 1, j); });
    Schedule s({v}, target("sm_90a"));
    Loop i = s.loops<2>(p.y)[0];
    t.step(s, [&] { s.at(v, i); });
}},
{"a_row_sum_after_one_element", "one iteration makes only a part of it", [](Attempt& t) {
    Chain p(t);
    Axis k = reduce_axis("k", p.n);
    Tensor sums = compute("sums", {p.m}, [&](Expr i) { return sum(p.y(i, k), k); });
    Schedule s({sums}, target("sm_90a"));
    Loop j = s.loops<2>(p.y)[1];
    t.step(s, [&] { s.at(sums, j); });
}},
{"a_sibling_computed_again", "would compute it again", [](Attempt& t) {
    Chain p(t);
    Axis k = reduce_axis("k", p.n);
    Tensor sums = compute("sums", {p.m}, [&](Expr i) { return sum(p.x(i, k), k); });
    Schedule s({p.z, sums}, target("sm_90a"));
    Loop j = s.loops<2>(p.z)[1];
    t.step(s, [&] { s.at(sums, j); });
}},
{"a_consumer_under_a_fill", "which itself is made for the stages that read it", [](Attempt& t) {
    Chain p(t);
    Stage fill = p.s->stage(p.y, p.x, Memory::Shared, p.yi);
    Loop inner = p.s->all_loops(fill)[0];
    t.step(*p.s, [&] { p.s->at(p.z, inner); });
}},
{"a_region_under_split_loops", "whose loops were already split or bound", [](Attempt& t) {
    Rows p(t);
    auto [io, ii] = p.s->split(p.s->loops<2>(p.y)[0], 3, Tail::Mask);
    p.s->at(p.total, io);
    p.s->split(p.s->loops<1>(p.total)[0], 2, Tail::Mask);
    t.step(*p.s, [&] { p.s->order({ii, io}); });
}},
{"a_region_of_symbolic_extent", "whose extent n is not constant", [](Attempt& t) {
    Symbolic p(t);
    Loop j = p.s->loops<1>(p.total)[0];
    t.step(*p.s, [&] { p.s->at(p.y, j); });
}},
{"kernels_in_a_circle", "would need each other's results", [](Attempt& t) {
    Chain p(t);
    Axis k = reduce_axis("k", p.n);
    Tensor sums = compute("sums", {p.m}, [&](Expr i) { return sum(p.y(i, k), k); });
    Tensor v = compute("v", {p.m, p.n}, [&](Expr i, Expr j) { return p.y(i, j) / sums(i); });
    Schedule s({v}, target("sm_90a"));
    Loop i = s.loops<2>(p.y)[0];
    t.step(s, [&] { s.at(v, i); });
}},
// Inlining.
{"inlined_reduction", "it is a reduction", [](Attempt& t) {
    Rows p(t);
    t.step(*p.s, [&] { p.s->inline_stage(p.total); });
}},
{"inlined_output", "it is an output of the schedule", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->inline_stage(p.z); });
}},
{"inlined_twice", "it is inlined already", [](Attempt& t) {
    Chain p(t);
    Stage y = (*p.s)[p.y];
    p.s->inline_stage(p.y);
    t.step(*p.s, [&] { p.s->inline_stage(y); });
}},
{"inlined_with_a_stage_inside", "stands under its loop", [](Attempt& t) {
    Chain p(t);
    p.s->stage(p.y, p.x, Memory::Registers, p.yj);
    t.step(*p.s, [&] { p.s->inline_stage(p.y); });
}},
// Copies.
{"staged_operand_that_is_not_read", "does not read 'other' inside loop", [](Attempt& t) {
    Product p(t);
    Tensor other = input("other", f32, {t.extent()});
    t.step(*p.s, [&] { p.s->stage(p.c, other, Memory::Shared, p.k); });
}},
{"global_copy_that_is_not_read", "does not read 'other'", [](Attempt& t) {
    Product p(t);
    Tensor other = input("other", f32, {t.extent()});
    t.step(*p.s, [&] { p.s->stage(p.c, other, Memory::Global); });
}},
{"local_copy_without_a_loop", "needs the loop whose iteration it serves", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->stage(p.c, p.a, t.random.chance(0.5) ? Memory::Shared : Memory::Registers); });
}},
{"copy_under_a_loop_elsewhere", "also reads it outside of that loop", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->stage(p.z, p.y, Memory::Shared, p.yi); });
}},
{"copy_before_its_source", "'total', which it reads, is not complete", [](Attempt& t) {
    Rows p(t);
    Loop i = p.s->loops<1>(p.total)[0];
    p.s->at(p.y, i);
    t.step(*p.s, [&] { p.s->stage(p.y, p.total, t.random.chance(0.5) ? Memory::Shared : Memory::Registers, i); });
}},
{"staged_result_of_an_inner_stage", "is no output; to choose where it lives", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->stage(p.y, Memory::Shared, p.yi); });
}},
{"staged_result_of_a_tuple", "only a single result can be staged", [](Attempt& t) {
    int64_t m = t.extent(), n = t.extent();
    Tensor x = input("x", f32, {m, n});
    Axis k = reduce_axis("k", n);
    auto best = compute_tuple("best", {m}, [&](const std::vector<Expr>& i) { return argmax(x(i[0], k), k); });
    Schedule s(best, target("sm_90a"));
    Loop i = s.loops<1>(best[0])[0];
    t.step(s, [&] { s.stage(best[0], Memory::Registers, i); });
}},
{"staged_result_inside_the_reduction", "complete only after its reduce loops", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->stage(p.c, Memory::Registers, p.k); });
}},
// Memory.
{"a_kernel_of_its_own_in_local_memory", "it is a kernel of its own or read by other kernels", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->set_memory(p.y, t.random.chance(0.5) ? Memory::Shared : Memory::Registers); });
}},
{"an_output_in_registers", "it is a kernel of its own or read by other kernels", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->set_memory(p.z, Memory::Registers); });
}},
{"global_memory_under_a_loop", "cannot live in global memory under loop", [](Attempt& t) {
    Chain p(t);
    p.s->at(p.y, p.i);
    t.step(*p.s, [&] { p.s->set_memory(p.y, Memory::Global); });
}},
{"a_shared_fill_of_a_threads_part", "is filled by all threads", [](Attempt& t) {
    Chain p(t);
    p.s->bind(p.i, t.threads());
    Stage copy = p.s->stage(p.z, Memory::Registers, p.j);
    Loop inner = p.s->all_loops(copy)[0];
    t.step(*p.s, [&] { p.s->stage(copy, p.z, Memory::Shared, inner); });
}},
// Reductions in parts.
{"partial_of_a_data_loop", "the loop is no reduce loop of 'c'", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->partial(p.c, t.random.chance(0.5) ? p.i : p.j); });
}},
{"partial_of_a_bound_loop", "bind(loop, serial) first", [](Attempt& t) {
    Product p(t);
    p.s->bind(p.k, t.threads());
    t.step(*p.s, [&] { p.s->partial(p.c, p.k); });
}},
{"partial_inside_of_another_kernel", "stands in another kernel", [](Attempt& t) {
    Rows p(t);
    p.s->at(p.total, p.s->loops<2>(p.y)[0]);
    Loop k = p.s->reduce(p.total);
    t.step(*p.s, [&] { p.s->partial(p.total, k); });
}},
{"partial_that_does_not_commute", "is not the outermost reduce loop", [](Attempt& t) {
    LastOfEachRow p(t);
    t.step(*p.s, [&] { p.s->partial(p.y, p.ki); });
}},
{"partial_that_others_follow", "follows it under loop", [](Attempt& t) {
    Rows p(t);
    p.s->at(p.y, p.s->loops<1>(p.total)[0]);
    Loop k = p.s->reduce(p.total);
    t.step(*p.s, [&] { p.s->partial(p.total, k); });
}},
{"atomic_parts_without_an_atomic_operation", "no atomic operation combines by", [](Attempt& t) {
    Wide p(t);
    t.step(*p.s, [&] { p.s->partial(p.most, p.s->reduce(p.most), Combine::Atomic); });
}},
{"atomic_parts_of_updates", "already updates the elements of 'c' atomically", [](Attempt& t) {
    Product p(t);
    auto [ko, ki] = p.s->split(p.k, 2, Tail::Mask);
    Stage parts = p.s->partial(p.c, ko, Combine::Atomic);
    t.step(*p.s, [&] { p.s->partial(parts, ki, Combine::Atomic); });
}},
{"a_reader_among_updates", "are complete only behind the kernel", [](Attempt& t) {
    Rows p(t);
    Stage parts = p.s->partial(p.total, p.s->reduce(p.total), Combine::Atomic);
    Loop row = p.s->data_loops(parts)[1];
    t.step(*p.s, [&] { p.s->at(p.y, row); });
}},
{"updates_inside_of_another_kernel", "which takes a kernel before and one behind", [](Attempt& t) {
    Rows p(t);
    Stage parts = p.s->partial(p.total, p.s->reduce(p.total), Combine::Atomic);
    Stage moved = t.random.chance(0.5) ? parts : (*p.s)[p.total];
    t.step(*p.s, [&] { p.s->at(moved, p.s->loops<2>(p.y)[0]); });
}},
{"inlined_updates", "its elements are made by atomic updates", [](Attempt& t) {
    Rows p(t);
    p.s->partial(p.total, p.s->reduce(p.total), Combine::Atomic);
    t.step(*p.s, [&] { p.s->inline_stage(p.total); });
}},
{"scatter_of_all_terms", "no condition of its terms says which element", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->scatter(p.c, t.random.chance(0.5) ? Combine::Atomic : Combine::Workspace); });
}},
{"scatter_of_split_loops", "its loops are replaced, but were split", [](Attempt& t) {
    Scattered p(t);
    p.s->split(p.s->reduce(p.d), 2, Tail::Mask);
    t.step(*p.s, [&] { p.s->scatter(p.d, t.random.chance(0.5) ? Combine::Atomic : Combine::Workspace); });
}},
{"scattered_terms_outside_of_their_row", "must stand inside of", [](Attempt& t) {
    Scattered p(t);
    p.s->scatter(p.d);
    t.step(*p.s, [&] { p.s->order({p.s->reduce(p.d), p.s->loops<2>(p.d)[0]}); });
}},
{"parts_of_rows_as_long_as_data_say", "data decide how many terms an element has", [](Attempt& t) {
    Scattered p(t);
    p.s->scatter(p.d);
    t.step(*p.s, [&] { p.s->partial(p.d, p.s->reduce(p.d)); });
}},
{"threads_share_inner_terms_that_do_not_commute", "only the outermost can be bound to threads", [](Attempt& t) {
    LastOfEachRow p(t);
    t.step(*p.s, [&] { p.s->bind(p.ki, t.threads()); });
}},
{"a_reduction_on_the_grid", "its terms can be shared among threads", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->bind(p.k, t.random.pick<Level>({Level::GridX, Level::GridY, Level::GridZ})); });
}},
// Pipelines.
{"pipeline_of_a_bound_loop", "only iterations that follow each other can overlap", [](Attempt& t) {
    Product p(t);
    p.s->stage(p.c, p.a, Memory::Shared, p.i);
    p.s->bind(p.i, t.parallel());
    t.step(*p.s, [&] { p.s->pipeline(p.i, {.stages = 2}); });
}},
{"pipeline_of_many_stages", "2 buffers serve copies that go through registers", [](Attempt& t) {
    Product p(t);
    p.s->stage(p.c, p.a, Memory::Shared, p.k);
    int stages = t.random.pick<int>({-1, 0, 3, 4, 100});
    t.step(*p.s, [&] { p.s->pipeline(p.k, {.stages = stages}); });
}},
{"pipeline_without_copies", "nothing in shared memory stands under the loop", [](Attempt& t) {
    Product p(t);
    if (t.random.chance(0.5)) p.s->stage(p.c, p.a, Memory::Registers, p.k);
    t.step(*p.s, [&] { p.s->pipeline(p.k, {.stages = 2}); });
}},
// Segments.
{"cut_of_a_bound_loop", "only a serial loop runs in segments", [](Attempt& t) {
    Product p(t);
    p.s->bind(p.i, t.parallel());
    t.step(*p.s, [&] { p.s->cut(p.i, {t.random.between(0, 5)}); });
}},
{"cut_at_a_loop_inside", "would not stand around it", [](Attempt& t) {
    Product p(t);
    Loop inside = t.random.chance(0.5) ? p.k : p.i;
    t.step(*p.s, [&] { p.s->cut(p.i, {p.s->index(inside) + t.random.between(0, 5)}); });
}},
{"cut_at_data", "positions are made of integers", [](Attempt& t) {
    Product p(t);
    Tensor lengths = input("lengths", i64, {4});
    t.step(*p.s, [&] { p.s->cut(p.k, {lengths(t.random.between(0, 3))}); });
}},
{"cut_where_nothing_changes", "there is nothing to cut", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->cut(t.random.chance(0.5) ? p.i : p.k, where_partial(p.c)); });
}},
{"split_of_a_cut_loop", "is cut into segments; split it before", [](Attempt& t) {
    Product p(t);
    p.s->cut(p.i, {t.random.between(0, 5)});
    t.step(*p.s, [&] { p.s->split(p.i, 2, Tail::Mask); });
}},
// In place.
{"in_place_of_no_output", "is no output of the schedule", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->in_place(p.y, p.x); });
}},
{"in_place_of_no_input", "is no input", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->in_place(p.z, p.y); });
}},
{"in_place_of_nothing", "the input is an undefined tensor", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->in_place(p.z, Tensor()); });
}},
{"in_place_of_another_shape", "both must have one type, shape and dense rows", [](Attempt& t) {
    Rows p(t);
    Schedule s({p.total}, target("sm_90a"));
    t.step(s, [&] { s.in_place(p.total, p.x); });
}},
{"in_place_with_a_neighbour", "only an elementwise use is safe", [](Attempt& t) {
    int64_t n = t.extent();
    Tensor x = input("x", f32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return x(i) + x(n - 1 - i); });
    Schedule s({y}, target("sm_90a"));
    t.step(s, [&] { s.in_place(y, x); });
}},
{"in_place_in_a_reduction", "only an elementwise use is safe", [](Attempt& t) {
    int64_t n = t.extent();
    Tensor x = input("x", f32, {n});
    Axis k = reduce_axis("k", n);
    Tensor y = compute("y", {n}, [&](Expr i) { return sum(x(k), k) * x(i); });
    Schedule s({y}, target("sm_90a"));
    t.step(s, [&] { s.in_place(y, x); });
}},
{"copy_of_an_overwritten_input", "while 'y' overwrites it (in_place)", [](Attempt& t) {
    int64_t m = t.extent(), n = t.extent();
    Tensor x = input("x", f32, {m, n});
    Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    s.in_place(y, x);
    Loop i = s.loops<2>(y)[0];
    t.step(s, [&] { s.stage(y, x, t.random.chance(0.5) ? Memory::Shared : Memory::Registers, i); });
}},
{"in_place_twice", "already overwrites", [](Attempt& t) {
    int64_t n = t.extent();
    Tensor x = input("x", f32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return x(i) * 2.0; });
    Schedule s({y}, target("sm_90a"));
    s.in_place(y, x);
    t.step(s, [&] { s.in_place(y, x); });
}},
};
// clang-format on

std::string wrong_with(const Attempt& t, const Kind& kind) {
    if (!t.refused) return t.message.empty() ? "the step was accepted" : t.message;
    if (t.message.find(kind.expected) == std::string::npos)
        return fmt::format("the message does not contain \"{}\": {}", kind.expected, t.message);
    bool names_line = false;
    for (unsigned line = t.first_line; line < t.first_line + 3; ++line)
        names_line |= t.message.rfind(fmt::format("fuzz_illegal.cpp:{}: ", line), 0) == 0;
    if (!names_line)
        return fmt::format("the message does not name line {} of fuzz_illegal.cpp: {}", t.first_line, t.message);
    return t.unchanged ? "" : "the refused step changed the schedule";
}

}  // namespace

IllegalSummary fuzz_illegal(int64_t count, uint64_t seed, const std::function<void(const Error&)>& seen) {
    IllegalSummary summary;
    for (const Kind& kind : kKinds) summary.kinds.push_back({kind.name, kind.expected, 0});
    for (int64_t number = 0; number < count; ++number) {
        Random random(seed, static_cast<uint64_t>(number));
        size_t which = static_cast<size_t>(number) % std::size(kKinds);
        const Kind& kind = kKinds[which];
        Attempt attempt(random);
        std::string wrong;
        try {
            kind.make(attempt);
            wrong = wrong_with(attempt, kind);
        } catch (const std::exception& error) {
            wrong = fmt::format("the steps before ended in: {}", error.what());
        }
        ++summary.kinds[which].tried;
        if (!wrong.empty())
            summary.failures.push_back({number, fmt::format("{}: {}", kind.name, wrong)});
        else if (seen)
            seen(Error(attempt.site, attempt.message));
    }
    return summary;
}

}  // namespace tw::fuzz
