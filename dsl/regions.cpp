// Regions: which box of a stage's axes is needed, or computed, in one iteration of a loop.
#include <algorithm>

#include "dsl/schedule_state.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

int State::stage_of(const Operation* operation) const {
    for (size_t s = 0; s < stages.size(); ++s)
        if (stages[s].definition.operation.get() == operation && !stages[s].inlined) return static_cast<int>(s);
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

int State::kernel_of(int stage) const {
    while (stages[stage].attach >= 0) stage = loops[stages[stage].attach].stage;
    return stage;
}

bool State::is_result(int stage) const {
    const Operation* operation = stages[stage].definition.operation.get();
    return std::find(result.begin(), result.end(), operation) != result.end();
}

std::vector<ReadSite> reads_of(const StageDefinition& definition) {
    std::vector<ReadSite> sites;
    auto collect = [&](const std::vector<Expr>& exprs, bool in_update) {
        for (const Expr& expr : exprs)
            visit(expr, [&](const Expr& e) {
                if (const Read* read = e.as<Read>()) sites.push_back({read, in_update});
            });
    };
    collect(definition.update, true);
    collect(definition.finish, false);
    collect(definition.place, false);
    collect(definition.reduce_extents, false);
    return sites;
}

bool reads_stage(const StageDefinition& reader, const StageDefinition& producer) {
    for (const ReadSite& site : reads_of(reader))
        if (site.read->operation == producer.operation) return true;
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
                for (int updates : updaters_of(state, producer)) of_root.insert(root_of(updates));
            }
        if (int target = target_of(state, stage); target >= 0) of_root.insert(root_of(target));
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
        loop = owner.attach;
    }
    std::reverse(path.begin(), path.end());
    return path;
}

bool stands_below(const State& state, int stage, bool in_update, int loop) {
    int owner = state.loops[loop].stage;
    if (stage == owner) return in_update || state.position(loop) < state.first_reduce(owner);
    int attach = state.stages[stage].attach;
    if (attach < 0) return false;
    if (state.loops[attach].stage == owner) return state.position(attach) >= state.position(loop);
    return stands_below(state, state.loops[attach].stage, true, loop);
}

Expr loop_value(const State& state, int loop) {
    for (const Relation& relation : state.owner(loop).relations) {
        if (relation.kind == Relation::Kind::Split && relation.whole == loop)
            return loop_value(state, relation.outer) * relation.size + loop_value(state, relation.inner);
        if (relation.kind == Relation::Kind::Fuse && relation.outer == loop)
            return loop_value(state, relation.whole) / relation.size;
        if (relation.kind == Relation::Kind::Fuse && relation.inner == loop)
            return loop_value(state, relation.whole) % relation.size;
    }
    return state.loops[loop].variable;
}

namespace {

bool all_readers_below(const State& state, int stage, int loop) {
    const StageDefinition& definition = state.stages[stage].definition;
    for (size_t s = 0; s < state.stages.size(); ++s) {
        if (state.stages[s].inlined) continue;
        for (const ReadSite& site : reads_of(state.stages[s].definition))
            if (site.read->operation == definition.operation &&
                !stands_below(state, static_cast<int>(s), site.in_update, loop))
                return false;
    }
    return true;
}

/// The outermost of the stage's own loops under which readers stand; -1 if some stand under none.
int own_loop_of_readers(const State& state, int stage) {
    int found = -1;
    for (size_t s = 0; s < state.stages.size(); ++s) {
        const StageRecord& reader = state.stages[s];
        if (reader.inlined || !reads_stage(reader.definition, state.stages[stage].definition)) continue;
        int loop = reader.attach;
        while (loop >= 0 && state.loops[loop].stage != stage) loop = state.owner(loop).attach;
        if (loop < 0) return -1;
        if (found < 0 || state.position(loop) < state.position(found)) found = loop;
    }
    return found;
}

}  // namespace

int storage_loop(const State& state, int stage) {
    if (state.is_result(stage) || target_of(state, stage) >= 0) return -1;
    const StageRecord& record = state.stages[stage];
    if (record.attach >= 0 && !record.after) return record.attach;
    int own = own_loop_of_readers(state, stage);
    if (own >= 0) return own;
    bool below = record.attach >= 0 && all_readers_below(state, stage, record.attach);
    return below ? record.attach : -1;
}

