#include "verify/mutate_kernel.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "support/error.h"
#include "verify/mutate_expr.h"
#include "verify/mutate_launch.h"
#include "verify/mutate_signals.h"
#include "verify/mutate_streams.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about

/// Puts a statement in the place of the one that is being looked at, and gives the whole.
using Put = std::function<ThreadStmt(const ThreadStmt&)>;

ThreadStmt nothing() { return make_thread(ThreadBlock{}); }

bool same_buffer(const codegen::Buffer& a, const codegen::Buffer& b) { return a.get() == b.get(); }

ThreadStmt with_buffer(const ThreadStmt& root, const codegen::Buffer& from, const codegen::Buffer& to) {
    auto access = [&](Access access) {
        if (same_buffer(access.buffer, from)) access.buffer = to;
        return access;
    };
    return transform(root, [&](const ThreadStmt& stmt) -> ThreadStmt {
        ThreadStmt mapped = map_expressions(stmt, [&](const Expr& expr) { return with_loads_of(expr, from, to); });
        if (auto store = mapped.as<ThreadStore>())
            return make_thread(ThreadStore{access(store->to), store->value}, stmt.step());
        if (auto wide = mapped.as<ThreadWide>())
            return make_thread(ThreadWide{wide->width, access(wide->to), access(wide->from), wide->where}, stmt.step());
        if (auto instruction = mapped.as<Instruction>())
            return make_thread(map_places(*instruction, access), stmt.step());
        if (auto declare = mapped.as<ThreadDeclare>(); declare && same_buffer(declare->buffer, from))
            return make_thread(ThreadDeclare{to}, stmt.step());
        return mapped;
    });
}

class KernelMutator {
public:
    explicit KernelMutator(const ThreadKernel& kernel) : kernel_(kernel), running_(running_values(kernel)) {}

    std::vector<Mutant> run() {
        launch();
        for (Mutant& mutant : altered_launches(kernel_)) found_.push_back(std::move(mutant));
        for (Mutant& mutant : altered_heads(kernel_)) found_.push_back(std::move(mutant));
        for (const codegen::Buffer& buffer : kernel_.shared) array(buffer);
        if (!kernel_.unions.empty())
            for (const codegen::Buffer& buffer : kernel_.shared) in_bytes_of_others(buffer);
        statement(kernel_.body, [](const ThreadStmt& whole) { return whole; });
        return std::move(found_);
    }

private:
    void add(MutationKind kind, const std::string& text, ThreadKernel mutant) {
        found_.push_back({kind, text, std::move(mutant)});
    }
    void add(MutationKind kind, const std::string& text, const ThreadStmt& body) {
        ThreadKernel mutant = kernel_;
        mutant.body = counted(body);
        add(kind, text, std::move(mutant));
    }

    /// Loops run by their extents, which are printed then: what they walk along may be altered.
    static ThreadStmt counted(const ThreadStmt& body) {
        return transform(body, [](const ThreadStmt& stmt) -> ThreadStmt {
            const ThreadLoop* loop = stmt.as<ThreadLoop>();
            if (!loop || loop->ends_at == 0) return {};
            ThreadLoop plain = *loop;
            plain.ends_at = 0;
            return make_thread(std::move(plain), stmt.step());
        });
    }

    void launch() {
        for (int change : {1, -1}) {
            for (int d = 0; d < 3; ++d) {
                auto blocks = kernel_.grid[d].defined() ? as_constant(kernel_.grid[d]) : std::nullopt;
                if (!blocks) continue;
                ThreadKernel mutant = kernel_;
                mutant.grid[d] = constant(kernel_.grid[d].type(), *blocks + change);
                add(MutationKind::Extent, fmt::format("grid.{}: {} -> {}", "xyz"[d], *blocks, *blocks + change),
                    mutant);
            }
            if (kernel_.threads + change < 1 || kernel_.threads + change > 1024) continue;
            ThreadKernel mutant = kernel_;
            mutant.threads += change;
            add(MutationKind::Extent, fmt::format("threads: {} -> {}", kernel_.threads, mutant.threads), mutant);
        }
    }

    /// One row less in memory.
    void array(const codegen::Buffer& buffer) {
        if (buffer->shape.empty() || require_constant(buffer->shape[0]) < 2) return;
        BufferNode less = *buffer;
        less.shape[0] = constant(less.shape[0].type(), require_constant(less.shape[0]) - 1);
        auto smaller = std::make_shared<const BufferNode>(std::move(less));
        ThreadKernel mutant = kernel_;
        mutant.body = with_buffer(kernel_.body, buffer, smaller);
        for (codegen::Buffer& shared : mutant.shared)
            if (same_buffer(shared, buffer)) shared = smaller;
        for (SharedUnion& shared : mutant.unions)
            for (std::vector<codegen::Buffer>& alternative : shared.alternatives)
                std::ranges::replace(alternative, buffer, smaller);
        add(MutationKind::Stage, fmt::format("{}: one row less", buffer->name), mutant);
    }

