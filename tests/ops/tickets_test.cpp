// Persistent kernels whose blocks take tiles as they come, by tickets from a counter in global memory.
#include <algorithm>

#include "ops/bound_arguments.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

class Tickets : public RandomCases {
protected:
    Tickets() : RandomCases(43) {}

    /// What runs of the schedule give, each with its output NaN before: the counter must be as it was.
    std::vector<HostArray> results(const Schedule& s, const Bindings& bindings, int runs) const {
        Executable executable(build(s), device_);
        std::vector<HostArray> found;
        for (int run = 0; run < runs; ++run) found.push_back(run_on(executable, bindings)[0]);
        return found;
    }
};
TW_ON_EACH_DEVICE(Tickets);

constexpr int64_t tile = 64;

/// c[e, i, j] = sum of a[e, i, k] b[j, k] over as many blocks of k as the rows' tile and length[e] say.
struct Product {
    Tensor a, b, length, c;

    Product(int64_t batch, int64_t rows, int64_t columns, int64_t blocks, int64_t block)
        : a(input("a", bf16, {batch, rows, blocks * block})),
          b(input("b", bf16, {columns, blocks * block})),
          length(input("length", i32, {batch})),
          c(compute("c", {batch, rows, columns}, [&](Expr e, Expr i, Expr j) {
              Axis q = reduce_axis("q", min(i / tile + cast(i64, length(e)), blocks)), r = reduce_axis("r", block);
              return sum(cast(f32, a(e, i, q * block + r)) * cast(f32, b(j, q * block + r)), {q, r});
          })) {}
};

struct Options {
    int stages = 3, in_flight = 0, warpgroups = 1, loaders = 1;
    PersistentOptions persistent = {.blocks = 3};
    bool roles = true;
    Copy how = Copy::Tma;
};

Schedule scheduled(const Product& p, const Options& o, const Target& target) {
    Schedule s({p.c}, target);
    auto [e, i, j] = s.loops<3>(p.c);
    Loop q = s.reduce(p.c, 0), r = s.reduce(p.c, 1);
    auto [bi, mi] = s.split(i, tile, Tail::Mask);
    auto [bj, jt] = s.split(j, int64_t{32} * o.warpgroups, Tail::Mask);
    auto [wj, nj] = s.split(jt, 32);
    s.order({e, bi, bj, wj, q, mi, nj, r});
    s.persistent({e, bi, bj}, o.persistent);
    s.bind(wj, warpgroup);
    Stage as = s.stage(p.c, p.a, Memory::Shared, q), bs = s.stage(p.c, p.b, Memory::Shared, q);
    s.mma(p.c, wgmma, {.m = mi, .n = nj, .k = r});
    s.pipeline(q, {.stages = o.stages, .in_flight = o.roles ? o.in_flight : 0});
    std::vector<Role> roles{{"load", warps(1), {}, {as}}, {"math", warpgroups(o.warpgroups), {}, {p.c}}};
    if (o.loaders == 2)
        roles.insert(roles.begin(), {"load_b", warps(1), {}, {bs}});
    else
        roles[0].stages.emplace_back(bs);
    if (o.roles) {
        s.roles(roles);
    } else {
        s.via(as, o.how);
        s.via(bs, o.how);
    }
    return s;
}

Bindings numbers_for(const Product& p, int64_t blocks, uint64_t seed) {
    Bindings bindings = whole_numbers({p.c}, static_cast<unsigned>(seed));
    fill_integers(bindings.inputs.at("length"), -2, static_cast<int>(blocks), seed);
    return bindings;
}

