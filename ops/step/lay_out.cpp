#include "ops/step/lay_out.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "ops/step/operation_kinds.h"
#include "ops/step/visit_reads.h"
#include "schedules/channels_last.h"
#include "schedules/window_terms.h"

namespace tw {
namespace {

constexpr double least_share_gained = 0.03;  // of the time of what touches it; the model knows no better

bool holds_any(const Expr& expr, const std::vector<Expr>& variables) {
    return std::ranges::any_of(variables, [&](const Expr& variable) { return contains(expr, variable); });
}

/// Of a sum over windows, as declared over inputs, those inputs, and itself, whose last dimension is one along which
/// windows lie: what elements have side by side is then no channel.
schedules::MovableChannels along_windows(const Tensor& sums) {
    const Operation& operation = *sums.operation();
    const Expr body = schedules::with_elements(operation.outputs[0].body, {sums}, true);
    std::vector<const Read*> reads;
    visit(body, [&](const Expr& e) {
        if (const Read* read = e.as<Read>(); read && !read->indices.empty()) reads.push_back(read);
    });
    std::vector<Expr> windows;  // axes of the sum and of its terms that are added to each other
    for (const Read* read : reads)
        for (const Expr& index : read->indices) {
            std::vector<Expr> variables = variables_of(index);
            const auto is_own = [&](const Expr& variable) { return holds_any(variable, operation.axes); };
            if (std::ranges::any_of(variables, is_own) && !std::ranges::all_of(variables, is_own))
                windows.insert(windows.end(), variables.begin(), variables.end());
        }
    schedules::MovableChannels found{.operands = {}, .result = false};
    if (!operation.axes.empty()) found.result = holds_any(operation.axes.back(), windows);
    for (const Read* read : reads)
        if (holds_any(read->indices.back(), windows)) found.operands.emplace_back(read->operation, read->output);
    return found;
}

bool has_shape_of(const Operation& one, const Operation& other) {
    return std::ranges::equal(one.shape, other.shape, equal);
}

/// Operations whose dimensions may be in another order, those together that are made of each other element by element.
class Movable {
public:
    Movable(const schedules::Declared& step, const StepGraph& graph) {
        for (const Operation* operation : movable_operations(step, graph)) first_.emplace(operation, operation);
        for (const StepNode& node : graph.nodes)
            visit_reads(*node.operation, [&](const Read& read) {
                if (holds(node.operation.get()) && holds(read.operation.get()) &&
                    has_shape_of(*node.operation, *read.operation) &&
                    std::ranges::equal(read.indices, node.operation->axes, equal))
                    first_[root(node.operation.get())] = root(read.operation.get());
            });
        for (auto& [operation, first] : first_) first = root(operation);
    }
    bool holds(const Operation* operation) const { return first_.contains(operation); }
    /// One that stands for all that are together with it.
    const Operation* first(const Operation* of) const { return first_.at(of); }

private:
    const Operation* root(const Operation* of) {
        while (first_.at(of) != of) of = first_[of] = first_.at(first_.at(of));
        return of;
    }

    std::map<const Operation*, const Operation*> first_;
};

/// Of movable operations that have dimensions of one element: the other ones.
DimensionOrders without_ones(const StepGraph& graph, const std::set<const Operation*>& movable) {
    DimensionOrders orders;
    for (const StepNode& node : graph.nodes) {
        const std::vector<Expr>& shape = node.operation->shape;
        if (!movable.contains(node.operation.get())) continue;
        std::vector<int> others;
        for (int d = 0; d < static_cast<int>(shape.size()); ++d)
            if (!is_constant(shape[static_cast<size_t>(d)], 1)) others.push_back(d);
        if (others.size() < shape.size()) orders.emplace(node.operation.get(), std::move(others));
    }
    return orders;
}

/// What is in the same order together, and which others than the declared one it is wanted in.
struct Together {
    std::vector<int> nodes;                // that make it
    std::vector<int> touching;             // that make or read it
    std::vector<std::vector<int>> orders;  // of dimensions, the first wish first
    int chosen = 0;                        // of these; as_declared: none
};
constexpr int as_declared = -1;

/// Places of a declaration's inputs whose dimension 1 a sum had better have last; -1: its result's.
std::vector<int> channels_wanted(const GroupDeclaration& group) {
    std::vector<int> places;
    const Tensor& sums = group.declared.outputs[0];
    const auto on_units = schedules::movable_channels(sums);
    const schedules::MovableChannels movable = on_units ? *on_units : along_windows(sums);
    if (movable.result) places.push_back(-1);
    for (const Tensor& operand : movable.operands)
        for (size_t k = 0; k < group.inputs.size(); ++k)
            if (group.inputs[k].same(operand) && has_shape_of(*operand.operation(), *group.reads[k].operation()))
                places.push_back(static_cast<int>(k));
    return places;
}

class LayingOut {
public:
    LayingOut(const StoredStep& step, const StepGraph& graph, const StepCutting& cutting)
        : step_(step), graph_(graph), cutting_(cutting), movable_(step.step, graph) {}

