// Conditions and address arithmetic move out of the loops that repeat them. ptxas does much of this by itself; what it
// cannot know is which names make the text readable, and it does not always keep one base with constant offsets.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/divisions.h"
#include "codegen/thread_passes/evaluation.h"
#include "codegen/thread_passes/hoist_conditions.h"
#include "codegen/thread_passes/thread_passes.h"

namespace tw::codegen {
namespace {

// ---- names for what is only another name ----------------------------------------------------------------------------

/// let j = block_x: the block's index is called j from here on.
ThreadKernel without_aliases(ThreadKernel kernel) {
    Substitution names;
    for (Expr* builtin : {&kernel.thread, &kernel.block[0], &kernel.block[1], &kernel.block[2]}) {
        if (!builtin->defined()) continue;
        Expr name;
        kernel.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
            auto let = stmt.as<ThreadLet>();
            if (!let || !let->value.same(*builtin)) return {};
            if (!name.defined())
                name = let->variable;
            else
                names.push_back({let->variable, name});
            return make_thread(ThreadBlock{});
        });
        if (!name.defined()) continue;
        names.push_back({*builtin, name});
        *builtin = name;
    }
    if (names.empty()) return kernel;
    kernel.body = map_all_expressions(kernel.body, [&](const Expr& expr) { return substitute(expr, names); });
    return kernel;
}

// ---- address arithmetic ---------------------------------------------------------------------------------------------

/// May be computed where the program does not: reads nothing and divides by no zero.
bool is_harmless(const Expr& expr) {
    bool harmless = true;
    visit(expr, [&](const Expr& node) {
        if (node.as<Load>()) harmless = false;
        if (is_division(node)) harmless = harmless && bounds_of(node.as<Binary>()->b).min.value_or(0) > 0;
    });
    return harmless;
}

/// Where an expression stands, for its name: the buffer, and which index of how many.
struct Site {
    const BufferNode* buffer = nullptr;
    size_t dimension = 0, rank = 1;
};

/// A sum that is named is a part of an index of a buffer.
std::string name_of_sum(const Site& site) {
    const std::string& buffer = site.buffer->name;
    if (site.rank == 1) return buffer + (site.buffer->memory == Memory::Global ? "_offset" : "_index");
    if (site.dimension + 1 == site.rank) return buffer + "_column";
    return buffer + (site.dimension + 2 == site.rank ? "_row" : "_index");
}

class Hoister {
public:
    explicit Hoister(const ThreadKernel& kernel) : divisions_(kernel) {
        for (const Expr& block : kernel.block) outermost_.push_back(block);
        outermost_.push_back(kernel.thread);
        outermost_.insert(outermost_.end(), kernel.sizes.begin(), kernel.sizes.end());
        outermost_.insert(outermost_.end(), kernel.scalars.begin(), kernel.scalars.end());
    }

    /// A block of statements, the body of `loop` or `role` (nullptr: of a condition or the kernel).
    ThreadStmt block(const ThreadStmt& body, const ThreadLoop* loop, const ThreadRole* role = nullptr) {
        scopes_.push_back({loop != nullptr, {}, {}, {}});
        if (loop) scopes_.back().variables.push_back(loop->variable);
        for (const Expr& variable : role ? std::vector{role->thread, role->turn} : std::vector<Expr>{})
            if (variable.defined()) scopes_.back().variables.push_back(variable);
        for (const ThreadStmt& stmt : statements(body)) {
            ThreadStmt changed = statement(stmt);
            scopes_.back().stmts.push_back(changed);
            if (auto let = stmt.as<ThreadLet>()) define(*let, scopes_.back());
        }
        ThreadStmt result = block_of(scopes_.back().stmts);
        scopes_.pop_back();
        return result;
    }

private:
    struct Named {
        Expr value, name;
    };
    struct Scope {
        bool is_loop;
        std::vector<Expr> variables;
        std::vector<Named> names;
        std::vector<ThreadStmt> stmts;  // done; what is named for a later one goes to the end
    };

    static void define(const ThreadLet& let, Scope& scope) {
        scope.variables.push_back(let.variable);
        if (is_harmless(let.value)) scope.names.push_back({let.value, let.variable});
    }

