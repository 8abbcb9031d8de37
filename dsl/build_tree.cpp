// From what a schedule knows to its tree of loops and leaves.
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "dsl/delay.h"
#include "dsl/mma.h"
#include "dsl/schedule_state.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

class TreeBuilder {
public:
    TreeBuilder(const State& state, std::source_location where) : state_(state), where_(where) {}

    Tree run() {
        order_ = topological_order(state_);
        reserve_names();
        for (int stage : order_) prepare(stage);
        for (int stage : kernel_order(state_, where_))
            tree_.nests.push_back({record(stage).definition.name, emit(stage), roles_of(stage),
                                   record(stage).persistent_blocks, record(stage).growing});
        check_complete();
        finish_tree();
        return std::move(tree_);
    }

private:
    /// Where a stage's results live: buffer[index - lo].
    struct Storage {
        std::vector<BufferRef> buffers;  // one an output
        std::vector<Expr> lo;
        int loop = -1;  // allocated in this loop's body
    };
    struct Prepared {
        Region region;
        Substitution axes;         // axis variable -> value in loop variables
        std::vector<Expr> values;  // of the data axes
        Expr data_mask, full_mask;
        std::vector<Expr> data_conditions;  // of data_mask, if loops are as long as data say
        Storage storage;
        std::vector<BufferRef> accumulators;
        std::vector<Expr> indices;  // of the accumulators: the data loops inside the outermost reduce loop
    };

    const StageRecord& record(int stage) const { return state_.stages[stage]; }

    std::vector<RoleSpec> roles_of(int kernel) const {
        auto found = state_.roles.find(kernel);
        return found == state_.roles.end() ? std::vector<RoleSpec>{} : found->second;
    }

