#include "codegen/barriers/barrier_needs.h"

#include <algorithm>
#include <limits>
#include <set>

#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr double kUnknownExtent = 64;  // weighs loops whose length is not known

/// Expands the lets of a kernel: their names are unique, so one list serves all places.
class Lets {
public:
    void add(const ThreadLet& let) { values_.insert(values_.begin(), {let.variable, expand(let.value)}); }
    Expr expand(const Expr& expr) const { return substitute(expr, values_); }

private:
    Substitution values_;
};

/// Numbers gaps and statements in program order and gathers what the barriers depend on.
class Surveyor {
public:
    explicit Surveyor(const ThreadKernel& kernel) : kernel_(kernel) {
        visit(kernel.body, [&](const ThreadStmt& stmt) {
            for (const MemoryAccess& access : memory_accesses(stmt))
                if (access.writes) written_.insert(array_of(access.place.buffer, kernel));
        });
        for (const SharedUnion& shared : kernel.unions)
            for (const std::vector<Buffer>& alternative : shared.alternatives)
                for (const Buffer& buffer : alternative) written_.insert(buffer.get());
        walk(kernel.body);
    }

    Survey result;

private:
    void walk(const ThreadStmt& body) {
        bool after_lead = false;
        for (const ThreadStmt& stmt : statements(body)) {
            if (!after_lead) add_gap();
            after_lead = leads_in(stmt);
            enter(stmt);
        }
        add_gap();
    }

    void add_gap() {
        ++order_;
        if (divergent_ == 0) result.gaps.push_back({order_, weight_, inside_});
    }

    void enter(const ThreadStmt& stmt) {
        ++order_;
        for (const MemoryAccess& access : memory_accesses(stmt)) add_access(access);
        if (auto let = stmt.as<ThreadLet>(); let && !names_ticket_of_loop(*let)) lets_.add(*let);
        if (auto loop = stmt.as<ThreadLoop>()) return enter_loop(stmt, *loop);
        auto branch = stmt.as<ThreadIf>();
        if (!branch) return;
        Expr condition = lets_.expand(branch->condition);
        conditions_.push_back(condition);
        enter_region({stmt, depends_on_thread(condition), true}, branch->body);
        conditions_.pop_back();
    }

    bool names_ticket_of_loop(const ThreadLet& let) {
        for (size_t level = 0; level < loops_.size(); ++level)
            if (names_ticket(let, loops_[level])) {
                tickets_[level] = let.variable;
                return true;
            }
        return false;
    }

    void enter_loop(const ThreadStmt& stmt, const ThreadLoop& loop) {
        Expr extent = lets_.expand(loop.extent);
        Interval bounds = bounds_of(extent);
        double outside = weight_;
        weight_ *= bounds.max ? static_cast<double>(std::max<int64_t>(*bounds.max, 1)) : kUnknownExtent;
        loops_.push_back({loop.variable, extent, loop.unroll, {}});
        loops_.back().next = loop.next;
        tickets_.emplace_back();
        enter_region({stmt, depends_on_thread(extent), bounds.min.value_or(0) < 1}, loop.body);
        loops_.pop_back();
        tickets_.pop_back();
        weight_ = outside;
    }

    void enter_region(Region region, const ThreadStmt& body) {
        size_t index = result.regions.size();
        region.first = order_;
        result.regions.push_back(region);
        inside_.push_back(static_cast<int>(index));
        divergent_ += region.divergent;
        walk(body);
        divergent_ -= region.divergent;
        inside_.pop_back();
        result.regions[index].last = order_ + 1;
    }

    void add_access(const MemoryAccess& access) {
        const BufferNode* buffer = array_of(access.place.buffer, kernel_);
        if (buffer->memory == Memory::Registers || !written_.count(buffer)) return;
        MemoryAccess expanded = access;
        for (Expr& index : expanded.place.indices) index = lets_.expand(index);
        result.accesses.push_back({{expanded, loops_, conditions_, tickets_}, order_, inside_});
    }

    /// Loads of what nobody writes are the same for all threads if their indices are.
    bool depends_on_thread(const Expr& expr) const {
        if (kernel_.thread.defined() && contains(expr, kernel_.thread)) return true;
        bool found = false;
        visit(expr, [&](const Expr& node) {
            auto load = node.as<Load>();
            found =
                found ||
                (load && (load->buffer->memory != Memory::Global || written_.count(array_of(load->buffer, kernel_))));
        });
        return found;
    }

    const ThreadKernel& kernel_;
    std::set<const BufferNode*> written_;
    Lets lets_;
    std::vector<ThreadLoop> loops_;
    std::vector<Expr> conditions_, tickets_;
    std::vector<int> inside_;
    int order_ = 0, divergent_ = 0;
    double weight_ = 1;
};

