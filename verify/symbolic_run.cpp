#include "verify/symbolic_run.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "dsl/check_bindings.h"
#include "support/error.h"
#include "support/overloaded.h"
#include "verify/branch_as_selects.h"
#include "verify/symbolic_matrix.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about

constexpr int kWarp = 32;

class SymbolicRun {
public:
    SymbolicRun(Terms& terms, const ThreadKernel& kernel, const Bindings& sizes)
        : terms_(terms), kernel_(kernel), sizes_(sizes), memory_(terms, kernel, sizes) {}

    Stored run() {
        int64_t grid[3] = {1, 1, 1};
        for (int d = 0; d < 3; ++d)
            if (kernel_.grid[d].defined()) grid[d] = extent_of(kernel_.grid[d], sizes_);
        Threads all(static_cast<size_t>(kernel_.threads));
        for (size_t t = 0; t < all.size(); ++t) all[t] = static_cast<int>(t);
        for (int64_t z = 0; z < grid[2]; ++z)
            for (int64_t y = 0; y < grid[1]; ++y)
                for (int64_t x = 0; x < grid[0]; ++x) {
                    block_[0] = x, block_[1] = y, block_[2] = z;
                    memory_.start_block();
                    copies_.clear();
                    run(kernel_.body, all);
                }
        return memory_.stored();
    }

private:
    // Statements.

    void run(const ThreadStmt& stmt, const Threads& threads) {
        if (threads.empty()) return;
        std::visit([&](const auto& node) { run(node, threads); }, (*stmt).kind);
    }

    void run(const ThreadBlock& block, const Threads& threads) {
        for (const ThreadStmt& stmt : block.stmts) run(stmt, threads);
    }

    void run(const ThreadLoop& loop, Threads threads) {
        if (loop.next) throw Undecided{"blocks take tickets"};
        Values extents = eval(loop.extent, threads);
        for (int64_t i = 0; !threads.empty(); ++i) {
            Threads left;
            Values left_extents;
            for (size_t t = 0; t < threads.size(); ++t) {
                if (i >= known(extents[t], "a loop's extent")) continue;
                left.push_back(threads[t]);
                left_extents.push_back(extents[t]);
            }
            threads = std::move(left), extents = std::move(left_extents);
            define(loop.variable, threads, Values(threads.size(), terms_.integer(loop.variable.type(), i)));
            run(loop.body, threads);
        }
    }

    void run(const ThreadIf& branch, const Threads& threads) {
        const Values conditions = eval(branch.condition, threads);
        Threads inside, by_data;
        for (size_t t = 0; t < threads.size(); ++t) {
            const auto decided = terms_.value(conditions[t]);
            if (decided.value_or(1)) (decided ? inside : by_data).push_back(threads[t]);
        }
        run(branch.body, inside);
        if (by_data.empty()) return;
        const auto stores = branch_as_selects(branch);
        if (!stores) throw Undecided{"a condition depends on data"};
        run(*stores, by_data);
    }

    Threads those_where(const Expr& condition, const Threads& threads) {
        const Values conditions = eval(condition, threads);
        Threads inside;
        for (size_t t = 0; t < threads.size(); ++t)
            if (known(conditions[t], "a condition")) inside.push_back(threads[t]);
        return inside;
    }

    void run(const ThreadLet& let, const Threads& threads) { define(let.variable, threads, eval(let.value, threads)); }

    void run(const ThreadDeclare& declare, const Threads&) { memory_.declare_registers(declare.buffer); }

    void run(const ThreadStore& store, const Threads& threads) {
        Values values = eval(store.value, threads);
        memory_.write(store.to.buffer, places_of(store.to, threads), values);
    }

    void run(const ThreadWide& wide, const Threads& all) {
        const Threads threads = wide.where.defined() ? those_where(wide.where, all) : all;
        std::vector<Values> values;
        for (int w = 0; w < wide.width; ++w) values.push_back(read(wide.from, threads, w));
        for (int w = 0; w < wide.width; ++w)
            memory_.write(wide.to.buffer, places_of(wide.to, threads, w), values[static_cast<size_t>(w)]);
    }

