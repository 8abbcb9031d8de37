// Loops of one iteration, conditions that are constants and dimensions of one element come from passes that treat all
// sizes alike. Compilers remove them; readers should not have to.
#include <algorithm>
#include <map>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

// ---- loops and conditions -------------------------------------------------------------------------------------------

/// How often each variable or array is defined. Copies of a statement define the same ones, each in its own scope.
std::map<const void*, int> count_definitions(const ThreadStmt& root) {
    std::map<const void*, int> definitions;
    visit(root, [&](const ThreadStmt& stmt) {
        if (auto let = stmt.as<ThreadLet>()) ++definitions[let->variable.id()];
        if (auto declare = stmt.as<ThreadDeclare>()) ++definitions[declare->buffer.get()];
    });
    return definitions;
}

class UnitDropper {
public:
    explicit UnitDropper(const ThreadStmt& root) : definitions_(count_definitions(root)) {}

    ThreadStmt rewrite(const ThreadStmt& root) const {
        return transform(root, [&](const ThreadStmt& stmt) { return rewritten(stmt); });
    }

private:
    ThreadStmt rewritten(const ThreadStmt& stmt) const {
        if (stmt.as<ThreadBlock>()) return without_idle_comments(stmt);
        if (auto branch = stmt.as<ThreadIf>()) {
            if (is_constant(branch->condition, 0)) return make_thread(ThreadBlock{});
            return is_constant(branch->condition, 1) && may_join(branch->body) ? renamed(branch->body) : ThreadStmt();
        }
        auto loop = stmt.as<ThreadLoop>();
        if (!loop || loop->next || as_constant(loop->extent) != 1 || !may_join(loop->body)) return {};
        Substitution values{{loop->variable, constant(loop->variable.type(), int64_t{0})}};
        return map_all_expressions(renamed(loop->body), [&](const Expr& expr) {
            return contains(expr, loop->variable) ? simplify(substitute(expr, values)) : expr;
        });
    }

    /// What the statements declare is declared nowhere else, so it can be visible further on.
    bool may_join(const ThreadStmt& body) const {
        return std::ranges::none_of(statements(body), [&](const ThreadStmt& stmt) {
            auto declare = stmt.as<ThreadDeclare>();
            return declare && definitions_.at(declare->buffer.get()) > 1;
        });
    }

    /// With variables of its own in the place of those that other statements define too.
    ThreadStmt renamed(const ThreadStmt& body) const {
        Substitution fresh;
        for (const ThreadStmt& stmt : statements(body))
            if (auto let = stmt.as<ThreadLet>(); let && definitions_.at(let->variable.id()) > 1)
                fresh.emplace_back(let->variable,
                                   make_expr(let->variable.type(), Variable(*let->variable.as<Variable>())));
        if (fresh.empty()) return body;
        return map_all_expressions(body, [&](const Expr& expr) { return substitute(expr, fresh); });
    }

    /// A comment says what the statement behind it does.
    static ThreadStmt without_idle_comments(const ThreadStmt& block) {
        std::vector<ThreadStmt> kept;
        for (const ThreadStmt& stmt : block.as<ThreadBlock>()->stmts) {
            bool empty = stmt.as<ThreadBlock>() && statements(stmt).empty();
            if (!empty)
                kept.push_back(stmt);
            else if (!kept.empty() && kept.back().as<ThreadComment>())
                kept.pop_back();
        }
        return block_of(kept);
    }

    std::map<const void*, int> definitions_;
};

// ---- dimensions of register arrays ----------------------------------------------------------------------------------

/// Which dimensions of an array stay, and the array that has them alone.
struct Shrunk {
    Buffer buffer;
    std::vector<bool> kept;

    std::vector<Expr> indices(const std::vector<Expr>& all) const {
        std::vector<Expr> result;
        for (size_t d = 0; d < all.size(); ++d)
            if (d >= kept.size() || kept[d]) result.push_back(all[d]);
        return result;
    }
};
using ShrunkArrays = std::map<const BufferNode*, Shrunk>;

