// Warpgroups take turns at parts of iterations, by named barriers.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "codegen/async/async_passes.h"
#include "codegen/async/products_in_flight.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

// Barrier 0 is that of __syncthreads, 1 that of the role that computes.
constexpr int first_barrier = 2, last_barrier = 15, threads_of_warpgroup = 128;

template <class I>
bool is_instruction(const TileStmt& stmt) {
    const TileOp* op = stmt.as<TileOp>();
    return op && lone_instruction<I>(*op);
}

/// One section of a kernel.
class SectionMaker {
public:
    SectionMaker(const TileKernel& kernel, const ExclusiveSection& section, int barrier, const CiteStep& cite)
        : kernel_(kernel), section_(section), barrier_(barrier), cite_(cite) {
        visit_ops(kernel.body, [&](const TileOp& op) {
            if (is_among(op.stage) && lone_instruction<Wgmma>(op)) products_.insert(op.stage);
            if (is_among(op.stage)) names_[op.stage] = op.name;
        });
    }

    TileStmt run() {
        TileBlock all{{told(BarrierArrive{first_id(), both()}, groups() - 1)}};
        all.stmts.push_back(with_turns(kernel_.body));
        all.stmts.push_back(told(BarrierSync{first_id(), both()}, 0));
        if (!found_)
            throw_error(Error,
                        "{}exclusive: of '{}', the warpgroups that compute do not compute all, so there is nothing to "
                        "take turns at; name stages of theirs, not what other roles copy",
                        cite_(section_.step), fmt::join(names(), "' and '"));
        return make_tile(std::move(all));
    }

private:
    int64_t groups() const { return kernel_.threads / threads_of_warpgroup; }
    Expr group() const { return kernel_.thread / threads_of_warpgroup; }
    Expr first_id() const { return integer(barrier_); }
    static Expr both() { return integer(2 * threads_of_warpgroup); }

    bool is_among(int stage) const { return std::ranges::find(section_.stages, stage) != section_.stages.end(); }

    std::vector<std::string> names() const {
        std::vector<std::string> result;
        for (const auto& [stage, name] : names_) result.push_back(name);
        return result;
    }

    TileStmt told(Instruction instruction, int64_t by) const {
        return make_tile(call_op({std::move(instruction)}, simplify(group() == by)));
    }
    TileStmt by_all(Instruction instruction) const { return make_tile(call_op({std::move(instruction)})); }

    /// The stages of the section that have their part in the statement, but for loops that have a section themselves.
    std::set<int> stages_in(const TileStmt& stmt) const {
        std::set<int> stages;
        visit_ops(stmt, [&](const TileOp& op) {
            const bool computes = !products_.count(op.stage) || lone_instruction<Wgmma>(op);
            if (op.role == 0 && computes && is_among(op.stage)) stages.insert(op.stage);
        });
        return stages;
    }
    bool has_all(const TileStmt& stmt) const { return stages_in(stmt).size() == section_.stages.size(); }

