#include "schedules/sums_together.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/simplify.h"
#include "schedules/channel_sums.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

/// A sum for each channel.
struct Sum {
    OperationRef operation;
    const Reduce* reduction;
    std::vector<Expr> axes;          ///< in the order of the tensors' dimensions
    size_t channel = 0;              ///< its place among these
    std::vector<OperationRef> wide;  ///< what is read at the axes, through what is inlined
};

std::vector<int64_t> extents_of(const Sum& sum) {
    std::vector<int64_t> extents{static_cast<int64_t>(sum.channel), require_constant(sum.operation->shape[0])};
    for (const Expr& axis : sum.axes) extents.push_back(require_constant(axis.as<Variable>()->extent));
    return extents;
}

/// The indices that all tensors of so many dimensions are read at; none if they differ.
std::vector<Expr> place_of(const Expr& term, size_t dimensions, std::vector<OperationRef>& wide) {
    std::vector<Expr> at;
    bool same = true;
    visit(term, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read || read->indices.size() != dimensions || !same) return;
        same = at.empty() || std::ranges::equal(read->indices, at, equal);
        at = read->indices;
        wide.push_back(read->operation);
    });
    return same ? at : std::vector<Expr>();
}

bool is_axis_of(const Expr& index, const std::vector<Expr>& axes) {
    return std::ranges::any_of(axes, [&](const Expr& axis) { return axis.same(index); });
}

bool has_extent(const Expr& axis) {
    const Expr& extent = axis.as<Variable>()->extent;
    return extent.defined() && as_constant(extent);
}

std::optional<Sum> sum_of(const OperationRef& operation, const std::vector<Tensor>& outputs) {
    if (operation->is_input() || operation->axes.size() != 1 || operation->outputs.size() != 1 || operation->gradient ||
        !as_constant(operation->shape[0]))
        return {};
    Sum sum{operation, only_reduction(operation->outputs[0].body), {}, 0, {}};
    if (!sum.reduction || !adds_f32(*sum.reduction->reducer) || sum.reduction->values.size() != 1) return {};
    const Expr& channel = operation->axes[0];
    const std::vector<Expr> at =
        place_of(with_elements(sum.reduction->values[0], outputs, true), sum.reduction->axes.size() + 1, sum.wide);
    for (size_t d = 0; d < at.size(); ++d) {
        if (at[d].same(channel))
            sum.channel = d;
        else if (is_axis_of(at[d], sum.reduction->axes) && !is_axis_of(at[d], sum.axes) && has_extent(at[d]))
            sum.axes.push_back(at[d]);
        else
            return {};
    }
    const bool is_whole = sum.axes.size() == sum.reduction->axes.size() && sum.axes.size() + 1 == at.size();
    return is_whole ? std::optional(std::move(sum)) : std::nullopt;
}

/// Sums that become one operation, and what of it stands for them.
class Grouping {
public:
    explicit Grouping(const std::vector<Tensor>& outputs) : outputs_(outputs), operations_(operations_of(outputs)) {}

    Redeclared run() {
        for (const OperationRef& operation : operations_)
            if (auto sum = sum_of(operation, outputs_)) put(*sum);
        Redeclared result{outputs_, {}};
        if (std::ranges::all_of(groups_, [](const auto& group) { return group.size() == 1; })) return result;
        for (size_t g = 0; g < groups_.size(); ++g) declare(g, result.notes);
        for (Tensor& output : result.outputs) output = whole_.of(output);
        return result;
    }

private:
    using Group = std::vector<Sum>;

