// Tutorial 6: reductions and softmax. What bounds them is memory: how many pieces of it are asked for, and how often.
//
// The emulator counts, for each kernel, the requests of warps to global memory and the 32-byte sectors that these
// touch. 32 threads that read 4 neighbouring bytes each need 4 sectors; 32 threads that read one element of 32
// different rows need 32, of which they use an eighth.
#include "ops/check.h"
#include "runtime/emulated_device.h"
#include "schedules/cooperative_rows.h"
#include "schedules/row_operators.h"
#include "schedules/rows.h"
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

/// A reduce loop bound to threads: each sums its own terms, then they combine by shuffles and shared memory, in an
/// order that the schedule fixes. The result is in all of them.
Schedule shared_row(const Tensor& y, int64_t threads, int64_t neighbours) {
    Schedule s({y}, target("sm_90a"));
    auto [step, inside] = s.split(s.reduce(y), threads * neighbours);
    auto [share, element] = s.split(inside, neighbours);
    s.order({share, step, element});
    s.bind(s.loops<1>(y)[0], grid.x);
    s.bind(share, thread);
    s.unroll(element);  // neighbours in memory: one wide load
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "6. Reductions and softmax");
    const int64_t rows = lesson.size(64, 16384), columns = lesson.size(1024, 8192);

    Tensor x = input("x", f32, {rows, columns});
    Axis k = reduce_axis("k", columns);
    Tensor y = schedules::row_sum(x, k, f32)[0];
    lesson.say("The sum of each row:");
    lesson.show(y);

    // One thread a row: neighbouring threads are `columns` elements apart, each request touches 32 sectors.
    Schedule serial({y}, target("sm_90a"));
    schedules::schedule_serial_rows(serial, y, 32);

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
    auto [chunk, inside] = chunks.split(chunks.reduce(total), terms / 32);
    Stage parts = chunks.partial(total, chunk);
    chunks.bind(chunks.loops<1>(parts)[0], grid.x);
    auto [step, share] = chunks.split(inside, 256);
    chunks.order({share, step});
    chunks.bind(share, thread);
    chunks.bind(chunks.reduce(total), thread);
    lesson.say("partial: 32 blocks sum a chunk each, the 32 threads of a second kernel sum the chunks:");
    lesson.show(chunks);
    lesson.run(chunks, static_cast<double>(terms), "long sum");

    // Softmax reads a row three times: for the maximum, for the sum, for the result. Kept in registers it is read once.
    Tensor again = schedules::softmax(x, k, f32)[0], once = schedules::softmax(schedules::kept_rows(x), k, f32)[0];
    Schedule thrice({again}, target("sm_90a")), kept({once}, target("sm_90a"));
    schedules::schedule_cooperative_rows(thrice, again, {.threads = 128, .neighbours = 4, .keep = false});
    schedules::schedule_cooperative_rows(kept, once, {.threads = 128, .neighbours = 4});
    lesson.say("Softmax; `row` and `shifted` stay in registers, each thread has the columns that it will store:");
    lesson.show(kept);
    lesson.compare("softmax, rows read again", thrice, "softmax, rows kept", kept, 5.0 * rows * columns);
    print({count("softmax, rows read again", thrice), count("softmax, rows kept", kept)});
    lesson.show_explanation(kept);
    return lesson.finish();
}
