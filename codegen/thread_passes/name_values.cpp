// Values that an expression uses more than once get a name in front of the statement, and so do parts of expressions
// that are too deep for compilers. What a condition may keep from being evaluated stays behind that condition.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/evaluation.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/deep.h"

namespace tw::codegen {
namespace {

constexpr int least_saved = 3, least_saved_index = 12;  // operations that a name saves
constexpr int highest = 24;                             // levels of an expression that is printed as one

/// A value is needed where `node` is, and, with a side, where the node's condition sends evaluation to that side.
struct Case {
    enum Side { First, Second, Always };  // Always: wherever the node is
    int node;
    Side side;
    auto operator<=>(const Case&) const = default;
};
/// When a value is needed: in any of the cases.
struct Need {
    bool always = false;
    std::set<Case> cases = {};
    auto operator<=>(const Need&) const = default;
};

struct Node {
    Expr expr;
    std::vector<int> kids;
    int like = 0;         // the first node of the same value, which may be itself
    size_t computed = 0;  // the first kids: a GPU computes nothing for checks, which come behind
    int uses = 0, weight = 0, height = 0;
    bool pure = true;  // reads nothing but registers that are there and cannot fail: may be computed ahead of need
    bool named = false;
    bool barred = false;  // from having a name
    Need need;
};

/// Operands that only one outcome of the first one leads to.
std::optional<Case::Side> side_of(const Expr& parent, size_t kid) {
    if (!is_guarded(parent, kid)) return {};
    return parent.as<Select>() && kid == 2 ? Case::Second : Case::First;
}

int own_weight(const Expr& expr) {
    if (expr.as<IntConstant>() || expr.as<FloatConstant>() || expr.as<Variable>()) return 0;
    if (const Load* load = expr.as<Load>()) return load->buffer->memory == Memory::Registers ? 0 : 1;
    if (const Unary* node = expr.as<Unary>()) return node->op >= UnaryOp::Sqrt ? 2 : 1;
    return 1;
}

/// An expression of a statement; `computed` on a GPU too, as checks are not.
struct Root {
    Expr expr;
    bool computed;
};

std::vector<Root> roots_of(const ThreadStmt& stmt) {
    std::vector<Root> roots;
    for (const Expr& expr : expressions(stmt)) roots.push_back({expr, true});
    size_t next = 0;
    auto pass = [&](const Access& access) {
        size_t rank = place_of(access).indices.size();
        for (size_t n = 0; n < access.indices.size(); ++n) roots[next++].computed = n < rank;
    };
    if (auto store = stmt.as<ThreadStore>()) pass(store->to);
    if (auto wide = stmt.as<ThreadWide>()) pass(wide->to), pass(wide->from);
    if (auto instruction = stmt.as<Instruction>())
        for (const Operand& operand : operands(*instruction)) {
            auto matrix = std::get_if<MatrixOperand>(&operand);
            next += std::holds_alternative<Expr>(operand) || (matrix && matrix->further.defined());
            if (const Access* place = operand_place(operand)) pass(*place);
        }
    return roots;
}

/// A circle of values and of conditions for them: the value cannot come first.
struct Circle {
    int node;
};

/// The values of some statements that nothing separates.
class Values {
public:
    Values(const std::vector<Root>& roots, const KnownBounds& bounds, int& counter)
        : bounds_(bounds), counter_(counter) {
        for (const Root& root : roots) roots_.push_back(number(root.expr));
        count_uses(roots);
    }

    bool worth_it() {
        choose();
        return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.named; });
    }

    /// The roots over names, whose definitions are appended to `stmts`.
    std::vector<Expr> named(std::vector<ThreadStmt>& stmts, int step) {
        for (int first = counter_;; counter_ = first) {
            try {
                find_needs();
                return written(stmts, step);
            } catch (const Circle& circle) {
                nodes_[circle.node].barred = true;
                choose();
            }
        }
    }

private:
    // ---- the graph --------------------------------------------------------------------------------------------------

