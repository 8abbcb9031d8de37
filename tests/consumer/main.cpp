// What a user of the installed package does: declare, schedule, print, build, run on the emulator, check.
#include <cstdio>

#include <tilewright/tilewright.h>

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
    return check.ok && refuses_a_split_that_does_not_divide(s) ? 0 : 1;
}