    void run(const Instruction& instruction, const Threads& threads) {
        auto each_group = [&](const std::function<void(CopyGroups&)>& change) {
            for (int thread : threads) {
                CopyGroups& groups = copies_[thread];
                if (groups.empty()) groups.emplace_back();
                change(groups);
            }
        };
        std::visit(
            Overloaded{
                [&](const CpAsync& copy) { start_copies(copy, threads); },
                [&](const BeginArray& begin) { memory_.begin_array(begin.array.place.buffer); },
                [&](const CpAsyncCommit&) { each_group([](CopyGroups& groups) { groups.emplace_back(); }); },
                [&](const CpAsyncWait& wait) {
                    each_group([&](CopyGroups& groups) { land(groups, static_cast<size_t>(wait.pending)); });
                },
                [&](const OneOf<LdMatrix, StMatrix, TransposeLanes, Mma> auto&) { run_on_warps(instruction, threads); },
                [&](const OneOf<MbarrierInit, MbarrierExpectTx, MbarrierWait, MbarrierArrive, MbarrierArriveAt,
                                FenceMbarrierInit, FenceProxyAsync, BarrierSync, BarrierArrive, ClusterArrive,
                                ClusterWait, PrefetchTensorMap, TmaLoad, TmaStore, TmaStoreCommit, TmaStoreWaitRead,
                                PackRegisters, NarrowPair, Wgmma, WgmmaFence, WgmmaCommit, WgmmaWait, WgmmaFenceOperand,
                                LeaveUndefined, TakeTicket, SetMaxNReg, GriddepcontrolWait,
                                GriddepcontrolLaunchDependents> auto&) {
                    throw Undecided{fmt::format("what {} does is not known", vocabulary_call(instruction).entry)};
                }},
            instruction);
    }
    void run(const ThreadRole&, const Threads&) { throw Undecided{"roles run side by side"}; }
    void run(const ThreadAccess&, const Threads&) {}
    void run(const ThreadBarrier&, const Threads&) {}
    void run(const ThreadComment&, const Threads&) {}

    // Matrices.

    void run_on_warps(const Instruction& instruction, const Threads& threads) {
        for (size_t begin = 0; begin < threads.size(); begin += kWarp) {
            bool whole = threads[begin] % kWarp == 0 && begin + kWarp <= threads.size() &&
                         threads[begin + kWarp - 1] == threads[begin] + kWarp - 1;
            if (!whole)
                throw Misuse{fmt::format("{} is reached by a part of a warp", vocabulary_call(instruction).entry)};
            Threads warp(threads.begin() + static_cast<ptrdiff_t>(begin),
                         threads.begin() + static_cast<ptrdiff_t>(begin + kWarp));
            std::vector<WarpArgument> arguments;
            for (const codegen::Operand& operand : operands(instruction))
                std::visit(Overloaded{[&](const OneOf<ReadOperand, WriteOperand> auto& used) {
                                          arguments.push_back(in_warp(used.place, used.elements, warp));
                                      },
                                      [](const auto&) { internal_check(false, "an operand of another kind"); }},
                           operand);
            run_on_warp(terms_, memory_, instruction, arguments);
        }
    }

    /// Registers lie in order, whatever their dimensions; a row of shared memory lies in one dimension.
    WarpArgument in_warp(const Access& place, int elements, const Threads& warp) {
        std::vector<size_t> first = places_of(place, warp);
        if (place.buffer->memory != Memory::Registers) places_of(place, warp, elements - 1);
        for (size_t lane = 0; place.buffer->memory == Memory::Registers && lane < warp.size(); ++lane)
            memory_.check_registers(place.buffer, warp[lane], first[lane] + static_cast<size_t>(elements) - 1);
        return {place.buffer, first};
    }

    // Asynchronous copies.

    struct Copied {
        codegen::Buffer buffer;
        size_t place;
        Term value;
    };
    /// The last group is the one that a commit will close.
    using CopyGroups = std::vector<std::vector<Copied>>;

    void start_copies(const CpAsync& copy, const Threads& threads) {
        const Access &to = copy.to.place, &from = copy.from.place;
        Threads copying = threads, clearing;
        if (copy.there.defined()) {
            copying.clear();
            Values there = eval(copy.there, threads);
            for (size_t t = 0; t < threads.size(); ++t)
                (known(there[t], "a condition") ? copying : clearing).push_back(threads[t]);
        }
        for (int further = 0; further < copy.to.elements; ++further) {
            start(to, further, copying, read(from, copying, further));
            start(to, further, clearing, Values(clearing.size(), zero_of(to.buffer->type)));
        }
    }