    int number(const Expr& expr) {
        if (auto known = numbers_.find(expr.id()); known != numbers_.end()) return known->second;
        Node node;
        node.expr = expr;
        std::vector<Expr> kids = tw::children(expr);
        const Load* load = expr.as<Load>();
        node.computed = load ? place_of({load->buffer, load->indices}).indices.size() : kids.size();
        for (const Expr& kid : kids) node.kids.push_back(number(kid));
        node.pure = is_pure_by_itself(expr, bounds_);
        for (int kid : node.kids) node.pure = node.pure && nodes_[kid].pure;
        node.like = like(expr, node.kids, kids);
        // Indices stay as they are written: passes behind look for what they have in common.
        const bool is_known = node.like < static_cast<int>(nodes_.size()) && is_float(expr.type());
        if (is_known) return numbers_[expr.id()] = node.like;
        nodes_.push_back(std::move(node));  // children stand before their parents
        return numbers_[expr.id()] = static_cast<int>(nodes_.size()) - 1;
    }

    /// The first node that makes the same of the same, or the next one: the results of a reduction of several are
    /// written out one by one, with what they share.
    int like(const Expr& expr, const std::vector<int>& numbers, const std::vector<Expr>& kids) {
        const int next = static_cast<int>(nodes_.size());
        if (expr.as<Variable>()) return next;
        std::vector<int> of_kids;
        for (const int number : numbers) of_kids.push_back(nodes_[number].like);
        std::vector<int>& made_of_them = alike_[of_kids];
        for (const int other : made_of_them)
            if (equal(with_children(nodes_[other].expr, kids), expr)) return other;
        made_of_them.push_back(next);
        return next;
    }

    /// By what is computed: a node that only checks of indices lead to is not.
    void count_uses(const std::vector<Root>& roots) {
        for (size_t n = 0; n < roots.size(); ++n)
            if (roots[n].computed) ++nodes_[roots_[n]].uses;
        for (size_t n = nodes_.size(); n-- > 0;)
            for (size_t k = 0; k < nodes_[n].computed && nodes_[n].uses > 0; ++k) ++nodes_[nodes_[n].kids[k]].uses;
    }

    void choose() {
        for (Node& node : nodes_) {
            node.weight = own_weight(node.expr), node.height = 0;
            for (size_t k = 0; k < node.computed; ++k) {
                int kid = node.kids[k];
                if (nodes_[kid].named) continue;
                node.weight += nodes_[kid].weight;
                node.height = std::max(node.height, nodes_[kid].height + 1);
            }
            int least = is_integer(node.expr.type()) && node.pure ? least_saved_index : least_saved;
            bool shared = node.weight * (node.uses - 1) >= least;
            node.named = !node.barred && node.weight > 0 && (shared || node.height >= highest);
        }
        for (int root : roots_)  // what is only stored needs no name
            if (nodes_[root].uses == 1) nodes_[root].named = false;
    }

    // ---- when values are needed -------------------------------------------------------------------------------------

    void find_needs() {
        for (Node& node : nodes_) node.need = {};
        for (int root : roots_) nodes_[root].need.always = true;
        for (int n = static_cast<int>(nodes_.size()); n-- > 0;) {
            Node& node = nodes_[n];
            node.need = node.named && node.pure ? Need{true} : reduced(std::move(node.need));
            for (size_t k = 0; k < node.kids.size(); ++k) {
                Need& need = nodes_[node.kids[k]].need;
                if (auto side = side_of(node.expr, k))
                    need.cases.insert({n, *side});
                else if (node.named && !node.need.always)
                    need.cases.insert({n, Case::Always});
                else
                    add(need, node.need);
            }
        }
    }

    static void add(Need& need, const Need& other) {
        need.always = need.always || other.always;
        need.cases.insert(other.cases.begin(), other.cases.end());
    }