    void prepare(int stage) {
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
                p.axes.emplace_back(r.definition.reduce_axes[d - rank], simplify(value));
            }
        }
        prepare_masks(stage, p);
        prepare_storage(stage, p);
    }

    void prepare_masks(int stage, Prepared& p) {
        if (!record(stage).definition.reduce_extents.empty()) p.data_conditions = masks_of(stage, p, false).data;
        Masks masks = masks_of(stage, p, true);
        check_collective(stage, masks.data);
        p.data_mask = all_of(masks.data);
        p.full_mask = all_of(masks.all);
    }

    struct Masks {
        std::vector<Expr> data, all;
    };
    Masks masks_of(int stage, const Prepared& p, bool with_reduction) {
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
        for (const Relation& relation : r.relations)
            if (relation.masked && (with_reduction || !state_.loops[relation.whole].reduces))
                guard(loop_value(state_, relation.whole) < lower_extent(relation.whole),
                      state_.loops[relation.whole].reduces);
        if (with_reduction)
            for (const Expr& condition : r.definition.terms_where) guard(substitute(condition, p.axes), true);
        for (size_t d = 0; d < p.values.size(); ++d) {
            if (is_constant(p.region.lo[d], 0) && equal(p.region.extent[d], r.definition.operation->shape[d])) continue;
            guard_reads(p.values[d], guard);
            guard(p.values[d] < r.definition.operation->shape[d], false);
            guard(p.values[d] >= 0, false);
        }
        for (const Expr& condition : following_conditions(state_, stage, where_))
            guard(substitute(condition, p.axes), false);
        return masks;
    }

    /// An input that tells where a region starts is read inside of its shape.
    static void guard_reads(const Expr& value, const std::function<void(const Expr&, bool)>& guard) {
        visit(value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            for (size_t d = 0; load && d < load->indices.size(); ++d) {
                guard(load->indices[d] < cast_unchecked(Type::I64, load->buffer->shape[d]), false);
                guard(load->indices[d] >= 0, false);
            }
        });
    }

    /// A fill in shared memory is made by all threads together: a thread's own part cannot be its source.
    void check_collective(int stage, const std::vector<Expr>& conditions) const {
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

    void prepare_storage(int stage, Prepared& p) {
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
            if (state_.is_result(stage)) buffer.role = BufferNode::Role::Output;
            p.storage.buffers.push_back(std::make_shared<const BufferNode>(buffer));
        }
    }

    static Region whole(const Operation& operation) {
        Region region;
        for (const Expr& extent : operation.shape) {
            region.lo.push_back(constant(Type::I64, int64_t{0}));
            region.extent.push_back(extent);
        }
        return region;
    }

    /// Inputs and outputs have the names that the user gave them.
    void reserve_names() {
        for (const Tensor& output : state_.outputs) names_[output.name()] = 1;
        for (const auto& operation : operations_of(state_.outputs))
            if (operation->is_input()) names_[operation->name] = 1;
    }

    std::string buffer_name(int stage, size_t output) {
        const Operation& operation = *record(stage).definition.operation;
        std::string base = operation.name;
        for (size_t k = 0; k < state_.result.size(); ++k)
            if (state_.result[k] == &operation)
                base = operation.outputs.size() > 1 ? state_.outputs[k].operation()->name : state_.outputs[k].name();
        std::string name = operation.outputs.size() > 1 ? fmt::format("{}_{}", base, output) : base;
        if (const std::string& own = operation.outputs[output].name; !own.empty()) name = own;
        if (state_.is_result(stage)) return name;
        // What has the name of an input or output, as a result that is staged, is told from that by where it lies.
        if (names_.count(name)) name = fmt::format("{}_{}", name, tw::to_string(resolved_memory(state_, stage)));
        int number = ++names_[name];
        return number == 1 ? name : fmt::format("{}_{}", name, number);
    }

    // Statements.

    Stmt emit(int stage) {
        const StageRecord& r = record(stage);
        if (!r.definition.reducer) return nest(stage, 0, [&] { return finish_leaf(stage); });
        int outermost = state_.first_reduce(stage);
        return nest(stage, 0, outermost, [&] { return reduction(stage, outermost); });
    }

    Stmt nest(int stage, int from, const std::function<Stmt()>& inner) {
        return nest(stage, from, static_cast<int>(record(stage).order.size()), inner);
    }

    /// The loops order[from..to) around `inner`, with what stands under each.
    Stmt nest(int stage, int from, int to, const std::function<Stmt()>& inner) {
        if (from == to) return inner();
        int loop = record(stage).order[from];
        Stmt body = nest(stage, from + 1, to, inner);
        if (state_.loops[loop].delay.iterations > 0) return delayed_for(loop, std::move(body));
        return make_for(loop, with_attached(loop, std::move(body)));
    }

    /// Which parts run late is decided; what they need of each other must be there then.
    Stmt delayed_for(int loop, Stmt inner) {
        const LoopRecord& l = state_.loops[loop];
        const std::string& late = record(l.delay.stage).definition.name;
        const std::string call = fmt::format("delay({}, {}, {})", late, l.name, l.delay.iterations);
        std::vector<Stmt> before, behind;
        for (auto& [stage, stmt] : parts_under(loop, std::move(inner)))
            (!behind.empty() || stage == l.delay.stage ? behind : before).push_back(std::move(stmt));
        user_check(!behind.empty(), where_, "{}: '{}' stands no longer under the loop; place it there: at({}, {})",
                   call, late, late, l.name);
        user_check(!before.empty(), where_,
                   "{}: nothing stands before '{}' under the loop, so nothing would run ahead of it; stage an operand "
                   "or place a producer there first",
                   call, late);
        auto extent = as_constant(l.extent);
        user_check(extent && *extent >= l.delay.iterations, where_,
                   "{}: the loop has {} iterations; a delay needs a constant number, no less than its own", call,
                   to_string(l.extent));
        Stmt early = sequence(std::move(before)), rest = sequence(std::move(behind));
        std::vector<BufferRef> local;
        for (int stage : order_)
            if (const Storage& storage = prepared_.at(stage).storage; storage.loop == loop)
                local.insert(local.end(), storage.buffers.begin(), storage.buffers.end());
        auto alike = [&](const BufferRef& one, const BufferRef& other) {
            return one == other || std::ranges::any_of(state_.in_place, [&](const auto& pair) {
                       return (pair.first.name() == one->name && pair.second.name() == other->name) ||
                              (pair.first.name() == other->name && pair.second.name() == one->name);
                   });
        };
        if (BufferRef met = used_by_both(early, rest, local, alike))
            user_error(where_,
                       "{}: both parts use '{}', which outlives an iteration; what runs ahead would meet what is not "
                       "there yet, or no longer; delay another stage",
                       call, met->name);
        For around{l.variable, lower_extent(loop), l.level, l.bind_step, loop, l.reduces, {}, 1, 0, role_of(loop)};
        return delayed_loop(around, early, rest, local, l.delay.iterations);
    }

    Stmt make_for(int loop, Stmt body) {
        const LoopRecord& l = state_.loops[loop];
        return make_stmt(For{l.variable, lower_extent(loop), l.level, l.bind_step, loop, l.reduces, std::move(body),
                             l.stages, l.in_flight, role_of(loop), l.pipeline_step});
    }

    AtomRole role_of(int loop) const {
        const auto& mma = record(state_.loops[loop].stage).mma;
        if (!mma) return AtomRole::None;
        return loop == mma->m   ? AtomRole::M
               : loop == mma->n ? AtomRole::N
               : loop == mma->k ? AtomRole::K
                                : AtomRole::None;
    }

    /// What an element decides is computed, and loaded, where that element is there.
    Expr lower_extent(int loop) {
        const LoopRecord& l = state_.loops[loop];
        if (!depends_on_element(l.extent)) return l.extent;
        const std::vector<int>& order = record(l.stage).order;
        std::vector<Expr> conditions, inside;
        for (size_t p = state_.position(loop); p < order.size(); ++p) inside.push_back(state_.loops[order[p]].variable);
        for (const Expr& condition : prepared_.at(l.stage).data_conditions)
            if (std::none_of(inside.begin(), inside.end(), [&](const Expr& v) { return contains(condition, v); }))
                conditions.push_back(condition);
        Expr extent = lower(l.stage, l.extent);
        return simplify(select_unchecked(all_of(conditions), extent, constant(Type::I64, 0)));
    }

    /// Such copies come first: they need nothing else, and are under way while others compute.
    bool copies_inputs(int stage) const {
        auto sites = reads_of(record(stage).definition);
        return record(stage).is_copy && std::all_of(sites.begin(), sites.end(), [](const ReadSite& site) {
                   return site.read->operation->is_input();
               });
    }

    /// What stands under a loop, in order, with the stage that it belongs to; `inner` is the owner's.
    std::vector<std::pair<int, Stmt>> parts_under(int loop, Stmt inner) {
        std::vector<std::pair<int, Stmt>> parts, others, after;
        for (int stage : order_) {
            if (record(stage).attach != loop) continue;
            auto& place = record(stage).after ? after : copies_inputs(stage) ? parts : others;
            place.emplace_back(stage, emit(stage));
        }
        parts.insert(parts.end(), others.begin(), others.end());
        parts.emplace_back(state_.loops[loop].stage, std::move(inner));
        parts.insert(parts.end(), after.begin(), after.end());
        return parts;
    }

    Stmt with_attached(int loop, Stmt inner) {
        std::vector<Stmt> stmts;
        for (auto& [stage, stmt] : parts_under(loop, std::move(inner))) stmts.push_back(std::move(stmt));
        Stmt body = sequence(std::move(stmts));
        for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
            const Storage& storage = prepared_.at(*it).storage;
            if (storage.loop != loop) continue;
            for (const BufferRef& buffer : storage.buffers) body = make_stmt(Allocate{buffer, std::move(body)});
        }
        return body;
    }

    Stmt reduction(int stage, int outermost) {
        const StageRecord& r = record(stage);
        std::vector<int> inner_data, bound;
        for (size_t p = outermost; p < r.order.size(); ++p)
            if (!state_.loops[r.order[p]].reduces)
                inner_data.push_back(r.order[p]);
            else if (is_bound_reduce(r.order[p]))
                bound.push_back(r.order[p]);
        std::vector<int> private_loops = bound;  // a partial result for each of their iterations
        private_loops.insert(private_loops.end(), inner_data.begin(), inner_data.end());
        make_accumulators(stage, private_loops);
        auto inside = [&](const std::vector<int>& loops, Stmt body) {
            for (auto l = loops.rbegin(); l != loops.rend(); ++l) body = make_for(*l, std::move(body));
            return body;
        };
        std::vector<Stmt> stmts{inside(private_loops, init_leaf(stage)),
                                nest(stage, outermost, [&] { return update_leaf(stage); })};
        auto last_bound_first = [&](int a, int b) { return state_.loops[a].bind_step > state_.loops[b].bind_step; };
        std::vector<int> fastest_first = bound;
        std::stable_sort(fastest_first.begin(), fastest_first.end(), last_bound_first);
        for (int loop : fastest_first) {
            std::vector<int> around = private_loops;
            std::erase(around, loop);
            stmts.push_back(inside(around, combine_leaf(stage, loop)));
        }
        stmts.push_back(inside(private_loops, finish_leaf(stage, bound)));
        Stmt body = sequence(std::move(stmts));
        for (const BufferRef& buffer : prepared_.at(stage).accumulators)
            body = make_stmt(Allocate{buffer, std::move(body)});
        return body;
    }

    /// Each iteration has a partial result of its own: a single one has the total.
    bool is_bound_reduce(int loop) const {
        const LoopRecord& l = state_.loops[loop];
        return l.reduces && is_thread(l.level) && !is_constant(l.extent, 1);
    }

    void make_accumulators(int stage, const std::vector<int>& inner_data) {
        const StageDefinition& definition = record(stage).definition;
        Prepared& p = prepared_.at(stage);
        std::vector<Expr> shape;
        p.indices.clear();
        for (int loop : inner_data) {
            user_check(
                as_constant(state_.loops[loop].extent), where_,
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

    // Leaves.

    Leaf leaf(int stage, Leaf::Kind kind, Expr mask) const {
        const StageRecord& r = record(stage);
        int step = r.mma && kind == Leaf::Kind::Update ? r.mma->step : r.step;
        return {kind, stage, r.definition.name, step, {}, std::move(mask)};
    }

    Stmt init_leaf(int stage) {
        Leaf init = leaf(stage, Leaf::Kind::Init, all_of({}));
        const Prepared& p = prepared_.at(stage);
        const auto& identity = record(stage).definition.reducer->identity;
        for (size_t c = 0; c < identity.size(); ++c) init.stores.push_back({p.accumulators[c], p.indices, identity[c]});
        return make_stmt(std::move(init));
    }

    Stmt update_leaf(int stage) {
        const Prepared& p = prepared_.at(stage);
        Leaf update = leaf(stage, Leaf::Kind::Update, p.full_mask);
        update.readers_mask = p.data_mask;
        if (record(stage).mma) update.atom = &matching_atom(state_, stage, where_);
        const auto& values = record(stage).definition.update;
        for (size_t c = 0; c < values.size(); ++c)
            update.stores.push_back({p.accumulators[c], p.indices, lower(stage, values[c])});
        return make_stmt(std::move(update));
    }

    Stmt combine_leaf(int stage, int loop) {
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
    /// memory.
    Stmt finish_leaf(int stage, const std::vector<int>& bound = {}) {
        const StageRecord& r = record(stage);
        const Prepared& p = prepared_.at(stage);
        std::vector<Expr> conditions{p.data_mask};
        if (p.storage.buffers[0]->memory != Memory::Registers)
            for (int loop : bound) conditions.push_back(state_.loops[loop].variable == 0);
        if (r.definition.target) return update_target(stage, conditions);
        Leaf finish = finishing_leaf(stage, conditions);
        std::vector<Expr> indices = place_in(p.storage, p.values);
        for (size_t o = 0; o < r.definition.finish.size(); ++o)
            finish.stores.push_back(
                {p.storage.buffers[o], indices,
                 simplify(cast_unchecked(p.storage.buffers[o]->type, lower(stage, r.definition.finish[o])))});
        return make_stmt(std::move(finish));
    }

    Leaf finishing_leaf(int stage, const std::vector<Expr>& conditions) {
        const StageRecord& r = record(stage);
        Leaf finish = leaf(stage, r.is_copy ? Leaf::Kind::Copy : Leaf::Kind::Finish, simplify(all_of(conditions)));
        finish.via = r.via;
        return finish;
    }

    Stmt update_target(int stage, std::vector<Expr> conditions) {
        const StageDefinition& definition = record(stage).definition;
        StoreTo update{
            prepared_.at(stage).storage.buffers[0], {}, lower(stage, definition.finish[0]), definition.combine};
        for (const Expr& index : definition.place) update.indices.push_back(lower(stage, index));
        conditions.push_back(update.indices.back());
        update.indices.pop_back();
        Leaf finish = finishing_leaf(stage, conditions);
        finish.stores.push_back(std::move(update));
        return make_stmt(std::move(finish));
    }

    /// Axes to loop variables, accumulators and reads to loads.
    Expr lower(int stage, const Expr& expr) {
        const StageRecord& r = record(stage);
        const Prepared& p = prepared_.at(stage);
        Substitution replacements = p.axes;
        for (size_t c = 0; c < p.accumulators.size(); ++c)
            replacements.emplace_back(r.definition.accumulators[c],
                                      make_expr(p.accumulators[c]->type, Load{p.accumulators[c], p.indices}));
        Expr loaded = transform(substitute(expr, replacements), [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            return read ? load(e.type(), *read) : Expr();
        });
        return simplify(loaded);
    }

    /// A region may start where an input tells.
    Expr inputs_loaded(const Expr& expr) {
        return transform(expr, [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            return read ? make_expr(e.type(), Load{input_buffer(read->operation), simplified(read->indices)}) : Expr();
        });
    }

    Expr load(Type type, const Read& read) {
        int producer = state_.stage_of(read.operation.get());
        if (producer < 0) return make_expr(type, Load{input_buffer(read.operation), simplified(read.indices)});
        const Storage& storage = prepared_.at(producer).storage;
        const BufferRef& buffer = storage.buffers[read.output];
        return cast_unchecked(type, make_expr(buffer->type, Load{buffer, place_in(storage, read.indices)}));
    }

    /// Where an element's memory is. A single element needs no index, whatever masks keep from being reached.
    static std::vector<Expr> place_in(const Storage& storage, const std::vector<Expr>& element) {
        std::vector<Expr> indices;
        for (size_t d = 0; d < element.size(); ++d) {
            bool single = storage.loop >= 0 && is_constant(storage.buffers[0]->shape[d], 1);
            indices.push_back(single ? constant(Type::I64, int64_t{0}) : simplify(element[d] - storage.lo[d]));
        }
        return indices;
    }

    static std::vector<Expr> simplified(std::vector<Expr> exprs) {
        for (Expr& e : exprs) e = simplify(e);
        return exprs;
    }

    BufferRef input_buffer(const std::shared_ptr<const Operation>& operation) {
        BufferRef& buffer = inputs_[operation.get()];
        if (!buffer)
            buffer = std::make_shared<const BufferNode>(BufferNode{.name = operation->name,
                                                                   .type = operation->outputs[0].type,
                                                                   .memory = Memory::Global,
                                                                   .shape = operation->shape,
                                                                   .strides = operation->strides,
                                                                   .role = BufferNode::Role::Input});
        return buffer;
    }

    /// Each stage reads what has been written before.
    void check_complete() const {
        std::set<const BufferNode*> written;
        for (const Nest& nest : tree_.nests) check_complete(nest.body, written);
    }
    void check_complete(const Stmt& stmt, std::set<const BufferNode*>& written) const {
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

    void finish_tree() {
        for (const auto& operation : operations_of(state_.outputs))
            if (operation->is_input()) tree_.inputs.push_back(input_buffer(operation));
        for (size_t k = 0; k < state_.outputs.size(); ++k) {
            const Storage& storage = prepared_.at(state_.stage_of(state_.result[k])).storage;
            // A staged result's copy has one output, whichever output of the user's operation it copies.
            int output = state_.result[k] == state_.outputs[k].operation().get() ? state_.outputs[k].output() : 0;
            tree_.outputs.push_back(storage.buffers[output]);
        }
        for (int stage : order_)
            for (const BufferRef& buffer : prepared_.at(stage).storage.buffers) {
                bool listed = std::find(tree_.outputs.begin(), tree_.outputs.end(), buffer) != tree_.outputs.end();
                if (target_of(state_, stage) >= 0) continue;  // not its own
                if (buffer->memory == Memory::Global && !listed) tree_.workspaces.push_back(buffer);
            }
        for (const auto& [out, in] : state_.in_place)
            for (size_t k = 0; k < state_.outputs.size(); ++k)
                if (state_.outputs[k].same(out))
                    tree_.in_place.emplace_back(tree_.outputs[k], input_buffer(in.operation()));
        collect_parameters();
    }

    void collect_parameters() {
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
    template <class See>
    void see_scalars(const Expr& expr, const See& see) const {
        visit(expr, [&](const Expr& e) {
            if (!e.as<Variable>()) return;
            for (const StageRecord& stage : state_.stages)
                for (const Expr& accumulator : stage.definition.accumulators)
                    if (accumulator.same(e)) return;
            see(e);
        });
    }

    const State& state_;
    std::source_location where_;
    Tree tree_;
    std::vector<int> order_;
    std::map<int, Prepared> prepared_;
    std::map<const Operation*, BufferRef> inputs_;
    std::map<std::string, int> names_;
};

}  // namespace

Tree build_tree(const State& state, std::source_location where) { return TreeBuilder(state, where).run(); }

}  // namespace tw