namespace {

/// Thread loops between the storage loop and the leaf that accesses the stage's elements.
std::vector<int> threads_below(const State& state, int stage, int storage) {
    int attach = stage;
    std::vector<int> path;
    while (attach >= 0) {
        const StageRecord& record = state.stages[attach];
        path.insert(path.end(), record.order.begin(), record.order.end());
        if (state.loops[storage].stage == attach || record.attach < 0) break;
        attach = state.loops[record.attach].stage;
    }
    std::vector<int> above = enclosing_loops(state, storage);
    std::erase_if(path, [&](int l) {
        return !is_thread(state.loops[l].level) || std::find(above.begin(), above.end(), l) != above.end();
    });
    return path;
}

/// Threads that share the terms of a reduction, and nothing else, all have its result.
bool all_threads_have(const State& state, int stage, const std::vector<int>& threads) {
    return !threads.empty() && std::all_of(threads.begin(), threads.end(), [&](int l) {
        return state.loops[l].stage == stage && state.loops[l].reduces;
    });
}

}  // namespace

Memory resolved_memory(const State& state, int stage) {
    int storage = storage_loop(state, stage);
    if (storage < 0) return Memory::Global;
    const StageRecord& record = state.stages[stage];
    if (record.memory != Memory::Auto) return record.memory;
    std::vector<int> makers = threads_below(state, stage, storage);
    if (all_threads_have(state, stage, makers)) return Memory::Registers;
    if (!makers.empty()) return Memory::Shared;
    for (size_t s = 0; s < state.stages.size(); ++s)
        if (!state.stages[s].inlined && reads_stage(state.stages[s].definition, record.definition) &&
            !threads_below(state, static_cast<int>(s), storage).empty())
            return Memory::Shared;
    return Memory::Registers;
}

namespace {

std::vector<Expr> data_values(const State& state, int stage, const Region& region) {
    const StageRecord& record = state.stages[stage];
    std::vector<Expr> values;
    for (size_t d = 0; d < record.definition.axes.size(); ++d)
        values.push_back(region.lo[d] + loop_value(state, record.roots[d]));
    return values;
}

Region whole(const StageRecord& record) {
    Region region;
    for (const Expr& extent : record.definition.operation->shape) {
        region.lo.push_back(constant(Type::I64, int64_t{0}));
        region.extent.push_back(extent);
    }
    return region;
}

/// Whether the variable has a largest value that no named size decides: of one, what is needed may be much less.
bool is_bounded(const Variable& variable) {
    if (!variable.max || !variable.extent.defined()) return variable.max.has_value();
    std::vector<Expr> deciding = variables_of(variable.extent);
    return std::none_of(deciding.begin(), deciding.end(),
                        [](const Expr& v) { return v.as<Variable>()->kind == VariableKind::Size; });
}

/// Variables of `expr` that are not fixed, with their bounds.
BoundsOverride ranged_variables(const Expr& expr, const std::vector<Expr>& fixed) {
    BoundsOverride ranged;
    visit(expr, [&](const Expr& e) {
        const Variable* variable = e.as<Variable>();
        if (!variable || variable->kind != VariableKind::Index) return;
        for (const Expr& f : fixed)
            if (f.same(e)) return;
        ranged[e.id()] = is_bounded(*variable) ? Interval{0, variable->max} : Interval{};
    });
    return ranged;
}

/// Loops whose iteration a local copy belongs to; a shared copy serves all threads.
std::vector<Expr> fixed_variables(const State& state, int loop, Memory memory) {
    std::vector<Expr> fixed;
    for (int l : enclosing_loops(state, loop))
        if (memory == Memory::Registers || !is_thread(state.loops[l].level)) fixed.push_back(state.loops[l].variable);
    return fixed;
}

bool has_empty_loop(const BoundsOverride& ranged) {
    for (const auto& [variable, bounds] : ranged)
        if (bounds.max && *bounds.max < 0) return true;
    return false;
}

bool is_fixed(const Expr& expr, const std::vector<Expr>& fixed) { return ranged_variables(expr, fixed).empty(); }

/// The values of an index while the fixed variables stay. Of what depends on data, only what inputs tell stays too, at
/// indices that do not depend on data again.
std::optional<Span> span_of_index(const Expr& index, const std::vector<Expr>& fixed) {
    Substitution back;
    Expr known = transform(index, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        if (!read || !read->operation->is_input() || !is_fixed(e, fixed)) return {};
        auto in_it = [&](const auto& told) { return contains(e, told.first); };
        bool by_data = std::any_of(read->indices.begin(), read->indices.end(), reads_tensors) ||
                       std::any_of(back.begin(), back.end(), in_it);
        if (by_data) return {};
        for (const auto& [name, told] : back)
            if (equal(told, e)) return name;
        // Like a size: what data tell of an index is the caller's to keep in range.
        back.emplace_back(make_expr(e.type(), Variable{.name = "told", .kind = VariableKind::Size}), e);
        return back.back().first;
    });
    if (reads_tensors(known)) return {};
    auto span = span_of(known, ranged_variables(known, fixed));
    if (span) span->lo = substitute(span->lo, back);
    return span;
}