    /// In the bytes of what is needed at the same time.
    void in_bytes_of_others(const codegen::Buffer& buffer) {
        const UnionPlace place = place_in_unions(buffer.get(), kernel_.unions);
        ThreadKernel mutant = kernel_;
        SharedUnion& shared = mutant.unions[static_cast<size_t>(std::max(place.number, 0))];
        if (place.number >= 0) {
            std::vector<codegen::Buffer>& own = shared.alternatives[static_cast<size_t>(place.alternative)];
            if (own.size() == 1) return;
            std::erase(own, buffer);
        }
        shared.alternatives.push_back({buffer});
        if (!buffer->is_barrier)
            add(MutationKind::Stage, fmt::format("{}: in the bytes of others", buffer->name), mutant);
    }

    void statement(const ThreadStmt& stmt, const Put& put) {
        std::visit([&](const auto& node) { mutate(node, stmt, put); }, (*stmt).kind);
    }

    void mutate(const ThreadBlock& block, const ThreadStmt& stmt, const Put& put) {
        for (size_t k = 0; k < block.stmts.size(); ++k)
            statement(block.stmts[k], [&](const ThreadStmt& replaced) {
                std::vector<ThreadStmt> others = block.stmts;
                others[k] = replaced;
                return put(make_thread(ThreadBlock{others}, stmt.step()));
            });
    }

    void mutate(const ThreadLoop& loop, const ThreadStmt& stmt, const Put& put) {
        expressions_of(stmt, {ExprRole::Extent}, put);
        if (!loop.unroll) rings_.push_back(loop.variable);
        body(stmt, loop.body, put);
        if (!loop.unroll) rings_.pop_back();
    }

    void mutate(const ThreadIf& branch, const ThreadStmt& stmt, const Put& put) {
        expressions_of(stmt, {ExprRole::Mask}, put);
        body(stmt, branch.body, put);
    }

    void mutate(const ThreadRole& role, const ThreadStmt& stmt, const Put& put) {
        signals(stmt, put);
        body(stmt, role.body, put);
    }

    void signals(const ThreadStmt& stmt, const Put& put) {
        for (const AlteredStatement& altered : altered_signals(stmt))
            add(altered.kind, altered.text, put(altered.to.defined() ? altered.to : nothing()));
    }

    void streams(const ThreadStmt& stmt, const Put& put) {
        for (const AlteredStatement& altered : altered_streams(stmt, running_))
            add(altered.kind, altered.text, put(altered.to));
    }

    void body(const ThreadStmt& stmt, const ThreadStmt& inner, const Put& put) {
        statement(inner, [&](const ThreadStmt& replaced) { return put(with_children(stmt, {replaced})); });
    }

    /// The variable's bounds were those of the right value.
    void mutate(const ThreadLet& let, const ThreadStmt& stmt, const Put& put) {
        bool address = is_integer(let.value.type()) && !reads_memory(let.value);
        ExprRole role = let.value.type() == Type::Bool ? ExprRole::Mask
                        : address                      ? ExprRole::ReadIndex
                                                       : ExprRole::Value;
        streams(stmt, put);
        Expr unbounded = make_expr(let.variable.type(), Variable{.name = let.variable.as<Variable>()->name});
        expressions_of(stmt, {role}, [&](const ThreadStmt& replaced) {
            return map_all_expressions(put(replaced), [&](const Expr& expr) {
                return substitute(expr, {{let.variable, unbounded}});
            });
        });
    }

    void mutate(const ThreadDeclare& declare, const ThreadStmt&, const Put&) { array(declare.buffer); }

    void mutate(const ThreadStore& store, const ThreadStmt& stmt, const Put& put) {
        streams(stmt, put);
        add(is_correction(store) ? MutationKind::Stream : MutationKind::Stage, head_of(stmt) + ": left out",
            put(nothing()));
        initial_value(store, stmt, put);
        std::vector<ExprRole> roles;
        append(roles, store.to, ExprRole::WriteIndex);
        roles.push_back(ExprRole::Value);
        expressions_of(stmt, roles, put);
    }

    void mutate(const ThreadWide& wide, const ThreadStmt& stmt, const Put& put) {
        add(MutationKind::Stage, head_of(stmt) + ": left out", put(nothing()));
        std::vector<ExprRole> roles;
        append(roles, wide.to, ExprRole::WriteIndex);
        append(roles, wide.from, ExprRole::ReadIndex);
        if (wide.where.defined()) roles.push_back(ExprRole::Mask);
        expressions_of(stmt, roles, put);
    }

