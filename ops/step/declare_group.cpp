#include "ops/step/declare_group.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "schedules/declaration_text.h"
#include "schedules/replace_tensors.h"

namespace tw {
namespace {

std::string without_numbers(const std::string& name) {
    std::string text;
    for (char c : name) {
        const bool digit = c >= '0' && c <= '9';
        if (!digit && !(c == '_' && (text.empty() || text.back() == '_'))) text += c;
    }
    while (!text.empty() && text.back() == '_') text.pop_back();
    return text.empty() ? "t" : text;
}

class Declaring {
public:
    Declaring(const StepGraph& graph, const std::vector<int>& nodes)
        : graph_(graph), nodes_(nodes), is_part_(graph.nodes[nodes[0]].own_schedule != nullptr) {
        for (int node : nodes) {
            for (const auto& view : graph.nodes[node].views)
                if (!made_.contains(view.get()) && !is_input({view, 0})) declare(view);
            if (graph.nodes[node].own_schedule) {
                declare_part(graph.nodes[node]);
                result_.names.emplace_back();
                return;
            }
            declare(graph.nodes[node].operation);
            result_.names.push_back(made_.at(graph.nodes[node].operation.get()).operation()->name);
        }
        for (int node : nodes) add_outputs(graph.nodes[node].operation);
        for (const auto& [out, in] : graph.overwrites) overwrite(out, in);
    }
    GroupDeclaration declaration() && { return std::move(result_); }

private:
    std::string name(const std::string& known) {
        const std::string plain = is_part_ ? "given" : without_numbers(known);
        std::string name = plain;
        for (int n = 2; !names_.insert(name).second; ++n) name = fmt::format("{}_{}", plain, n);
        return name;
    }

    void declare(const std::shared_ptr<const Operation>& self) {
        const Operation& operation = *self;
        std::vector<Expr> bodies = schedules::changed_together(schedules::bodies_of(operation), [&](const Expr& all) {
            return transform_with_extents(all, [&](const Expr& e) { return read_here(e); });
        });
        for (size_t k = 0; k < bodies.size(); ++k)
            if (const Type type = graph_.type_of({self, static_cast<int>(k)});
                type != bodies[k].type() && leaves({self, static_cast<int>(k)}))
                bodies[k] = cast(type, bodies[k]);
        Operation renamed = operation;
        renamed.name = name(operation.name);
        for (Operation::Output& output : renamed.outputs)
            if (!output.name.empty()) output.name = name(output.name);
        made_[&operation] = Tensor(schedules::declared_again(renamed, renamed.name, bodies), 0);
    }

    /// Whether it is read as an input of the view's shape: what it has lies in memory so.
    bool is_input(const Tensor& view) const {
        const auto lies = graph_.reshaped.find(view.operation().get());
        return lies != graph_.reshaped.end() && !made_.contains(lies->second.operation().get());
    }

    /// What it is made of has names that are not known here; its operands have none of these, and the same in each
    /// part.
    void declare_part(const StepNode& node) {
        result_.own_schedule = node.own_schedule;
        for (const Tensor& operand : node.own_schedule->operands) result_.operands.push_back(here(operand));
        result_.declared.outputs = node.own_schedule->declare(result_.operands);
        for (size_t k = 0; k < result_.declared.outputs.size(); ++k) {
            const bool is_needed = k < node.makes.size() && node.makes[k].defined();
            result_.writes.push_back(is_needed ? node.makes[k] : result_.declared.outputs[k]);
        }
    }

    Tensor here(const Tensor& tensor) {
        const Tensor known = graph_.known(tensor);
        if (const auto made = made_.find(known.operation().get()); made != made_.end())
            return {made->second.operation(), known.output()};
        return input_for(known);
    }
    Expr read_here(const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read) return {};
        Read here = *read;
        const Tensor tensor = this->here({read->operation, read->output});
        if (is_part_ && !tensor.operation()->is_input()) {  // a view of a view: of a part's operand, one is left
            Substitution at;
            for (size_t d = 0; d < here.indices.size(); ++d)
                at.emplace_back(tensor.operation()->axes[d], here.indices[d]);
            return substitute(tensor.operation()->outputs[0].body, at);
        }
        here.operation = tensor.operation();
        here.output = tensor.output();
        const Type type = here.operation->outputs[static_cast<size_t>(here.output)].type;
        const Expr element = make_expr(type, std::move(here));
        return type == e.type() ? element : cast(e.type(), element);
    }

    const Tensor& input_for(const Tensor& tensor) {
        const auto known = inputs_.find(key_of(tensor));
        if (known != inputs_.end()) return known->second;
        const Tensor lies = is_input(tensor) ? graph_.reshaped.at(tensor.operation().get()) : tensor;
        const Operation& operation = *tensor.operation();
        const Tensor here =
            input(name(tensor.name()), graph_.type_of(lies), {tensor.shape().begin(), tensor.shape().end()},
                  {operation.strides.begin(), operation.strides.end()}, operation.where);
        result_.inputs.push_back(here);
        result_.reads.push_back(lies);
        return inputs_[key_of(tensor)] = here;
    }

    void add_outputs(const std::shared_ptr<const Operation>& operation) {
        for (size_t k = 0; k < operation->outputs.size(); ++k) {
            const Tensor tensor(operation, static_cast<int>(k));
            if (!leaves(tensor) && !graph_.is_result(tensor)) continue;
            result_.writes.push_back(tensor);
            result_.declared.outputs.emplace_back(made_.at(operation.get()).operation(), static_cast<int>(k));
        }
    }
    /// Whether another group reads it.
    bool leaves(const Tensor& tensor) const {
        const auto readers = graph_.readers.find(key_of(tensor));
        return readers != graph_.readers.end() &&
               std::ranges::any_of(readers->second, [&](int reader) { return !is_inside(reader); });
    }
    bool is_inside(int node) const { return std::ranges::binary_search(nodes_, node); }

    void overwrite(const Tensor& out, const Tensor& in) {
        const auto read = inputs_.find(key_of(in));
        const auto made = made_.find(out.operation().get());
        if (read == inputs_.end() || made == made_.end() || !is_inside(graph_.maker_of(out))) return;
        result_.declared.in_place.emplace_back(Tensor(made->second.operation(), out.output()), read->second);
    }

    const StepGraph& graph_;
    const std::vector<int>& nodes_;
    const bool is_part_;
    std::set<std::string> names_;
    std::map<const Operation*, Tensor> made_;  // the first output
    std::map<TensorKey, Tensor> inputs_;
    GroupDeclaration result_;
};

}  // namespace

std::string GroupDeclaration::text() const {
    std::string text = own_schedule ? fmt::format("{} by its own schedule:\n", own_schedule->name) : "";
    text += schedules::declaration_text(declared.outputs);
    for (const auto& [out, in] : declared.in_place) text += fmt::format("{} overwrites {}\n", out.name(), in.name());
    return text;
}

GroupDeclaration declare_group(const StepGraph& graph, const std::vector<int>& nodes) {
    return Declaring(graph, nodes).declaration();
}

}  // namespace tw
