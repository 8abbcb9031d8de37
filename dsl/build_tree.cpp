// From what a schedule knows to its tree of loops and leaves.
#include <algorithm>

#include "dsl/check_overwrites.h"
#include "dsl/check_turns.h"
#include "dsl/mma.h"
#include "dsl/remember_regions.h"
#include "dsl/simplify.h"
#include "dsl/stream.h"
#include "dsl/tree_builder.h"
#include "support/error.h"

namespace tw {

Tree TreeBuilder::run() {
    order_ = topological_order(state_);
    reserve_names();
    check_exclusive();
    for (int stage : order_) prepare(stage);
    for (int stage : kernel_order(state_, where_))
        tree_.nests.push_back({record(stage).definition.name, emit(stage), roles_of(stage),
                               record(stage).persistent_blocks, record(stage).longest_first,
                               record(stage).persistent_stages, tickets_of(stage), occupancy_of(stage),
                               exclusive_in(stage)});
    check_complete();
    for (const Nest& nest : tree_.nests) check_turns(nest, where_);
    finish_tree();
    return std::move(tree_);
}

std::vector<RoleSpec> TreeBuilder::roles_of(int kernel) const {
    auto found = state_.roles.find(kernel);
    return found == state_.roles.end() ? std::vector<RoleSpec>{} : found->second;
}

/// What was asked for last, by any stage of the kernel.
Occupancy TreeBuilder::occupancy_of(int kernel) const {
    Occupancy result;
    for (size_t s = 0; s < state_.stages.size(); ++s) {
        const Occupancy& asked = state_.stages[s].occupancy;
        if (asked.step > result.step && !state_.stages[s].inlined && state_.kernel_of(static_cast<int>(s)) == kernel)
            result = asked;
    }
    return result;
}

std::vector<ExclusiveSection> TreeBuilder::exclusive_in(int kernel) const {
    std::vector<ExclusiveSection> found;
    for (const ExclusiveSection& section : state_.exclusive)
        if (state_.kernel_of(section.stages[0]) == kernel) found.push_back(section);
    return found;
}

/// What has become of their stages since.
void TreeBuilder::check_exclusive() const {
    for (const ExclusiveSection& section : state_.exclusive)
        for (int stage : section.stages) {
            user_check(!record(stage).inlined, where_,
                       "exclusive: '{}' is inlined, so that nobody can take turns at it; leave one of the two out",
                       record(stage).definition.name);
            user_check(state_.kernel_of(stage) == state_.kernel_of(section.stages[0]), where_,
                       "exclusive: '{}' stands in another kernel than '{}' now; name stages of one",
                       record(stage).definition.name, record(section.stages[0]).definition.name);
        }
}

BufferRef TreeBuilder::tickets_of(int kernel) const {
    if (!record(kernel).persistent_dynamic) return {};
    return std::make_shared<const BufferNode>(BufferNode{.name = record(kernel).definition.name + "_tickets",
                                                         .type = Type::U32,
                                                         .memory = Memory::Global,
                                                         .shape = {constant(Type::I64, int64_t{1})},
                                                         .strides = {},
                                                         .role = BufferNode::Role::Workspace,
                                                         .is_counter = true});
}

Stmt TreeBuilder::emit(int stage) {
    const StageRecord& r = record(stage);
    if (!r.definition.reducer) return nest(stage, 0, [&] { return finish_leaf(stage); });
    int outermost = state_.first_reduce(stage);
    return nest(stage, 0, outermost, [&] { return r.scan ? scan(stage, outermost) : reduction(stage, outermost); });
}

Stmt TreeBuilder::nest(int stage, int from, const std::function<Stmt()>& inner) {
    return nest(stage, from, static_cast<int>(record(stage).order.size()), inner);
}

/// The loops order[from..to) around `inner`, with what stands under each.
Stmt TreeBuilder::nest(int stage, int from, int to, const std::function<Stmt()>& inner) {
    if (from == to) return inner();
    int loop = record(stage).order[from];
    Stmt body = nest(stage, from + 1, to, inner);
    if (state_.loops[loop].delay.iterations > 0) return delayed_for(loop, std::move(body));
    return make_for(loop, with_attached(loop, std::move(body)));
}

Stmt TreeBuilder::make_for(int loop, Stmt body) {
    const LoopRecord& l = state_.loops[loop];
    return make_stmt(For{l.variable, lower_extent(loop), l.level, l.bind_step, loop, l.reduces, std::move(body),
                         l.stages, l.in_flight, role_of(loop), l.pipeline_step, false});
}

AtomRole TreeBuilder::role_of(int loop) const {
    const auto& mma = record(state_.loops[loop].stage).mma;
    if (!mma) return AtomRole::None;
    return loop == mma->m ? AtomRole::M : loop == mma->n ? AtomRole::N : loop == mma->k ? AtomRole::K : AtomRole::None;
}

/// What an element decides is computed, and loaded, where that element is there.
Expr TreeBuilder::lower_extent(int loop) {
    const LoopRecord& l = state_.loops[loop];
    if (!depends_on_element(l.extent)) return l.extent;
    const std::vector<int>& order = record(l.stage).order;
    std::vector<Expr> conditions, inside;
    Substitution single;  // loops inside of one iteration decide nothing
    for (size_t p = state_.position(loop); p < order.size(); ++p) {
        const LoopRecord& inner = state_.loops[order[p]];
        if (is_constant(inner.extent, 1))
            single.emplace_back(inner.variable, integer(0));
        else
            inside.push_back(inner.variable);
    }
    for (const Expr& given : prepared_.at(l.stage).data_conditions) {
        const Expr condition = substitute(given, single);
        if (std::none_of(inside.begin(), inside.end(), [&](const Expr& v) { return contains(condition, v); }))
            conditions.push_back(condition);
    }
    for (const Expr& variable : inside) single.emplace_back(variable, integer(0));
    Expr extent = substitute(lower(l.stage, l.extent), single);
    return simplify(select_unchecked(all_of(conditions), extent, constant(Type::I64, 0)));
}

namespace {

bool loads(const Expr& expr) {
    bool found = false;
    visit(expr, [&](const Expr& e) { found = found || e.as<Load>(); });
    return found;
}

}  // namespace

/// The same for masks, beside which those of the element stand: 0 where there is nothing to load. What data say of
/// indices is the caller's to keep in range.
Expr TreeBuilder::lower_length(int stage, const Expr& length) {
    if (!depends_on_element(length)) return length;
    const Expr lowered = lower(stage, length);
    std::vector<Expr> inside;
    guard_reads(lowered, [&](const Expr& condition, bool) {
        const Expr simple = simplify(condition);
        if (prove(simple) != true && !loads(simple)) inside.push_back(simple);
    });
    return simplify(select_unchecked(all_of(inside), lowered, constant(Type::I64, 0)));
}

/// Such copies come first: they need nothing else, and are under way while others compute.
bool TreeBuilder::copies_inputs(int stage) const {
    auto sites = reads_of(record(stage).definition);
    return record(stage).is_copy && std::all_of(sites.begin(), sites.end(),
                                                [](const ReadSite& site) { return site.read->operation->is_input(); });
}

/// What followers need of an input that the kernel overwrites is made in front, too.
bool TreeBuilder::reads_overwritten(int stage) const {
    if (state_.in_place.empty() || state_.is_result(stage)) return false;
    auto sites = reads_of(record(stage).definition);
    auto is_overwritten = [&](const ReadSite& site) {
        return std::ranges::any_of(state_.in_place,
                                   [&](const auto& pair) { return pair.second.operation() == site.read->operation; });
    };
    return std::ranges::any_of(sites, is_overwritten) &&
           std::ranges::all_of(sites, [](const ReadSite& site) { return site.read->operation->is_input(); });
}

/// A follower that overwrites an input stands behind those that read that, unless one up to there needs it.
void TreeBuilder::put_readers_first(std::vector<std::pair<int, Stmt>>& followers) const {
    auto reads = [&](const std::pair<int, Stmt>& follower, const Tensor& tensor) {
        return std::ranges::any_of(reads_of(record(follower.first).definition),
                                   [&](const ReadSite& site) { return site.read->operation == tensor.operation(); });
    };
    for (const auto& [out, in] : state_.in_place) {
        auto writes = followers.begin();
        while (writes != followers.end() && record(writes->first).definition.operation != out.operation()) ++writes;
        if (writes == followers.end()) continue;
        auto behind = writes + 1;
        for (auto each = behind; each != followers.end() && !reads(*each, out); ++each)
            if (reads(*each, in)) behind = each + 1;
        std::rotate(writes, writes + 1, behind);
    }
}

/// What stands under a loop, in order, with the stage that it belongs to; `inner` is the owner's.
std::vector<std::pair<int, Stmt>> TreeBuilder::parts_under(int loop, Stmt inner) {
    std::vector<std::pair<int, Stmt>> parts, others, after;
    for (int stage : order_) {
        if (record(stage).streams == loop) others.emplace_back(stage, member_part(stage));
        if (record(stage).attach != loop || record(stage).streams >= 0) continue;
        const bool is_first = copies_inputs(stage) || (record(stage).after && reads_overwritten(stage));
        auto& place = is_first ? parts : record(stage).after ? after : others;
        place.emplace_back(stage, emit(stage));
    }
    put_readers_first(after);
    parts.insert(parts.end(), others.begin(), others.end());
    const int owner = state_.loops[loop].stage;
    std::vector<Stmt> own;
    if (shared_loop(state_, owner) == loop)
        own = corrections(owner, private_loops(owner, state_.first_reduce(owner)), false);
    own.push_back(std::move(inner));
    parts.emplace_back(owner, sequence(std::move(own)));
    parts.insert(parts.end(), after.begin(), after.end());
    return parts;
}

Stmt TreeBuilder::with_attached(int loop, Stmt inner) {
    std::vector<Stmt> stmts;
    for (auto& [stage, stmt] : parts_under(loop, std::move(inner))) stmts.push_back(std::move(stmt));
    Stmt body = sequence(std::move(stmts));
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
        const Storage& storage = prepared_.at(*it).storage;
        if (storage.loop != loop || (record(*it).streams >= 0 && !is_read_complete(*it))) continue;
        for (const BufferRef& buffer : storage.buffers) body = make_stmt(Allocate{buffer, std::move(body)});
    }
    if (auto found = stream_buffers_.find(loop); found != stream_buffers_.end())
        for (const BufferRef& buffer : found->second) body = make_stmt(Allocate{buffer, std::move(body)});
    return body;
}

