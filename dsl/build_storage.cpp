// Where the results of each stage live, and for which elements its leaves run.
#include <algorithm>

#include "dsl/mma.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "dsl/tree_builder.h"
#include "support/error.h"

namespace tw {

void TreeBuilder::prepare(int stage) {
    const StageRecord& r = record(stage);
    Prepared& p = prepared_[stage];
    p.region = region_of(state_, stage, where_);
    size_t rank = r.definition.axes.size();
    for (size_t d = 0; d < r.roots.size(); ++d) {
        Expr value = loop_value(state_, r.roots[d]);
        if (d < rank) {
            value = simplify(inputs_loaded(p.region.lo[d]) + value);
            p.values.push_back(value);
            p.axes.emplace_back(r.definition.axes[d], value);
        } else {
            p.axes.emplace_back(r.definition.reduce_axes[d - rank],
                                simplify(reduce_value(state_, stage, d - rank, where_)));
        }
    }
    if (r.definition.reduce_axes.empty() && !r.mma) prepare_ends(stage, p);
    prepare_masks(stage, p);
    prepare_storage(stage, p);
}

/// Elements behind a masked end are guarded: quotients and remainders of the others may be simpler.
void TreeBuilder::prepare_ends(int stage, Prepared& p) {
    const StageRecord& r = record(stage);
    for (size_t d = 0; d < r.definition.axes.size(); ++d) {
        const Expr value = value_below_end(state_, r.roots[d]);
        p.axes_below_ends.emplace_back(r.definition.axes[d], simplify(inputs_loaded(p.region.lo[d]) + value));
        for (size_t loop = 0; loop < state_.loops.size(); ++loop)
            if (contains(value, state_.loops[loop].variable))
                p.loops_below_ends.emplace_back(state_.loops[loop].variable,
                                                loop_value(state_, static_cast<int>(loop)));
    }
}

void TreeBuilder::prepare_masks(int stage, Prepared& p) {
    if (!record(stage).definition.reduce_extents.empty()) p.data_conditions = masks_of(stage, p, false).data;
    Masks masks = masks_of(stage, p, true);
    check_collective(stage, masks.data);
    p.data_mask = all_of(masks.data);
    p.full_mask = all_of(masks.all);
}

namespace {

/// Whether loops of the reduction go beyond its terms: else those that share one of them have as many terms in each
/// iteration, too.
bool has_masked_terms(const Schedule::State& state, int stage) {
    return std::ranges::any_of(state.stages[stage].relations, [&](const Relation& relation) {
        return relation.masked && state.loops[relation.whole].reduces;
    });
}

}  // namespace

TreeBuilder::Masks TreeBuilder::masks_of(int stage, const Prepared& p, bool with_reduction) {
    const StageRecord& r = record(stage);
    Masks masks;
    auto& [data, all] = masks;
    auto guard = [&](const Expr& condition, bool reduces) {
        Expr simple = simplify(condition);
        auto known = [&](const Expr& other) { return equal(other, simple); };
        if (prove(simple) == true || std::any_of(all.begin(), all.end(), known)) return;
        all.push_back(simple);
        if (!reduces) data.push_back(simple);
    };
    for (const Relation& relation : r.relations) {
        const bool reduces = state_.loops[relation.whole].reduces && !r.scan;  // of a scan, elements go along
        if (relation.masked && (with_reduction || !reduces))
            for (const Expr& condition :
                 conditions_of(state_, relation, lower_length(stage, state_.loops[relation.whole].extent)))
                guard(condition, reduces);
    }
    if (with_reduction && r.streams >= 0 && has_masked_terms(state_, state_.loops[r.streams].stage))
        for (size_t a = 0; a < r.definition.reduce_axes.size(); ++a) {
            const Expr &axis = r.definition.reduce_axes[a], &same = axis.as<Variable>()->extent;
            const Expr& length = r.definition.reduce_extents.empty() ? same : r.definition.reduce_extents[a];
            guard(substitute(axis, p.axes) < lower_length(stage, length), true);
            guard(substitute(axis, p.axes) >= 0, true);
        }
    if (with_reduction)
        for (const Expr& condition : r.definition.terms_where) guard(substitute(condition, p.axes), true);
    for (size_t d = 0; d < p.values.size(); ++d) {
        if (is_constant(p.region.lo[d], 0) && equal(p.region.extent[d], r.definition.operation->shape[d])) continue;
        guard_reads(p.values[d], guard);
        guard(p.values[d] < r.definition.operation->shape[d], false);
        guard(p.values[d] >= 0, false);
    }
    for (const Expr& condition : following_conditions(state_, stage, where_))
        guard(of_first_term(stage, substitute(condition, p.axes)), false);
    return masks;
}

/// Which elements of a leader an iteration has made does not depend on the terms that are read there: it holds for all
/// of them or for none. Reduce loops around the stage are no such terms: their iteration is known.
Expr TreeBuilder::of_first_term(int stage, const Expr& condition) const {
    const int under = record(stage).attach;
    const std::vector<int> around = under >= 0 ? enclosing_loops(state_, under) : std::vector<int>();
    Substitution first;
    for (const StageRecord& other : state_.stages)
        for (const Expr& axis : other.definition.reduce_axes) first.emplace_back(axis, integer(0));
    for (size_t l = 0; l < state_.loops.size(); ++l)
        if (state_.loops[l].reduces && !state_.owner(static_cast<int>(l)).scan &&
            std::ranges::find(around, static_cast<int>(l)) == around.end())
            first.emplace_back(state_.loops[l].variable, integer(0));
    return substitute(condition, first);
}

/// An input that tells where a region starts is read inside of its shape.
void TreeBuilder::guard_reads(const Expr& value, const std::function<void(const Expr&, bool)>& guard) {
    visit(value, [&](const Expr& e) {
        const Load* load = e.as<Load>();
        for (size_t d = 0; load && d < load->indices.size(); ++d) {
            guard(load->indices[d] < cast_unchecked(Type::I64, load->buffer->shape[d]), false);
            guard(load->indices[d] >= 0, false);
        }
    });
}

/// A fill in shared memory is made by all threads together: a thread's own part cannot be its source.
void TreeBuilder::check_collective(int stage, const std::vector<Expr>& conditions) const {
    const StageRecord& r = record(stage);
    if (r.attach < 0 || r.after || resolved_memory(state_, stage) != Memory::Shared) return;
    for (int loop : enclosing_loops(state_, r.attach))
        for (const Expr& condition : conditions)
            user_check(
                !is_thread(state_.loops[loop].level) || !contains(condition, state_.loops[loop].variable), where_,
                "'{}' in shared memory is filled by all threads, but each iteration of the {} loop '{}' makes only "
                "its part of what it reads; place it in registers, or outside of that loop",
                r.definition.name, to_string(state_.loops[loop].level), state_.loops[loop].name);
}

bool TreeBuilder::is_copied_to_shared(int stage) const {
    for (size_t s = 0; s < state_.stages.size(); ++s) {
        const StageRecord& reader = state_.stages[s];
        if (!reader.inlined && reader.is_copy && reads_stage(reader.definition, record(stage).definition) &&
            resolved_memory(state_, static_cast<int>(s)) == Memory::Shared)
            return true;
    }
    return false;
}

namespace {

/// Rows of a workspace begin at multiples of 16 bytes, so that wide copies and boxes can take them, and long ones not
/// all at the same place of a page, or what goes through many rows at once would meet in few channels of memory.
void space_rows(BufferNode& workspace) {
    constexpr int64_t widest_copy = 16, page = 4096, line = 128;
    const int64_t element = bytes_of(workspace.type), neighbours = widest_copy / element;
    const auto row = as_constant(workspace.shape.back());
    if (workspace.shape.size() < 2 || !row || *row == 0) return;
    int64_t elements = neighbours > 1 ? (*row + neighbours - 1) / neighbours * neighbours : *row;
    if (elements * element % page == 0) elements += line / element;
    if (elements == *row) return;
    const Expr pitch = integer(elements);
    Expr stride = integer(1);
    for (size_t d = workspace.shape.size(); d-- > 0;) {
        workspace.strides.insert(workspace.strides.begin(), stride);
        stride = simplify(stride * (d + 1 == workspace.shape.size() ? pitch : workspace.shape[d]));
    }
}

}  // namespace

void TreeBuilder::prepare_storage(int stage, Prepared& p) {
    const StageRecord& r = record(stage);
    const Operation& operation = *r.definition.operation;
    if (int target = target_of(state_, stage); target >= 0) {
        p.storage = prepared_.at(target).storage;
        return;
    }
    p.storage.loop = storage_loop(state_, stage);
    bool local = p.storage.loop >= 0;
    Region region = local ? footprint_below(state_, stage, p.storage.loop, where_) : whole(operation);
    for (const Expr& lo : region.lo) p.storage.lo.push_back(inputs_loaded(lo));
    for (size_t o = 0; o < operation.outputs.size(); ++o) {
        BufferNode buffer{.name = buffer_name(stage, o),
                          .type = r.rounded.value_or(operation.outputs[o].type),
                          .memory = resolved_memory(state_, stage),
                          .shape = local ? region.extent : operation.shape,
                          .strides = {},
                          .role = local ? BufferNode::Role::Local : BufferNode::Role::Workspace,
                          .step = r.step};
        if (state_.is_result(stage)) {
            buffer.role = BufferNode::Role::Output;
            buffer.joined_from = shape_given(operation);
            buffer.strides = strides_given(operation, o);
        }
        if (buffer.role == BufferNode::Role::Workspace && is_copied_to_shared(stage)) space_rows(buffer);
        p.storage.buffers.push_back(std::make_shared<const BufferNode>(buffer));
    }
}

/// Of the output that this one of the operation's is; dense if empty.
std::vector<Expr> TreeBuilder::strides_given(const Operation& operation, size_t output) const {
    for (const auto& [out, strides] : state_.strides)
        for (size_t k = 0; k < state_.result.size(); ++k) {
            // A staged result's copy has one output, whichever output of the user's operation it copies.
            const size_t own = operation.outputs.size() > 1 ? static_cast<size_t>(out.output()) : 0;
            if (state_.outputs[k].same(out) && state_.result[k] == &operation && own == output) return strides;
        }
    return {};
}

/// The output's own, if what computes it has joined axes.
std::vector<Expr> TreeBuilder::shape_given(const Operation& operation) const {
    for (size_t k = 0; k < state_.result.size(); ++k)
        if (const auto& declared = state_.outputs[k].operation();
            state_.result[k] == &operation && declared->shape.size() != operation.shape.size())
            return declared->shape;
    return {};
}

Region TreeBuilder::whole(const Operation& operation) {
    Region region;
    for (const Expr& extent : operation.shape) {
        region.lo.push_back(integer(0));
        region.extent.push_back(extent);
    }
    return region;
}

/// Inputs and outputs have the names that the user gave them.
void TreeBuilder::reserve_names() {
    for (const Tensor& output : state_.outputs) names_[output.name()] = 1;
    for (const auto& operation : operations_of(state_.outputs))
        if (operation->is_input()) names_[operation->name] = 1;
}

std::string TreeBuilder::buffer_name(int stage, size_t output) {
    const Operation& operation = *record(stage).definition.operation;
    std::string base = operation.name;
    bool is_one_of_several = operation.outputs.size() > 1;
    size_t number_in_tuple = output;
    for (size_t k = 0; k < state_.result.size(); ++k) {
        if (state_.result[k] != &operation) continue;
        const Tensor& declared = state_.outputs[k];
        base = is_one_of_several ? declared.operation()->name : declared.name();
        if (is_one_of_several || declared.operation()->outputs.size() == 1) continue;
        is_one_of_several = true;  // a copy of one of them
        base = declared.operation()->name;
        number_in_tuple = static_cast<size_t>(declared.output());
    }
    std::string name = is_one_of_several ? fmt::format("{}_{}", base, number_in_tuple) : base;
    if (const std::string& own = operation.outputs[output].name; !own.empty()) name = own;
    if (state_.is_result(stage)) return name;
    // What has the name of an input or output, as a result that is staged, is told from that by where it lies.
    if (names_.count(name)) name = fmt::format("{}_{}", name, tw::to_string(resolved_memory(state_, stage)));
    int number = ++names_[name];
    return number == 1 ? name : fmt::format("{}_{}", name, number);
}

}  // namespace tw
