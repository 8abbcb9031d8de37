// Tutorial 8: reducers of your own, gathers, and scatters.
//
// sum and reduce_max are monoids: a way to combine two results, and an identity. make_reducer() takes any, also of
// several numbers at once; splits, threads and partial sums then work as they do for sum. An index that is read from a
// tensor is a gather; its counterpart, where each term says which element it counts for, is a scatter.
#include "include/tilewright/tilewright.h"
#include "tutorials/lesson.h"

using namespace tw;

namespace {

/// (largest, total) of exp(x - largest): what a softmax needs of a row, in one pass. Two such pairs are brought to the
/// larger of both maxima and added; (lowest number, 0) changes nothing.
Reducer log_sum_exp() {
    auto combine = [](const std::vector<Expr>& a, const std::vector<Expr>& b) {
        Expr largest = max(a[0], b[0]);
        return std::vector{largest, a[1] * exp(a[0] - largest) + b[1] * exp(b[0] - largest)};
    };
    return make_reducer("log_sum_exp", {constant(f32, -3e38), constant(f32, 0.0)}, combine);
}

struct Pooled {
    Tensor x, y;
};

/// y[i] = log(sum_k exp(x[i, k])): a maximum with a soft corner.
Pooled pooled(int64_t rows, int64_t columns) {
    Pooled p{input("x", f32, {rows, columns}), {}};
    Axis k = reduce_axis("k", columns);
    p.y = compute("y", {rows}, [&](Expr i) {
        std::vector<Expr> parts = reduce(log_sum_exp(), {p.x(i, k), constant(f32, 1.0)}, {k});
        return parts[0] + log(parts[1]);
    });
    return p;
}

/// A warp a row: each lane reduces its own terms, then lanes combine by shuffles, both numbers at once.
Schedule a_warp_a_row(const Tensor& y) {
    Schedule s({y}, target("sm_90a"));
    auto [block, row] = s.split(s.loops<1>(y)[0], 4, Tail::Mask, {"block", "row"});
    auto [step, share] = s.split(s.reduce(y), 32, Tail::Mask, {"step", "share"});
    s.order({block, row, share, step});
    s.bind(block, grid.x);
    s.bind(row, warp);
    s.bind(share, lane);
    return s;
}

Schedule an_element_a_thread(const Tensor& y) {
    Schedule s({y}, target("sm_90a"));
    auto [block, inside] = s.split(s.fuse(s.data_loops(y)), 128, Tail::Mask, {"block", "inside"});
    s.bind(block, grid.x);
    s.bind(inside, thread);
    return s;
}

/// h = gate * h + x, term after term: each term is a map of h, a pair (factor, summand), and maps are composed. That is
/// associative, so parts of a row can be composed apart, but not commutative: their order counts. A reducer promises
/// both unless the last argument says otherwise.
Tensor recurrence(int64_t rows, int64_t columns, bool commutative) {
    Reducer composed = make_reducer(
        "composed", {constant(f32, 1.0), constant(f32, 0.0)},
        [](const std::vector<Expr>& a, const std::vector<Expr>& b) {
            return std::vector{a[0] * b[0], a[1] * b[0] + b[1]};
        },
        commutative);
    Tensor gate = input("gate", f32, {rows, columns}), x = input("x", f32, {rows, columns});
    Axis k = reduce_axis("k", columns);
    return compute("h", {rows}, [&](Expr i) { return reduce(composed, {gate(i, k), x(i, k)}, {k})[1]; });
}

/// Terms dealt out in turns, lane by lane: another order than the declared one.
Schedule in_turns(const Tensor& h) {
    Schedule s({h}, target("sm_90a"));
    auto [step, share] = s.split(s.reduce(h), 8, {"step", "share"});
    s.order({share, step});
    s.bind(share, thread);
    return s;
}

/// Each thread has neighbouring terms, and neighbouring parts are combined: the declared order.
Schedule in_order(const Tensor& h) {
    Schedule s({h}, target("sm_90a"));
    auto [share, step] = s.split(s.reduce(h), 8, {"share", "step"});
    s.bind(s.loops<1>(h)[0], grid.x);
    s.bind(share, thread);
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "8. Reducers, gathers, scatters");
    const int64_t rows = lesson.size(60, 8192), columns = lesson.size(200, 4096);

