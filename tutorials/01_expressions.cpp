// Tutorial 1: expressions and the oracle.
//
// A computation says *what*: tensors whose elements are expressions of indices. Nothing here says how it runs; a
// plain interpreter, slow and obvious, gives the values that every schedule must reproduce.
#include "tutorials/lesson.h"

using namespace tw;

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "1. Expressions and the oracle");

    // Inputs have a name, an element type and a shape. A reduce axis is an index to sum over.
    Tensor x = input("x", f32, {4, 6});
    Axis k = reduce_axis("k", 6);

    // compute() takes a name, a shape and the expression of the element at (i). The lambda's parameters are the
    // indices.
    Tensor mean = compute("mean", {4}, [&](Expr i) { return sum(x(i, k), k) / 6.0; });

    // Tensors are read at any index expression that stays inside; padded() may leave the tensor.
    Tensor blurred = compute("blurred", {4, 6}, [&](Expr i, Expr j) {
        auto wide = padded(x, 0);
        return (wide(i, j - 1) + x(i, j) + wide(i, j + 1)) / 3.0;
    });

    // Broadcasting is explicit: `mean` is read at the index that it has.
    Tensor y = compute("y", {4, 6}, [&](Expr i, Expr j) { return blurred(i, j) - mean(i); });
    lesson.say("The computation:");
    lesson.show(y);

    // The oracle interprets these declarations, here in the declared types and in float64.
    lesson.say("The oracle, on random data, in f32 and in float64:");
    lesson.show_oracle(y);

    // Mistakes are explained where they are made.
    lesson.say("What a mistake looks like:");
    lesson.show_error([&] { compute("wrong", {4, 6}, [&](Expr i, Expr j) { return x(i, j + 1); }); });
    lesson.show_error([&] { x(0); });
    return lesson.finish();
}
