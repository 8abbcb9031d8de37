#include "codegen/thread_passes/places_read.h"

#include <algorithm>
#include <utility>

#include "codegen/access/access.h"
#include "codegen/access/layout.h"
#include "codegen/thread_passes/evaluation.h"
#include "dsl/deep.h"

namespace tw::codegen {
namespace {

constexpr int64_t most_iterations = 64;                                       // of the loops around a read
constexpr size_t most_reads = 256, most_conditions = 32, most_nodes = 20000;  // for the time that compiling takes

bool is_unrolled_loop(const ThreadLoop& loop) {
    return loop.unroll && loop.ends_at == 0 && !loop.next && as_constant(loop.extent);
}

class PlaceFinder {
public:
    PlacesRead run(const std::vector<ThreadStmt>& stmts) {
        for (stmt_ = 0; stmt_ < stmts.size(); ++stmt_) {
            seen_.clear();
            see(stmts[stmt_]);
        }
        if (is_too_much_) return {};
        return std::move(found_);
    }

private:
    struct Step {
        Expr variable;
        int64_t extent, coefficient;
    };

    // ---- statements -------------------------------------------------------------------------------------------------

    void see(const ThreadStmt& stmt) {
        if (stmt.as<ThreadBlock>())
            for (const ThreadStmt& kid : statements(stmt)) see(kid);
        if (const ThreadLoop* loop = stmt.as<ThreadLoop>()) see_loop(*loop);
        const bool is_plain = stmt.as<ThreadStore>() || stmt.as<ThreadLet>() || stmt.as<ThreadIf>();
        for (const Expr& expr : is_plain ? expressions(stmt) : std::vector<Expr>{})
            with_room_for(expr, [&] { see_all(expr); });
        if (const ThreadLet* let = stmt.as<ThreadLet>(); let && !loops_.empty()) define(*let);
    }

    void see_loop(const ThreadLoop& loop) {
        if (!is_unrolled_loop(loop)) return;
        const size_t outside = names_.size();
        loops_.push_back({loop.variable, *as_constant(loop.extent), 0});
        found_.inside.push_back(loop.variable);
        see(loop.body);
        loops_.pop_back();
        names_.resize(outside);
    }

    /// What the let stands for, if that is no more than a number of the loops'; else what mentions it stays there.
    void define(const ThreadLet& let) {
        found_.inside.push_back(let.variable);
        if (is_integer(let.value.type()) && !reads_memory(let.value))
            names_.push_back({let.variable, substitute(let.value, names_)});
        else
            stays_inside_.push_back(let.variable);
    }

    // ---- expressions ------------------------------------------------------------------------------------------------

    void see_all(const Expr& root) {
        std::vector<std::pair<Expr, ReadPath>> todo{{root, {}}};
        for (size_t n = 0; n < todo.size(); ++n) {  // what nothing guards first, as it is then seen so
            const auto [expr, path] = todo[n];
            see_expr(expr, path, todo);
        }
    }

    void see_expr(const Expr& expr, const ReadPath& path, std::vector<std::pair<Expr, ReadPath>>& guarded) {
        if (seen_.contains({expr.id(), {}}) || !seen_.insert({expr.id(), path}).second) return;
        is_too_much_ = is_too_much_ || ++nodes_ > most_nodes;
        if (is_too_much_) return;
        const std::vector<Expr> kids = children(expr);
        size_t count = kids.size();
        if (const Load* load = expr.as<Load>()) {
            add(expr, *load, path);
            count = place_of({load->buffer, load->indices}).indices.size();
        }
        for (size_t k = 0; k < count; ++k) {
            if (!is_guarded(expr, k)) {
                see_expr(kids[k], path, guarded);
                continue;
            }
            ReadPath longer = path;
            const Binary* both = expr.as<Binary>();
            const bool wanted = both ? both->op == BinaryOp::And : k == 1;
            longer.push_back({number_of(kids[0]), wanted});
            guarded.push_back({kids[k], std::move(longer)});
        }
    }

    /// Of what is the same at each of the reads.
    int number_of(const Expr& condition) {
        std::vector<Expr>& known = found_.conditions;
        for (size_t n = 0; n < known.size(); ++n)
            if (known[n].same(condition) || equal(known[n], condition)) return static_cast<int>(n);
        const bool varies =
            std::ranges::any_of(stays_inside_, [&](const Expr& variable) { return contains(condition, variable); });
        if (varies || reads_memory(condition) || known.size() == most_conditions) return -1;
        known.push_back(condition);
        return static_cast<int>(known.size()) - 1;
    }

    // ---- places -----------------------------------------------------------------------------------------------------

    void add(const Expr& expr, const Load& load, const ReadPath& path) {
        if (load.buffer->memory != Memory::Global) return;
        if (!add_place(expr, load, path)) found_.unknown.insert(expr.id());
        is_too_much_ = is_too_much_ || found_.reads.size() > most_reads;
    }

