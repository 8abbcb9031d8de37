#include "codegen/signals/signal_events.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "dsl/evaluate.h"
#include "dsl/simplify.h"
#include "support/overloaded.h"

namespace tw::codegen {
namespace {

using Kind = SignalEvent::Kind;

struct DependsOnData {};

/// A multiprocessor multiplies 2048 pairs of 16 bits a cycle, and as many bytes of others; k is 32 bytes, of any type.
int64_t cycles_of(const Wgmma& product) { return int64_t{product.atom->n} * product.atom->m * 16 / 2048; }

/// Nothing of instructions that tell other threads nothing.
std::optional<Kind> kind_of(const Instruction& instruction) {
    using Told = std::optional<Kind>;
    return std::visit(
        Overloaded{
            [](const MbarrierInit&) -> Told { return Kind::Init; },
            [](const OneOf<MbarrierArrive, MbarrierArriveAt> auto&) -> Told { return Kind::Arrive; },
            [](const MbarrierExpectTx&) -> Told { return Kind::Expect; },
            [](const MbarrierWait&) -> Told { return Kind::Wait; },
            [](const BarrierSync&) -> Told { return Kind::Meet; },
            [](const BarrierArrive&) -> Told { return Kind::Come; },
            [](const ClusterArrive&) -> Told { return Kind::ClusterArrive; },
            [](const ClusterWait&) -> Told { return Kind::ClusterWait; },
            [](const TmaLoad&) -> Told { return Kind::Load; }, [](const Wgmma&) -> Told { return Kind::Multiply; },
            [](const WgmmaCommit&) -> Told { return Kind::Commit; },
            [](const WgmmaWait&) -> Told { return Kind::AwaitProducts; },
            [](const OneOf<FenceMbarrierInit, FenceProxyAsync, PrefetchTensorMap, TmaStore, TmaStoreCommit,
                           TmaStoreWaitRead, CpAsync, CpAsyncCommit, CpAsyncWait, LdMatrix, StMatrix, TransposeLanes,
                           Mma, PackRegisters, NarrowPair, WgmmaFence, WgmmaFenceOperand, LeaveUndefined, TakeTicket,
                           BeginArray, SetMaxNReg, GriddepcontrolWait, GriddepcontrolLaunchDependents> auto&) -> Told {
                return {};
            }},
        instruction);
}

bool tells(const ThreadStmt& root) {
    bool found = false;
    visit(root, [&](const ThreadStmt& stmt) {
        const Instruction* instruction = stmt.as<Instruction>();
        found = found || stmt.as<ThreadBarrier>() || stmt.as<ThreadRole>() || (instruction && kind_of(*instruction));
    });
    return found;
}

int64_t size_of(const Expr& expr) {
    int64_t nodes = 0;
    visit(expr, [&](const Expr& e) { nodes += !e.as<Variable>() && !as_constant(e); });
    return nodes;
}

/// About as many cycles as the statement has operations.
int64_t work_of(const ThreadStmt& stmt) {
    int64_t own = 0, inside = 0;
    if (stmt.as<ThreadStore>() || stmt.as<ThreadWide>() || stmt.as<Instruction>()) own = 2;
    if (auto store = stmt.as<ThreadStore>()) own += size_of(store->value);
    for (const ThreadStmt& kid : children(stmt)) inside += work_of(kid);
    if (auto loop = stmt.as<ThreadLoop>()) inside *= as_constant(loop->extent).value_or(1);
    return own + inside;
}

}  // namespace

struct SignalEvents::Code {
    struct Step;
    using Steps = std::vector<Step>;

    struct Loop {
        int slot;
        CompiledExpr extent;
        Steps body;
        int next_slot;  // of the ticket that ends it, or -1
    };
    struct If {
        CompiledExpr condition;
        Steps body;
    };
    struct Let {
        int slot;
        CompiledExpr value;
    };
    struct Role {
        int first, threads, turns;
        int thread_slot, turn_slot;  // or -1
        Steps body;
    };
    struct Call {
        SignalEvent event;
        std::vector<std::pair<std::vector<int>, CompiledExpr>> objects;  // of each index, the numbers; see objects_of
        std::vector<CompiledExpr> numbers;                               // see emit
    };
    struct Step {
        std::variant<Loop, If, Let, Role, Call> kind;
    };

