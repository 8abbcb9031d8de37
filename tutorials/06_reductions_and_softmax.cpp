// Tutorial 6: reductions and softmax. What bounds them is memory: how many pieces of it are asked for, and how often.
//
// The emulator counts, for each kernel, the requests of warps to global memory and the 32-byte sectors that these
// touch. 32 threads that read 4 neighbouring bytes each need 4 sectors; 32 threads that read one element of 32
// different rows need 32, of which they use an eighth.
#include "ops/check.h"
#include "runtime/driver/emulated_device.h"
#include "tutorials/lesson.h"

using namespace tw;

namespace {

struct Counted {
    std::string name;
    emulator::Statistics statistics;
};

/// Runs all kernels of the schedule on the emulator and counts what they ask of memory.
Counted count(const std::string& name, const Schedule& schedule) {
    auto device = std::make_shared<EmulatedDevice>("sm_90a");
    emulator::Options options;
    options.statistics = true;
    device->set_options(options);
    Executable executable(build(schedule), device);
    run_on(executable, random_bindings(schedule.outputs(), 1));
    return {name, device->statistics()};
}

void print(const std::vector<Counted>& steps) {
    fmt::print("\n{:<34}{:>10}{:>10}{:>12}{:>10}{:>10}\n", "", "requests", "sectors", "a request", "shuffles",
               "barriers");
    for (const auto& [name, s] : steps)
        fmt::print(
            "{:<34}{:>10}{:>10}{:>12.1f}{:>10}{:>10}\n", name, s.global_requests, s.global_sectors,
            static_cast<double>(s.global_sectors) / static_cast<double>(std::max<uint64_t>(s.global_requests, 1)),
            s.warp_operations, s.barriers);
}

/// One thread a row.
Schedule serial_rows(const Tensor& y) {
    Schedule s({y}, target("sm_90a"));
    auto [block, row] = s.split(s.loops<1>(y)[0], 32, {"block", "row"});
    s.bind(block, grid.x);
    s.bind(row, thread);
    return s;
}

/// A reduce loop bound to threads: each sums its own terms, then they combine by shuffles and shared memory, in an
/// order that the schedule fixes. The result is in all of them.
Schedule shared_row(const Tensor& y, int64_t threads, int64_t neighbours) {
    Schedule s({y}, target("sm_90a"));
    auto [step, inside] = s.split(s.reduce(y), threads * neighbours, {"step", "inside"});
    auto [share, element] = s.split(inside, neighbours, {"share", "element"});
    s.order({share, step, element});
    s.bind(s.loops<1>(y)[0], grid.x);
    s.bind(share, thread);
    s.unroll(element);  // neighbours in memory: one wide load
    return s;
}

/// Rows of exp(x) divided by their sums, as it is computed: less the largest element, so that nothing overflows.
/// `row` is x again, so that a schedule can say where a row stays once it has been read.
struct Softmax {
    Tensor row, largest, shifted, scale, y;
};

Softmax softmax(const Tensor& x, const Axis& k) {
    Softmax p;
    const Expr rows = x.shape()[0], columns = x.shape()[1];
    p.row = compute("row", {rows, columns}, [&](Expr i, Expr j) { return x(i, j); });
    p.largest = compute("largest", {rows}, [&](Expr i) { return reduce_max(p.row(i, k), k); });
    p.shifted = compute("shifted", {rows, columns}, [&](Expr i, Expr j) { return exp(p.row(i, j) - p.largest(i)); });
    p.scale = compute("scale", {rows}, [&](Expr i) { return 1 / sum(p.shifted(i, k), k); });
    p.y = compute("y", {rows, columns}, [&](Expr i, Expr j) { return p.shifted(i, j) * p.scale(i); });
    return p;
}

/// The loop along a row, dealt out to 128 threads by vectors of 4: with equal splits in all stages, a thread has the
/// same columns everywhere, and what it keeps of them needs no other memory than its registers.
void deal_out(Schedule& s, Loop along_row, bool reduces) {
    auto [step, inside] = s.split(along_row, 128 * 4, {"step", "inside"});
    auto [share, element] = s.split(inside, 4, {"share", "element"});
    s.bind(share, thread);
    if (reduces)
        s.unroll(element);
    else
        s.bind(element, tw::vector);
}

/// A row a block. Stages are placed from the last to the first: at() needs the reader to stand where it is to be. Those
/// that are elementwise stay in registers too, or are computed again wherever they are read.
Schedule rows_of_blocks(const Softmax& p, bool keep) {
    Schedule s({p.y}, target("sm_90a"));
    auto [row, column] = s.loops<2>(p.y);
    s.bind(row, grid.x);
    std::vector<Tensor> placed;
    for (const Tensor& stage : {p.scale, p.shifted, p.largest, p.row}) {
        if (!keep && !s.reduces(stage)) {
            s.inline_stage(stage);
            continue;
        }
        s.at(stage, row);
        s.set_memory(stage, Memory::Registers);
        placed.push_back(stage);
    }
    for (const Tensor& stage : placed)
        deal_out(s, s.reduces(stage) ? s.reduce(stage) : s.loops<2>(stage)[1], s.reduces(stage));
    deal_out(s, column, false);
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "6. Reductions and softmax");
    const int64_t rows = lesson.size(64, 16384), columns = lesson.size(1024, 8192);