    void mutate(const Instruction& instruction, const ThreadStmt& stmt, const Put& put) {
        signals(stmt, put);
        if (!is_signal(instruction)) add(MutationKind::Stage, head_of(stmt) + ": left out", put(nothing()));
        if (auto wait = std::get_if<CpAsyncWait>(&instruction))
            add(MutationKind::Stage, fmt::format("{}: {}", head_of(stmt), wait->pending + 1),
                put(make_thread(Instruction(CpAsyncWait{wait->pending + 1}), stmt.step())));
        std::vector<ExprRole> roles;
        for (const codegen::Operand& operand : operands(instruction)) {
            if (auto number = std::get_if<Expr>(&operand))
                roles.push_back(number->type() == Type::Bool ? ExprRole::Mask : ExprRole::Value);
            if (auto matrix = std::get_if<MatrixOperand>(&operand); matrix && matrix->further.defined())
                roles.push_back(ExprRole::ReadIndex);
            const bool writes = std::holds_alternative<WriteOperand>(operand);
            if (const Access* place = operand_place(operand))
                append(roles, *place, writes ? ExprRole::WriteIndex : ExprRole::ReadIndex);
        }
        expressions_of(stmt, roles, put);
    }

    void mutate(const ThreadAccess&, const ThreadStmt&, const Put&) {}

    void mutate(const ThreadBarrier& barrier, const ThreadStmt& stmt, const Put& put) {
        ++barriers_;
        if (barrier.threads > 0) return signals(stmt, put);
        add(MutationKind::Barrier, fmt::format("barrier {}: removed", barriers_), put(nothing()));
    }

    void mutate(const ThreadComment&, const ThreadStmt&, const Put&) {}

    void initial_value(const ThreadStore& store, const ThreadStmt& stmt, const Put& put) {
        Expr other;
        if (auto real = store.value.as<FloatConstant>())
            // So large that a mean which starts there shows it.
            other = constant(store.value.type(), real->value != 0                   ? 0.0
                                                 : bytes_of(store.value.type()) < 4 ? 1.0
                                                                                    : 1048576.0);
        else if (auto integer = store.value.as<IntConstant>())
            other = constant(store.value.type(), int64_t{integer->value == 0});
        if (!other.defined()) return;
        if (store.to.buffer->memory == Memory::Registers && kernel_.thread.defined() && kernel_.threads > 1) {
            const Expr some = binary(BinaryOp::NotEqual, kernel_.thread, constant(kernel_.thread.type(), 0));
            add(MutationKind::Stage, head_of(stmt) + ": not in thread 0",
                put(make_thread(ThreadIf{some, stmt}, stmt.step())));
        }
        add(MutationKind::Stage, fmt::format("{}: {}", head_of(stmt), to_string(other)),
            put(make_thread(ThreadStore{store.to, other}, stmt.step())));
    }

    /// The statement's own expressions, of these roles.
    static void append(std::vector<ExprRole>& roles, const codegen::Access& access, ExprRole role) {
        size_t rank = codegen::place_of(access).indices.size();
        roles.insert(roles.end(), rank, role);
        roles.insert(roles.end(), access.indices.size() - rank, ExprRole::Check);
    }

    void expressions_of(const ThreadStmt& stmt, const std::vector<ExprRole>& roles, const Put& put) {
        std::vector<Expr> all = expressions(stmt);
        for (size_t k = 0; k < all.size(); ++k)
            for (const MutatedExpr& mutated : mutants_of(all[k], roles.at(k), rings_)) {
                size_t next = 0;
                ThreadStmt replaced =
                    map_expressions(stmt, [&](const Expr& expr) { return next++ == k ? mutated.expr : expr; });
                add(mutated.kind, fmt::format("{}: {}", head_of(stmt), mutated.text), put(replaced));
            }
    }

    const ThreadKernel& kernel_;
    std::vector<RunningValue> running_;
    std::vector<Expr> rings_;
    int barriers_ = 0;
    std::vector<Mutant> found_;
};

}  // namespace

std::string to_string(MutationKind kind) {
    switch (kind) {
        case MutationKind::Barrier: return "barrier";
        case MutationKind::ReadIndex: return "read index";
        case MutationKind::WriteIndex: return "write index";
        case MutationKind::Mask: return "mask";
        case MutationKind::Extent: return "extent";
        case MutationKind::Stage: return "stage";
        case MutationKind::Operator: return "operator";
        case MutationKind::Exchange: return "exchange";
        case MutationKind::Signal: return "signal";
        case MutationKind::Operand: return "operand";
        case MutationKind::Launch: return "launch";
        case MutationKind::Role: return "role";
        case MutationKind::Stream: return "stream";
    }
    return "?";
}

std::string head_of(const codegen::ThreadStmt& stmt) {
    std::string text = to_string(stmt);
    text = text.substr(0, text.find('\n'));
    constexpr size_t longest = 1000;
    return text.size() > longest ? text.substr(0, longest) + "..." : text;
}

Expr with_loads_of(const Expr& expr, const codegen::Buffer& from, const codegen::Buffer& to) {
    return transform(expr, [&](const Expr& node) -> Expr {
        auto load = node.as<Load>();
        return load && same_buffer(load->buffer, from) ? make_expr(node.type(), Load{to, load->indices}) : Expr();
    });
}

std::vector<Mutant> mutants_of(const ThreadKernel& kernel) { return KernelMutator(kernel).run(); }

}  // namespace tw::fuzz