    explicit Code(const ThreadKernel& k) : kernel(k) {
        for (const TensorMapUse& use : kernel.maps) boxes[use.map.get()] = &use;
        visit(kernel.body, [&](const ThreadStmt& stmt) {
            if (auto load = instruction_of<TmaLoad>(stmt)) filled.insert(load->to.place.buffer.get());
        });
        find_counters();
        steps = compile(kernel.body);
    }

    // Compilation.

    Steps compile(const ThreadStmt& stmt) {
        Steps result;
        add(stmt, result);
        return result;
    }

    void add(const ThreadStmt& stmt, Steps& out) {
        if (!stmt.defined()) return;
        if (auto block = stmt.as<ThreadBlock>()) {
            for (const ThreadStmt& kid : block->stmts) add(kid, out);
        } else if (auto let = stmt.as<ThreadLet>()) {
            if (is_known(let->value))
                out.push_back({Let{slots.slot(let->variable), compiled(let->value)}});
            else
                unknown.push_back(let->variable);
        } else if (auto store = counting(stmt)) {
            const Expr& counter = counters.at(store->to.buffer.get());
            Expr value = tickets.contains(store->to.buffer.get()) && !is_known(store->value) ? ticket_after(counter)
                                                                                             : store->value;
            out.push_back({Let{slots.slot(counter), compiled(value)}});
        } else if (!tells(stmt)) {
            if (int64_t cycles = work_of(stmt)) out.push_back({Call{{Kind::Work, -1, -1, -1, -1, 0, cycles}, {}, {}}});
        } else if (auto loop = stmt.as<ThreadLoop>()) {
            int next = loop->next ? slots.slot(counters.at(loop->next.get())) : -1;
            out.push_back({Loop{slots.slot(loop->variable), compiled(loop->extent), compile(loop->body), next}});
        } else if (auto branch = stmt.as<ThreadIf>()) {
            out.push_back({If{compiled(branch->condition), compile(branch->body)}});
        } else if (auto role = stmt.as<ThreadRole>()) {
            out.push_back(
                {Role{role->first, role->threads, role->turns, role->thread.defined() ? slots.slot(role->thread) : -1,
                      role->turn.defined() ? slots.slot(role->turn) : -1, compile(role->body)}});
        } else if (auto meet = stmt.as<ThreadBarrier>()) {
            int64_t threads = meet->threads ? meet->threads : kernel.threads + kernel.producer_threads;
            Call call{{Kind::Meet, meet->id, -1, -1, -1, 0, threads}, {}, {}};
            if (meet->turn.defined()) call.numbers.push_back(compiled(meet->turn));
            out.push_back({std::move(call)});
        } else {
            out.push_back({compile(*stmt.as<Instruction>())});
        }
    }

    /// Registers in which a role counts: variables here.
    void find_counters() {
        visit(kernel.body, [&](const ThreadStmt& stmt) {
            if (auto loop = stmt.as<ThreadLoop>(); loop && loop->next) tickets.insert(loop->next.get());
        });
        visit(kernel.body, [&](const ThreadStmt& stmt) {
            const ThreadStore* store = stmt.as<ThreadStore>();
            const bool counts = store && (store->to.buffer->below > 0 || tickets.contains(store->to.buffer.get()));
            if (!counts || counters.contains(store->to.buffer.get())) return;
            Expr count = make_expr(store->to.buffer->type, Variable{.name = store->to.buffer->name});
            counters.emplace(store->to.buffer.get(), std::move(count));
        });
        kernel.body = map_all_expressions(kernel.body, [&](const Expr& root) {
            return transform(root, [&](const Expr& e) -> Expr {
                const Load* load = e.as<Load>();
                auto found = load ? counters.find(load->buffer.get()) : counters.end();
                return found == counters.end() ? Expr() : found->second;
            });
        });
    }