/// A partial result for each iteration of loops bound to threads, and for each element.
TreeBuilder::PrivateLoops TreeBuilder::private_loops(int stage, int outermost) const {
    const StageRecord& r = record(stage);
    PrivateLoops loops;
    std::vector<int> inner_data;
    for (size_t p = outermost; p < r.order.size(); ++p)
        if (!state_.loops[r.order[p]].reduces)
            inner_data.push_back(r.order[p]);
        else if (is_bound_reduce(r.order[p]))
            loops.bound.push_back(r.order[p]);
    loops.all = loops.bound;
    loops.all.insert(loops.all.end(), inner_data.begin(), inner_data.end());
    return loops;
}

Stmt TreeBuilder::inside(const std::vector<int>& loops, Stmt body) {
    for (auto l = loops.rbegin(); l != loops.rend(); ++l) body = make_for(*l, std::move(body));
    return body;
}

/// The threads' parts become the whole, along the loop bound last first.
std::vector<Stmt> TreeBuilder::combines(int stage, const PrivateLoops& loops) {
    auto last_bound_first = [&](int a, int b) { return state_.loops[a].bind_step > state_.loops[b].bind_step; };
    std::vector<int> fastest_first = loops.bound;
    std::stable_sort(fastest_first.begin(), fastest_first.end(), last_bound_first);
    std::vector<Stmt> stmts;
    for (int loop : fastest_first) {
        std::vector<int> around = loops.all;
        std::erase(around, loop);
        stmts.push_back(inside(around, combine_leaf(stage, loop)));
    }
    return stmts;
}