    ThreadStmt statement(const ThreadStmt& stmt) {
        step_ = stmt.step();
        ThreadStmt changed = stmt;
        if (auto store = stmt.as<ThreadStore>())
            changed =
                make_thread(ThreadStore{access(store->to), expression(store->value, {}), store->atomic}, stmt.step());
        else if (auto wide = stmt.as<ThreadWide>())
            changed = make_thread(ThreadWide{wide->width, access(wide->to), access(wide->from)}, stmt.step());
        else if (auto instruction = stmt.as<Instruction>())
            changed = make_thread(hoisted(*instruction), stmt.step());
        else if (auto used = stmt.as<ThreadAccess>())
            changed = make_thread(ThreadAccess{access(used->to), used->width, used->writes}, stmt.step());
        else if (auto let = stmt.as<ThreadLet>())
            changed = make_thread(ThreadLet{let->variable, let_value(let->value)}, stmt.step());
        else if (!walks(stmt))
            changed = map_expressions(stmt, [&](const Expr& expr) { return expression(expr, {}); });
        if (auto loop = changed.as<ThreadLoop>()) return with_children(changed, {block(loop->body, loop)});
        if (auto branch = changed.as<ThreadIf>())
            return make_thread(ThreadIf{branch->condition, block(branch->body, nullptr)}, stmt.step());
        if (auto role = changed.as<ThreadRole>()) return with_children(changed, {block(role->body, nullptr, role)});
        return changed;
    }

    /// Such a loop is printed by what it walks along; its extent is not.
    static bool walks(const ThreadStmt& stmt) {
        const ThreadLoop* loop = stmt.as<ThreadLoop>();
        return loop && loop->ends_at > 0;
    }

    Instruction hoisted(const Instruction& instruction) {
        return map_operands(instruction, [&](Operand operand) -> Operand {
            if (auto number = std::get_if<Expr>(&operand)) return expression(*number, {});
            if (auto matrix = std::get_if<MatrixOperand>(&operand); matrix && matrix->further.defined())
                matrix->further = expression(matrix->further, {});
            return map_place(operand, [&](const Access& place) { return access(place); });
        });
    }

    /// The let is the value's name: only parts of it get others.
    Expr let_value(const Expr& value) {
        if (find(value) || !is_division(value)) return expression(value, {});
        return with_parts(value, {});
    }

    /// What is divided, and by what, in other words. The quotient of a digit, x / 4 of x / 4 % 8, is a part of it that
    /// needs no name.
    Expr with_parts(const Expr& division, const Site& site) {
        std::vector<Expr> kids = children(division);
        for (size_t k = 0; k < kids.size(); ++k) {
            bool inner = k == 0 && is_digit(division) && !find(kids[k]);
            kids[k] = inner ? with_parts(kids[k], site) : child(division, k, site);
        }
        return with_children(division, kids);
    }

    /// One of the expression's, which the first of a select, of && and of || may guard.
    Expr child(const Expr& expr, size_t k, const Site& site) {
        const bool outside = std::exchange(guarded_, guarded_ || is_guarded(expr, k));
        Expr changed = expression(children(expr)[k], site);
        guarded_ = outside;
        return changed;
    }

    Access access(const Access& access) {
        Access result{access.buffer, {}};
        size_t rank = place_of(access).indices.size();
        for (size_t d = 0; d < access.indices.size(); ++d)
            result.indices.push_back(
                expression(access.indices[d], d < rank ? Site{access.buffer.get(), d, rank} : Site{}));
        return result;
    }

    Expr expression(const Expr& expr, const Site& site) {
        if (auto load = expr.as<Load>()) {
            Access at = access({load->buffer, load->indices});
            return with_children(expr, at.indices);
        }
        if (expr.type() == Type::I64 && expr.as<Binary>()) return sum(expr, site);
        std::vector<Expr> kids = children(expr);
        if (kids.empty()) return expr;
        for (size_t k = 0; k < kids.size(); ++k) kids[k] = child(expr, k, site);
        return with_children(expr, kids);
    }

