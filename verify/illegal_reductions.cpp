// Illegal steps on reductions in parts, and of terms that find their elements.
#include "verify/illegal_kinds.h"

namespace tw::fuzz::illegal {
namespace {

// clang-format off
const Kind kKinds[] = {
// Reductions in parts.
{"totals_of_no_reduction", "reduces nothing", [](Attempt& t) {
    Rows p(t);
    t.step(*p.s, [&] { p.s->accumulators(p.y); });
}},
{"totals_inside_of_another_kernel", "stands in another kernel", [](Attempt& t) {
    Rows p(t);
    p.s->at(p.total, p.s->loops<2>(p.y)[0]);
    t.step(*p.s, [&] { p.s->accumulators(p.total); });
}},
{"partial_of_a_data_loop", "the loop is no reduce loop of 'c'", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->rfactor(p.c, t.random.chance(0.5) ? p.i : p.j); });
}},
{"partial_of_a_bound_loop", "bind(loop, serial) first", [](Attempt& t) {
    Product p(t);
    p.s->bind(p.k, t.threads());
    t.step(*p.s, [&] { p.s->rfactor(p.c, p.k); });
}},
{"partial_inside_of_another_kernel", "stands in another kernel", [](Attempt& t) {
    Rows p(t);
    p.s->at(p.total, p.s->loops<2>(p.y)[0]);
    Loop k = p.s->reduce(p.total);
    t.step(*p.s, [&] { p.s->rfactor(p.total, k); });
}},
{"partial_that_does_not_commute", "is not the outermost reduce loop", [](Attempt& t) {
    LastOfEachRow p(t);
    t.step(*p.s, [&] { p.s->rfactor(p.y, p.ki); });
}},
{"partial_that_others_follow", "follows it under loop", [](Attempt& t) {
    Rows p(t);
    p.s->at(p.y, p.s->loops<1>(p.total)[0]);
    Loop k = p.s->reduce(p.total);
    t.step(*p.s, [&] { p.s->rfactor(p.total, k); });
}},
{"atomic_parts_without_an_atomic_operation", "no atomic operation combines by", [](Attempt& t) {
    Wide p(t);
    t.step(*p.s, [&] { p.s->rfactor(p.most, p.s->reduce(p.most), Combine::Atomic); });
}},
{"atomic_parts_of_updates", "already updates the elements of 'c' atomically", [](Attempt& t) {
    Product p(t);
    auto [ko, ki] = p.s->split(p.k, 2, Tail::Mask);
    Stage parts = p.s->rfactor(p.c, ko, Combine::Atomic);
    t.step(*p.s, [&] { p.s->rfactor(parts, ki, Combine::Atomic); });
}},
{"a_reader_among_updates", "are complete only behind the kernel", [](Attempt& t) {
    Rows p(t);
    Stage parts = p.s->rfactor(p.total, p.s->reduce(p.total), Combine::Atomic);
    Loop row = p.s->data_loops(parts)[1];
    t.step(*p.s, [&] { p.s->at(p.y, row); });
}},
{"updated_elements_inside_of_another_kernel", "which takes a kernel before and one behind", [](Attempt& t) {
    Rows p(t);
    const Stage parts = p.s->rfactor(p.total, p.s->reduce(p.total), Combine::Atomic);
    p.s->bind(p.s->data_loops(parts)[0], thread);  // scheduled, they do not go along
    t.step(*p.s, [&] { p.s->at((*p.s)[p.total], p.s->loops<2>(p.y)[0]); });
}},
{"updates_inside_of_the_kernel_of_a_reader", "complete only behind the kernel", [](Attempt& t) {
    Rows p(t);
    Stage parts = p.s->rfactor(p.total, p.s->reduce(p.total), Combine::Atomic);
    t.step(*p.s, [&] { p.s->at(parts, p.s->loops<2>(p.y)[0]); });
}},
{"atomic_parts_of_rounded_elements", "but atomics combine in f32", [](Attempt& t) {
    Rows p(t);
    p.s->round_to(p.total, t.random.pick<Type>({f16, bf16, tf32}));
    t.step(*p.s, [&] { p.s->rfactor(p.total, p.s->reduce(p.total), Combine::Atomic); });
}},
{"rounded_elements_of_updates", "updates its elements atomically, in the type of the sum", [](Attempt& t) {
    Rows p(t);
    p.s->rfactor(p.total, p.s->reduce(p.total), Combine::Atomic);
    t.step(*p.s, [&] { p.s->round_to(p.total, bf16); });
}},
{"rounded_updates", "are in no memory of their own", [](Attempt& t) {
    Rows p(t);
    Stage parts = p.s->rfactor(p.total, p.s->reduce(p.total), Combine::Atomic);
    t.step(*p.s, [&] { p.s->round_to(parts, bf16); });
}},
{"inlined_updates", "its elements are made by atomic updates", [](Attempt& t) {
    Rows p(t);
    p.s->rfactor(p.total, p.s->reduce(p.total), Combine::Atomic);
    t.step(*p.s, [&] { p.s->inline_stage(p.total); });
}},
{"scatter_of_all_terms", "no condition of its terms says which element", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->scatter(p.c, t.random.chance(0.5) ? Combine::Atomic : Combine::Workspace); });
}},
{"scatter_along_no_axis", "it reduces along no axis", [](Attempt& t) {
    Rows p(t);
    Stage parts = p.s->rfactor(p.total, p.s->reduce(p.total));
    t.step(*p.s, [&] { p.s->scatter(parts, t.random.chance(0.5) ? Combine::Atomic : Combine::Workspace); });
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
{"parts_of_rows_as_long_as_data_say", "elements decide how many terms", [](Attempt& t) {
    Scattered p(t);
    p.s->scatter(p.d);
    t.step(*p.s, [&] { p.s->rfactor(p.d, p.s->reduce(p.d)); });
}},
{"threads_share_inner_terms_that_do_not_commute", "only the outermost can be bound to threads", [](Attempt& t) {
    LastOfEachRow p(t);
    t.step(*p.s, [&] { p.s->bind(p.ki, t.threads()); });
}},
{"a_reduction_on_the_grid", "its terms can be shared among threads", [](Attempt& t) {
    Product p(t);
    t.step(*p.s, [&] { p.s->bind(p.k, t.random.pick<Level>({Level::GridX, Level::GridY, Level::GridZ})); });
}},
};
// clang-format on

}  // namespace

std::span<const Kind> kinds_of_reductions() { return kKinds; }

}  // namespace tw::fuzz::illegal
