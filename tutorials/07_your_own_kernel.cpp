// Tutorial 7: your own kernel, on your own data. So far the lesson made data, ran, checked and timed; here we do.
//
// The computation is one step of a layer of leaky integrators: a charge decays, takes what drives it, and is stored
// where it was. How many there are is known when it runs, and so is how fast they leak. docs/your-own-kernel.md tells
// the same from the other end: install, link, run.
#include <algorithm>
#include <cmath>

#include "include/tilewright/tilewright.h"
#include "tutorials/lesson.h"

using namespace tw;

namespace {

struct Integrators {
    Tensor charge, drive, after;
};

/// A named size has bounds, from which codegen derives what fits into 32 bits and what divides: rows of fours here. A
/// scalar is a number that each launch is given.
Integrators integrators() {
    Expr n = size("n", {.min = 4, .max = 1 << 24, .multiple_of = 4}), decay = scalar("decay", f32);
    Integrators p{input("charge", f32, {n}), input("drive", bf16, {n}), {}};
    p.after = compute("after", {n}, [&](Expr i) { return decay * p.charge(i) + max(cast(f32, p.drive(i)), 0.0); });
    return p;
}

Schedule four_a_thread(const Integrators& p, const Target& target) {
    Schedule s({p.after}, target);
    auto [block, inside] = s.split(s.loops<1>(p.after)[0], 1024, Tail::Mask, {"block", "inside"});
    auto [threads, four] = s.split(inside, 4, {"threads", "four"});
    s.bind(block, grid.x);
    s.bind(threads, thread);
    s.bind(four, tw::vector);       // 16 bytes of the charge, 8 of the drive
    s.in_place(p.after, p.charge);  // legal: each element is read by the iteration that overwrites it, and by no other
    return s;
}

/// The same step on the host, to have something to compare with that no one else has made.
void step_on_host(std::vector<float>& charge, const std::vector<float>& drive, float decay) {
    for (size_t i = 0; i < charge.size(); ++i) charge[i] = std::fma(decay, charge[i], std::max(drive[i], 0.0f));
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "7. Your own kernel");
    const std::shared_ptr<Device>& device = lesson.device();
    Integrators p = integrators();
    Schedule s = four_a_thread(p, target("sm_90a"));
    lesson.show(p.after);
    lesson.show(s);

    // A Runner builds the schedule, loads its kernels and holds the data. Vectors of floats become what the declaration
    // says, here bf16; numbers are sizes or scalars, by their names.
    lesson.say(
        "Three steps on data of ours; each goes on from where the last one stopped, as the charge is overwritten:");
    const int64_t count = lesson.size(5000, 1 << 22);
    std::vector<float> charge(count, 1.0f), drive(count);
    for (int64_t i = 0; i < count; ++i) drive[i] = 0.25f * float(i % 17 - 8);  // bf16 holds these exactly
    Runner runner(s, device);
    runner.set("n", count).set("charge", charge).set("drive", drive).set("decay", 0.5);
    for (int step = 0; step < 3; ++step) {
        runner.run();
        step_on_host(charge, drive, 0.5f);
    }
    lesson.expect(runner.read<float>("after") == charge, "equal to three steps on the host");

    // One kernel serves every size within the bounds. check() compares a run with the declaration in float64: it needs
    // nothing from us, and where sums have another order than ours it knows by how much floats may differ.
    lesson.say("Other sizes, the same kernel:");
    for (int64_t fewer : {4, 1024, 4096 + 4}) {
        std::vector<float> some(drive.begin(), drive.begin() + fewer);
        CheckResult check = runner.set("n", fewer).set("charge", some).set("drive", some).check();
        lesson.expect(check.ok, fmt::format("n = {}: {}", fewer, check.text));
    }
    lesson.say("What does not fit is refused where it was given:");
    lesson.show_error([&] { runner.set("n", 6).run(); });
    lesson.show_error([&] { runner.set("n", 8).run(); });
    lesson.show_error([&] { runner.set("decoy", 0.5); });

    // time() runs in turns with a copy that moves as many bytes: no kernel that reads and writes so much is faster by
    // much. The emulator checks every access and does not time.
    lesson.say("Time, beside a copy of equal bytes:");
    runner.set("n", count).set("charge", charge).set("drive", drive);
    fmt::print("    {}\n", runner.time().text);

    // Memory that another library has allocated is used where it lies, and its stream is worked on in order. Here the
    // other library is this program: the pointer and the handle are all that it gives away.
    lesson.say("Memory and a stream of others:");
    Buffer of_others = device->allocate(count * 4, "charge");
    of_others.write(charge);
    Stream their_stream = device->create_stream();
    runner.set("charge", device->wrap(of_others.pointer(), count * 4, "charge of the simulation"));
    Stream stream = device->wrap_stream(their_stream.handle(), "stream of the simulation");
    runner.run(stream);
    stream.synchronize();
    step_on_host(charge, drive, 0.5f);
    lesson.expect(of_others.read<float>() == charge, "their memory has one step more");
    lesson.show_error([&] { device->wrap(uint64_t{0}, count * 4, "charge of the simulation"); });

    // Launches once prepared can become a graph; for work of a few microseconds that halves the cost of a launch.
    Graph graph = device->record(runner.executable().launches());
    for (int step = 0; step < 2; ++step) graph.run();
    device->synchronize();
    for (int step = 0; step < 2; ++step) step_on_host(charge, drive, 0.5f);
    lesson.expect(of_others.read<float>() == charge, "and two more by a graph");

    lesson.say("What was chosen for us, and why:");
    lesson.show_explanation(s);
    lesson.say("What the passes see, one after another (dump(s, \"folder\") writes all of it to files):");
    build(s, [](std::string_view pass, std::string_view, const std::string& text) {
        fmt::print("    {:<20}{:>4} lines\n", pass, std::count(text.begin(), text.end(), '\n'));
    });
    lesson.say("The steps, as text that can be kept and applied again:");
    fmt::print("{}", s.save());
    Schedule again = replay(s.save(), {p.after}, target("sm_90a"));
    lesson.expect(build(again).cuda() == build(s).cuda(), "replayed, they print the same kernel");
    return lesson.finish();
}
