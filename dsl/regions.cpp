// Regions: which box of a stage's axes is needed, or computed, in one iteration of a loop.
#include <algorithm>

#include "dsl/remember_regions.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "support/error.h"

namespace tw {

using State = Schedule::State;

Expr value_below_end(const State& state, int loop, const std::vector<Expr>& fixed) {
    for (const Relation& relation : state.owner(loop).relations) {
        if (relation.kind != Relation::Kind::Split || relation.whole != loop) continue;
        const std::vector<Expr> parts = variables_of(loop_value(state, loop));
        const bool varies = std::ranges::none_of(parts, [&](const Expr& part) {
            return std::ranges::any_of(fixed, [&](const Expr& f) { return f.same(part); });
        });
        if (relation.masked && varies) return state.loops[loop].variable;
        return value_below_end(state, relation.outer, fixed) * relation.size +
               value_below_end(state, relation.inner, fixed);
    }
    return loop_value(state, loop);
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

/// A read at the only values that its indices take while the fixed variables stay; undefined if one takes several, or
/// depends on data. Loops of one iteration are among those that do not stay.
Expr at_only_values(const Read& read, const Expr& expr, const std::vector<Expr>& fixed) {
    std::vector<Expr> indices;
    for (const Expr& index : read.indices) {
        if (reads_tensors(index)) return {};
        const auto span = span_of(index, ranged_variables(index, fixed));
        if (!span || span->extent != 1) return {};
        indices.push_back(span->lo);
    }
    return with_children(expr, indices);
}

/// The values of an index while the fixed variables stay. Of what depends on data, only what inputs tell stays too, at
/// indices that do not depend on data again.
std::optional<Span> span_of_index(const Expr& index, const std::vector<Expr>& fixed) {
    Substitution back;
    Expr known = transform(index, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        if (!read || !read->operation->is_input()) return {};
        const Expr here = is_fixed(e, fixed) ? e : at_only_values(*read, e, fixed);
        if (!here.defined()) return {};
        auto in_it = [&](const auto& told) { return contains(here, told.first); };
        bool by_data = std::any_of(read->indices.begin(), read->indices.end(), reads_tensors) ||
                       std::any_of(back.begin(), back.end(), in_it);
        if (by_data) return {};
        for (const auto& [name, told] : back)
            if (equal(told, here)) return name;
        // Like a size: what data tell of an index is the caller's to keep in range.
        back.emplace_back(make_expr(e.type(), Variable{.name = "told", .kind = VariableKind::Size}), here);
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

int index_of(const State& state, const StageRecord& record) { return static_cast<int>(&record - state.stages.data()); }

/// Whether a thread sums several elements side by side, in unrolled loops: what they read in shared memory is there for
/// all of them, zeros where the tensor ends, so that no term asks where that is.
bool sums_side_by_side(const State& state, const StageRecord& reader) {
    if (reader.definition.reduce_axes.empty()) return false;
    return std::ranges::any_of(
        reader.order, [&](int loop) { return state.loops[loop].level == Level::Unroll && !state.loops[loop].reduces; });
}

/// Whether the stage's loops may still get other extents, or have those of tiles larger than the tensor already.
bool may_be_whole(const State& state, const StageRecord& record) {
    const std::vector<Expr>& shape = record.definition.operation->shape;
    bool untouched = record.relations.empty(), larger = false;
    for (size_t d = 0; d < shape.size() && d < record.roots.size(); ++d) {
        const LoopRecord& root = state.loops[record.roots[d]];
        untouched &= root.level == Level::Serial;
        const auto extent = as_constant(root.extent), all = as_constant(shape[d]);
        larger |= extent && all && *extent > *all;
    }
    return untouched || larger;
}

/// Whether the stage's tiles stay whole where they are larger than the tensor: matrix instructions and sums side by
/// side read them so, and boxes of tensors leave so, unless all of them begin with the tensor.
bool keeps_whole_tiles(const State& state, int stage, const Span& span) {
    return std::any_of(state.stages.begin(), state.stages.end(), [&](const StageRecord& reader) {
        bool boxes = reader.after && reader.via.copy == Copy::Tma && !is_constant(span.lo, 0);
        if (reader.inlined || !reads_stage(reader.definition, state.stages[stage].definition)) return false;
        // Registers that lanes share as a matrix instruction has them are made of such registers.
        const int made = index_of(state, reader);
        bool in_registers = reader.attach >= 0 && resolved_memory(state, made) == Memory::Registers &&
                            resolved_memory(state, stage) == Memory::Registers;
        const bool by_threads = resolved_memory(state, stage) == Memory::Shared && sums_side_by_side(state, reader) &&
                                may_be_whole(state, state.stages[stage]);
        return reader.mma || boxes || by_threads || (in_registers && keeps_whole_tiles(state, made, span));
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

/// Of the stage's axes.
std::vector<Expr> values_below_ends(const State& state, int stage, const Region& region,
                                    const std::vector<Expr>& fixed) {
    std::vector<Expr> values;
    for (size_t d = 0; d < region.lo.size(); ++d)
        values.push_back(region.lo[d] + value_below_end(state, state.stages[stage].roots[d], fixed));
    return values;
}

/// Of a quotient the values that do not lie behind a masked end, where these are fewer: a row of 127 columns, as
/// element / 127, is one row, though its last vectors would reach into the next.
std::optional<Span> span_below_end(const State& state, int reader, const Region& region, const Expr& index,
                                   const std::vector<Expr>& fixed) {
    bool divides = false;
    visit(index, [&](const Expr& e) {
        const Binary* operation = e.as<Binary>();
        divides = divides || (operation && operation->op == BinaryOp::Div);
    });
    const StageRecord& record = state.stages[reader];
    if (!divides || record.mma || !record.definition.reduce_axes.empty()) return {};
    const std::vector<Expr> values = values_below_ends(state, reader, region, fixed);
    Substitution axes;
    for (size_t d = 0; d < values.size(); ++d) axes.emplace_back(record.definition.axes[d], values[d]);
    return span_of_index(simplify(substitute(index, axes)), fixed);
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
        const Region of_reader = region_of(state, static_cast<int>(s), where);
        std::vector<Expr> values = data_values(state, static_cast<int>(s), of_reader);
        Substitution axes;
        for (size_t d = 0; d < values.size(); ++d) axes.emplace_back(reader.definition.axes[d], values[d]);
        for (size_t r = 0; r < reader.definition.reduce_axes.size(); ++r)
            axes.emplace_back(reader.definition.reduce_axes[r], reduce_value(state, static_cast<int>(s), r, where));
        for (const ReadSite& site : reads_of(reader.definition)) {
            if (site.read->operation != record.definition.operation) continue;
            for (size_t d = 0; d < rank; ++d) {
                const Expr& index = site.read->indices[d];
                const auto fewer = span_below_end(state, static_cast<int>(s), of_reader, index, fixed);
                if (fewer && !full[d] && fewer->extent == 1)
                    spans[d] = spans[d] ? unite(*spans[d], *fewer) : *fewer, full[d] = !spans[d];
                else
                    widen(spans, full, d, simplify(substitute(index, axes)), fixed);
            }
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
    std::vector<Expr> fixed = fixed_variables(state, loop, Memory::Registers);
    const std::vector<Expr> values = values_below_ends(state, stage, region_of(state, stage, where), fixed);
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

namespace {

/// What each index is read at in an iteration, while all loops around stay; nothing where that is no box.
std::vector<std::optional<Span>> spans_read(const State& state, int reader, int loop, Memory memory,
                                            const std::vector<Expr>& indices, std::source_location where) {
    const StageDefinition& definition = state.stages[reader].definition;
    const std::vector<Expr> values = data_values(state, reader, region_of(state, reader, where));
    Substitution axes;
    for (size_t d = 0; d < values.size(); ++d) axes.emplace_back(definition.axes[d], values[d]);
    for (size_t r = 0; r < definition.reduce_axes.size(); ++r)
        axes.emplace_back(definition.reduce_axes[r], reduce_value(state, reader, r, where));
    const std::vector<Expr> fixed = fixed_variables(state, loop, memory);
    std::vector<std::optional<Span>> spans;
    for (const Expr& index : indices) spans.push_back(span_of_index(simplify(substitute(index, axes)), fixed));
    return spans;
}

}  // namespace

std::optional<Region> box_read_in_iteration(const State& state, int reader, int loop, Memory memory,
                                            const std::vector<Expr>& indices, std::source_location where) {
    Region region;
    for (const auto& span : spans_read(state, reader, loop, memory, indices, where)) {
        if (!span) return {};
        region.lo.push_back(simplify(span->lo));
        region.extent.push_back(constant(Type::I64, span->extent));
    }
    return region;
}

Region read_in_iteration(const State& state, int reader, int loop, Memory memory, const std::vector<Expr>& indices,
                         std::source_location where) {
    const auto box = box_read_in_iteration(state, reader, loop, memory, indices, where);
    if (box) return *box;
    const auto spans = spans_read(state, reader, loop, memory, indices, where);
    const auto none = std::ranges::find_if(spans, [](const auto& span) { return !span; });
    user_error(where, "one iteration of '{}' reads no box of constant size at {}; split the loop",
               state.loops[loop].name, to_string(indices[static_cast<size_t>(none - spans.begin())]));
}

namespace {

/// Whether a split masks the tail of a part of a reduce axis that begins again and again: not that of the axis itself.
bool ends_inside(const State& state, int stage) {
    const StageRecord& record = state.stages[stage];
    std::vector<int> outermost(record.roots.begin() + static_cast<std::ptrdiff_t>(record.definition.axes.size()),
                               record.roots.end());
    for (const Relation& relation : record.relations) {
        if (relation.kind == Relation::Kind::Fuse || !state.loops[relation.whole].reduces) continue;
        const bool of_axis = std::ranges::find(outermost, relation.whole) != outermost.end();
        if (relation.masked && !of_axis) return true;
        if (of_axis) outermost.push_back(relation.kind == Relation::Kind::Split ? relation.outer : relation.inner);
    }
    return false;
}

}  // namespace

Region shared_terms(const State& state, int stage, std::source_location where) {
    const int loop = state.stages[stage].streams, owner = state.loops[loop].stage;
    const StageRecord& shared = state.stages[owner];
    const std::vector<Expr> fixed = fixed_variables(state, loop, Memory::Registers);
    Region terms;
    int64_t in_box = 1;
    for (const Expr& axis : shared.definition.reduce_axes) {
        Expr value = simplify(loop_value(state, shared.roots[shared.definition.axes.size() + terms.lo.size()]));
        auto span = span_of_index(value, fixed);
        user_check(span.has_value(), where,
                   "stream: one iteration of '{}' reduces no constant number of terms along '{}' of '{}'; split it",
                   state.loops[loop].name, to_string(axis), shared.definition.name);
        terms.lo.push_back(simplify(span->lo));
        terms.extent.push_back(constant(Type::I64, span->extent));
        in_box *= span->extent;
    }
    int64_t taken = 1;
    for (size_t p = static_cast<size_t>(state.position(loop)) + 1; p < shared.order.size(); ++p)
        if (state.loops[shared.order[p]].reduces) taken *= as_constant(state.loops[shared.order[p]].extent).value_or(0);
    user_check(taken == in_box && !ends_inside(state, owner), where,
               "stream: what one iteration of '{}' reduces of '{}' is no box of neighbouring terms, each once: others "
               "could not share it. Let the splits of its reduce loops divide, but for the outermost, and share a loop "
               "outside of all that step less",
               state.loops[loop].name, shared.definition.name);
    return terms;
}

namespace {

thread_local RememberRegions* remembering = nullptr;

/// Of updates that stand where their target is: all that may update the elements which are there.
Region updating_region(const State& state, int stage, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    const Region target = region_of(state, target_of(state, stage), where);
    Region region = whole(record);
    for (size_t d = 0; d < target.lo.size(); ++d)
        for (size_t axis = 0; axis < record.definition.axes.size(); ++axis) {
            if (!record.definition.place[d].same(record.definition.axes[axis])) continue;
            region.lo[axis] = target.lo[d];
            region.extent[axis] = target.extent[d];
        }
    return region;
}

}  // namespace

RememberRegions::RememberRegions(const State& state) : state_(&state), outer_(remembering) {
    known_ = outer_ && outer_->state_ == &state ? outer_->known_ : &own_;
    remembering = this;
}
RememberRegions::~RememberRegions() { remembering = outer_; }

Region region_of(const State& state, int stage, std::source_location where) {
    const StageRecord& record = state.stages[stage];
    if (record.attach < 0) return whole(record);
    auto* known = remembering && remembering->state_ == &state ? remembering->known_ : nullptr;
    if (known)
        if (auto found = known->find(stage); found != known->end()) return found->second;
    Region region = record.after                   ? following_region(state, stage, where)
                    : target_of(state, stage) >= 0 ? updating_region(state, stage, where)
                                                   : needed_region(state, stage, where);
    if (known) known->emplace(stage, region);
    return region;
}

}  // namespace tw