    bool add_place(const Expr& expr, const Load& load, const ReadPath& path) {
        Access row{load.buffer, load.indices};
        for (Expr& index : row.indices) index = simplify(substitute(index, names_));
        Expr& place = row.indices[0];
        Affine base = affine_of(place), behind;
        std::vector<Step> steps;
        if (!split(path, base, behind, steps)) return false;
        place = to_expr(base);
        if (!is_known_outside(row)) return false;
        PlaceRead read{expr, row, to_expr(behind), divisor_of_place(place), stmt_};
        read.path = path;
        read.in_loop = !loops_.empty();
        if (!steps.empty() && steps[0].variable.same(loops_[0].variable)) read.step = steps[0].coefficient;
        visit_iterations(read, steps, behind.offset);
        found_.reads.push_back(std::move(read));
        return true;
    }

    /// Takes from the index what the loops and a constant add to it; `steps` are the loops that matter.
    bool split(const ReadPath& path, Affine& base, Affine& behind, std::vector<Step>& steps) const {
        int64_t iterations = 1;
        for (const Step& loop : loops_) {
            const std::optional<int64_t> own = coefficient(base, loop.variable);
            if (!own) return false;
            const bool decides = std::ranges::any_of(path, [&](const auto& part) {
                return part.first >= 0 && contains(condition(part.first), loop.variable);
            });
            if (*own == 0 && !decides) continue;
            erase_terms(base, [&](const auto& term) { return term.first.same(loop.variable); });
            if (*own != 0) behind.terms.push_back({loop.variable, *own});
            steps.push_back({loop.variable, loop.extent, *own});
            iterations *= loop.extent;
            if (iterations > most_iterations) return false;
        }
        behind.offset = std::exchange(base.offset, 0);
        return true;
    }

    Expr condition(int number) const { return substitute(found_.conditions[number], names_); }

    bool is_known_outside(const Access& row) const {
        auto mentions = [&](const Expr& index, const Expr& variable) { return contains(index, variable); };
        for (const Expr& index : row.indices) {
            for (const Step& loop : loops_)
                if (mentions(index, loop.variable)) return false;
            for (const Expr& variable : stays_inside_)
                if (mentions(index, variable)) return false;
        }
        return true;
    }

    void visit_iterations(PlaceRead& read, const std::vector<Step>& steps, int64_t offset) {
        std::vector<int64_t> at(steps.size(), 0);
        const bool has_outermost = !steps.empty() && steps[0].variable.same(loops_[0].variable);
        for (bool more = true; more;) {
            PlaceRead::At place{offset, {}};
            Substitution values;
            for (size_t n = 0; n < steps.size(); ++n) {
                place.offset += at[n] * steps[n].coefficient;
                values.push_back({steps[n].variable, integer(at[n])});
            }
            if (follow(read.path, values, place.path)) read.iterations[has_outermost ? at[0] : 0].push_back(place);
            more = false;
            for (size_t n = steps.size(); n-- > 0 && !more;) {
                more = ++at[n] < steps[n].extent;
                if (!more) at[n] = 0;
            }
        }
    }

    /// The path where the loops' variables are these; false if it leads nowhere.
    bool follow(const ReadPath& path, const Substitution& values, ReadPath& followed) {
        for (const auto& [number, wanted] : path) {
            Expr here = number >= 0 ? condition(number) : Expr(true);
            const bool depends =
                std::ranges::any_of(values, [&](const auto& each) { return contains(here, each.first); });
            if (!depends) {
                followed.push_back({number, wanted});
                continue;
            }
            here = simplify(substitute(here, values));
            if (const std::optional<int64_t> known = as_constant(here)) {
                if ((*known != 0) != wanted) return false;
                continue;
            }
            followed.push_back({number_of(here), wanted});
        }
        return true;
    }

    PlacesRead found_;
    size_t stmt_ = 0, nodes_ = 0;
    std::vector<Step> loops_;
    Substitution names_;
    std::vector<Expr> stays_inside_;
    bool is_too_much_ = false;
    std::set<std::pair<const ExprNode*, ReadPath>> seen_;
};

}  // namespace

PlacesRead places_read(const std::vector<ThreadStmt>& stmts) { return PlaceFinder().run(stmts); }

bool is_certain(const std::vector<ReadPath>& paths) {
    std::set<int> first;
    for (const ReadPath& path : paths) {
        if (path.empty()) return true;
        first.insert(path[0].first);
    }
    return std::ranges::any_of(first, [&](int condition) {
        std::vector<ReadPath> sides[2];
        for (const ReadPath& path : paths)
            if (path[0].first == condition) sides[path[0].second].emplace_back(path.begin() + 1, path.end());
        return is_certain(sides[0]) && is_certain(sides[1]);
    });
}

}  // namespace tw::codegen
