// Reductions that share a loop: what each of its iterations does for those that do not own it.
#include <algorithm>

#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "dsl/tree_builder.h"
#include "support/error.h"

namespace tw {

namespace {

bool is_inside(const std::vector<Expr>& indices, const BufferNode& buffer) {
    for (size_t d = 0; d < indices.size(); ++d)
        if (prove(indices[d] < buffer.shape[d]) != true) return false;
    return true;
}

/// Whether all that the expression reads is there in every iteration: of masked ones, too.
bool reads_what_is_there(const Expr& expr) {
    bool is_there = true;
    visit(expr, [&](const Expr& e) {
        const Load* load = e.as<Load>();
        if (load)
            is_there = is_there && load->buffer->memory != Memory::Global && is_inside(load->indices, *load->buffer);
    });
    return is_there;
}

Expr replaced(const Expr& root, const Expr& part, const Expr& by) {
    return transform(root, [&](const Expr& e) { return e.type() == part.type() && equal(e, part) ? by : Expr(); });
}

}  // namespace

/// Whether somebody reads the stage's results once they are complete.
bool TreeBuilder::is_read_complete(int stage) const {
    if (state_.is_result(stage)) return true;
    for (int other : order_)
        if (shared_loop(state_, other) == record(stage).streams && is_corrected_at_last(other)) return true;
    for (int reader : order_)
        for (const ReadSite& site : reads_of(record(reader).definition))
            if (site.read->operation == record(stage).definition.operation &&
                !reads_running(state_, reader, site.in_update, stage))
                return true;
    return false;
}

/// What lives in one iteration of the shared loop.
BufferRef TreeBuilder::stream_buffer(int stage, const std::string& name, Type type, Memory memory,
                                     const std::vector<Expr>& shape) {
    auto buffer = std::make_shared<const BufferNode>(BufferNode{
        .name = name, .type = type, .memory = memory, .shape = shape, .strides = {}, .step = record(stage).step});
    stream_buffers_[shared_loop(state_, stage)].push_back(buffer);
    return buffer;
}

/// Its accumulators, in front of the shared loop.
Stmt TreeBuilder::begin_member(int stage) {
    const PrivateLoops loops = private_loops(stage, 0);
    make_accumulators(stage, loops.all);
    Prepared& p = prepared_.at(stage);
    if (is_read_running(state_, stage)) {
        const StageDefinition& definition = record(stage).definition;
        std::vector<Expr> shape;
        for (int loop : loops.all) shape.push_back(state_.loops[loop].extent);
        for (const BufferRef& accumulator : p.accumulators)
            p.parts.push_back(
                stream_buffer(stage, accumulator->name + "_part", accumulator->type, Memory::Registers, shape));
        p.running.loop = record(stage).attach;
        const Region region = footprint_below(state_, stage, p.running.loop, where_);
        for (const Expr& lo : region.lo) p.running.lo.push_back(inputs_loaded(lo));
        const Memory memory = memory_inside(state_, stage, p.running.loop);
        for (size_t o = 0; o < definition.finish.size(); ++o) {
            const std::string& name = p.storage.buffers[o]->name;
            const Type type = definition.operation->outputs[o].type;
            p.before.push_back(stream_buffer(stage, name + "_before", type, memory, region.extent));
            p.running.buffers.push_back(stream_buffer(stage, name + "_so_far", type, memory, region.extent));
        }
        if (keeps_reference(state_, stage)) make_reference(stage);
        if (record(stage).reference.kind == Reference::Kind::Lazy) {
            for (size_t o = 0; o < definition.finish.size(); ++o) {
                const std::string& name = p.storage.buffers[o]->name;
                const Type type = definition.operation->outputs[o].type;
                p.used.push_back(std::make_shared<const BufferNode>(BufferNode{.name = name + "_used",
                                                                               .type = type,
                                                                               .memory = Memory::Registers,
                                                                               .shape = shape,
                                                                               .strides = {},
                                                                               .step = step_of_stream(stage)}));
            }
            return sequence({inside(loops.all, init_leaf(stage)), inside(loops.all, used_leaf(stage, true))});
        }
    }
    return inside(loops.all, init_leaf(stage));
}

/// Where the last reference is kept behind the loop: as the stage's results are.
void TreeBuilder::make_reference(int stage) {
    Prepared& p = prepared_.at(stage);
    internal_check(p.storage.loop >= 0, "'{}' runs, but its results are no block's", record(stage).definition.name);
    p.reference = p.storage;
    for (size_t o = 0; o < p.storage.buffers.size(); ++o) {
        const BufferNode& as = *p.storage.buffers[o];
        p.reference.buffers[o] =
            std::make_shared<const BufferNode>(BufferNode{.name = as.name + "_reference",
                                                          .type = record(stage).definition.operation->outputs[o].type,
                                                          .memory = as.memory,
                                                          .shape = as.shape,
                                                          .strides = {},
                                                          .step = step_of_stream(stage)});
        stream_buffers_[p.storage.loop].push_back(p.reference.buffers[o]);
    }
}

/// Its results, behind the shared loop.
std::vector<Stmt> TreeBuilder::end_member(int stage) {
    const PrivateLoops loops = private_loops(stage, 0);
    std::vector<Stmt> stmts;
    if (keeps_reference(state_, stage))
        stmts.push_back(inside(loops.all, value_leaf(stage, loops.bound, ValueOf::Reference)));
    for (Stmt& correct : corrections(stage, loops, true)) stmts.push_back(std::move(correct));
    if (!is_read_running(state_, stage))  // else there are no parts left
        for (Stmt& combine : combines(stage, loops)) stmts.push_back(std::move(combine));
    if (is_read_complete(stage)) stmts.push_back(inside(loops.all, finish_leaf(stage, loops.bound)));
    return stmts;
}

/// One iteration's terms.
Stmt TreeBuilder::member_part(int stage) {
    const PrivateLoops loops = private_loops(stage, 0);
    Prepared& p = prepared_.at(stage);
    const bool runs = is_read_running(state_, stage);
    std::vector<Stmt> stmts;
    if (runs) stmts.push_back(inside(loops.all, value_leaf(stage, loops.bound, ValueOf::Before)));
    for (Stmt& correct : corrections(stage, loops, false)) stmts.push_back(std::move(correct));
    auto update = [&] { return nest(stage, 0, [&] { return update_leaf(stage); }); };
    if (!runs) {
        stmts.push_back(update());
        return sequence(std::move(stmts));
    }
    std::swap(p.accumulators, p.parts);
    stmts.push_back(inside(loops.all, init_leaf(stage)));
    stmts.push_back(update());
    for (Stmt& combine : combines(stage, loops)) stmts.push_back(std::move(combine));
    std::swap(p.accumulators, p.parts);
    stmts.push_back(inside(loops.all, join_leaf(stage)));
    if (!is_constant(value_mask(stage), 1)) stmts.push_back(inside(loops.all, cleared_leaf(stage)));
    if (!p.used.empty()) stmts.push_back(inside(loops.all, used_leaf(stage, false)));
    stmts.push_back(inside(loops.all, value_leaf(stage, loops.bound, ValueOf::SoFar)));
    return sequence(std::move(stmts));
}

/// Where values are kept while the reduction runs: everywhere, unless there is nothing to read or no place.
Expr TreeBuilder::value_mask(int stage) {
    const Prepared& p = prepared_.at(stage);
    std::vector<Expr> places;  // of which masked elements may have none, or another one's
    for (size_t d = 0; d < p.values.size(); ++d) places.push_back(p.values[d] - p.running.lo[d]);
    bool everywhere = is_inside(places, *p.running.buffers[0]);
    for (const Expr& finish : record(stage).definition.finish)
        everywhere = everywhere && reads_what_is_there(lower(stage, finish));
    return everywhere ? all_of({}) : p.data_mask;
}

/// The reference by now, of what the accumulators give.
Expr TreeBuilder::reference_now(int stage, size_t output) {
    const Prepared& p = prepared_.at(stage);
    const Reference& reference = record(stage).reference;
    if (!p.used.empty()) return make_expr(p.used[output]->type, Load{p.used[output], p.indices});
    const Expr now = lower(stage, record(stage).definition.finish[output]);
    return reference.kind == Reference::Kind::Offset ? plus_offset(now, reference.by) : now;
}

/// The lazy reference: what the accumulators give, if that is too far from what they gave before.
Stmt TreeBuilder::used_leaf(int stage, bool is_first) {
    const Prepared& p = prepared_.at(stage);
    Leaf used = leaf(stage, Leaf::Kind::Finish, value_mask(stage));
    used.purpose = is_first ? "first reference" : "reference";
    used.step = step_of_stream(stage);
    for (size_t o = 0; o < p.used.size(); ++o) {
        const Expr now = lower(stage, record(stage).definition.finish[o]), older = reference_now(stage, o);
        const Expr moved = select_unchecked(is_within(now, older, record(stage).reference.by), older, now);
        used.stores.push_back({p.used[o], p.indices, simplify(is_first ? now : moved)});
    }
    return make_stmt(std::move(used));
}

/// What the accumulators give now, or what terms read instead.
Stmt TreeBuilder::value_leaf(int stage, const std::vector<int>& bound, ValueOf which) {
    const Prepared& p = prepared_.at(stage);
    const bool neutral = which == ValueOf::SoFar, is_last = which == ValueOf::Reference;
    const std::vector<BufferRef>& buffers = neutral ? p.running.buffers : is_last ? p.reference.buffers : p.before;
    Leaf value = leaf(stage, Leaf::Kind::Finish, all_of({}));
    value.purpose = neutral ? "value so far" : is_last ? "last reference" : "value before";
    std::vector<Expr> conditions{is_last ? p.data_mask : value_mask(stage)};
    if (buffers[0]->memory != Memory::Registers)
        for (int loop : bound) conditions.push_back(state_.loops[loop].variable == 0);
    const std::vector<Expr> indices = place_in(is_last ? p.reference : p.running, p.values);
    for (size_t o = 0; o < buffers.size(); ++o) {
        Expr now = reference_now(stage, o);
        if (auto stands_for = neutral ? neutral_value(state_, stage, o, where_) : std::nullopt)
            now = stands_for->of(now);
        value.stores.push_back({buffers[o], indices, simplify(now)});
    }
    value.mask = simplify(all_of(conditions));
    return make_stmt(std::move(value));
}

/// Where elements are masked, terms that nobody reduces may read values all the same.
Stmt TreeBuilder::cleared_leaf(int stage) {
    const Prepared& p = prepared_.at(stage);
    Leaf cleared = leaf(stage, Leaf::Kind::Finish, all_of({}));
    cleared.purpose = "no value";
    const std::vector<Expr> indices = place_in(p.running, p.values);
    std::vector<Expr> conditions;
    for (size_t d = 0; d < indices.size(); ++d) conditions.push_back(indices[d] < p.running.buffers[0]->shape[d]);
    for (const BufferRef& buffer : p.running.buffers)
        cleared.stores.push_back(
            {buffer, indices, is_float(buffer->type) ? constant(buffer->type, 0.0) : constant(buffer->type, 0)});
    cleared.mask = simplify(all_of(conditions));
    return make_stmt(std::move(cleared));
}

/// What was reduced before, combined with this iteration's part.
Stmt TreeBuilder::join_leaf(int stage) {
    const Prepared& p = prepared_.at(stage);
    const ReducerNode& reducer = *record(stage).definition.reducer;
    Substitution operands;
    for (size_t c = 0; c < p.accumulators.size(); ++c) {
        const Type type = p.accumulators[c]->type;
        operands.emplace_back(reducer.left[c], make_expr(type, Load{p.accumulators[c], p.indices}));
        operands.emplace_back(reducer.right[c], make_expr(type, Load{p.parts[c], p.indices}));
    }
    Leaf join = leaf(stage, Leaf::Kind::Finish, all_of({}));
    join.purpose = "join";
    for (size_t c = 0; c < p.accumulators.size(); ++c)
        join.stores.push_back(
            {p.accumulators[c], p.indices, contract(simplify(substitute(reducer.combined[c], operands)))});
    return make_stmt(std::move(join));
}

int TreeBuilder::step_of_stream(int stage) const {
    return record(streamed_along(state_, shared_loop(state_, stage))[0]).step;
}

/// What stands for a value without an inverse does so while it runs: complete, it is what it is. Only where all terms
/// are 0 then, a sum stays 0, instead of the NaN of 0 * infinity.
bool TreeBuilder::is_corrected_at_last(int stage) const {
    if (shared_loop(state_, stage) < 0) return false;
    if (is_relative(state_, stage)) return true;
    const StreamLink link = stream_link(state_, stage, where_);
    return !link.raw_before && std::ranges::any_of(link.values, [&](const RunningValue& value) {
        const Read& read = *value.now.as<Read>();
        return neutral_value(state_, state_.stage_of(read.operation.get()), read.output, where_).has_value();
    });
}

/// What terms have read of the value in the last iteration.
Expr TreeBuilder::last_reference(int stage, const RunningValue& value) {
    const int producer = state_.stage_of(value.now.as<Read>()->operation.get());
    const Reference& reference = record(producer).reference;
    if (reference.kind == Reference::Kind::Constant) return constant(value.now.type(), reference.by);
    Prepared& source = prepared_.at(producer);
    const bool is_kept = keeps_reference(state_, producer);
    if (is_kept) std::swap(source.storage, source.reference);
    const Expr last = lower(stage, value.now);
    if (is_kept) std::swap(source.storage, source.reference);
    return !is_kept && reference.kind == Reference::Kind::Offset ? plus_offset(last, reference.by) : last;
}

/// In an iteration, or behind the loop, where all become the true ones.
TreeBuilder::ChangedValues TreeBuilder::changed_values(int stage, const StreamLink& link, bool at_last) {
    const Prepared& p = prepared_.at(stage);
    ChangedValues changed{.before = {}, .now = {}, .mask = at_last ? p.data_mask : all_of({}), .moves = all_of({})};
    bool is_lazy = !at_last;
    Expr moves = Expr(false);
    for (const RunningValue& value : link.values) {
        const Read& read = *value.now.as<Read>();
        const int producer = state_.stage_of(read.operation.get());
        const Prepared& source = prepared_.at(producer);
        const Reference::Kind kind = record(producer).reference.kind;
        const bool is_constant_reference = kind == Reference::Kind::Constant;
        auto neutral = neutral_value(state_, producer, read.output, where_);
        const Expr now = lower(stage, value.now, !at_last);
        Expr older = at_last ? last_reference(stage, value) : now;
        if (!at_last)
            older = transform(older, [&](const Expr& e) -> Expr {
                const Load* load = e.as<Load>();
                if (!load || is_constant_reference || load->buffer != source.running.buffers[read.output]) return {};
                return make_expr(e.type(), Load{source.before[read.output], load->indices});
            });
        if (neutral && !is_constant_reference && !link.raw_before) older = neutral->of(older);
        changed.before.emplace_back(value.before, older);
        if (at_last && neutral && link.raw_before) {  // of no terms at all, a sum stays 0
            const Expr is_empty = substitute(neutral->replaced, {{neutral->variable, now}});
            const Expr finite = is_constant_reference ? older : neutral->neutral;
            changed.now.emplace_back(value.now, select_unchecked(is_empty, finite, now));
        }
        if (!reads_what_is_there(older)) changed.mask = p.data_mask;
        if (!at_last && !is_constant_reference && !is_constant(value_mask(producer), 1)) changed.mask = p.data_mask;
        is_lazy = is_lazy && (kind == Reference::Kind::Lazy || is_constant_reference);
        if (is_lazy && !is_constant_reference) moves = moves || differ(older, now);
    }
    for (const Correction& correction : link.corrections)
        if (correction.by.defined() &&
            !reads_what_is_there(lower(stage, substitute(correction.by, changed.before), !at_last)))
            changed.mask = p.data_mask;
    if (is_lazy) changed.moves = moves;
    return changed;
}

/// Corrects what was reduced with older values: in each iteration, or behind the loop. The factors are computed once
/// for all elements that have them in common.
std::vector<Stmt> TreeBuilder::corrections(int stage, const PrivateLoops& loops, bool at_last) {
    if (shared_loop(state_, stage) < 0 || (at_last && !is_corrected_at_last(stage))) return {};
    const StreamLink link = stream_link(state_, stage, where_);
    if (link.values.empty() || (!at_last && is_free_of_corrections(state_, link))) return {};
    const Prepared& p = prepared_.at(stage);
    const auto& [before, values_now, mask, moves] = changed_values(stage, link, at_last);
    std::vector<Stmt> stmts;
    Leaf corrected = leaf(stage, Leaf::Kind::Finish, simplify(all_of({mask, moves})));
    corrected.purpose = "correct";
    corrected.step = step_of_stream(stage);
    for (size_t c = 0; c < link.corrections.size(); ++c) {
        const Correction& correction = link.corrections[c];
        if (correction.kind == Correction::Kind::None) continue;
        const BufferRef& accumulator = p.accumulators[c];
        Expr by = correction.by;
        for (const auto& [read, now] : values_now) by = replaced(by, read, now);
        by = simplify(cast_unchecked(accumulator->type, lower(stage, substitute(by, before), !at_last)));
        if (!at_last || is_relative(state_, stage)) by = common_factor(stage, c, by, loops, mask, at_last, stmts);
        Expr old = make_expr(accumulator->type, Load{accumulator, p.indices});
        Expr now = correction.kind == Correction::Kind::Scale ? old * by : old + by;
        if (link.keeps_identity) now = select_unchecked(old == record(stage).definition.reducer->identity[c], old, now);
        corrected.stores.push_back({accumulator, p.indices, simplify(now)});
    }
    if (!corrected.stores.empty()) stmts.push_back(inside(loops.all, make_stmt(std::move(corrected))));
    return stmts;
}

/// The factor, in a buffer of its own if it is the same along some of the loops.
Expr TreeBuilder::common_factor(int stage, size_t accumulator, const Expr& by, const PrivateLoops& loops,
                                const Expr& mask, bool at_last, std::vector<Stmt>& stmts) {
    std::vector<int> needed;
    std::vector<Expr> shape, indices;
    for (int loop : loops.all) {
        const bool is_bound = std::ranges::find(loops.bound, loop) != loops.bound.end();
        if (!is_bound && !contains(by, state_.loops[loop].variable) && !contains(mask, state_.loops[loop].variable))
            continue;
        needed.push_back(loop);
        shape.push_back(state_.loops[loop].extent);
        indices.push_back(state_.loops[loop].variable);
    }
    auto is_single = [&](int loop) { return is_constant(state_.loops[loop].extent, 1); };
    const bool saves = std::ranges::any_of(
        loops.all, [&](int loop) { return !is_single(loop) && std::ranges::find(needed, loop) == needed.end(); });
    if (!saves) return by;
    const BufferRef& of = prepared_.at(stage).accumulators[accumulator];
    BufferRef buffer;
    if (at_last) {
        buffer = std::make_shared<const BufferNode>(BufferNode{.name = of->name + "_last_factor",
                                                               .type = of->type,
                                                               .memory = Memory::Registers,
                                                               .shape = shape,
                                                               .strides = {},
                                                               .step = step_of_stream(stage)});
        prepared_.at(stage).last_factors.push_back(buffer);
    } else {
        buffer = stream_buffer(stage, of->name + "_factor", of->type, Memory::Registers, shape);
    }
    Leaf factor = leaf(stage, Leaf::Kind::Finish, mask);
    factor.purpose = "factor";
    factor.step = step_of_stream(stage);
    factor.stores.push_back({buffer, indices, by});
    stmts.push_back(inside(needed, make_stmt(std::move(factor))));
    return make_expr(of->type, Load{buffer, indices});
}

}  // namespace tw
