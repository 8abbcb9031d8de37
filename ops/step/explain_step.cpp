#include "ops/step/explain_step.h"

#include <algorithm>
#include <map>

#include "codegen/cost/predict_time.h"
#include "ops/nest_costs.h"
#include "ops/step/kept_memory.h"
#include "schedules/calibrated_speeds.h"
#include "support/error.h"

namespace tw {
namespace {

/// The matrix instruction that a part of a kernel is left to; nullptr if it has none.
const Atom* atom_in(const Stmt& stmt) {
    if (const For* loop = stmt.as<For>()) return atom_in(loop->body);
    if (const Allocate* allocate = stmt.as<Allocate>()) return atom_in(allocate->body);
    if (const Leaf* leaf = stmt.as<Leaf>()) return leaf->atom;
    for (const Stmt& kid : stmt.as<Sequence>()->stmts)
        if (const Atom* atom = atom_in(kid)) return atom;
    return nullptr;
}

/// The parts that kernels have in a program's FLOPs, by their names.
std::map<std::string, double> flop_shares(const Tree& tree) {
    std::map<std::string, double> shares;
    double sum = 0;
    for (const LoopCost& each : nest_costs(tree))
        if (each.depth == 0) sum += shares[each.name] = each.cost.flops;
    for (auto& [name, share] : shares) share = sum > 0 ? share / sum : 1 / static_cast<double>(shares.size());
    return shares;
}

/// The least that FLOPs of a kernel take.
double seconds_of(const DeclaredFlops& flops, const Atom* atom, const Target& target,
                  const codegen::DeviceSpeeds& speeds) {
    const double cycles = target.multiprocessors * speeds.clock;
    if (atom) return flops.all / (2 * codegen::tensor_core_macs * 2 / bytes_of(atom->operand) * cycles);
    const double a_cycle = 2.0 * target.warp_size;  // a multiply-add of each lane
    return ((flops.all - flops.f64) / speeds.instructions + flops.f64 / speeds.doubles) / (a_cycle * cycles);
}

/// Of the kernels of one program, of which each group that has it has these.
std::vector<KernelCost> costs_of(const StepGroup& group) {
    const Program& program = group.selection->program;
    const Target& target = program.target();
    const codegen::DeviceSpeeds& speeds = schedules::calibrated_speeds(target);
    const std::map<std::string, double> shares = flop_shares(program.tree());
    const DeclaredFlops flops = declared_flops(group.declared.outputs);
    std::map<std::string, const Atom*> atoms;
    for (const Nest& nest : program.tree().nests) atoms[nest.name] = atom_in(nest.body);
    std::vector<KernelCost> costs;
    for (const codegen::KernelPrediction& kernel : codegen::predict_time(program.tree(), target, speeds).kernels) {
        const double share = shares.at(kernel.name);
        const DeclaredFlops own{share * flops.all, share * flops.f64};
        costs.push_back({.name = kernel.name,
                         .why = group.selection->why,
                         .bytes = kernel.work.memory_bytes,
                         .flops = own.all,
                         .seconds = kernel.seconds,
                         .memory_seconds = kernel.work.memory_bytes / speeds.memory_bytes,
                         .compute_seconds = seconds_of(own, atoms.at(kernel.name), target, speeds),
                         .bound = kernel.bound});
    }
    return costs;
}

/// Seconds of each launch, of one run of all.
std::vector<double> time_each(Device& device, const std::vector<Launch>& launches) {
    const Stream stream = device.default_stream();
    std::vector<Event> events;
    for (size_t k = 0; k <= launches.size(); ++k) events.push_back(device.create_event());
    events[0].record(stream);
    for (size_t k = 0; k < launches.size(); ++k) {
        launches[k].run(stream);
        events[k + 1].record(stream);
    }
    events.back().synchronize();
    std::vector<double> seconds;
    for (size_t k = 0; k < launches.size(); ++k) seconds.push_back(events[k + 1].seconds_since(events[k]));
    return seconds;
}

double time_replay(Device& device, const PlannedStep& step) {
    const Event begin = device.create_event(), end = device.create_event();
    begin.record(device.default_stream());
    step.run();
    end.record(device.default_stream());
    end.synchronize();
    return end.seconds_since(begin);
}

double median(std::vector<double> samples) {
    std::ranges::sort(samples);
    return samples[samples.size() / 2];
}

Device& device_of(const PlannedStep& step) {
    return *step.buffer(step.plan().values[static_cast<size_t>(step.plan().results[0])].name).device();
}

OperationKind first_kind(const std::map<OperationKind, int>& counts) {
    return counts.empty() ? OperationKind::View : counts.begin()->first;
}

std::map<OperationKind, int> kinds_of(const StepGroup& group) {
    if (group.selection->origin == Provenance::Own) return {{OperationKind::OwnSchedule, 1}};
    std::map<OperationKind, int> counts;
    for (const auto& operation : operations_of(group.declared.outputs))
        if (!operation->is_input()) ++counts[kind_of(*operation)];
    return counts;
}

}  // namespace

std::vector<KernelCost> kernel_costs(const StepPlan& plan) {
    std::map<const Selection*, std::vector<KernelCost>> known;
    std::vector<KernelCost> costs;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
        const auto [found, is_new] = known.try_emplace(plan.groups[g].selection.get());
        if (is_new) found->second = costs_of(plan.groups[g]);
        for (KernelCost cost : found->second) {
            cost.group = g;
            cost.operations = plan.groups[g].operations;
            cost.scopes = plan.groups[g].scopes;
            if (const auto& memory = plan.groups[g].memory) {
                cost.name += memory->is_copy ? " (copy node)" : " (fill node)";
                cost.why = "a node of the graph that needs no kernel, as memory_nodes asks";
            }
            costs.push_back(std::move(cost));
        }
    }
    return costs;
}