    /// The terms that are known outside of the loops around are summed there, and named if that saves something.
    Expr sum(const Expr& expr, const Site& site) {
        if (auto known = find(expr)) return *known;
        Affine here = affine_of(expr), result;
        bool changed = false;
        std::vector<Affine> outside(scopes_.size());
        for (const auto& term : here.terms) {
            size_t home = home_of(term.first);
            auto& part = home + 1 < scopes_.size() && site.buffer ? outside[home] : result;
            part.terms.push_back(term);
        }
        for (size_t home = outside.size(); home-- > 0;) {
            if (outside[home].terms.empty()) continue;
            bool named = !is_plain(outside[home]);
            auto first =
                named ? std::pair<Expr, int64_t>(name_sum(outside[home], home, site), 1) : outside[home].terms[0];
            result.terms.insert(result.terms.begin(), first);
            changed = changed || named;
        }
        for (auto& [atom, factor] : result.terms) {
            Expr named = atom_text(atom, site);
            changed = changed || !named.same(atom);
            atom = named;
        }
        if (!changed) return expr;
        result.offset = here.offset;
        return to_expr(result);
    }

    /// One term that needs no name: a variable, or a division that gets a name of its own.
    static bool is_plain(const Affine& part) { return part.terms.size() == 1; }

    Expr name_sum(const Affine& part, size_t home, const Site& site) {
        if (auto known = find(to_expr(part))) return *known;
        Affine value = part;
        for (auto& [atom, factor] : value.terms) atom = atom_text(atom, site);
        Expr name = index_variable(name_of_sum(site));
        place(home, {to_expr(part), name}, to_expr(value));
        return name;
    }

    /// A non-affine part of an index: named where it is known if it divides and is needed more than once.
    Expr atom_text(const Expr& atom, const Site& site) {
        if (atom.as<Variable>()) return atom;
        if (auto known = find(atom)) return *known;
        Expr value = atom.as<Load>() ? expression(atom, site) : with_parts(atom, site);
        size_t home = home_of(atom);
        bool repeated = home + 1 < scopes_.size() && scopes_[home + 1].is_loop;
        if (!is_division(atom) || home >= scopes_.size() || !(divisions_.uses(atom) > 1 || (repeated && home > 0)))
            return value;
        if (guarded_ && !is_harmless(atom)) return value;
        Expr name = index_variable(divisions_.name(atom));
        place(home, {atom, name}, value);
        return name;
    }

    /// Defines the name in the scope `home`, or in that of a name in the value that stands deeper.
    void place(size_t home, const Named& named, const Expr& value) {
        for (const Expr& variable : variables_of(value)) home = std::max(home, depth_of(variable));
        ThreadStmt let = make_thread(ThreadLet{named.name, value}, step_);
        Scope& scope = scopes_[home];
        // A comment belongs to the statement that follows it, and roles are cases of one chain.
        auto end = scope.stmts.end();
        while (end != scope.stmts.begin() && ((end - 1)->as<ThreadComment>() || (end - 1)->as<ThreadRole>())) --end;
        scope.stmts.insert(end, let);
        scope.variables.push_back(named.name);
        scope.names.push_back(named);
    }

    std::optional<Expr> find(const Expr& value) const {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
            for (const Named& named : scope->names)
                if (equal(named.value, value)) return named.name;
        return {};
    }

    /// The scope to compute the expression in: right outside of the outermost loop that it can leave. The present one
    /// if it can leave none; divisions of the thread stand at the top of the kernel.
    size_t home_of(const Expr& expr) const {
        size_t innermost = scopes_.size() - 1, visible = 0;
        if (!is_harmless(expr)) return innermost;
        for (const Expr& variable : variables_of(expr)) visible = std::max(visible, depth_of(variable));
        if (visible == 0 && is_division(expr)) return 0;
        for (size_t depth = visible + 1; depth <= innermost; ++depth)
            if (scopes_[depth].is_loop) return depth - 1;
        return innermost;
    }

    size_t depth_of(const Expr& variable) const {
        auto holds = [&](const std::vector<Expr>& list) {
            return std::any_of(list.begin(), list.end(), [&](const Expr& v) { return v.same(variable); });
        };
        for (size_t depth = 0; depth < scopes_.size(); ++depth)
            if (holds(scopes_[depth].variables)) return depth;
        return holds(outermost_) ? 0 : scopes_.size() - 1;
    }

    Divisions divisions_;
    std::vector<Expr> outermost_;
    std::vector<Scope> scopes_;
    bool guarded_ = false;  // what is looked at is computed under a condition alone
    int step_ = -1;
};

}  // namespace

ThreadKernel hoist_invariants(const ThreadKernel& kernel) {
    ThreadKernel result = without_aliases(kernel);
    result.body = hoist_conditions(result);
    result.body = Hoister(result).block(result.body, nullptr);
    return result;
}

}  // namespace tw::codegen