    /// As if blocks took tickets in turn.
    Expr ticket_after(const Expr& ticket) const {
        return simplify(ticket + cast_unchecked(ticket.type(), kernel.grid[0]));
    }

    const ThreadStore* counting(const ThreadStmt& stmt) const {
        const ThreadStore* store = stmt.as<ThreadStore>();
        return store && counters.contains(store->to.buffer.get()) ? store : nullptr;
    }

    bool is_known(const Expr& expr) const {
        if (reads_memory(expr)) return false;
        return std::ranges::none_of(unknown, [&](const Expr& variable) { return contains(expr, variable); });
    }

    CompiledExpr compiled(const Expr& expr) {
        if (!is_known(expr)) throw DependsOnData();
        visit(expr, [&](const Expr& e) {
            for (const Expr& size : kernel.sizes)
                if (e.same(size)) throw DependsOnData();
        });
        return CompiledExpr(expr, slots, [](const ExprNode&) -> const MemoryView* { throw DependsOnData(); });
    }

    Call compile(const Instruction& instruction) {
        Call result{{*kind_of(instruction)}, {}, {}};
        auto at = [&](const OneOf<ReadOperand, WriteOperand> auto& barrier) {
            result.objects.push_back(objects_of(barriers, barrier.place));
        };
        auto with = [&](const Expr& number) { result.numbers.push_back(compiled(number)); };
        std::visit(Overloaded{[&](const MbarrierInit& init) { at(init.barrier), with(init.arrivals); },
                              [&](const MbarrierExpectTx& expect) { at(expect.barrier), with(expect.bytes); },
                              [&](const MbarrierWait& wait) { at(wait.barrier), with(wait.parity); },
                              [&](const MbarrierArrive& arrive) { at(arrive.barrier); },
                              [&](const MbarrierArriveAt& arrive) { at(arrive.barrier), with(arrive.rank); },
                              [&](const OneOf<BarrierSync, BarrierArrive> auto& barrier) {
                                  result.event.object = 0;
                                  result.event.number = require_constant(barrier.threads);
                                  with(barrier.id);
                              },
                              [&](const TmaLoad& load) { compile_load(load, result); },
                              [&](const Wgmma& product) {
                                  result.event.number = cycles_of(product);
                                  for (const MatrixOperand* matrix : product.matrices())
                                      if (filled.contains(matrix->place.buffer.get()))
                                          result.objects.push_back(objects_of(slots_of_boxes, matrix->place));
                              },
                              [&](const WgmmaWait& wait) { result.event.number = wait.pending; },
                              [](const auto&) {}},  // what kind_of tells says all
                   instruction);
        return result;
    }

    void compile_load(const TmaLoad& load, Call& result) {
        const TensorMapUse& use = *boxes.at(load.map.map.get());
        result.event.number = use.elements() * bytes_of(use.tensor->type);
        result.objects.push_back(objects_of(slots_of_boxes, load.to.place));
        result.objects.push_back(objects_of(barriers, load.barrier.place));
        for (const Expr& ranks : {load.ranks, load.first_rank})
            if (ranks.defined()) result.numbers.push_back(compiled(ranks));
    }

    /// Elements of arrays along their first dimension, by their numbers.
    using Objects = std::vector<std::pair<const BufferNode*, int64_t>>;

    std::pair<std::vector<int>, CompiledExpr> objects_of(Objects& all, const Access& place) {
        std::vector<int> numbers;
        for (int64_t e = 0; e < require_constant(place.buffer->shape[0]); ++e) {
            std::pair object(place.buffer.get(), e);
            auto found = std::ranges::find(all, object);
            numbers.push_back(static_cast<int>(found - all.begin()));
            if (found == all.end()) all.push_back(object);
        }
        return {numbers, compiled(place.indices[0])};
    }

    static std::string name_of(const Objects& all, int number) {
        const auto& [buffer, element] = all.at(static_cast<size_t>(number));
        return fmt::format("{}[{}]", buffer->name, element);
    }

    // Running.