    void start(const Access& to, int further, const Threads& threads, const Values& values) {
        std::vector<size_t> places = places_of(to, threads, further);
        memory_.write(to.buffer, places, Values(threads.size(), kUnderWay));
        for (size_t t = 0; t < threads.size(); ++t) {
            CopyGroups& groups = copies_[threads[t]];
            if (groups.empty()) groups.emplace_back();
            groups.back().push_back({to.buffer, places[t], values[t]});
        }
    }

    /// All but the last `pending` groups.
    void land(CopyGroups& groups, size_t pending) {
        while (groups.size() > pending + 1) {
            for (const Copied& copied : groups.front()) memory_.write(copied.buffer, {copied.place}, {copied.value});
            groups.erase(groups.begin());
        }
    }

    Term zero_of(Type type) { return is_float(type) ? terms_.real(type, 0) : terms_.integer(type, 0); }

    // Memory.

    /// Where each thread's element stands, `further` elements along the last dimension.
    std::vector<size_t> places_of(const Access& access, const Threads& threads, int further = 0) {
        std::vector<std::vector<int64_t>> indices;
        for (const Expr& index : codegen::place_of(access).indices) {
            std::vector<int64_t>& one_each = indices.emplace_back();
            for (Term term : eval(index, threads)) one_each.push_back(known(term, "an address"));
        }
        if (!indices.empty())
            for (int64_t& index : indices.back()) index += further;
        return memory_.places(access.buffer, indices, threads);
    }

    Values read(const Access& access, const Threads& threads, int further = 0) {
        if (auto gathered = gather(access, threads)) return *gathered;
        return memory_.read(access.buffer, places_of(access, threads, further));
    }

    /// Elements of memory that nobody writes, at indices that depend on data.
    std::optional<Values> gather(const Access& access, const Threads& threads) {
        if (access.buffer->memory != Memory::Global || !reads_memory_or_data(access.indices[0])) return {};
        Values indices = eval(access.indices[0], threads);
        bool depends = std::any_of(indices.begin(), indices.end(), [&](Term index) { return !terms_.value(index); });
        if (!depends) return {};
        return memory_.read_unknown(access.buffer, indices);
    }

    bool reads_memory_or_data(const Expr& index) const {
        bool found = reads_memory(index);
        for (const Expr& variable : variables_of(index)) found = found || data_.count(variable.id()) > 0;
        return found;
    }

    // Expressions.

    int64_t known(Term term, const char* what) const {
        auto value = terms_.value(term);
        if (!value) throw Undecided{fmt::format("{} depends on data", what)};
        return *value;
    }

    void define(const Expr& variable, const Threads& threads, const Values& values) {
        std::vector<Term>& all = variables_[variable.id()];
        all.resize(static_cast<size_t>(kernel_.threads), kUnwritten);
        for (size_t t = 0; t < threads.size(); ++t) {
            all[static_cast<size_t>(threads[t])] = values[t];
            if (!terms_.value(values[t])) data_.insert(variable.id());
        }
    }

    Values eval(const Expr& expr, const Threads& threads) {
        Type type = expr.type();
        if (auto integer = expr.as<IntConstant>()) return Values(threads.size(), terms_.integer(type, integer->value));
        if (auto real = expr.as<FloatConstant>()) return Values(threads.size(), terms_.real(type, real->value));
        if (expr.as<Variable>()) return variable(expr, threads);
        if (auto load = expr.as<Load>()) return read({load->buffer, load->indices}, threads);
        if (auto choice = expr.as<Select>()) return select(*choice, type, threads);
        if (auto operation = expr.as<Binary>()) return binary(*operation, type, threads);
        if (auto exchange = expr.as<Exchange>()) return exchanged(*exchange, type, threads);
        std::vector<Values> kids;
        for (const Expr& kid : children(expr)) kids.push_back(eval(kid, threads));
        Values values;
        for (size_t t = 0; t < threads.size(); ++t) {
            if (auto operation = expr.as<Unary>()) values.push_back(terms_.unary(operation->op, type, kids[0][t]));
            if (expr.as<Cast>()) values.push_back(terms_.cast(type, kids[0][t]));
            if (expr.as<Fma>()) values.push_back(terms_.fma(type, kids[0][t], kids[1][t], kids[2][t]));
        }
        internal_check(values.size() == threads.size(), "no terms for {}", to_string(expr));
        return values;
    }

