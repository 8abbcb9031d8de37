// What stands in the loops: initial values, terms, results, in loop variables and memory.
#include <algorithm>

#include "dsl/mma.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "dsl/tree_builder.h"
#include "support/error.h"

namespace tw {

Leaf TreeBuilder::leaf(int stage, Leaf::Kind kind, Expr mask) const {
    const StageRecord& r = record(stage);
    int step = r.mma && kind == Leaf::Kind::Update ? r.mma->step : r.step;
    return {kind, stage, r.definition.name, step, {}, std::move(mask)};
}

Stmt TreeBuilder::init_leaf(int stage) {
    Leaf init = leaf(stage, Leaf::Kind::Init, all_of({}));
    const Prepared& p = prepared_.at(stage);
    const auto& identity = record(stage).definition.reducer->identity;
    for (size_t c = 0; c < identity.size(); ++c) init.stores.push_back({p.accumulators[c], p.indices, identity[c]});
    return make_stmt(std::move(init));
}

Stmt TreeBuilder::update_leaf(int stage) {
    const Prepared& p = prepared_.at(stage);
    Leaf update = leaf(stage, Leaf::Kind::Update, p.full_mask);
    update.readers_mask = p.data_mask;
    update.reducer = record(stage).definition.reducer;
    if (record(stage).mma) update.atom = &matching_atom(state_, stage, where_);
    const auto& values = record(stage).definition.update;
    for (size_t c = 0; c < values.size(); ++c)
        update.stores.push_back({p.accumulators[c], p.indices, lower(stage, values[c], true)});
    return make_stmt(std::move(update));
}

Stmt TreeBuilder::combine_leaf(int stage, int loop) {
    const Prepared& p = prepared_.at(stage);
    const ReducerNode& reducer = *record(stage).definition.reducer;
    Leaf combine = leaf(stage, Leaf::Kind::Combine, all_of({}));
    combine.across = {state_.loops[loop].variable, require_constant(state_.loops[loop].extent), reducer.left,
                      reducer.right};
    for (size_t c = 0; c < reducer.combined.size(); ++c)
        combine.stores.push_back({p.accumulators[c], p.indices, contract(simplify(reducer.combined[c]))});
    return make_stmt(std::move(combine));
}

/// All iterations of the bound reduce loops have the result: each keeps it in its registers, the first writes
/// memory. `results` stand for accumulators that are not what the reduction has gathered.
Stmt TreeBuilder::finish_leaf(int stage, const std::vector<int>& bound, const Substitution& results) {
    const StageRecord& r = record(stage);
    const Prepared& p = prepared_.at(stage);
    std::vector<Expr> conditions{p.data_mask};
    if (p.storage.buffers[0]->memory != Memory::Registers)
        for (int loop : bound) conditions.push_back(state_.loops[loop].variable == 0);
    if (r.definition.target) return update_target(stage, conditions, results);
    Leaf finish = finishing_leaf(stage, conditions);
    std::vector<Expr> indices = place_in(p.storage, p.values);
    for (size_t o = 0; o < r.definition.finish.size(); ++o)
        finish.stores.push_back({p.storage.buffers[o], indices,
                                 simplify(cast_unchecked(p.storage.buffers[o]->type,
                                                         lower(stage, substitute(r.definition.finish[o], results))))});
    return make_stmt(std::move(finish));
}

Leaf TreeBuilder::finishing_leaf(int stage, const std::vector<Expr>& conditions) {
    const StageRecord& r = record(stage);
    Leaf finish = leaf(stage, r.is_copy ? Leaf::Kind::Copy : Leaf::Kind::Finish, simplify(all_of(conditions)));
    finish.via = r.via;
    return finish;
}

Stmt TreeBuilder::update_target(int stage, std::vector<Expr> conditions, const Substitution& results) {
    const StageDefinition& definition = record(stage).definition;
    const Storage& storage = prepared_.at(stage).storage;
    auto value = [&](const Expr& expr) { return lower(stage, substitute(expr, results)); };
    std::vector<Expr> place;
    for (const Expr& index : definition.place) place.push_back(value(index));
    conditions.push_back(place.back());
    place.pop_back();
    const Region& made = prepared_.at(target_of(state_, stage)).region;
    for (size_t d = 0; d < place.size() && storage.loop >= 0; ++d) {  // of what is filled here: memory may have more
        const Expr lo = inputs_loaded(made.lo[d]), inside = place[d] - lo, &extent = made.extent[d];
        if (is_constant(lo, 0) && equal(extent, definition.target->shape[d])) continue;
        for (const Expr& condition : {simplify(inside >= 0), simplify(inside < extent)})
            if (prove(condition) != true) conditions.push_back(condition);
    }
    StoreTo update{storage.buffers[0], place_in(storage, place), value(definition.finish[0]), definition.combine};
    Leaf finish = finishing_leaf(stage, conditions);
    finish.stores.push_back(std::move(update));
    return make_stmt(std::move(finish));
}

/// Axes to loop variables, accumulators and reads to loads.
Expr TreeBuilder::lower(int stage, const Expr& expr, bool in_update) {
    const StageRecord& r = record(stage);
    const Prepared& p = prepared_.at(stage);
    Substitution replacements = p.axes;
    for (size_t c = 0; c < p.accumulators.size(); ++c)
        replacements.emplace_back(r.definition.accumulators[c],
                                  make_expr(p.accumulators[c]->type, Load{p.accumulators[c], p.indices}));
    const Expr own = p.axes_below_ends.empty() ? expr : transform(expr, [&](const Expr& e) -> Expr {
        const Binary* operation = e.as<Binary>();
        const bool divides = operation && (operation->op == BinaryOp::Div || operation->op == BinaryOp::Mod);
        if (!divides || is_float(e.type()) || reads_tensors(e)) return {};
        return substitute(simplify(substitute(e, p.axes_below_ends)), p.loops_below_ends);
    });
    Expr loaded = transform(substitute(own, replacements), [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        return read ? load(stage, in_update, e.type(), *read) : Expr();
    });
    return simplify(loaded);
}

/// A region may start where an input tells.
Expr TreeBuilder::inputs_loaded(const Expr& expr) {
    return transform(expr, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        return read ? make_expr(e.type(), Load{input_buffer(read->operation), simplified(read->indices)}) : Expr();
    });
}

