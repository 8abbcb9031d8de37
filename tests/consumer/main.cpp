// What a user of the installed package does: declare, schedule, print, build, run on the emulator, check.
#include <cstdio>

#include <tilewright/tilewright.h>
#include <tilewright/tuning/tune.h>

using namespace tw;

namespace {

Schedule schedule_product(const Tensor& c, const Tensor& b) {
    Schedule s({c}, target("sm_90a"));
    auto [i, j] = s.loops<2>(c);
    auto [bi, ti] = s.split(i, 8, Tail::Mask);
    auto [bj, tj] = s.split(j, 8, Tail::Mask);
    auto [ko, ki] = s.split(s.reduce(c), 8, Tail::Mask);
    s.order({bi, bj, ti, tj, ko, ki});
    s.bind(bi, grid.y);
    s.bind(bj, grid.x);
    s.bind(ti, thread);
    s.bind(tj, thread);
    s.stage(c, b, Memory::Shared, ko);
    return s;
}

bool refuses_a_split_that_does_not_divide(Schedule& s) {
    try {
        s.split(s.all_loops(s.all_stages().back()).front(), 5);
    } catch (const Error& error) {
        std::puts(error.what());
        return true;
    }
    return false;
}

/// A family of one's own for the tuner: threads of a block.
bool tunes_what_is_ours() {
    Tensor x = input("x", f32, {64});
    tuning::Tunable own;
    own.name = "twice";
    own.outputs = {compute("y", {64}, [&](Expr i) { return x(i) * 2.0; })};
    own.tilings = [](const Target&) { return std::vector<std::string>{"32", "64"}; };
    own.schedule = [y = own.outputs[0]](const std::string& threads, const Target& target) {
        Schedule s({y}, target);
        schedules::schedule_elementwise(s, y, std::stoll(threads), 1);
        return s;
    };
    auto show = [](const std::string&, int64_t, int64_t, const std::string&) {};
    const tuning::TuneResult result = tuning::tune(own, open_device("emulated"), {.threads = 1}, show);
    return result.measured.size() == 2 && result.record.kernel == "twice";
}

}  // namespace

int main() {
    Tensor a = input("a", f32, {20, 30}), b = input("b", f32, {30, 24});
    Axis k = reduce_axis("k", 30);
    Tensor c = compute("c", {20, 24}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    Schedule s = schedule_product(c, b);
    Program program = build(s);
    std::puts(program.cuda().c_str());

    Executable executable(program, open_device("emulated"));
    Bindings bindings = random_bindings({c}, 1);
    HostArray result = run_on(executable, bindings)[0];
    CheckResult check = check_output(c, bindings, result);
    std::puts(check.text.c_str());
    return check.ok && refuses_a_split_that_does_not_divide(s) && tunes_what_is_ours() ? 0 : 1;
}
