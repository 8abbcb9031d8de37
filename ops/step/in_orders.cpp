#include "ops/step/in_orders.h"

#include <algorithm>

#include "ops/step/visit_reads.h"
#include "schedules/replace_tensors.h"

namespace tw {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

template <class T>
std::vector<T> in_order(const std::vector<int>& order, const std::vector<T>& of) {
    std::vector<T> result;
    for (int d : order) result.push_back(of[static_cast<size_t>(d)]);
    return result;
}

bool is_where_data_say(const Read& read) {
    bool found = false;
    for (const Expr& index : read.indices)
        visit_with_extents(index, [&](const Expr& e) { found = found || e.as<Read>(); });
    return found;
}

class PuttingInOrder {
public:
    PuttingInOrder(const StepParts& parts, const DimensionOrders& orders) : parts_(parts), orders_(orders) {}

    StoredStep ordered(const StoredStep& step) && {
        for (const OperationRef& operation : parts_.operations()) declare(operation);
        StoredStep result;
        for (const Tensor& output : step.step.outputs) result.step.outputs.push_back(now(output));
        for (const auto& [out, in] : step.step.in_place) result.step.in_place.emplace_back(now(out), in);
        for (const auto& [tensor, type] : step.stored) result.stored.emplace_back(now(tensor), type);
        return result;
    }

private:
    void declare(const OperationRef& operation) {
        if (operation->is_input()) return;
        if (const StepParts::Result* result = parts_.result_of(*operation)) return declare_part(operation, *result);
        const std::vector<Expr> before = schedules::bodies_of(*operation);
        std::vector<Expr> bodies = schedules::changed_together(before, [&](const Expr& all) {
            return transform_with_extents(all, [&](const Expr& e) { return read_now(e); });
        });
        const auto order = orders_.find(operation.get());
        const bool is_same = std::ranges::equal(before, bodies, [](const Expr& a, const Expr& b) { return a.same(b); });
        if (is_same && order == orders_.end()) return;
        if (order == orders_.end()) {
            now_[operation.get()] = schedules::declared_again(*operation, operation->name, bodies);
            return;
        }
        Operation ordered = *operation;  // its bodies are over these axes, whatever their order
        ordered.axes = in_order(order->second, operation->axes);
        ordered.shape = in_order(order->second, operation->shape);
        Substitution left_out;
        for (size_t d = 0; d < operation->axes.size(); ++d)
            if (std::ranges::find(order->second, static_cast<int>(d)) == order->second.end())
                left_out.emplace_back(operation->axes[d], integer(0));
        if (!left_out.empty())
            bodies = schedules::changed_together(bodies, [&](const Expr& all) { return substitute(all, left_out); });
        now_[operation.get()] = schedules::declared_again(ordered, operation->name, bodies);
    }

    Expr read_now(const Expr& e) const {
        const Read* read = e.as<Read>();
        const auto found = read ? now_.find(read->operation.get()) : now_.end();
        if (found == now_.end()) return {};
        Read other = *read;
        other.operation = found->second;
        if (const auto order = orders_.find(read->operation.get()); order != orders_.end())
            other.indices = in_order(order->second, read->indices);
        return make_expr(e.type(), std::move(other));
    }

    /// Once for all of its results.
    void declare_part(const OperationRef& result, const StepParts::Result& of) {
        const OwnSchedule& own = *of.part;
        const auto [entry, is_new] = parts_now_.try_emplace(&own);
        if (is_new) {
            std::vector<Tensor> operands;
            for (const Tensor& operand : own.operands) operands.push_back(now(operand));
            const bool is_same =
                std::ranges::equal(operands, own.operands, [](const Tensor& a, const Tensor& b) { return a.same(b); });
            const DeclaredIn scope(own.results.at(0).operation()->scope);
            if (!is_same)
                entry->second = with_schedule(own.name, operands, own.declare, own.schedule, own.schedules, own.where);
        }
        if (entry->second.empty()) return;
        const OperationRef present = entry->second[static_cast<size_t>(of.index)].operation();
        if (present->name == result->name) return void(now_[result.get()] = present);
        auto named = std::make_shared<Operation>(*present);  // a result of the step has the name that it was given
        named->name = result->name;
        now_[result.get()] = std::move(named);
    }

    Tensor now(const Tensor& tensor) const {
        const auto found = now_.find(tensor.operation().get());
        return found == now_.end() ? tensor : Tensor(found->second, tensor.output());
    }

    const StepParts& parts_;
    const DimensionOrders& orders_;
    std::map<const Operation*, OperationRef> now_;  // by what was declared
    std::map<const OwnSchedule*, std::vector<Tensor>> parts_now_;
};

}  // namespace

std::set<const Operation*> movable_operations(const schedules::Declared& step, const StepGraph& graph) {
    std::set<const Operation*> movable;
    for (const StepNode& node : graph.nodes)
        if (!node.own_schedule && !node.is_copy) movable.insert(node.operation.get());
    for (const Tensor& result : step.outputs) movable.erase(result.operation().get());
    for (const StepNode& node : graph.nodes)
        if (node.own_schedule)
            for (const Tensor& operand : node.reads) movable.erase(operand.operation().get());
    for (const OperationRef& operation : graph.parts.operations())
        visit_reads(*operation, [&](const Read& read) {
            if (is_where_data_say(read)) movable.erase(read.operation.get());
        });
    return movable;
}

StoredStep in_orders(const StoredStep& step, const StepParts& parts, const DimensionOrders& orders) {
    return PuttingInOrder(parts, orders).ordered(step);
}

}  // namespace tw