/// The reduction, with those that share a loop of it.
Stmt TreeBuilder::reduction(int stage, int outermost) {
    const PrivateLoops loops = private_loops(stage, outermost);
    std::vector<int> all;
    if (int loop = shared_loop(state_, stage); loop >= 0) all = streamed_along(state_, loop);
    std::vector<Stmt> stmts;
    for (int member : all) stmts.push_back(begin_member(member));
    make_accumulators(stage, loops.all);
    stmts.push_back(inside(loops.all, init_leaf(stage)));
    stmts.push_back(nest(stage, outermost, [&] { return update_leaf(stage); }));
    for (int member : all)
        for (Stmt& end : end_member(member)) stmts.push_back(std::move(end));
    for (Stmt& correct : corrections(stage, loops, true)) stmts.push_back(std::move(correct));
    for (Stmt& combine : combines(stage, loops)) stmts.push_back(std::move(combine));
    stmts.push_back(inside(loops.all, finish_leaf(stage, loops.bound)));
    Stmt body = sequence(std::move(stmts));
    all.push_back(stage);
    for (int each : all)
        for (const auto* buffers :
             {&prepared_.at(each).accumulators, &prepared_.at(each).used, &prepared_.at(each).last_factors})
            for (const BufferRef& buffer : *buffers) body = make_stmt(Allocate{buffer, std::move(body)});
    return body;
}