    /// Both sides of a node together are the node; a side of what is needed as often is no case of its own.
    Need reduced(Need need) const {
        for (bool changed = true; changed && !need.always;) {
            changed = false;
            for (const Case& one : need.cases) {
                const Need& whole = nodes_[one.node].need;
                bool both = one.side == Case::First && need.cases.count({one.node, Case::Second}) > 0;
                if (!both && !(one.side != Case::Always && holds(need, one.node))) continue;
                Case gone = one;
                if (both) add(need, whole);
                need.cases.erase({gone.node, Case::First});
                need.cases.erase({gone.node, Case::Second});
                changed = true;
                break;
            }
        }
        if (need.always) need.cases.clear();
        return need;
    }

    bool holds(const Need& need, int node) const {
        if (need.cases.count({node, Case::Always})) return true;
        const Need& part = nodes_[node].need;
        return !part.always &&
               std::includes(need.cases.begin(), need.cases.end(), part.cases.begin(), part.cases.end());
    }

    // ---- text -------------------------------------------------------------------------------------------------------

    std::vector<Expr> written(std::vector<ThreadStmt>& stmts, int step) {
        rewritten_.clear(), names_.clear(), flags_.clear(), open_.clear(), out_.clear();
        step_ = step;
        std::vector<Expr> roots;
        for (int root : roots_) roots.push_back(text(root));
        join_conditions();
        stmts.insert(stmts.end(), out_.begin(), out_.end());
        return roots;
    }

    Expr text(int n) { return nodes_[n].named ? name(n) : rewritten(n); }

    Expr rewritten(int n) {
        if (auto known = rewritten_.find(n); known != rewritten_.end()) return known->second;
        std::vector<Expr> kids;
        for (int kid : nodes_[n].kids) kids.push_back(text(kid));
        return rewritten_[n] = with_children(nodes_[n].expr, kids);
    }

    Expr name(int n) {
        if (auto known = names_.find(n); known != names_.end()) return known->second;
        if (!open_.insert(n).second) throw Circle{n};
        const Node& node = nodes_[n];
        Expr condition = node.need.always ? Expr() : flag(node.need);
        Expr value = rewritten(n);
        Expr result = condition.defined() ? guarded(value, condition) : let("e", value);
        open_.erase(n);
        return names_[n] = result;
    }

    Expr let(const char* prefix, const Expr& value) {
        Expr variable = make_expr(value.type(), Variable{.name = next_name(prefix)});
        out_.push_back(make_thread(ThreadLet{variable, value}, step_));
        return variable;
    }

    std::string next_name(const char* prefix) { return fmt::format("{}_{}", prefix, ++counter_); }

    Expr guarded(const Expr& value, const Expr& condition) {
        BufferNode node{
            .name = next_name("e"), .type = value.type(), .memory = Memory::Registers, .shape = {}, .strides = {}};
        Buffer local = std::make_shared<const BufferNode>(std::move(node));
        out_.push_back(make_thread(ThreadDeclare{local}, step_));
        out_.push_back(make_thread(ThreadIf{condition, make_thread(ThreadStore{{local, {}}, value}, step_)}, step_));
        return make_expr(value.type(), Load{local, {}});
    }

    /// A name for the condition of a need that does not always arise.
    Expr flag(const Need& need) {
        if (auto known = flags_.find(need); known != flags_.end()) return known->second;
        Expr any;
        std::vector<Expr> asked;
        for (const Case& one : need.cases) {
            Expr condition = condition_of(one);
            if (std::ranges::any_of(asked, [&](const Expr& before) { return equal(before, condition); })) continue;
            asked.push_back(condition);
            any = any.defined() ? binary(BinaryOp::Or, any, condition) : condition;
        }
        return flags_[need] = any.as<Variable>() ? any : let("needs", any);
    }

    Expr condition_of(const Case& one) {
        const Node& node = nodes_[one.node];
        Expr outer = node.need.always ? Expr() : flag(node.need);
        if (one.side == Case::Always) return outer;
        Expr first = text(node.kids[0]);
        const Binary* both = node.expr.as<Binary>();
        bool negated = both ? both->op == BinaryOp::Or : one.side == Case::Second;
        if (negated) first = unary(UnaryOp::Not, first);
        return outer.defined() ? binary(BinaryOp::And, outer, first) : first;
    }