    /// That is computed last, of those that reduce something; null: all lie in memory.
    OperationRef last_computed(const Sum& sum) const {
        OperationRef last;
        for (const OperationRef& operation : operations_)
            if (!operation->is_input() && std::ranges::find(sum.wide, operation) != sum.wide.end()) last = operation;
        return last;
    }
    bool are_alike(const Sum& a, const Sum& b) const {
        if (extents_of(a) != extents_of(b)) return false;
        const OperationRef last = last_computed(a);
        if (last != last_computed(b)) return false;
        return last || std::ranges::any_of(a.wide, [&](const OperationRef& each) {
                   return std::ranges::find(b.wide, each) != b.wide.end();
               });
    }
    void put(const Sum& sum) {
        const std::set<OperationRef> needed = needed_of(sum.operation);
        for (size_t g = groups_.size(); g-- > 0;) {
            const bool needs =
                std::ranges::any_of(groups_[g], [&](const Sum& own) { return needed.count(own.operation); });
            const bool alike = std::ranges::any_of(groups_[g], [&](const Sum& own) { return are_alike(own, sum); });
            if (needs || !alike) continue;
            groups_[g].push_back(sum);
            group_of_[sum.operation] = g;
            return;
        }
        group_of_[sum.operation] = groups_.size();
        groups_.push_back({sum});
    }
    /// What an operation is computed from, with all that is in a group with any of that.
    std::set<OperationRef> needed_of(const OperationRef& operation) const {
        std::set<OperationRef> found;
        std::vector<OperationRef> left{operation};
        while (!left.empty()) {
            const OperationRef next = left.back();
            left.pop_back();
            for (const OperationRef& each : operations_of({Tensor(next, 0)})) {
                if (!found.insert(each).second) continue;
                const auto group = group_of_.find(each);
                if (group == group_of_.end()) continue;
                for (const Sum& sum : groups_[group->second]) left.push_back(sum.operation);
            }
        }
        return found;
    }

    /// Those that it needs first.
    void declare(size_t g, std::vector<std::string>& notes) {
        if (!declared_.insert(g).second) return;
        const Group& group = groups_[g];
        for (const Sum& sum : group)
            for (const OperationRef& each : operations_of({Tensor(sum.operation, 0)}))
                if (const auto other = group_of_.find(each); other != group_of_.end()) declare(other->second, notes);
        if (group.size() == 1) return;
        const Tensor together = whole_.of(in_one(group));
        std::vector<std::string> names;
        for (size_t k = 0; k < group.size(); ++k) {
            whole_.put(Tensor(group[k].operation, 0), Tensor(together.operation(), static_cast<int>(k)));
            names.push_back("'" + group[k].operation->name + "'");
        }
        notes.push_back(fmt::format("{}: by one kernel, which reads what they sum once", fmt::join(names, ", ")));
    }
    Tensor in_one(const Group& group) const {
        const Operation& first = *group[0].operation;
        std::vector<std::string> names;
        std::vector<Axis> axes;
        for (const Sum& sum : group) names.push_back(sum.operation->name);
        for (const Expr& axis : group[0].axes) axes.push_back(reduce_axis("n", axis.as<Variable>()->extent));
        auto bodies = [&](const std::vector<Expr>& at) {
            std::vector<Expr> terms, made;
            std::vector<Substitution> own;
            for (const Sum& sum : group) {
                own.push_back({{sum.operation->axes[0], at[0]}});
                for (size_t d = 0; d < axes.size(); ++d) own.back().emplace_back(sum.axes[d], axes[d]);
                terms.push_back(substitute(sum.reduction->values[0], own.back()));
            }
            const std::vector<Expr> added = sums_of(terms, axes);
            for (size_t k = 0; k < group.size(); ++k)
                made.push_back(substitute(with_reduction(group[k].operation->outputs[0].body, added[k]),
                                          {{group[k].operation->axes[0], at[0]}}));
            return made;
        };
        return compute_tuple(free_name(first.name + "_together"), names, {first.shape[0]}, bodies, first.where)[0];
    }
    std::string free_name(const std::string& wanted) const {
        auto is_taken = [&](const std::string& name) {
            return std::ranges::any_of(operations_, [&](const OperationRef& each) { return each->name == name; });
        };
        std::string name = wanted;
        for (int number = 2; is_taken(name); ++number) name = fmt::format("{}_{}", wanted, number);
        return name;
    }

    const std::vector<Tensor>& outputs_;
    const std::vector<OperationRef> operations_;  // producers first
    std::vector<Group> groups_;
    std::map<OperationRef, size_t> group_of_;
    std::set<size_t> declared_;
    Replacement whole_;
};

}  // namespace

Redeclared sums_together(const std::vector<Tensor>& outputs) { return Grouping(outputs).run(); }

}  // namespace tw::schedules