class Requirements {
public:
    Requirements(const ThreadKernel& kernel, const Survey& survey) : kernel_(kernel), survey_(survey) {
        for (const OrderedAccess& x : survey.accesses)
            for (const OrderedAccess& y : survey.accesses)
                if (conflict(x.placed.access, y.placed.access)) compare(x, y);
    }

    BarrierNeeds needs;

private:
    static bool conflict(const MemoryAccess& x, const MemoryAccess& y) {
        return (x.writes || y.writes) && !(x.atomic && y.atomic);
    }

    void compare(const OrderedAccess& x, const OrderedAccess& y) {
        size_t common = 0;
        std::vector<int> loop_regions;
        for (size_t r = 0; r < std::min(x.regions.size(), y.regions.size()) && x.regions[r] == y.regions[r]; ++r)
            if (survey_.regions[x.regions[r]].stmt.as<ThreadLoop>()) loop_regions.push_back(x.regions[r]);
        common = loop_regions.size();
        if (x.order < y.order && may_conflict(x, y, common, Distance::SameIteration)) require(x, y, between(x, y));
        if (x.order == y.order) check_single_statement(x, y, common);
        for (size_t level = 0; level < common; ++level) {
            int64_t iterations =
                bounds_of(x.placed.loops[level].extent).max.value_or(std::numeric_limits<int64_t>::max());
            if (iterations >= 2 && may_conflict(x, y, level + 1, Distance::NextIteration))
                require(x, y, around(x, y, loop_regions[level], false));
            else if (iterations >= 3 && may_conflict(x, y, level + 1, Distance::LaterIteration))
                require(x, y, around(x, y, loop_regions[level], true));
        }
    }

    bool may_conflict(const OrderedAccess& x, const OrderedAccess& y, size_t common, Distance distance) const {
        return conflict_of(x.placed, y.placed, common, distance, kernel_) != Conflict::Never;
    }

    /// No barrier helps inside of one statement. Stores to one element by many threads at once store one value.
    void check_single_statement(const OrderedAccess& x, const OrderedAccess& y, size_t common) const {
        if (x.placed.access.writes == y.placed.access.writes) return;
        internal_check(conflict_of(x.placed, y.placed, common, Distance::SameIteration, kernel_) != Conflict::Certain,
                       "kernel {}: a statement reads elements of '{}' that other threads write in it", kernel_.name,
                       x.placed.access.place.buffer->name);
    }

    void require(const OrderedAccess& x, const OrderedAccess& y, std::vector<int> gaps) {
        if (gaps.empty()) needs.unmet.emplace_back(&x, &y);
        needs.sets.push_back(std::move(gaps));
    }

    /// Whether whoever executes `x` or `y` also comes to the gap; regions up to `outer` hold all three.
    bool certain(const Gap& gap, const OrderedAccess* x, const OrderedAccess* y, int outer = -1) const {
        return std::all_of(gap.regions.begin(), gap.regions.end(), [&](int r) {
            const Region& region = survey_.regions[r];
            return r <= outer || !region.may_skip || (x && region.contains(x->order)) ||
                   (y && region.contains(y->order));
        });
    }

    std::vector<int> between(const OrderedAccess& x, const OrderedAccess& y) const {
        return select(
            [&](const Gap& gap) { return gap.order > x.order && gap.order < y.order && certain(gap, &x, &y); });
    }

    /// From x to the end of the loop's body and from its start to y; `whole`: at least one iteration lies in between.
    std::vector<int> around(const OrderedAccess& x, const OrderedAccess& y, int loop, bool whole) const {
        return select([&](const Gap& gap) {
            if (!survey_.regions[loop].contains(gap.order)) return false;
            return (gap.order > x.order && certain(gap, &x, nullptr, loop)) ||
                   (gap.order < y.order && certain(gap, nullptr, &y, loop)) ||
                   (whole && certain(gap, nullptr, nullptr, loop));
        });
    }

    template <class Test>
    std::vector<int> select(const Test& test) const {
        std::vector<int> chosen;
        for (size_t g = 0; g < survey_.gaps.size(); ++g)
            if (test(survey_.gaps[g])) chosen.push_back(static_cast<int>(g));
        return chosen;
    }

    const ThreadKernel& kernel_;
    const Survey& survey_;
};

}  // namespace

bool leads_in(const ThreadStmt& stmt) {
    if (auto let = stmt.as<ThreadLet>()) return !reads_memory(let->value);
    return stmt.as<ThreadComment>() || stmt.as<ThreadDeclare>();
}

Survey survey(const ThreadKernel& kernel) { return Surveyor(kernel).result; }

BarrierNeeds barrier_needs(const ThreadKernel& kernel, const Survey& survey) {
    return Requirements(kernel, survey).needs;
}

}  // namespace tw::codegen