    /// What stands behind one condition, side by side, is asked for once.
    void join_conditions() {
        std::vector<ThreadStmt> joined;
        for (const ThreadStmt& stmt : out_) {
            const ThreadIf* branch = stmt.as<ThreadIf>();
            const ThreadIf* before = branch && joined.size() > 1 ? joined[joined.size() - 2].as<ThreadIf>() : nullptr;
            if (!before || !before->condition.same(branch->condition)) {
                joined.push_back(stmt);
                continue;
            }
            ThreadStmt declared = joined.back();
            std::vector<ThreadStmt> body = statements(before->body);
            body.push_back(branch->body);
            joined.resize(joined.size() - 2);
            joined.push_back(declared);
            joined.push_back(make_thread(ThreadIf{branch->condition, block_of(body)}, stmt.step()));
        }
        out_ = std::move(joined);
    }

    std::vector<Node> nodes_;
    std::unordered_map<const ExprNode*, int> numbers_;
    std::map<std::vector<int>, std::vector<int>> alike_;  // first nodes, by those of what they are made of
    std::vector<int> roots_;
    const KnownBounds& bounds_;
    int& counter_;

    std::unordered_map<int, Expr> rewritten_, names_;
    std::map<Need, Expr> flags_;
    std::set<int> open_;
    std::vector<ThreadStmt> out_;
    int step_ = -1;
};

/// Statements whose values are known before the first of them acts: definitions, and what follows them.
class Groups {
public:
    explicit Groups(const ThreadKernel& kernel) : bounds_(kernel) {}

    ThreadStmt block(const ThreadStmt& body) {
        KnownBounds outside = bounds_;
        std::vector<ThreadStmt> result, group;
        for (const ThreadStmt& stmt : statements(body)) {
            if (!group.empty() && mentions_defined(stmt, group)) close(group, result);
            group.push_back(inside(stmt));
            if (auto let = stmt.as<ThreadLet>())
                bounds_.define(*let);
            else
                close(group, result);
        }
        close(group, result);
        bounds_ = outside;
        return block_of(result);
    }

private:
    ThreadStmt inside(const ThreadStmt& stmt) {
        if (stmt.as<ThreadBlock>()) return stmt;
        KnownBounds outside = bounds_;
        if (auto loop = stmt.as<ThreadLoop>()) bounds_.enter_loop(*loop);
        std::vector<ThreadStmt> kids;
        for (const ThreadStmt& kid : children(stmt)) kids.push_back(block(kid));
        bounds_ = outside;
        return with_children(stmt, kids);
    }

    static bool mentions_defined(const ThreadStmt& stmt, const std::vector<ThreadStmt>& group) {
        for (const Expr& expr : expressions(stmt)) {
            if (expr.as<Variable>()) continue;
            for (const Expr& variable : variables_of(expr))
                for (const ThreadStmt& before : group)
                    if (before.as<ThreadLet>()->variable.same(variable)) return true;
        }
        return false;
    }

    void close(std::vector<ThreadStmt>& group, std::vector<ThreadStmt>& result) {
        if (group.empty()) return;
        std::vector<Root> roots;
        for (const ThreadStmt& stmt : group)
            for (Root& root : roots_of(stmt)) roots.push_back(std::move(root));
        if (Values values(roots, bounds_, counter_); values.worth_it()) {
            std::vector<Expr> named = values.named(result, group.back().step());
            size_t next = 0;
            for (ThreadStmt& stmt : group) stmt = map_expressions(stmt, [&](const Expr&) { return named[next++]; });
        }
        result.insert(result.end(), group.begin(), group.end());
        group.clear();
    }

    KnownBounds bounds_;
    int counter_ = 0;
};

int deepest(const ThreadStmt& root) {
    int depth = 0;
    visit(root, [&](const ThreadStmt& stmt) {
        for (const Expr& expr : expressions(stmt)) depth = std::max(depth, depth_of(expr));
    });
    return depth;
}

}  // namespace

ThreadKernel name_values(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    result.body = with_room_for(deepest(kernel.body), [&] { return Groups(kernel).block(kernel.body); });
    return result;
}

}  // namespace tw::codegen