    std::optional<LaidOutStep> run() {
        find_wanted();
        if (all_.empty()) return {};
        choose_alone();
        const DimensionOrders orders = chosen_orders();
        if (orders.empty()) return {};
        StoredStep ordered = in_orders(step_, graph_.parts, orders);
        StepGraph graph = cutting_.graph_of(ordered);
        StepCut before = cutting_.cut(graph_), after = cutting_.cut(graph);
        const double touching = seconds_touching(before), was = seconds_of(graph_, before),
                     gain = was - seconds_of(graph, after);
        if (gain <= least_share_gained * touching) return LaidOutStep{{step_, graph_, std::move(before)}, {}};
        return LaidOutStep{{std::move(ordered), std::move(graph), std::move(after)}, texts(touching, gain)};
    }

private:
    int num_nodes() const { return static_cast<int>(graph_.nodes.size()); }
    const StepNode& node_at(int node) const { return graph_.nodes[static_cast<size_t>(node)]; }

    // ---- what is wanted otherwise -----------------------------------------------------------------------------------

    void find_wanted() {
        std::set<const Operation*> seen;
        for (int n = 0; n < num_nodes(); ++n) {
            note_channels(n);
            for (const auto& view : node_at(n).views)
                if (seen.insert(view.get()).second) note_turned(*view);
            if (!node_at(n).own_schedule) note_turned(*node_at(n).operation);
        }
        for (const auto& [first, orders] : orders_) all_.push_back(together_with(first, orders));
        std::ranges::sort(all_, {}, &Together::nodes);
    }
    void want(const Operation* operation, std::vector<int> order) {
        if (!movable_.holds(operation)) return;
        std::vector<std::vector<int>>& orders = orders_[movable_.first(operation)];
        if (std::ranges::find(orders, order) == orders.end()) orders.push_back(std::move(order));
    }
    Together together_with(const Operation* first, const std::vector<std::vector<int>>& orders) const {
        const auto is_one = [&](const Operation* operation) {
            return movable_.holds(operation) && movable_.first(operation) == first;
        };
        Together together{.nodes = {}, .touching = {}, .orders = orders};
        for (int n = 0; n < num_nodes(); ++n) {
            const bool makes_one = is_one(node_at(n).operation.get());
            if (makes_one) together.nodes.push_back(n);
            if (makes_one || std::ranges::any_of(node_at(n).reads,
                                                 [&](const Tensor& read) { return is_one(read.operation().get()); }))
                together.touching.push_back(n);
        }
        return together;
    }

    /// A sum of products, as its channels lie or windows go.
    void note_channels(int n) {
        const StepNode& node = node_at(n);
        const auto may_have_channels = [&](const Tensor& tensor) {
            return tensor.rank() >= 3 && movable_.holds(tensor.operation().get());
        };
        if (node.own_schedule) return;
        if (!may_have_channels({node.operation, 0}) && std::ranges::none_of(node.reads, may_have_channels)) return;
        if (kind_of(*node.operation) != OperationKind::SumOfProducts) return;
        const GroupDeclaration group = declare_group(graph_, {n});
        const auto [known, is_new] = channels_.try_emplace(group.text());
        if (is_new) known->second = channels_wanted(group);
        for (int place : known->second) {
            const Operation* wanted =
                place < 0 ? node.operation.get() : group.reads[static_cast<size_t>(place)].operation().get();
            std::vector<int> order(wanted->shape.size());
            std::iota(order.begin(), order.end(), 0);
            if (order.size() < 3) continue;
            std::rotate(order.begin() + 1, order.begin() + 2, order.end());
            want(wanted, std::move(order));
        }
    }
    /// Who reads elements at its own place, but for the order of dimensions, as a transposing view does.
    void note_turned(const Operation& reader) {
        visit_reads(reader, [&](const Read& read) {
            std::vector<int> order;
            for (const Expr& axis : reader.axes) {
                const auto place = std::ranges::find_if(read.indices, [&](const Expr& i) { return i.same(axis); });
                if (place != read.indices.end()) order.push_back(static_cast<int>(place - read.indices.begin()));
            }
            const bool is_whole = order.size() == reader.axes.size() && order.size() == read.indices.size();
            if (is_whole && !std::ranges::is_sorted(order)) want(read.operation.get(), std::move(order));
        });
    }

    // ---- what is worth it -------------------------------------------------------------------------------------------