/// Each iteration has a partial result of its own: a single one has the total.
bool TreeBuilder::is_bound_reduce(int loop) const {
    const LoopRecord& l = state_.loops[loop];
    return l.reduces && is_thread(l.level) && !is_constant(l.extent, 1);
}

void TreeBuilder::make_accumulators(int stage, const std::vector<int>& inner_data) {
    const StageDefinition& definition = record(stage).definition;
    Prepared& p = prepared_.at(stage);
    std::vector<Expr> shape;
    p.indices.clear();
    for (int loop : inner_data) {
        user_check(as_constant(state_.loops[loop].extent), where_,
                   "'{}': loop '{}' of extent {}, which is not constant, stands inside a reduce loop: its accumulators "
                   "would not fit in registers; order it outside",
                   definition.name, state_.loops[loop].name, to_string(state_.loops[loop].extent));
        shape.push_back(state_.loops[loop].extent);
        p.indices.push_back(state_.loops[loop].variable);
    }
    for (size_t c = 0; c < definition.accumulators.size(); ++c) {
        std::string suffix = definition.accumulators.size() > 1 ? fmt::format("_{}", c) : "";
        p.accumulators.push_back(std::make_shared<const BufferNode>(
            BufferNode{.name = fmt::format("{}_{}{}", definition.name, definition.reducer->name, suffix),
                       .type = definition.accumulators[c].type(),
                       .memory = Memory::Registers,
                       .shape = shape,
                       .strides = {},
                       .step = record(stage).step}));
    }
}

/// Each stage reads what has been written before.
void TreeBuilder::check_complete() const {
    std::set<const BufferNode*> written;
    for (const Nest& nest : tree_.nests) check_complete(nest.body, written);
}

void TreeBuilder::check_complete(const Stmt& stmt, std::set<const BufferNode*>& written) const {
    if (auto* loop = stmt.as<For>()) return check_complete(loop->body, written);
    if (auto* allocate = stmt.as<Allocate>()) return check_complete(allocate->body, written);
    if (auto* block = stmt.as<Sequence>())
        for (const Stmt& each : block->stmts) check_complete(each, written);
    if (auto* leaf = stmt.as<Leaf>()) {
        for (const StoreTo& store : leaf->stores)
            visit(store.value, [&](const Expr& e) {
                const Load* load = e.as<Load>();
                bool there =
                    !load || load->buffer->role == BufferNode::Role::Input || written.count(load->buffer.get());
                user_check(there, where_,
                           "'{}' would stand where '{}', which it reads, is not complete; place it elsewhere",
                           leaf->name, load ? load->buffer->name : "");
            });
        for (const StoreTo& store : leaf->stores) written.insert(store.buffer.get());
    }
}

