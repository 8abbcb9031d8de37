// Tutorial 9: cut and delay. A loop in segments, and a loop whose parts run apart.
//
// Masks stand where a loop's last iterations leave a tensor, or where the formula compares indices. Most iterations
// need none. cut() takes them apart: the loop runs in segments, one after another, and each is simplified by what it
// knows. delay() takes an iteration apart: what stands first in it runs ahead of what stands behind.
#include "tutorials/lesson.h"

using namespace tw;

namespace {

/// One step of something that spreads along lines of cells: the pressures of a cell and its neighbours, u * u, with
/// weights; outside there is none.
struct Diffusion {
    Tensor u, weights, pressure, next;
};

Diffusion diffusion(int64_t lines, int64_t cells) {
    Diffusion d{input("u", f32, {lines, cells}), input("weights", f32, {3}), {}, {}};
    Axis t = reduce_axis("t", 3);
    d.pressure = compute("pressure", {lines, cells}, [&](Expr i, Expr j) { return d.u(i, j) * d.u(i, j); });
    d.next = compute("next", {lines, cells}, [&](Expr i, Expr j) {
        return d.u(i, j) + sum(d.weights(t) * padded(d.pressure, 0.0)(i, j + t - 1), t);
    });
    return d;
}

/// A line a block, tile after tile. The pressure stands under the loop over tiles, in shared memory: of as many cells
/// as a tile reads, one more on either side than it computes.
Schedule tile_after_tile(const Diffusion& d, bool cut) {
    Schedule s({d.next}, target("sm_90a"));
    auto [line, j] = s.loops<2>(d.next);
    auto [tile, cell] = s.split(j, 128, Tail::Mask, {"tile", "cell"});
    s.bind(line, grid.x);
    s.bind(cell, thread);
    s.at(d.pressure, tile);
    s.set_memory(d.pressure, Memory::Shared);
    if (cut) s.cut(tile, where_partial(d.next));
    return s;
}

/// y[i] = sum_{j <= i} x[i, j]: each row ends at the diagonal.
Tensor below_the_diagonal(const Tensor& x, int64_t n) {
    Axis j = reduce_axis("j", n);
    return compute("y", {n}, [&](Expr i) { return sum(select(Expr(j) <= i, x(i, j), 0.0), j); });
}

/// Tiles of 16 x 16. Of those in a row of tiles, the ones left of the diagonal need no comparison, that on it needs
/// all, those right of it nothing but their terms of zero: index(bi) is a place in the order of tiles, so a position of
/// cut.
Schedule by_tiles(const Tensor& y, bool cut) {
    Schedule s({y}, target("sm_90a"));
    auto [bi, row] = s.split(s.loops<1>(y)[0], 16, {"bi", "row"});
    auto [jo, ji] = s.split(s.reduce(y), 16, {"jo", "ji"});
    s.order({bi, row, jo, ji});
    s.bind(bi, grid.x);
    s.bind(row, thread);
    if (cut) s.cut(jo, {s.index(bi), s.index(bi) + 1});
    return s;
}

/// Columns summed with weights, a thread each, the rows of x through registers.
Schedule column_by_column(const Tensor& y, const Tensor& x, int ahead) {
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [block, column] = s.split(j, 64, Tail::Mask, {"block", "column"});
    s.order({block, column, i});
    s.bind(block, grid.x);
    s.bind(column, thread);
    s.stage(y, x, Memory::Registers, i);
    if (ahead > 0) s.delay(y, i, ahead);
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "9. Cut and delay");

    lesson.say("A stencil, one loop over tiles:");
    const int64_t lines = lesson.size(4, 2048), cells = lesson.size(1000, 10000);
    Diffusion d = diffusion(lines, cells);
    lesson.show(d.next);
    Schedule one = tile_after_tile(d, false), segments = tile_after_tile(d, true);
    lesson.say("cut(tile, where_partial(next)): the first tile, those with neighbours on both sides, the last one:");
    lesson.show(segments);
    lesson.compare("one loop", one, "in segments", segments, 7.0 * double(lines * cells));

    lesson.say("A triangle, cut at the diagonal; positions may be iterations of loops around:");
    const int64_t n = lesson.size(96, 4096);
    Tensor x = input("x", f32, {n, n});
    Tensor y = below_the_diagonal(x, n);
    lesson.show(y);
    Schedule whole = by_tiles(y, false), cut = by_tiles(y, true);
    lesson.show(cut);
    lesson.compare("one loop", whole, "three segments", cut, double(n * n));

    // What is loaded has far to come. Two iterations ahead, an element has two iterations' time to arrive; it waits in
    // registers, of which there are three times as many, and the loop is unrolled by three so that each has a name.
    lesson.say("delay(z, i, 2): the copy of row i + 2 is made before row i is computed with:");
    Tensor w = input("w", f32, {n});
    Tensor z = compute("z", {n, n}, [&](Expr i, Expr j) { return relu(x(i, j)) * w(j) + x(i, j); });
    lesson.show(z);
    Schedule ahead = column_by_column(z, x, 2);
    lesson.show(ahead);
    lesson.compare("load, then compute", column_by_column(z, x, 0), "loads two rows ahead", ahead, 3.0 * double(n * n));
    lesson.say(
        "pipeline() does the same for copies into shared memory, with barriers and cp.async; delay() for any stage.");
    lesson.say("What cannot run ahead is refused:");
    lesson.show_error([&] {
        Schedule s({z}, target("sm_90a"));
        s.delay(z, s.loops<2>(z)[0], 1);
    });
    return lesson.finish();
}