    /// Innermost lists of statements that have all stages.
    TileStmt with_turns(const TileStmt& stmt) {
        if (!has_all(stmt)) return stmt;
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            around_.push_back(loop);
            TileLoop result = *loop;
            result.body = with_turns(loop->body);
            around_.pop_back();
            return make_tile(std::move(result));
        }
        auto goes_on = [&](const TileStmt& kid) { return !kid.as<TileOp>() && has_all(kid); };
        if (std::ranges::any_of(children(stmt), goes_on))
            return map_children(stmt, [&](const TileStmt& kid) { return with_turns_in(kid); });
        check_around();
        found_ = true;
        const Expr next = (group() + 1) % groups();
        return behind_last(in_front_of_first(stmt, by_all(BarrierSync{simplify(first_id() + group()), both()})),
                           by_all(BarrierArrive{simplify(first_id() + next), both()}));
    }
    TileStmt with_turns_in(const TileStmt& kid) { return kid.as<TileOp>() ? kid : with_turns(kid); }

    /// Who waits for its turn waits for warpgroups that come as often.
    void check_around() const {
        for (const TileLoop* loop : around_) {
            auto of_thread = [&](const ThreadCoordinate& coordinate) {
                return contains(loop->extent, coordinate.variable);
            };
            if (!contains(loop->extent, kernel_.thread) && std::ranges::none_of(kernel_.thread_coordinates, of_thread))
                continue;
            throw_error(Error,
                        "{}exclusive: warpgroups run loop '{}' {} times, each another number of times, and would wait "
                        "for the others for ever; let its length be the same for all rows of a block",
                        cite_(section_.step), loop->variable.as<Variable>()->name, to_string(loop->extent));
        }
    }

    bool has_some(const TileStmt& stmt) const { return !stages_in(stmt).empty(); }

    TileStmt in_front_of_first(const TileStmt& stmt, const TileStmt& added) const {
        const TileBlock* block = stmt.as<TileBlock>();
        if (!block && stmt.as<TileAllocate>())
            return map_children(stmt, [&](const TileStmt& kid) { return in_front_of_first(kid, added); });
        if (!block) return make_tile(TileBlock{{added, stmt}});
        std::vector<TileStmt> kids = block->stmts;
        auto first = std::ranges::find_if(kids, [&](const TileStmt& kid) { return has_some(kid); });
        if (!first->as<TileOp>()) {
            *first = in_front_of_first(*first, added);
            return make_tile(TileBlock{kids});
        }
        if (is_instruction<Wgmma>(*first))
            for (auto kid = first; kid != kids.begin() && !is_instruction<WgmmaCommit>(kid[-1]); --kid)
                if (is_instruction<WgmmaFence>(kid[-1])) first = kid - 1;
        kids.insert(first, added);
        return make_tile(TileBlock{kids});
    }

    TileStmt behind_last(const TileStmt& stmt, const TileStmt& added) const {
        const TileBlock* block = stmt.as<TileBlock>();
        if (!block && stmt.as<TileAllocate>())
            return map_children(stmt, [&](const TileStmt& kid) { return behind_last(kid, added); });
        if (!block) return make_tile(TileBlock{{stmt, added}});
        std::vector<TileStmt> kids = block->stmts;
        auto last = std::ranges::find_if(kids.rbegin(), kids.rend(), [&](const TileStmt& kid) { return has_some(kid); })
                        .base() -
                    1;
        if (!last->as<TileOp>()) {
            *last = behind_last(*last, added);
            return make_tile(TileBlock{kids});
        }
        if (is_instruction<Wgmma>(*last)) {
            auto commit = std::find_if(last, kids.end(), is_instruction<WgmmaCommit>);
            if (commit != kids.end()) last = commit;
        }
        kids.insert(last + 1, added);
        return make_tile(TileBlock{kids});
    }

    const TileKernel& kernel_;
    const ExclusiveSection& section_;
    int barrier_;
    const CiteStep& cite_;
    std::set<int> products_;
    std::map<int, std::string> names_;
    std::vector<const TileLoop*> around_;
    bool found_ = false;
};

void check_groups(const TileKernel& kernel, const CiteStep& cite) {
    const ExclusiveSection& first = kernel.exclusive[0];
    const int groups = kernel.threads / threads_of_warpgroup;
    if (turns_of(kernel) > 1)
        throw_error(Error,
                    "{}exclusive: '{}' plays ping-pong, and its groups take turns at whole tiles; leave one of the two "
                    "out",
                    cite(first.step), kernel.roles[0].name);
    if (kernel.threads % threads_of_warpgroup != 0 || groups < 2)
        throw_error(
            Error,
            "{}exclusive: whole warpgroups of 128 threads take turns, two or more, but {} threads compute; bind "
            "loops to more of them",
            cite(first.step), kernel.threads);
    const int64_t needed = static_cast<int64_t>(kernel.exclusive.size()) * groups,
                  there = last_barrier - first_barrier + 1;
    if (needed > there)
        throw_error(
            Error, "{}exclusive: {} sections of {} warpgroups take {} named barriers, {} are left; make fewer sections",
            cite(first.step), kernel.exclusive.size(), groups, needed, there);
}

/// A warpgroup that has its turn for all iterations of a loop keeps the others from taking turns inside.
class NestedTurns {
public:
    explicit NestedTurns(const CiteStep& cite, int step) : cite_(cite), step_(step) {}

    void check(const TileStmt& stmt) {
        if (is_instruction<BarrierSync>(stmt)) ++open_;
        if (is_instruction<BarrierArrive>(stmt)) open_ = std::max(0, open_ - 1);  // the first opens the first turn
        if (const TileLoop* loop = stmt.as<TileLoop>(); loop && open_ > 0 && has_turns(loop->body))
            throw_error(Error,
                        "{}exclusive: a section holds loop '{}', in which warpgroups take turns at another one, and "
                        "would wait for each other for ever; leave out the stages behind the loop, or in front of it",
                        cite_(step_), loop->variable.as<Variable>()->name);
        for (const TileStmt& kid : children(stmt)) check(kid);
    }

private:
    static bool has_turns(const TileStmt& stmt) {
        bool found = false;
        visit_ops(stmt, [&](const TileOp& op) { found = found || lone_instruction<BarrierSync>(op); });
        return found;
    }

    const CiteStep& cite_;
    int step_, open_ = 0;
};

}  // namespace

TileKernel exclusive_sections(const TileKernel& kernel, const CiteStep& cite) {
    if (kernel.exclusive.empty()) return kernel;
    check_groups(kernel, cite);
    TileKernel result = kernel;
    int barrier = first_barrier;
    for (const ExclusiveSection& section : kernel.exclusive) {
        result.body = SectionMaker(result, section, barrier, cite).run();
        barrier += kernel.threads / threads_of_warpgroup;
    }
    NestedTurns(cite, kernel.exclusive.back().step).check(result.body);
    return result;
}

}  // namespace tw::codegen