void TreeBuilder::finish_tree() {
    for (const auto& operation : operations_of(state_.outputs))
        if (operation->is_input()) tree_.inputs.push_back(input_buffer(operation));
    for (size_t k = 0; k < state_.outputs.size(); ++k) {
        const Storage& storage = prepared_.at(state_.stage_of(state_.result[k])).storage;
        // A staged result's copy has one output, whichever output of the user's operation it copies.
        const int output = storage.buffers.size() > 1 ? state_.outputs[k].output() : 0;
        tree_.outputs.push_back(storage.buffers[output]);
    }
    for (int stage : order_)
        for (const BufferRef& buffer : prepared_.at(stage).storage.buffers) {
            bool listed = std::find(tree_.outputs.begin(), tree_.outputs.end(), buffer) != tree_.outputs.end();
            if (target_of(state_, stage) >= 0) continue;  // not its own
            if (buffer->memory == Memory::Global && !listed) tree_.workspaces.push_back(buffer);
        }
    for (const Nest& nest : tree_.nests)
        if (nest.tickets) tree_.workspaces.push_back(nest.tickets);
    for (const auto& [out, in] : state_.in_place)
        for (size_t k = 0; k < state_.outputs.size(); ++k)
            if (state_.outputs[k].same(out))
                tree_.in_place.emplace_back(tree_.outputs[k], input_buffer(in.operation()));
    for (const auto& [out, in] : tree_.in_place) {
        const std::string why = why_not_overwritten(tree_, out, in);
        user_check(
            why.empty(), where_,
            "in_place({}, {}): {}; elements are safe that are read where they are overwritten, or before that by "
            "the same block",
            out->name, in->name, why);
    }
    collect_parameters();
}

void TreeBuilder::collect_parameters() {
    auto see = [&](const Expr& root) {
        if (!root.defined()) return;
        visit(root, [&](const Expr& e) {
            const Variable* v = e.as<Variable>();
            if (!v || v->kind == VariableKind::Index) return;
            auto& list = v->kind == VariableKind::Size ? tree_.sizes : tree_.scalars;
            for (const Expr& known : list)
                if (known.same(e)) return;
            list.push_back(e);
        });
    };
    for (const auto& operation : operations_of(state_.outputs)) {
        for (const Expr& extent : operation->shape) see(extent);
        for (const Expr& stride : operation->strides) see(stride);
    }
    for (const StageRecord& stage : state_.stages) {
        if (stage.inlined) continue;
        for (const Expr& extent : stage.definition.operation->shape) see(extent);
        for (int loop : stage.roots) see(state_.loops[loop].extent);
        for (const Expr& expr : stage.definition.update) see_scalars(expr, see);
        for (const Expr& expr : stage.definition.finish) see_scalars(expr, see);
        for (const Expr& expr : stage.definition.place) see_scalars(expr, see);
    }
}

/// Accumulators stand as Scalar variables in a definition: they are no parameters.
void TreeBuilder::see_scalars(const Expr& expr, const std::function<void(const Expr&)>& see) const {
    visit(expr, [&](const Expr& e) {
        if (!e.as<Variable>()) return;
        for (const StageRecord& stage : state_.stages)
            for (const Expr& accumulator : stage.definition.accumulators)
                if (accumulator.same(e)) return;
        see(e);
    });
}

Tree build_tree(const Schedule::State& state, std::source_location where) {
    RememberRegions regions(state);
    return TreeBuilder(state, where).run();
}

}  // namespace tw