    Tensor x = input("x", f32, {rows, columns});
    Axis k = reduce_axis("k", columns);
    Tensor y = compute("y", {rows}, [&](Expr i) { return sum(x(i, k), k); });
    lesson.say("The sum of each row:");
    lesson.show(y);

    // One thread a row: neighbouring threads are `columns` elements apart, each request touches 32 sectors.
    Schedule serial = serial_rows(y);

    // The threads of a block share the row. First one element at a time, then 16 bytes.
    Schedule scalar = shared_row(y, 128, 1), wide = shared_row(y, 128, 4);
    lesson.say("The reduce loop on threads, four neighbours each:");
    lesson.show(wide);
    lesson.run(wide, static_cast<double>(rows * columns), "row sum");
    print({count("one thread a row", serial), count("128 threads a row", scalar), count("16 bytes at once", wide)});

    // A single long sum has no rows to spread over blocks: each chunk's sum is a stage of its own.
    const int64_t terms = rows * columns;
    Tensor v = input("v", f32, {terms});
    Axis n = reduce_axis("n", terms);
    Tensor total = compute("total", {}, [&](const std::vector<Expr>&) { return sum(v(n), n); });
    Schedule chunks({total}, target("sm_90a"));
    auto [chunk, inside] = chunks.split(chunks.reduce(total), terms / 32, {"chunk", "inside"});
    Stage parts = chunks.rfactor(total, chunk);
    chunks.bind(chunks.loops<1>(parts)[0], grid.x);
    auto [step, share] = chunks.split(inside, 256, {"step", "share"});
    chunks.order({share, step});
    chunks.bind(share, thread);
    chunks.bind(chunks.reduce(total), thread);
    lesson.say("partial: 32 blocks sum a chunk each, the 32 threads of a second kernel sum the chunks:");
    lesson.show(chunks);
    lesson.run(chunks, static_cast<double>(terms), "long sum");

    // Softmax reads a row three times: for the maximum, for the sum, for the result. Kept in registers it is read once.
    Softmax rows_of_x = softmax(x, k);
    lesson.show(rows_of_x.y);
    Schedule thrice = rows_of_blocks(rows_of_x, false), kept = rows_of_blocks(rows_of_x, true);
    lesson.say("Softmax; `row` and `shifted` stay in registers, each thread has the columns that it will store:");
    lesson.show(kept);
    lesson.compare("softmax, rows read again", thrice, "softmax, rows kept", kept, 5.0 * rows * columns);
    print({count("softmax, rows read again", thrice), count("softmax, rows kept", kept)});
    lesson.show_explanation(kept);

    // schedules/cooperative_rows.h has these steps for any computation along rows: schedule_cooperative_rows(s, y,
    // shape).
    return lesson.finish();
}
