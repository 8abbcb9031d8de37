// Illegal steps on loops.
#include "verify/illegal_kinds.h"

namespace tw::fuzz::illegal {
namespace {

// clang-format off
const Kind kKinds[] = {
// Handles.
{"stray_loop", "this loop handle belongs to no loop", [](Attempt& t) {
    Product p(t);
    Loop stray{static_cast<int>(t.random.between(0, 100))};
    t.step(*p.s, [&] { p.s->split(stray, 2); });
}},
{"loop_of_another_schedule", "in another schedule (of 'c') or in another copy of this one", [](Attempt& t) {
    Product p(t), other(t);
    auto [o, inner] = other.s->split(other.i, 2, Tail::Mask);
    if (t.random.chance(0.5)) p.s->split(p.j, 2, Tail::Mask);
    t.step(*p.s, [&] { t.random.chance(0.5) ? p.s->bind(inner, t.parallel()) : p.s->order({p.k, other.j}); });
}},
{"loop_of_a_copy", "in another schedule (of 'c') or in another copy of this one", [](Attempt& t) {
    Product p(t);
    Schedule copy = *p.s;
    auto [o, inner] = copy.split(p.i, 2, Tail::Mask);
    if (t.random.chance(0.5)) p.s->split(p.i, 2, Tail::Mask);
    t.step(*p.s, [&] { p.s->bind(t.random.chance(0.5) ? o : inner, t.parallel()); });
}},
{"stage_handle_of_another_schedule", "is of the stage 'y' made at", [](Attempt& t) {
    Chain p(t), other(t);
    Stage y = (*other.s)[other.y];
    t.step(*p.s, [&] { p.s->at(y, p.i); });
}},
{"no_loop", "this loop handle belongs to no loop", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->bind(Loop{}, t.parallel()); });
}},
{"split_loop_again", "is gone: step [0] auto [i_outer, i_inner] = s.split(i, ", [](Attempt& t) {
    Product p(t);
    p.s->split(p.i, t.extent(), Tail::Mask);
    t.step(*p.s, [&] { p.s->split(p.i, 2, Tail::Mask); });
}},
{"fused_loop_again", "is gone: step [0] Loop i_j = s.fuse(i, j);", [](Attempt& t) {
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
{"more_blocks_than_a_grid_has", "65535 at most are possible; bind them to grid.x", [](Attempt& t) {
    int64_t m = t.random.between(256, 300), n = t.random.between(256, 300);
    Tensor x = input("x", f32, {m, n});
    Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return x(i, j); });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    Level level = t.random.chance(0.5) ? Level::GridY : Level::GridZ;
    Loop last = t.random.chance(0.5) ? s.fuse(i, j) : (s.bind(i, level), j);
    t.step(s, [&] { s.bind(last, level); });
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
// Pipelines.
{"pipeline_of_a_bound_loop", "only iterations that follow each other can overlap", [](Attempt& t) {
    Product p(t);
    p.s->stage(p.c, p.a, Memory::Shared, p.i);
    p.s->bind(p.i, t.parallel());
    t.step(*p.s, [&] { p.s->pipeline(p.i, {.stages = 2}); });
}},
{"pipeline_of_many_stages", "each copy can have 2 to 16 buffers", [](Attempt& t) {
    Product p(t);
    p.s->stage(p.c, p.a, Memory::Shared, p.k);
    int stages = t.random.pick<int>({-1, 0, 17, 100});
    t.step(*p.s, [&] { p.s->pipeline(p.k, {.stages = stages}); });
}},
{"via_of_no_copy", "it is no copy; name what stage(", [](Attempt& t) {
    Product p(t);
    p.s->stage(p.c, p.a, Memory::Shared, p.k);
    t.step(*p.s, [&] { p.s->via(p.c, Copy::Async); });
}},
{"via_of_registers", "asynchronous copies go into shared memory", [](Attempt& t) {
    Product p(t);
    Stage copy = p.s->stage(p.c, p.a, Memory::Registers, p.k);
    t.step(*p.s, [&] { p.s->via(copy, Copy::Async); });
}},
{"pipeline_without_copies", "nothing in shared memory stands under the loop", [](Attempt& t) {
    Product p(t);
    if (t.random.chance(0.5)) p.s->stage(p.c, p.a, Memory::Registers, p.k);
    t.step(*p.s, [&] { p.s->pipeline(p.k, {.stages = 2}); });
}},
// Delays.
{"delay_of_a_bound_loop", "delay it before binding", [](Attempt& t) {
    Product p(t);
    p.s->stage(p.c, p.a, Memory::Shared, p.i);
    p.s->bind(p.i, t.parallel());
    t.step(*p.s, [&] { p.s->delay(p.c, p.i); });
}},
{"delay_with_nothing_before", "nothing stands before 'c' under the loop", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->delay(p.c, t.random.chance(0.5) ? p.i : p.k); });
}},
{"delay_of_a_stage_elsewhere", "does not stand under the loop; place it there first", [](Attempt& t) {
    Chain p(t);
    t.step(*p.s, [&] { p.s->delay(p.y, p.i); });
}},
{"delay_of_many_iterations", "a stage can come 1 to 8 iterations later", [](Attempt& t) {
    Chain p(t);
    p.s->at(p.y, p.i);
    t.step(*p.s, [&] { p.s->delay(p.z, p.i, t.random.pick<int>({-1, 9, 100})); });
}},
{"delay_in_a_pipeline", "nothing stands before 'c' under the loop", [](Attempt& t) {  // its copies are late, too
    Product p(t);
    p.s->stage(p.c, p.a, Memory::Shared, p.k);
    p.s->pipeline(p.k, {.stages = 2});
    t.step(*p.s, [&] { p.s->delay(p.c, p.k); });
}},
{"reverse_of_a_data_loop", "it is no reduce loop", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->reverse(p.i); });
}},
{"split_of_a_reversed_loop", "runs backwards; split it before reverse", [](Attempt& t) {
    Product p(t);
    p.s->reverse(p.k);
    t.step(*p.s, [&] { p.s->split(p.k, t.random.between(1, 5), Tail::Mask); });
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
{"split_of_a_cut_loop", "is cut into segments, or skips some; split it before", [](Attempt& t) {
    Product p(t);
    p.s->cut(p.i, {t.random.between(0, 5)});
    t.step(*p.s, [&] { p.s->split(p.i, 2, Tail::Mask); });
}},
};
// clang-format on

}  // namespace

std::span<const Kind> kinds_of_loops() { return kKinds; }

}  // namespace tw::fuzz::illegal