    Values variable(const Expr& expr, const Threads& threads) {
        Values values;
        const Variable& variable = *expr.as<Variable>();
        for (int thread : threads) values.push_back(value_in(expr, variable, thread));
        return values;
    }

    Term value_in(const Expr& expr, const Variable& variable, int thread) {
        if (expr.same(kernel_.thread)) return terms_.integer(expr.type(), thread);
        for (int d = 0; d < 3; ++d)
            if (expr.same(kernel_.block[d])) return terms_.integer(expr.type(), block_[d]);
        if (variable.kind == VariableKind::Size) return terms_.integer(expr.type(), bound_size(expr, sizes_));
        if (variable.kind == VariableKind::Scalar) {
            for (size_t s = 0; s < kernel_.scalars.size(); ++s)
                if (kernel_.scalars[s].same(expr)) return terms_.symbol(expr.type(), -1, static_cast<int64_t>(s));
        }
        return variables_.at(expr.id()).at(static_cast<size_t>(thread));
    }

    /// Only the side that is chosen, or both where data choose.
    Values select(const Select& choice, Type type, const Threads& threads) {
        Values conditions = eval(choice.condition, threads);
        auto on_side = [&](const Expr& side, bool yes) {
            auto taken = [&](size_t t) { return terms_.value(conditions[t]).value_or(yes) == int64_t{yes}; };
            return eval_where(side, threads, taken);
        };
        Values yes = on_side(choice.yes, true), no = on_side(choice.no, false), values;
        for (size_t t = 0; t < threads.size(); ++t) {
            auto decided = terms_.value(conditions[t]);
            values.push_back(decided ? (*decided ? yes[t] : no[t]) : terms_.select(type, conditions[t], yes[t], no[t]));
        }
        return values;
    }

    Values binary(const Binary& operation, Type type, const Threads& threads) {
        Values left = eval(operation.a, threads), values;
        auto needed = [&](size_t t) {
            auto decided = terms_.value(left[t]);
            if (operation.op == BinaryOp::And) return decided.value_or(1) != 0;
            if (operation.op == BinaryOp::Or) return decided.value_or(0) == 0;
            return true;
        };
        Values right = eval_where(operation.b, threads, needed);
        for (size_t t = 0; t < threads.size(); ++t)
            values.push_back(needed(t) ? terms_.binary(operation.op, type, left[t], right[t]) : left[t]);
        return values;
    }

    /// The values of the threads that need one; kUnwritten for the others.
    template <class Needed>
    Values eval_where(const Expr& expr, const Threads& threads, const Needed& needed) {
        Threads some;
        for (size_t t = 0; t < threads.size(); ++t)
            if (needed(t)) some.push_back(threads[t]);
        if (some.size() == threads.size()) return eval(expr, threads);
        Values got = some.empty() ? Values() : eval(expr, some), values(threads.size(), kUnwritten);
        size_t next = 0;
        for (size_t t = 0; t < threads.size(); ++t)
            if (needed(t)) values[t] = got[next++];
        return values;
    }

    Values exchanged(const Exchange& exchange, Type type, const Threads& threads) {
        Values own = eval(exchange.a, threads), values;
        for (int thread : threads) {
            int partner = thread / kWarp * kWarp + ((thread % kWarp) ^ exchange.lane_bits);
            auto found = std::lower_bound(threads.begin(), threads.end(), partner);
            bool there = found != threads.end() && *found == partner;
            values.push_back(there ? own[static_cast<size_t>(found - threads.begin())] : terms_.undefined(type));
        }
        return values;
    }

    Terms& terms_;
    const ThreadKernel& kernel_;
    const Bindings& sizes_;
    SymbolicMemory memory_;
    std::map<int, CopyGroups> copies_;  // of each thread
    int64_t block_[3] = {};
    std::map<const ExprNode*, std::vector<Term>> variables_;
    std::set<const ExprNode*> data_;  // variables that depend on data
};

}  // namespace

std::variant<Stored, Misuse, Undecided> run_symbolically(Terms& terms, const ThreadKernel& kernel,
                                                         const Bindings& sizes) {
    try {
        return SymbolicRun(terms, kernel, sizes).run();
    } catch (const Misuse& finding) {
        return finding;
    } catch (const Undecided& reason) {
        return reason;
    }
}

}  // namespace tw::fuzz