    /// Of each, the order with which operations by themselves take least; equal ones alike.
    void choose_alone() {
        std::map<std::string, std::vector<Together*>> alike;
        std::vector<const std::vector<Together*>*> kinds;
        for (Together& each : all_) {
            std::string kind = fmt::format("{}\n", each.orders);
            for (int node : each.touching) kind += declare_group(graph_, {node}).text();
            std::vector<Together*>& equal = alike[kind];
            if (equal.empty()) kinds.push_back(&equal);
            equal.push_back(&each);
        }
        StepGraph now = graph_in(chosen_orders());
        for (const std::vector<Together*>* equal : kinds) {
            int best = 0;
            double least = seconds_alone(now, *equal);
            const int count = static_cast<int>(equal->front()->orders.size());
            for (int chosen = count - 1; chosen >= as_declared; --chosen) {
                if (chosen == 0) continue;
                for (Together* each : *equal) each->chosen = chosen;
                StepGraph other = graph_in(chosen_orders());
                const double seconds = seconds_alone(other, *equal);
                if (chosen == as_declared ? seconds > least : seconds >= least) continue;
                least = seconds;
                best = chosen;
                now = std::move(other);
            }
            for (Together* each : *equal) each->chosen = best;
        }
    }
    double seconds_alone(const StepGraph& graph, const std::vector<Together*>& touched) const {
        std::set<int> nodes;
        for (const Together* each : touched) nodes.insert(each->touching.begin(), each->touching.end());
        double seconds = 0;
        for (int node : nodes) seconds += cutting_.schedules.of(declare_group(graph, {node})).seconds;
        return seconds;
    }

    DimensionOrders chosen_orders() const {
        DimensionOrders orders;
        for (const Together& each : all_)
            for (int node : each.nodes)
                if (each.chosen != as_declared)
                    orders[node_at(node).operation.get()] = each.orders[static_cast<size_t>(each.chosen)];
        return orders;
    }
    StepGraph graph_in(const DimensionOrders& orders) const {
        return cutting_.graph_of(in_orders(step_, graph_.parts, orders));
    }

    double seconds_of(const StepGraph& graph, const StepCut& cut) const {
        double seconds = 0;
        for (const std::vector<int>& group : cut.groups)
            seconds += cutting_.schedules.of(declare_group(graph, group)).seconds;
        return seconds;
    }
    /// Of the step as it is declared: groups that make or read what is in another order then.
    double seconds_touching(const StepCut& cut) const {
        std::set<int> nodes;
        for (const Together& each : all_)
            if (each.chosen != as_declared) nodes.insert(each.touching.begin(), each.touching.end());
        double seconds = 0;
        for (const std::vector<int>& group : cut.groups)
            if (std::ranges::any_of(group, [&](int node) { return nodes.contains(node); }))
                seconds += cutting_.schedules.of(declare_group(graph_, group)).seconds;
        return seconds;
    }

    std::vector<std::string> texts(double touching, double gain) const {
        std::vector<std::string> texts;
        for (const Together& each : all_) {
            if (each.chosen == as_declared) continue;
            std::vector<std::string> names;
            for (int node : each.nodes) names.push_back(node_at(node).operation->name);
            texts.push_back(fmt::format("{}: dimensions {}", fmt::join(names, ", "),
                                        fmt::join(each.orders[static_cast<size_t>(each.chosen)], ", ")));
        }
        texts.push_back(fmt::format("kernels that touch these take {:.1f} us instead of {:.1f} us",
                                    (touching - gain) * 1e6, touching * 1e6));
        return texts;
    }

    const StoredStep& step_;
    const StepGraph& graph_;
    const StepCutting& cutting_;
    const Movable movable_;
    std::map<const Operation*, std::vector<std::vector<int>>> orders_;  // wanted, by who stands for all together
    std::map<std::string, std::vector<int>> channels_;                  // what sums want, by their texts
    std::vector<Together> all_;
};

}  // namespace

std::optional<LaidOutStep> lay_out(const StoredStep& step, const StepGraph& graph, const StepCutting& cutting) {
    const DimensionOrders orders = without_ones(graph, movable_operations(step.step, graph));
    if (orders.empty()) return LayingOut(step, graph, cutting).run();
    std::vector<std::string> names;
    for (const StepNode& node : graph.nodes)
        if (orders.contains(node.operation.get())) names.push_back(node.operation->name);
    LaidOutStep narrow{.step = {.step = in_orders(step, graph.parts, orders), .graph = {}, .cut = {}}, .laid_out = {}};
    narrow.step.graph = cutting.graph_of(narrow.step.step);
    std::optional<LaidOutStep> found = LayingOut(narrow.step.step, narrow.step.graph, cutting).run();
    LaidOutStep& result = found ? *found : narrow;
    result.laid_out.insert(result.laid_out.begin(),
                           fmt::format("{}: without dimensions of one element", fmt::join(names, ", ")));
    return std::move(result);
}

}  // namespace tw
