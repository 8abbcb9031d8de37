// The graph of a schedule's stages: who reads whom, in which order and kernel they stand.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>

#include "dsl/running.h"
#include "dsl/schedule_state.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

int State::stage_of(const Operation* operation) const {
    for (size_t s = 0; s < stages.size(); ++s) {
        const StageDefinition& definition = stages[s].definition;
        const bool computes = definition.operation.get() == operation || definition.declared.get() == operation;
        if (computes && !stages[s].inlined) return static_cast<int>(s);
    }
    return -1;
}

int State::position(int loop) const {
    const auto& order = stages[loops[loop].stage].order;
    return static_cast<int>(std::find(order.begin(), order.end(), loop) - order.begin());
}

int State::first_reduce(int stage) const {
    const auto& order = stages[stage].order;
    auto reduces = [&](int loop) { return loops[loop].reduces; };
    return static_cast<int>(std::find_if(order.begin(), order.end(), reduces) - order.begin());
}

int State::around_results(int stage) const {
    const int first = first_reduce(stage);
    if (!stages[stage].scan) return first;
    const auto& order = stages[stage].order;
    int behind = first;
    for (size_t p = first; p < order.size(); ++p) {
        const LoopRecord& loop = loops[order[p]];
        if (!loop.reduces) continue;
        if (is_thread(loop.level) && !is_constant(loop.extent, 1)) return static_cast<int>(p);
        behind = static_cast<int>(p) + 1;
    }
    return behind;
}

int State::kernel_of(int stage) const {
    while (stages[stage].attach >= 0) stage = loops[stages[stage].attach].stage;
    return stage;
}

bool State::is_result(int stage) const {
    const Operation* operation = stages[stage].definition.operation.get();
    return std::find(result.begin(), result.end(), operation) != result.end();
}

namespace {

/// What expressions read. Steps ask it of the same ones again and again: those of this thread's last ones are kept.
class KnownReads {
public:
    using Found = std::shared_ptr<const std::vector<const Read*>>;
    Found of(const Expr& expr) {
        const auto known = known_.find(expr.id());
        if (known != known_.end()) return known->second.reads;
        std::vector<const Read*> reads;
        visit(expr, [&](const Expr& e) {
            if (const Read* read = e.as<Read>()) reads.push_back(read);
        });
        constexpr size_t most = 512;
        if (known_.size() == most) known_.clear();
        return (known_[expr.id()] = {expr, std::make_shared<const std::vector<const Read*>>(std::move(reads))}).reads;
    }

private:
    struct Entry {
        Expr expr;  // which lives as long as its place in memory is known by it
        Found reads;
    };
    std::unordered_map<const ExprNode*, Entry> known_;
};

/// Where the stage reads, each once for each of its expressions.
void visit_reads(const StageDefinition& definition, const std::function<void(const Read& read, bool in_update)>& see) {
    const auto visit_in = [&](const Expr& expr, bool in_update) {
        thread_local KnownReads known;
        const KnownReads::Found reads = known.of(expr);
        for (const Read* read : *reads) see(*read, in_update);
    };
    for (const Expr& expr : definition.update) visit_in(expr, true);
    for (const Expr& expr : definition.finish) visit_in(expr, false);
    for (const Expr& expr : definition.place) visit_in(expr, false);
    for (const Expr& extent : definition.reduce_extents) {
        if (as_constant(extent)) continue;
        const bool is_of_a_term =
            std::ranges::any_of(definition.reduce_axes, [&](const Expr& axis) { return contains(extent, axis); });
        visit_in(extent, is_of_a_term);
    }
}

}  // namespace

std::vector<ReadSite> reads_of(const StageDefinition& definition) {
    std::vector<ReadSite> sites;
    visit_reads(definition, [&](const Read& read, bool in_update) { sites.push_back({&read, in_update}); });
    return sites;
}

bool reads_stage(const StageDefinition& reader, const StageDefinition& producer) {
    bool reads = false;
    visit_reads(reader, [&](const Read& read, bool) { reads = reads || read.operation == producer.operation; });
    return reads;
}

bool depends_on(const State& state, int reader, int producer) {
    for (const ReadSite& site : reads_of(state.stages[reader].definition)) {
        int next = state.stage_of(site.read->operation.get());
        if (next == producer || (next >= 0 && depends_on(state, next, producer))) return true;
    }
    return false;
}

bool reads_tensors(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& e) { found = found || e.as<Read>(); });
    return found;
}

bool depends_on_element(const Expr& extent) { return reads_tensors(extent) || mentions_index(extent); }

int target_of(const State& state, int stage) {
    const auto& target = state.stages[stage].definition.target;
    return target ? state.stage_of(target.get()) : -1;
}

std::vector<int> updaters_of(const State& state, int stage) {
    std::vector<int> found;
    for (size_t s = 0; s < state.stages.size(); ++s)
        if (target_of(state, static_cast<int>(s)) == stage) found.push_back(static_cast<int>(s));
    return found;
}