/// Adds a use of `index` of dimension d to the spans.
void widen(std::vector<std::optional<Span>>& spans, std::vector<bool>& whole, size_t d, const Expr& index,
           const std::vector<Expr>& fixed) {
    BoundsOverride ranged = ranged_variables(index, fixed);
    if (has_empty_loop(ranged) || whole[d]) return;
    auto span = span_of_index(index, fixed);
    if (span && spans[d]) span = unite(*spans[d], *span);
    if (!span) whole[d] = true;
    spans[d] = span;
}

/// Whether the stage's tiles stay whole where they are larger than the tensor: matrix instructions read them so, and
/// boxes of tensors leave so, unless all of them begin with the tensor.
bool keeps_whole_tiles(const State& state, int stage, const Span& span) {
    return std::any_of(state.stages.begin(), state.stages.end(), [&](const StageRecord& reader) {
        bool boxes = reader.after && reader.via.copy == Copy::Tma && !is_constant(span.lo, 0);
        return (reader.mma || boxes) && !reader.inlined &&
               reads_stage(reader.definition, state.stages[stage].definition);
    });
}

Region box_of(const State& state, int stage, const std::vector<std::optional<Span>>& spans,
              const std::vector<bool>& full, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    Region region = whole(record);
    for (size_t d = 0; d < spans.size(); ++d) {
        auto extent = as_constant(region.extent[d]);
        bool covers = spans[d] && extent && spans[d]->extent >= *extent;
        bool use_span = spans[d] && !full[d] && (!covers || keeps_whole_tiles(state, stage, *spans[d]));
        if (use_span) {
            region.lo[d] = simplify(spans[d]->lo);
            region.extent[d] = constant(Type::I64, spans[d]->extent);
        }
        user_check(use_span || extent, where,
                   "'{}' cannot stand here: its readers need all of dimension {}, whose extent {} is not constant; "
                   "place it under a loop that fixes this dimension",
                   record.definition.name, d, to_string(region.extent[d]));
    }
    return region;
}

Region needed_region(const State& state, int stage, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    size_t rank = record.definition.axes.size();
    std::vector<std::optional<Span>> spans(rank);
    std::vector<bool> full(rank);
    std::vector<Expr> fixed = fixed_variables(state, record.attach, resolved_memory(state, stage));
    for (size_t s = 0; s < state.stages.size(); ++s) {
        const StageRecord& reader = state.stages[s];
        if (reader.inlined || !reads_stage(reader.definition, record.definition)) continue;
        std::vector<Expr> values =
            data_values(state, static_cast<int>(s), region_of(state, static_cast<int>(s), where));
        Substitution axes;
        for (size_t d = 0; d < values.size(); ++d) axes.emplace_back(reader.definition.axes[d], values[d]);
        for (size_t r = 0; r < reader.definition.reduce_axes.size(); ++r)
            axes.emplace_back(reader.definition.reduce_axes[r], loop_value(state, reader.roots[values.size() + r]));
        for (const ReadSite& site : reads_of(reader.definition)) {
            if (site.read->operation != record.definition.operation) continue;
            for (size_t d = 0; d < rank; ++d)
                widen(spans, full, d, simplify(substitute(site.read->indices[d], axes)), fixed);
        }
    }
    return box_of(state, stage, spans, full, where);
}

}  // namespace

Region footprint_below(const State& state, int stage, int loop, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    size_t rank = record.definition.axes.size();
    std::vector<std::optional<Span>> spans(rank);
    std::vector<bool> full(rank);
    std::vector<Expr> values = data_values(state, stage, region_of(state, stage, where));
    std::vector<Expr> fixed = fixed_variables(state, loop, resolved_memory(state, stage));
    for (size_t d = 0; d < rank; ++d) widen(spans, full, d, simplify(values[d]), fixed);
    return box_of(state, stage, spans, full, where);
}

Region made_in_iteration(const State& state, int stage, int loop, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    std::vector<Expr> values = data_values(state, stage, region_of(state, stage, where));
    std::vector<Expr> fixed = fixed_variables(state, loop, Memory::Registers);
    Region region = whole(record);
    for (size_t d = 0; d < values.size(); ++d) {
        std::vector<std::optional<Span>> span(1);
        std::vector<bool> full(1);
        widen(span, full, 0, simplify(values[d]), fixed);
        if (!span[0] || full[0]) continue;
        auto extent = as_constant(region.extent[d]);
        if (is_constant(span[0]->lo, 0) && extent && span[0]->extent >= *extent) continue;
        region.lo[d] = simplify(span[0]->lo);
        region.extent[d] = constant(Type::I64, span[0]->extent);
    }
    return region;
}

Region region_of(const State& state, int stage, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    if (record.attach < 0) return whole(record);
    return record.after ? following_region(state, stage, where) : needed_region(state, stage, where);
}

}  // namespace tw