TEST_P(Tickets, GiveWhatTurnsGive) {
    for (int round = 0; round < 10; ++round) {
        const int64_t blocks = between(1, 5);
        Product p(between(1, 3), between(1, 3) * tile - 8 * between(0, 3), 8 * between(1, 12), blocks,
                  16 << between(0, 2));
        Options o{.stages = between(2, 4), .warpgroups = between(1, 2), .loaders = between(1, 2)};
        o.in_flight = between(0, o.stages - 1);
        o.roles = round % 3 != 2;
        o.how = std::array{Copy::Tma, Copy::Async, Copy::Vector}[size_t(between(0, 2))];
        if (o.how == Copy::Vector && !o.roles) o.stages = 2;
        o.persistent = {.blocks = between(1, 20), .longest_first = chance(), .dynamic = true};
        Schedule s = scheduled(p, o, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(replay(s.save(), {p.c}, device_target()).to_string(), s.to_string());
        o.persistent.dynamic = false;
        const Bindings bindings = numbers_for(p, blocks, static_cast<uint64_t>(round));
        const HostArray in_turn = results(scheduled(p, o, device_target()), bindings, 1)[0];
        for (const HostArray& by_tickets : results(s, bindings, 2)) {
            auto differs = difference("c", by_tickets, in_turn, bitwise);
            EXPECT_FALSE(differs) << *differs;
        }
        expect_declared(s, bindings);
        if (round % 3 == 0) expect_compiles(build(s));
    }
}

/// y[i] = sum of x[k] w[i, k] over k up to the end of i's tile, of any number of rows.
Schedule triangle(const Target& target, int blocks, bool longest_first, int64_t threads) {
    const Expr n = size("n", {.min = 0, .max = 4096});
    Tensor x = input("x", f32, {n}), w = input("w", f32, {n, n});
    Tensor y = compute("y", {n}, [&](Expr i) {
        Axis k = reduce_axis("k", i / 8 * 8 + 8);
        return sum(padded(x, 0.0)(k) * padded(w, 0.0)(i, k), k);
    });
    Schedule s({y}, target);
    auto [block, row] = s.split(s.loops<1>(y)[0], 8, Tail::Mask, {"block", "row"});
    auto [step, lane] = s.split(s.reduce(y), 16, Tail::Mask, {"step", "lane"});
    s.order({block, row, step, lane});
    s.persistent({block}, {.blocks = blocks, .longest_first = longest_first, .dynamic = true});
    if (threads > 1) s.bind(row, thread);
    if (threads > 8) s.bind(lane, thread);
    return s;
}

/// No tiles, fewer than blocks, as many, more; one kernel for all of them, whose counter each launch leaves at zero.
TEST_P(Tickets, OfNamedSizes) {
    for (int64_t threads : {1, 8, 128})
        for (bool longest_first : {false, true}) {
            Schedule s = triangle(device_target(), 4, longest_first, threads);
            SCOPED_TRACE(s.trace_as_cpp());
            Executable executable(build(s), device_);
            for (int64_t n : {0, 1, 8, 9, 32, 33, 40, 100, 31, 0, 57}) {
                Bindings launch;
                launch.sizes = {{"n", n}};
                launch.inputs = {{"x", host_array(f32, {n})}, {"w", host_array(f32, {n, n})}};
                for (auto& [name, array] : launch.inputs) fill_integers(array, -4, 4, static_cast<uint64_t>(n));
                for (int again = 0; again < 2; ++again) expect_declared(executable, s.outputs(), launch);
                executable.run();
                device_->synchronize();
            }
        }
}

TEST(TicketTexts, SayWhatBlocksDo) {
    const Target sm_90a = target("sm_90a");
    Product p(2, 200, 64, 4, 32);
    const Program with_roles = build(scheduled(p, {.persistent = {.blocks = 3, .dynamic = true}}, sm_90a));
    const std::string text = with_roles.cuda();
    auto contains = [&](const char* part) { EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text; };
    contains("for (int round = 0; next_ticket < 16; ++round)");
    contains("tw::take_ticket(&taken, c_tickets, 16, 3);");
    contains("shared.tickets[round_in_group] = taken;");
    contains("tw::mbarrier_arrive(shared.ticket_full[round_in_group]);");
    contains("next_ticket = shared.tickets[round_in_group];");
    EXPECT_NE(with_roles.explain().find("blocks take iterations as they come, by tickets from 'c_tickets'"),
              std::string::npos);
    EXPECT_NE(to_string(with_roles.tree()).find("(3 blocks, dynamic)"), std::string::npos);
    // A tile for each block: nothing is left to take.
    const Program each_its_own = build(scheduled(p, {.persistent = {.blocks = 16, .dynamic = true}}, sm_90a));
    EXPECT_EQ(each_its_own.cuda().find("take_ticket"), std::string::npos);
}

/// The program's kernel with another text, launched twice; what it then gives, or the text of what the emulator found.
std::string launched_twice(const Schedule& s, const std::string& part, const std::string& other,
                           const Bindings& bindings) {
    const Program program = build(s);
    const codegen::KernelText& kernel = program.kernels()[0];
    std::string text = kernel.cuda;
    const size_t at = text.rfind(part);
    EXPECT_NE(at, std::string::npos) << part << " is not in\n" << text;
    text.replace(at, part.size(), other);
    auto device = open_device("emulated");
    Kernel loaded = device->load({.source = text, .entry = kernel.name, .arch = "sm_90a"});
    Arguments arguments;
    for (const BufferRef& in : program.tree().inputs) {
        const HostArray& array = bindings.inputs.at(in->name);
        Buffer buffer = device->allocate(static_cast<int64_t>(array.bytes.size()), in->name);
        buffer.copy_from_host(array.bytes.data());
        arguments.buffers[in->name] = buffer;
    }
    HostArray result = interpret_plain(s.outputs(), bindings)[0];
    const HostArray expected = result;
    Buffer out = device->allocate(static_cast<int64_t>(result.bytes.size()), "out");
    arguments.buffers[program.tree().outputs[0]->name] = out;
    BoundArguments bound(program, arguments, *device);
    Launch launch = device->prepare(loaded, bound.shape_of(kernel), bound.parameters_of(kernel));
    try {
        for (int run = 0; run < 2; ++run) {
            out.fill(0xff);
            launch.run();
            device->synchronize();
        }
    } catch (const EmulatorReport& report) {
        return report.what();
    }
    out.copy_to_host(result.bytes.data());
    return difference("c", result, expected, bitwise).value_or("");
}

TEST(TicketMutations, AreFound) {
    const Target sm_90a = target("sm_90a");
    Product p(2, 200, 96, 1, 32);  // one block of terms: loads run ahead by as many tiles as there are stages
    const Bindings bindings = numbers_for(p, 1, 5);
    for (bool roles : {true, false}) {
        Options o{.stages = 4, .persistent = {.blocks = 2, .dynamic = true}, .roles = roles};
        if (!roles) o.how = Copy::Async;
        const Schedule s = scheduled(p, o, sm_90a);
        auto twice = [&](const char* part, const char* other) { return launched_twice(s, part, other, bindings); };
        EXPECT_EQ(twice("", ""), "");
        EXPECT_NE(twice("c_tickets, 24, 2)", "c_tickets, 1000, 2)"), "");  // the counter is not back at zero
        EXPECT_NE(twice("c_tickets, 24, 2)", "c_tickets, 24, 1)"), "");
        EXPECT_NE(twice("c_tickets, 24, 2)", "c_tickets, 24, 3)"), "");
        if (!roles) continue;
        EXPECT_NE(twice("tw::mbarrier_wait(shared.ticket_empty", "(void)(shared.ticket_empty"), "");
        EXPECT_NE(twice("tw::mbarrier_wait(shared.ticket_full", "(void)(shared.ticket_full"), "");
        EXPECT_NE(twice("tw::mbarrier_arrive(shared.ticket_empty", "(void)(shared.ticket_empty"), "");
        EXPECT_NE(twice("tw::mbarrier_arrive(shared.ticket_full", "(void)(shared.ticket_full"), "");
    }
}

TEST(TicketErrors, SayWhatToDo) {
    const Target sm_90a = target("sm_90a");
    auto attempt = [&](int cluster_blocks, int groups) {
        Tensor a = input("a", bf16, {512, 64}), b = input("b", bf16, {64, 64});
        Axis k = reduce_axis("k", 64);
        Tensor c =
            compute("c", {512, 64}, [&](Expr i, Expr j) { return sum(cast(f32, a(i, k)) * cast(f32, b(j, k)), k); });
        Schedule s({c}, sm_90a);
        auto [i, j] = s.loops<2>(c);
        auto [bi, mi] = s.split(i, 64);
        auto [bo, rank] = s.split(bi, cluster_blocks);
        auto [ko, ki] = s.split(s.reduce(c), 32);
        s.order({bo, rank, ko, mi, j, ki});
        s.persistent({bo}, {.blocks = 2, .dynamic = true});
        if (cluster_blocks > 1) s.bind(rank, cluster);
        Stage as = s.stage(c, a, Memory::Shared, ko), bs = s.stage(c, b, Memory::Shared, ko);
        s.mma(c, wgmma, {.m = mi, .n = j, .k = ki});
        s.pipeline(ko, {.stages = 2});
        s.roles({{"load", warps(1), {}, {as, bs}}, {"math", warpgroups(groups), {}, {c}, ping_pong(groups)}});
        build(s);
    };
    attempt(1, 1);
    EXPECT_ERROR(attempt(2, 1), "each block takes tickets of its own, but 2 blocks are a cluster");
    EXPECT_ERROR(attempt(1, 2), "role 'math' has 2 groups, each of which counts what the others do");
}

/// Numbers of tiles that a register of 32 bits does not hold.
TEST(TicketErrors, EndAtTheLargestTicket) {
    const Expr n = size("n", {.min = 1, .max = int64_t{1} << 40});
    Tensor x = input("x", i8, {n}), y = compute("y", {n}, [&](Expr i) { return x(i); });
    Schedule s({y}, target("sm_90a"));
    s.persistent(s.data_loops(y), {.blocks = 8, .dynamic = true});
    Executable executable(build(s), open_device("null:sm_90a"));
    Arguments arguments;
    arguments.sizes = {{"n", (int64_t{1} << 31) - 7}};
    EXPECT_ERROR(executable.bind(arguments), "has 2147483641 iterations, of which 8 blocks take 2147483640 at most");
    arguments.sizes = {{"n", (int64_t{1} << 31) - 8}};
    EXPECT_ERROR(executable.bind(arguments), "no buffer is given for 'x'");
}

}  // namespace
}  // namespace tw