    lesson.say("A reducer of two numbers:");
    Pooled p = pooled(rows, columns);
    lesson.show(p.y);
    Schedule shared = a_warp_a_row(p.y);
    lesson.run(shared, 4.0 * rows * columns, "log-sum-exp");
    lesson.show_lines(shared, {"shuffle"});

    // Schedules rely on what a reducer promises, and cannot prove it. check_each_step() interprets the loop nest after
    // each step, compares with the declaration, and names the first step after which they differ. It likes small data.
    lesson.say("check_each_step() on small data: all steps keep the result.");
    Pooled small = pooled(6, 70);
    a_warp_a_row(small.y).check_each_step(random_bindings({small.y}, 1));
    lesson.say("A recurrence, said to be commutative, which it is not:");
    Tensor wrong = recurrence(4, 64, true), right = recurrence(4, 64, false);
    lesson.show(wrong);
    lesson.show_error([&] { in_turns(wrong).check_each_step(random_bindings({wrong}, 1)); });
    lesson.say("Declared as it is, the step is refused, and another order of loops serves:");
    lesson.show_error([&] { in_turns(right); });
    in_order(right).check_each_step(random_bindings({right}, 1));
    lesson.run(in_order(right), 2.0 * 4 * 64, "recurrence");

    // A gather: the index is data. `ids` must be within the table; that is the caller's to keep, and the emulator
    // reports what is not. random_bindings() draws rows that there are.
    lesson.say("A gather: rows of a table, in the order that data say:");
    const int64_t positions = lesson.size(500, 1 << 16), words = lesson.size(8, 32000), width = 16;
    Tensor table = input("table", f32, {words, width}), ids = input("ids", i32, {positions});
    Tensor rows_of_table =
        compute("rows_of_table", {positions, width}, [&](Expr i, Expr j) { return table(ids(i), j); });
    lesson.show(rows_of_table);
    lesson.run(an_element_a_thread(rows_of_table), double(positions * width), "gather");

    // A scatter: each term says where it counts. A histogram with weights is one; a term whose bin does not exist is
    // left out. As declared, each element looks at all terms: right, and slow.
    lesson.say("A scatter: a histogram of weighted terms:");
    const int64_t terms = lesson.size(3000, 1 << 22);
    Tensor bin = input("bin", i32, {terms}), weight = input("weight", f32, {terms});
    Axis t = reduce_axis("t", terms);
    Tensor histogram = scatter("histogram", {6}, sum, {bin(t)}, weight(t), {t});
    lesson.show(histogram);

    // Each term finds its element instead: by an atomic update, in no fixed order, so that results differ in the last
    // bits from run to run; or, the terms sorted, each element reduces its own in the declared order, to the same bits.
    Schedule atomic({histogram}, target("sm_90a"));
    Stage updates = atomic.scatter(histogram, Combine::Atomic);
    auto [block, inside] = atomic.split(atomic.loops<1>(updates)[0], 256, Tail::Mask, {"block", "inside"});
    atomic.bind(block, grid.x);
    atomic.bind(inside, thread);
    lesson.show(atomic);
    Schedule sorted({histogram}, target("sm_90a"));
    sorted.scatter(histogram);
    sorted.bind(sorted.loops<1>(histogram)[0], thread);
    lesson.compare("atomic", atomic, "sorted", sorted, double(terms));
    lesson.expect(!atomic.deterministic() && sorted.deterministic(), "sorted terms give the same bits in each run");
    return lesson.finish();
}