    void run(const Steps& all) {
        for (const Step& step : all) {
            if (!found.whole) return;
            std::visit([&](const auto& one) { run(one); }, step.kind);
        }
    }
    void run(const Loop& loop) {
        int64_t extent = loop.extent.run_integer(values);
        for (int64_t i = 0; found.whole; ++i) {
            if ((loop.next_slot < 0 ? i : values[loop.next_slot].integer) >= extent) return;
            values[loop.slot].integer = i;
            run(loop.body);
        }
    }
    void run(const If& branch) {
        if (branch.condition.run_integer(values)) run(branch.body);
    }
    void run(const Let& let) { values[let.slot] = let.value.run_register(values); }
    void run(const Role& role) {
        if (thread < role.first || thread >= role.first + role.threads) return;
        int each = role.threads / role.turns, inside = thread - role.first;
        if (role.thread_slot >= 0) values[role.thread_slot].integer = inside % each;
        if (role.turn_slot >= 0) values[role.turn_slot].integer = inside / each;
        run(role.body);
    }
    void run(const Call& call) {
        SignalEvent event = call.event;
        if (event.kind == Kind::Work && !found.events.empty() && found.events.back().kind == Kind::Work) {
            found.events.back().number += event.number;
            return;
        }
        auto object = [&](size_t which) {
            const auto& [numbers, index] = call.objects[which];
            return numbers.at(static_cast<size_t>(index.run_integer(values)));
        };
        auto number = [&] { return call.numbers[0].run_integer(values); };
        if (!call.objects.empty()) event.object = object(0);
        if (event.kind == Kind::Load) event.barrier = object(1);
        if (event.kind == Kind::Multiply && call.objects.size() > 1) event.other = object(1);
        if ((event.kind == Kind::Meet || event.kind == Kind::Come) && !call.numbers.empty())
            event.object += static_cast<int>(number());
        if (event.kind == Kind::Arrive && !call.numbers.empty()) event.rank = static_cast<int>(number());
        if (event.kind == Kind::Load && !call.numbers.empty()) event.ranks = static_cast<unsigned>(number());
        if (event.kind == Kind::Load && call.numbers.size() > 1) event.ranks <<= call.numbers[1].run_integer(values);
        if (event.kind == Kind::Init || event.kind == Kind::Expect || event.kind == Kind::Wait) event.number = number();
        found.events.push_back(event);
        found.whole = found.events.size() <= most;
    }

    ThreadKernel kernel;
    SlotMap slots;
    std::map<const BufferNode*, const TensorMapUse*> boxes;  // by map
    std::set<const BufferNode*> filled;                      // by boxes
    std::map<const BufferNode*, Expr> counters;
    std::set<const BufferNode*> tickets;  // counters that end loops
    std::vector<Expr> unknown;            // variables that depend on data
    Objects barriers, slots_of_boxes;
    Steps steps;

    std::vector<Register> values;
    ThreadEvents found;
    int thread = 0;
    size_t most = 0;
};

SignalEvents::SignalEvents(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SignalEvents::SignalEvents(SignalEvents&&) noexcept = default;
SignalEvents::~SignalEvents() = default;

std::optional<SignalEvents> SignalEvents::of(const ThreadKernel& kernel) {
    try {
        auto code = std::make_unique<Code>(kernel);
        if (code->barriers.empty()) return {};
        return SignalEvents(std::move(code));
    } catch (const DependsOnData&) {
        return {};
    }
}

ThreadEvents SignalEvents::run(int rank, int thread, size_t most) {
    Code& code = *code_;
    code.found = {};
    code.thread = thread;
    code.most = most;
    for (const Expr& index : code.kernel.block) code.slots.slot(index);
    int own = code.slots.slot(code.kernel.thread), x = code.slots.slot(code.kernel.block[0]);
    code.values.assign(static_cast<size_t>(code.slots.size()), {});
    code.values[own].integer = thread;
    code.values[x].integer = rank;
    code.run(code.steps);
    return std::move(code.found);
}

std::string SignalEvents::barrier_name(int barrier) const { return Code::name_of(code_->barriers, barrier); }
std::string SignalEvents::slot_name(int slot) const { return Code::name_of(code_->slots_of_boxes, slot); }

}  // namespace tw::codegen
