// The main job: one matrix product from expression to a checked result.
//
// It prints the expression, the schedule, the loop nest, the CUDA text and what it costs in registers and shared
// memory, runs it on the device there is, checks it against float64, and prints time and rate.
#include "schedules/product.h"
#include "tutorials/lesson.h"

using namespace tw;

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "A matrix product, from expression to checked result");
    const int64_t M = lesson.size(256, 4096), N = M, K = lesson.size(512, 4096);

    lesson.say("What to compute:");
    Tensor a = input("a", f32, {M, K}), b = input("b", f32, {K, N});
    Axis k = reduce_axis("k", K);
    Tensor c = compute("c", {M, N}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    lesson.show(c);

    lesson.say("How, as steps:");
    Schedule s({c}, target("sm_90a"));
    schedules::schedule_product(s, c, a, b, schedules::product_tiles({.m = M, .n = N, .k = K}, s.target()));
    fmt::print("{}", s.trace_as_cpp());

    lesson.say("The loop nest that the steps made:");
    lesson.show(s);

    lesson.say("Defaults that the compiler chose:");
    lesson.show_explanation(s);

    lesson.run(s, 2.0 * M * N * K, "product");
    return lesson.finish();
}