std::vector<KernelCost> measured_costs(const PlannedStep& step, int runs, std::source_location where) {
    user_check(runs >= 1, where, "measured_costs: {} runs; it takes at least one", runs);
    std::vector<KernelCost> costs = kernel_costs(step.plan());
    const std::vector<Launch>& launches = step.launches();
    internal_check(costs.size() == launches.size(), "a step has another number of launches than kernels");
    if (launches.empty()) return costs;
    const KeptMemory kept(step);
    std::vector<std::vector<double>> samples(launches.size());
    for (int run = 0; run <= runs; ++run) {  // the first one warms up
        const std::vector<double> seconds = time_each(device_of(step), launches);
        for (size_t k = 0; run > 0 && k < seconds.size(); ++k) samples[k].push_back(seconds[k]);
        kept.put_back();
    }
    for (size_t k = 0; k < costs.size(); ++k) costs[k].measured = median(samples[k]);
    return costs;
}

double measured_replay(const PlannedStep& step, int runs, std::source_location where) {
    user_check(runs >= 1, where, "measured_replay: {} runs; it takes at least one", runs);
    const KeptMemory kept(step);
    std::vector<double> samples;
    for (int run = 0; run <= runs; ++run) {
        const double seconds = time_replay(device_of(step), step);
        if (run > 0) samples.push_back(seconds);
        kept.put_back();
    }
    return median(samples);
}

std::vector<KindCost> costs_by_kind(const StepPlan& plan, const std::vector<KernelCost>& costs) {
    std::map<OperationKind, KindCost> kinds;
    std::vector<OperationKind> of_group;
    for (const StepGroup& group : plan.groups) {
        const std::map<OperationKind, int> counts = kinds_of(group);
        for (const auto& [kind, count] : counts) kinds[kind].operations += count;
        of_group.push_back(first_kind(counts));
        ++kinds[of_group.back()].groups;
    }
    for (const KernelCost& cost : costs) {
        KindCost& kind = kinds[of_group.at(cost.group)];
        kind.seconds += cost.seconds;
        kind.measured += cost.measured;
    }
    std::vector<KindCost> result;
    for (auto& [kind, cost] : kinds) {
        cost.kind = kind;
        result.push_back(cost);
    }
    return result;
}

}  // namespace tw