Shrunk shrunk(const Buffer& buffer, bool with_last = false) {
    BufferNode node = *buffer;
    node.shape.clear();
    Shrunk result;
    for (size_t d = 0; d < buffer->shape.size(); ++d) {
        bool last = d + 1 == buffer->shape.size();
        result.kept.push_back(!is_constant(buffer->shape[d], 1) || (last && with_last));
        if (result.kept.back()) node.shape.push_back(buffer->shape[d]);
    }
    result.buffer = std::make_shared<const BufferNode>(std::move(node));
    return result;
}

/// What is moved or passed as neighbours of the last dimension stays an array of these.
void keep_arrays(const ThreadStmt& stmt, ShrunkArrays& arrays) {
    auto keep = [&](const Access& access) {
        auto found = access.buffer ? arrays.find(access.buffer.get()) : arrays.end();
        if (found != arrays.end()) found->second = shrunk(access.buffer, true);
    };
    if (auto wide = stmt.as<ThreadWide>()) keep(wide->to), keep(wide->from);
    if (auto access = stmt.as<ThreadAccess>()) keep(access->to);
    if (auto instruction = stmt.as<Instruction>()) visit_places(*instruction, keep);
}

ShrunkArrays arrays_with_units(const ThreadStmt& root) {
    ShrunkArrays arrays;
    visit(root, [&](const ThreadStmt& stmt) {
        auto declare = stmt.as<ThreadDeclare>();
        if (!declare || std::ranges::none_of(declare->buffer->shape, [](const Expr& e) { return is_constant(e, 1); }))
            return;
        arrays.emplace(declare->buffer.get(), shrunk(declare->buffer));
    });
    visit(root, [&](const ThreadStmt& stmt) { keep_arrays(stmt, arrays); });
    return arrays;
}

Access in_shrunk(const Access& access, const ShrunkArrays& arrays) {
    auto found = access.buffer ? arrays.find(access.buffer.get()) : arrays.end();
    return found == arrays.end() ? access : Access{found->second.buffer, found->second.indices(access.indices)};
}

ThreadStmt without_unit_dimensions(const ThreadStmt& root) {
    const ShrunkArrays arrays = arrays_with_units(root);
    if (arrays.empty()) return root;
    auto at = [&](const Access& access) { return in_shrunk(access, arrays); };
    ThreadStmt mapped = map_all_expressions(root, [&](const Expr& expr) {
        return transform(expr, [&](const Expr& node) -> Expr {
            const Load* load = node.as<Load>();
            if (!load || !arrays.count(load->buffer.get())) return {};
            Access place = at({load->buffer, load->indices});
            return make_expr(node.type(), Load{place.buffer, place.indices});
        });
    });
    return transform(mapped, [&](const ThreadStmt& stmt) -> ThreadStmt {
        if (auto declare = stmt.as<ThreadDeclare>())
            return make_thread(ThreadDeclare{at({declare->buffer, {}}).buffer}, stmt.step());
        if (auto store = stmt.as<ThreadStore>())
            return make_thread(ThreadStore{at(store->to), store->value, store->atomic}, stmt.step());
        if (auto wide = stmt.as<ThreadWide>())
            return make_thread(ThreadWide{wide->width, at(wide->to), at(wide->from)}, stmt.step());
        if (auto access = stmt.as<ThreadAccess>())
            return make_thread(ThreadAccess{at(access->to), access->width, access->writes}, stmt.step());
        auto instruction = stmt.as<Instruction>();
        return instruction ? make_thread(map_places(*instruction, at), stmt.step()) : ThreadStmt();
    });
}

}  // namespace

ThreadKernel drop_units(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = without_unit_dimensions(UnitDropper(kernel.body).rewrite(kernel.body));
    return result;
}

}  // namespace tw::codegen
