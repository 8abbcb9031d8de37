// Loops of which some stages run later: which those are, and what they need of each other.
#include <algorithm>

#include "dsl/cut.h"
#include "dsl/delay.h"
#include "dsl/simplify.h"
#include "dsl/tree_builder.h"
#include "support/error.h"

namespace tw {
namespace {

/// Whether the stage copies what is there before its kernel begins: inputs, and what a kernel before has stored.
bool copies_what_is_there(const Schedule::State& state, int stage) {
    const auto is_there = [&](const ReadSite& site) {
        const int producer = state.stage_of(site.read->operation.get());
        return site.read->operation->is_input() ||
               (producer >= 0 && state.kernel_of(producer) != state.kernel_of(stage));
    };
    return state.stages[stage].is_copy && std::ranges::all_of(reads_of(state.stages[stage].definition), is_there);
}

}  // namespace

/// The stage that stands directly under the loop and around this one; the loop's owner if it stands in that.
int TreeBuilder::part_under(int loop, int stage) const {
    const int owner = state_.loops[loop].stage;
    while (stage != owner && record(stage).attach != loop && record(stage).streams != loop && record(stage).attach >= 0)
        stage = state_.loops[record(stage).attach].stage;
    return stage;
}

/// Whether all that read the copy stand in these parts.
bool TreeBuilder::is_read_only_in(int copy, int loop, const std::vector<std::pair<int, Stmt>>& parts) const {
    return std::ranges::all_of(order_, [&](int reader) {
        if (!reads_stage(record(reader).definition, record(copy).definition)) return true;
        return std::ranges::any_of(parts, [&](const auto& part) { return part.first == part_under(loop, reader); });
    });
}

/// What stands under a delayed loop, in order.
TreeBuilder::DelayedParts TreeBuilder::delayed_parts(int loop, Stmt inner) {
    const LoopRecord& l = state_.loops[loop];
    std::vector<std::pair<int, Stmt>> first, between, late;
    for (auto& part : parts_under(loop, std::move(inner))) {
        const bool is_late = !late.empty() || part.first == l.delay.stage;
        const bool is_between = !between.empty() || part.first == l.delay.before;
        (is_late ? late : is_between ? between : first).push_back(std::move(part));
    }
    if (l.stages > 1) {
        auto is_late_copy = [&](const auto& part) {
            return part.first != l.delay.before && copies_what_is_there(state_, part.first) &&
                   resolved_memory(state_, part.first) == Memory::Shared && is_read_only_in(part.first, loop, late);
        };
        for (auto* early : {&between, &first}) {
            auto copies = std::ranges::stable_partition(*early, [&](const auto& part) { return !is_late_copy(part); });
            late.insert(late.begin(), std::make_move_iterator(copies.begin()), std::make_move_iterator(copies.end()));
            early->erase(copies.begin(), copies.end());
        }
    }
    auto statements = [](std::vector<std::pair<int, Stmt>>& parts) {
        std::vector<Stmt> stmts;
        for (auto& part : parts) stmts.push_back(std::move(part.second));
        return sequence(std::move(stmts));
    };
    DelayedParts parts;
    parts.is_late_there = !late.empty();
    parts.is_before_there = l.delay.before < 0 || !between.empty();
    parts.is_early_there = !first.empty() || !between.empty();
    parts.first = statements(first);
    parts.late = statements(late);
    parts.between = statements(between);
    return parts;
}

/// What lives in one iteration of the loop.
std::vector<BufferRef> TreeBuilder::buffers_in(int loop) const {
    std::vector<BufferRef> local;
    for (int stage : order_)
        if (const Storage& storage = prepared_.at(stage).storage;
            storage.loop == loop && (record(stage).streams < 0 || is_read_complete(stage)))
            local.insert(local.end(), storage.buffers.begin(), storage.buffers.end());
    if (auto found = stream_buffers_.find(loop); found != stream_buffers_.end())
        local.insert(local.end(), found->second.begin(), found->second.end());
    return local;
}

Stmt TreeBuilder::delayed_for(int loop, Stmt inner) {
    const LoopRecord& l = state_.loops[loop];
    const std::string& late = record(l.delay.stage).definition.name;
    const std::string call = fmt::format("delay({}, {}, {})", late, l.name, l.delay.iterations);
    DelayedParts parts = delayed_parts(loop, std::move(inner));
    user_check(parts.is_late_there, where_, "{}: '{}' stands no longer under the loop; place it there: at({}, {})",
               call, late, late, l.name);
    user_check(parts.is_early_there, where_,
               "{}: nothing stands before '{}' under the loop, so nothing would run ahead of it; stage an operand "
               "or place a producer there first",
               call, late);
    user_check(parts.is_before_there, where_,
               "{}: '{}' does not stand before '{}' under the loop; name a stage that does", call,
               record(std::max(l.delay.before, 0)).definition.name, late);
    const std::vector<BufferRef> local = buffers_in(loop);
    auto alike = [&](const BufferRef& one, const BufferRef& other) {
        return one == other || std::ranges::any_of(state_.in_place, [&](const auto& pair) {
                   return (pair.first.name() == one->name && pair.second.name() == other->name) ||
                          (pair.first.name() == other->name && pair.second.name() == one->name);
               });
    };
    if (BufferRef met = used_by_both(sequence({parts.first, parts.between}), parts.late, local, alike))
        user_error(where_,
                   "{}: both parts use '{}', which outlives an iteration; what runs ahead would meet what is not "
                   "there yet, or no longer; delay another stage",
                   call, met->name);
    const For around{l.variable, lower_extent(loop), l.level,       l.bind_step,     loop, l.reduces, {},
                     l.stages,   l.in_flight,        role_of(loop), l.pipeline_step, false};
    const Delayed delayed{parts.first, parts.late, parts.between, l.delay.iterations, local};
    BufferRef several = needs_versions(delayed);
    std::vector<int> outside = enclosing_loops(state_, loop);
    outside.pop_back();
    std::vector<Expr> variables;
    for (int other : outside) variables.push_back(state_.loops[other].variable);
    const Segments segments = segments_of(state_, loop, around.extent, variables, where_);
    if (!several) return in_parts(around, delayed, segments);
    user_check(l.stages == 1 && l.is_whole(), where_,
               "{}: '{}' would be made again before '{}' has read it, but the loop is pipelined, cut, or skips; have "
               "the late stages stand in front of what makes it: delay({}, {}, {{.before = ...}}) with 1 iteration",
               call, several->name, late, late, l.name);
    auto extent = as_constant(l.extent);
    user_check(extent && *extent >= l.delay.iterations, where_,
               "{}: the loop has {} iterations; a delay needs a constant number, no less than its own", call,
               to_string(l.extent));
    return with_versions(around, delayed, segments);
}

}  // namespace tw