std::vector<int> topological_order(const State& state) {
    std::vector<int> order;
    std::vector<bool> done(state.stages.size());
    std::function<void(int)> add = [&](int stage) {
        if (done[stage]) return;
        done[stage] = true;
        for (const ReadSite& site : reads_of(state.stages[stage].definition))
            if (int producer = state.stage_of(site.read->operation.get()); producer >= 0) {
                add(producer);
                for (int updates : updaters_of(state, producer)) add(updates);
            }
        if (int target = target_of(state, stage); target >= 0) add(target);
        order.push_back(stage);
    };
    for (size_t s = 0; s < state.stages.size(); ++s)
        if (!state.stages[s].inlined) add(static_cast<int>(s));
    return order;
}

std::vector<int> kernel_order(const State& state, std::source_location where) {
    auto root_of = [&](int stage) {
        while (state.stages[stage].attach >= 0) stage = state.loops[state.stages[stage].attach].stage;
        return stage;
    };
    std::map<int, std::set<int>> needs;  // kernel -> kernels whose results it reads
    for (int stage : topological_order(state)) {
        std::set<int>& of_root = needs[root_of(stage)];
        for (const ReadSite& site : reads_of(state.stages[stage].definition))
            if (int producer = state.stage_of(site.read->operation.get()); producer >= 0) {
                if (root_of(producer) != root_of(stage)) of_root.insert(root_of(producer));
                for (int updates : updaters_of(state, producer))
                    if (root_of(updates) != root_of(stage)) of_root.insert(root_of(updates));
            }
        if (int target = target_of(state, stage); target >= 0 && root_of(target) != root_of(stage))
            of_root.insert(root_of(target));
    }
    std::vector<int> order;
    std::set<int> done;
    while (order.size() < needs.size()) {
        size_t before = order.size();
        for (const auto& [kernel, producers] : needs)
            if (!done.count(kernel) && std::includes(done.begin(), done.end(), producers.begin(), producers.end())) {
                order.push_back(kernel);
                done.insert(kernel);
            }
        user_check(order.size() > before, where,
                   "these kernels would need each other's results; place the stages between them in one kernel too");
    }
    return order;
}

std::vector<int> enclosing_loops(const State& state, int loop) {
    std::vector<int> path;
    while (loop >= 0) {
        const StageRecord& owner = state.owner(loop);
        for (int p = state.position(loop); p >= 0; --p) path.push_back(owner.order[p]);
        loop = owner.streams >= 0 ? owner.streams : owner.attach;
    }
    std::reverse(path.begin(), path.end());
    return path;
}

bool stands_below(const State& state, int stage, bool in_update, int loop) {
    int owner = state.loops[loop].stage;
    if (stage == owner) return in_update || state.position(loop) < state.around_results(owner);
    const StageRecord& record = state.stages[stage];
    int attach = in_update && record.streams >= 0 ? record.streams : record.attach;
    if (attach < 0) return false;
    if (state.loops[attach].stage == owner) return state.position(attach) >= state.position(loop);
    return stands_below(state, state.loops[attach].stage, true, loop);
}

namespace {

/// The value of an expression over variables of the stage's root loops.
Expr over_loops(const State& state, const Expr& expr, const StageRecord& stage) {
    Substitution values;
    for (int root : stage.roots)
        if (contains(expr, state.loops[root].variable))
            values.emplace_back(state.loops[root].variable, loop_value(state, root));
    return substitute(expr, values);
}

}  // namespace

Expr over_values(const State& state, const Expr& expr, const std::vector<int>& roots,
                 const std::map<int, Expr>& values) {
    Substitution known;
    for (int root : roots) {
        if (!contains(expr, state.loops[root].variable)) continue;
        const auto value = values.find(root);
        if (value == values.end()) return {};
        known.emplace_back(state.loops[root].variable, value->second);
    }
    return substitute(expr, known);
}

std::vector<Expr> conditions_of(const State& state, const Relation& relation, const Expr& extent) {
    const Expr value = loop_value(state, relation.whole);
    if (relation.kind == Relation::Kind::Align) return {value >= 0, value < extent};
    for (const Relation& other : state.owner(relation.whole).relations)  // whose conditions are the narrower ones
        if (other.kind == Relation::Kind::Align && other.inner == relation.whole && other.masked) return {};
    return {value < extent};
}

Expr loop_value_over(const State& state, int loop, int known) {
    auto value = [&](int other) { return loop_value_over(state, other, known); };
    if (loop == known) return state.loops[loop].variable;
    for (const Relation& relation : state.owner(loop).relations) {
        if (relation.kind == Relation::Kind::Mirror && relation.whole == loop)
            return relation.size - 1 - value(relation.inner);
        if (relation.kind == Relation::Kind::Align && relation.whole == loop)
            return value(relation.inner) - over_loops(state, relation.size, state.owner(loop));
        if (relation.kind == Relation::Kind::Split && relation.whole == loop)
            return value(relation.outer) * relation.size + value(relation.inner);
        if (relation.kind == Relation::Kind::Fuse && relation.outer == loop)
            return value(relation.whole) / relation.size;
        if (relation.kind == Relation::Kind::Fuse && relation.inner == loop)
            return value(relation.whole) % relation.size;
    }
    return state.loops[loop].variable;
}

Expr loop_value(const State& state, int loop) { return loop_value_over(state, loop, -1); }

}  // namespace tw