Expr TreeBuilder::load(int stage, bool in_update, Type type, const Read& read) {
    int producer = state_.stage_of(read.operation.get());
    if (producer < 0) return make_expr(type, Load{input_buffer(read.operation), simplified(read.indices)});
    const Prepared& p = prepared_.at(producer);
    const bool runs = reads_running(state_, stage, in_update, producer);
    if (const Reference& reference = record(producer).reference; runs && reference.kind == Reference::Kind::Constant)
        return constant(type, reference.by);
    const Storage& storage = runs ? p.running : p.storage;
    const BufferRef& buffer = storage.buffers[read.output];
    return cast_unchecked(type, make_expr(buffer->type, Load{buffer, place_in(storage, read.indices)}));
}

/// Where an element's memory is. A single element needs no index, whatever masks keep from being reached.
std::vector<Expr> TreeBuilder::place_in(const Storage& storage, const std::vector<Expr>& element) {
    std::vector<Expr> indices;
    for (size_t d = 0; d < element.size(); ++d) {
        bool single = storage.loop >= 0 && is_constant(storage.buffers[0]->shape[d], 1);
        indices.push_back(single ? constant(Type::I64, int64_t{0}) : simplify(element[d] - storage.lo[d]));
    }
    return indices;
}

std::vector<Expr> TreeBuilder::simplified(std::vector<Expr> exprs) {
    for (Expr& e : exprs) e = simplify(e);
    return exprs;
}

BufferRef TreeBuilder::input_buffer(const std::shared_ptr<const Operation>& given) {
    std::shared_ptr<const Operation> operation = given;
    std::vector<Expr> joined_from;
    for (const auto& [whole, joined] : state_.joined_inputs)
        if (whole == given.get() || joined == given) operation = joined, joined_from = whole->shape;
    BufferRef& buffer = inputs_[operation.get()];
    if (!buffer)
        buffer = std::make_shared<const BufferNode>(BufferNode{.name = operation->name,
                                                               .type = operation->outputs[0].type,
                                                               .memory = Memory::Global,
                                                               .shape = operation->shape,
                                                               .strides = operation->strides,
                                                               .joined_from = joined_from,
                                                               .role = BufferNode::Role::Input});
    return buffer;
}

}  // namespace tw
