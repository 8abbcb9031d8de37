// Illegal steps on stages, copies and memory.
#include "verify/illegal_kinds.h"

namespace tw::fuzz::illegal {
namespace {

// clang-format off
const Kind kKinds[] = {
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
{"staged_result_of_an_inner_stage", "is no output and lies in no memory between kernels", [](Attempt& t) {
    Chain p(t);
    p.s->at(p.y, p.s->loops<2>(p.z)[0]);
    t.step(*p.s, [&] { p.s->stage(p.y, Memory::Shared, p.s->loops<2>(p.y)[0]); });
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
// Turns.
{"turns_around_a_pipelined_loop", "last for all iterations of the pipelined loop", [](Attempt& t) {
    Rows p(t);
    p.s->at(p.total, p.s->loops<2>(p.y)[0]);
    const Loop k = p.s->reduce(p.total);
    p.s->stage(p.total, p.x, Memory::Shared, k);
    const bool last = t.random.chance(0.5);
    if (last) p.s->exclusive({p.total, p.y});
    else p.s->pipeline(k, {.stages = 2});
    t.step(*p.s, [&] {
        if (last) p.s->pipeline(k, {.stages = 2}); else p.s->exclusive({p.total, p.y});
    });
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
{"in_place_with_a_neighbour", "elements are safe that are read where they are overwritten", [](Attempt& t) {
    int64_t n = t.extent();
    Tensor x = input("x", f32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return x(i) + x(n - 1 - i); });
    Schedule s({y}, target("sm_90a"));
    t.step(s, [&] { s.in_place(y, x); });
}},
{"in_place_in_a_reduction", "elements are safe that are read where they are overwritten", [](Attempt& t) {
    int64_t n = t.extent();
    Tensor x = input("x", f32, {n});
    Axis k = reduce_axis("k", n);
    Tensor y = compute("y", {n}, [&](Expr i) { return sum(x(k), k) * x(i); });
    Schedule s({y}, target("sm_90a"));
    t.step(s, [&] { s.in_place(y, x); });
}},
{"copy_of_an_overwritten_input", "that another iteration of loop", [](Attempt& t) {
    int64_t m = t.extent(), n = t.extent();
    Tensor x = input("x", f32, {m + 1, n});
    Tensor y = compute("y", {m + 1, n}, [&](Expr i, Expr j) { return x(i, j) * 2.0 + x(m - i, j); });
    Schedule s({y}, target("sm_90a"));
    s.stage(y, x, t.random.chance(0.5) ? Memory::Shared : Memory::Registers, s.loops<2>(y)[0]);
    t.step(s, [&] { s.in_place(y, x); });
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

}  // namespace

std::span<const Kind> kinds_of_stages() { return kKinds; }

}  // namespace tw::fuzz::illegal
