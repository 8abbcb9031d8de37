#include "ops/step/step_graph.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "dsl/check_sizes.h"
#include "ops/step/visit_reads.h"
#include "schedules/views.h"
#include "support/error.h"

namespace tw {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

bool reads(const Operation& operation, const Tensor& tensor) {
    bool found = false;
    visit_reads(operation, [&](const Read& read) { found = found || read.operation == tensor.operation(); });
    return found;
}

/// Whether the operation reads the tensor only where it stands itself, and in no sum.
bool reads_own_element(const Operation& operation, const Tensor& tensor) {
    bool own = true;
    for (const Operation::Output& output : operation.outputs)
        visit_with_extents(output.body, [&](const Expr& e) {
            if (const Read* read = e.as<Read>(); read && read->operation == tensor.operation())
                own = own && !read->guarded && std::ranges::equal(read->indices, operation.axes, equal);
            const Reduce* reduce = e.as<Reduce>();
            if (!reduce) return;
            std::vector<Expr> inside = reduce->values;  // what is read for each term, and to know how many there are
            for (const Expr& axis : reduce->axes)
                if (const Expr& extent = axis.as<Variable>()->extent; extent.defined()) inside.push_back(extent);
            for (const Expr& each : inside)
                visit_with_extents(each, [&](const Expr& inner) {
                    const Read* read = inner.as<Read>();
                    own = own && !(read && read->operation == tensor.operation());
                });
        });
    return own;
}

void check_constant(const Operation& operation, std::source_location where) {
    for (const Expr& extent : operation.shape)
        user_check(as_constant(extent).has_value(), where,
                   "plan_step: '{}' has the extent {}; a step is planned for one shape, declare it with numbers",
                   operation.name, to_string(extent));
    for (const Expr& stride : operation.strides)
        user_check(as_constant(stride).has_value(), where,
                   "plan_step: '{}' has the stride {}; a step is planned for one shape, declare it with numbers",
                   operation.name, to_string(stride));
    for (const Operation::Output& output : operation.outputs) {
        if (!output.body.defined()) continue;
        visit_with_extents(output.body, [&](const Expr& e) {
            const Variable* variable = e.as<Variable>();
            user_check(!variable || variable->kind != VariableKind::Size, where,
                       "plan_step: '{}' reads the named size '{}'; a step is planned for one shape, write the number",
                       operation.name, variable->name);
            user_check(!variable || variable->kind != VariableKind::Scalar, where,
                       "plan_step: '{}' reads the scalar '{}'; what changes from step to step lies in device memory, "
                       "declare input(\"{}\", {}, {{}})",
                       operation.name, variable->name, variable->name, name_of(e.type()));
        });
    }
}

class Making {
public:
    Making(const schedules::Declared& step, const OpenedParts& opened, const std::vector<InputPart>& input_parts,
           std::source_location where)
        : where_(where) {
        graph_.parts = StepParts(step.outputs, opened);
        user_check(!step.outputs.empty(), where, "plan_step: no results; name what the step computes");
        graph_.results = step.outputs;
        const std::vector<OperationRef>& operations = graph_.parts.operations();
        for (const OperationRef& operation : operations) check_constant(*operation, where);
        for (const OperationRef& operation : operations)
            if (operation->is_input()) graph_.inputs.emplace_back(operation, 0);
        std::ranges::copy_if(input_parts, std::back_inserter(graph_.input_parts), [&](const InputPart& each) {
            return is_read_input(each.part) && is_read_input(each.whole);
        });
        check_names();
        note_parts(operations);
        for (const OperationRef& operation : operations) add_any(operation);
        for (const auto& [out, in] : step.in_place) overwrite(out, in);
    }
    StepGraph graph() && { return std::move(graph_); }

private:
    bool is_result(const OperationRef& operation) const {
        return std::ranges::any_of(graph_.results, [&](const Tensor& r) { return r.operation() == operation; });
    }
    bool is_read_input(const Tensor& tensor) const {
        return std::ranges::any_of(graph_.inputs, [&](const Tensor& input) { return input.same(tensor); });
    }
    /// Of its memory: nodes that read the input, or a part of it.
    std::vector<int> readers_of(const Tensor& in) const {
        std::vector<int> readers;
        const auto add_readers = [&](const Tensor& tensor) {
            if (const auto found = graph_.readers.find(key_of(tensor)); found != graph_.readers.end())
                readers.insert(readers.end(), found->second.begin(), found->second.end());
        };
        add_readers(in);
        for (const InputPart& each : graph_.input_parts)
            if (each.whole.same(in)) add_readers(each.part);
        return readers;
    }
    bool is_of_part(const Operation& operation) const { return graph_.parts.result_of(operation) != nullptr; }
    bool is_seen_through(const OperationRef& operation) const {
        return schedules::is_view(*operation) && !is_result(operation) && !is_of_part(*operation);
    }

    void note_parts(const std::vector<OperationRef>& operations) {
        for (const OperationRef& operation : operations)
            if (const StepParts::Result* result = graph_.parts.result_of(*operation))
                graph_.results_of_parts.try_emplace({result->part.get(), result->index}, operation, 0);
        for (Tensor& result : graph_.results) result = graph_.known(result);
    }

    void add_any(const OperationRef& operation) {
        if (operation->is_input()) return;
        if (is_of_part(*operation))
            add_part(operation);
        else if (is_seen_through(operation))
            note_reshaped(operation);
        else
            add(operation);
    }
    /// Once for all of its results.
    void add_part(const OperationRef& operation) {
        const auto& own = graph_.parts.result_of(*operation)->part;
        for (const StepNode& node : graph_.nodes)
            if (node.own_schedule == own) return;
        StepNode node{.operation = operation, .own_schedule = own, .makes = {}, .views = {}, .reads = {}};
        const auto of_part = [&](const auto& each) { return each.first.first == own.get(); };
        int count = 0;
        for (const auto& each : graph_.results_of_parts)
            if (of_part(each)) count = each.first.second + 1;
        node.makes.resize(static_cast<size_t>(count));
        for (const auto& each : graph_.results_of_parts)
            if (of_part(each)) node.makes[static_cast<size_t>(each.first.second)] = each.second;
        std::set<TensorKey> known;
        for (const Tensor& operand : own->operands) see(operand, node, known);
        add(std::move(node));
    }
    void note_reshaped(const OperationRef& view) {
        std::optional<Tensor> from = schedules::reshaped_from(*view);
        if (!from) return;
        if (const auto further = graph_.reshaped.find(from->operation().get()); further != graph_.reshaped.end())
            from = further->second;
        else if (is_seen_through(from->operation()))
            return;
        graph_.reshaped.emplace(view.get(), graph_.known(*from));
    }

    void check_names() const {
        std::set<std::string> known;
        for (const Tensor& result : graph_.results)
            user_check(std::ranges::count_if(graph_.results, [&](const Tensor& r) { return r.same(result); }) == 1,
                       where_, "plan_step: the result '{}' is returned twice; return it once", result.name());
        auto check_new = [&](const Tensor& tensor, const char* what) {
            user_check(known.insert(tensor.name()).second, where_,
                       "plan_step: {} '{}' has the name of another tensor that is given or returned; give each its own",
                       what, tensor.name());
        };
        for (const Tensor& given : graph_.inputs) check_new(given, "the input");
        for (const Tensor& result : graph_.results) {
            user_check(!result.operation()->is_input(), where_,
                       "plan_step: the result '{}' is an input; name what is computed", result.name());
            check_new(result, "the result");
        }
    }

    int add(const OperationRef& operation) {
        StepNode node{.operation = operation, .own_schedule = {}, .makes = {}, .views = {}, .reads = {}};
        std::set<TensorKey> known;
        read_through(*operation, node, known);
        for (size_t k = 0; k < operation->outputs.size(); ++k) node.makes.emplace_back(operation, static_cast<int>(k));
        return add(std::move(node));
    }
    int add(StepNode node) {
        const int index = static_cast<int>(graph_.nodes.size());
        for (const Tensor& tensor : node.reads) graph_.readers[key_of(tensor)].push_back(index);
        for (const Tensor& tensor : node.made()) graph_.makers[tensor.operation().get()] = index;
        graph_.nodes.push_back(std::move(node));
        return index;
    }
    void read_through(const Operation& operation, StepNode& node, std::set<TensorKey>& known) const {
        visit_reads(operation, [&](const Read& read) { see({read.operation, read.output}, node, known); });
    }
    void see(const Tensor& read, StepNode& node, std::set<TensorKey>& known) const {
        const Tensor tensor = graph_.known(read);
        if (!known.insert(key_of(tensor)).second) return;
        const OperationRef& operation = tensor.operation();
        if (operation->is_input() || !is_seen_through(operation)) {
            node.reads.push_back(tensor);
            return;
        }
        read_through(*operation, node, known);
        node.views.push_back(operation);
    }

    void overwrite(const Tensor& out, const Tensor& in) {
        check_overwrite(out, in);
        const int maker = graph_.maker_of(out);
        const bool safe = is_safe(maker, in);
        const int writer = safe ? maker : add_copy(out);
        for (int reader : readers_of(in))
            if (reader != writer) graph_.before.emplace_back(reader, writer);
        graph_.overwrites.emplace_back(Tensor(graph_.nodes[writer].operation, safe ? out.output() : 0), in);
    }

    void check_overwrite(const Tensor& out, const Tensor& in) const {
        user_check(out.defined() && in.defined(), where_,
                   "plan_step: one of a pair of tensors, of which the first overwrites the second, is undefined; "
                   "declare it first");
        const std::string asked = fmt::format("plan_step: '{}' overwrites '{}'", out.name(), in.name());
        user_check(graph_.is_result(out), where_, "{}: the first is no result; name it as one", asked);
        user_check(is_read_input(in), where_, "{}: the second is no input that the step reads; name one", asked);
        for (const InputPart& each : graph_.input_parts)
            user_check(!each.part.same(in), where_, "{}, a part of '{}', which the step reads; overwrite '{}'", asked,
                       each.whole.name(), each.whole.name());
        user_check(in.type() == out.type() && std::ranges::equal(in.shape(), out.shape(), equal), where_,
                   "{}: {} {} and {} {} differ; a tensor takes the place of one like it", asked, name_of(out.type()),
                   shape_text(out.shape()), name_of(in.type()), shape_text(in.shape()));
        user_check(in.operation()->strides.empty(), where_, "{}: its rows have gaps; declare it without strides",
                   asked);
        for (const auto& [earlier, replaced] : graph_.overwrites) {
            user_check(!replaced.same(in), where_, "{}: another result overwrites it already", asked);
            user_check(!earlier.same(out), where_, "{}: it overwrites '{}' already; return a second tensor like it",
                       asked, replaced.name());
        }
    }

    bool is_safe(int maker, const Tensor& in) {
        const StepNode& node = graph_.nodes[maker];
        const auto reads_it = [&](const OperationRef& view) { return reads(*view, in); };
        if (node.own_schedule || std::ranges::any_of(node.views, reads_it)) return false;
        if (!reads_own_element(*node.operation, in)) return false;
        return !is_needed_by_readers(maker, in);
    }
    /// Whether one that reads the input has to come behind the node.
    bool is_needed_by_readers(int maker, const Tensor& in) {
        std::set<int> behind{maker};
        std::vector<int> open{maker};
        auto reach = [&](int node) {
            if (behind.insert(node).second) open.push_back(node);
        };
        while (!open.empty()) {
            const int node = open.back();
            open.pop_back();
            for (const Tensor& made : graph_.nodes[node].made())
                for (int reader : graph_.readers[key_of(made)]) reach(reader);
            for (const auto& [first, second] : graph_.before)
                if (first == node) reach(second);
        }
        return std::ranges::any_of(readers_of(in),
                                   [&](int reader) { return reader != maker && behind.contains(reader); });
    }

    int add_copy(const Tensor& out) {
        const Tensor copy = compute(
            out.name(), {out.shape().begin(), out.shape().end()},
            [&](const std::vector<Expr>& at) {
                return out.read({at.begin(), at.end()});
            },
            out.operation()->where);
        for (Tensor& result : graph_.results)
            if (result.same(out)) result = copy;
        // of its memory, even of a view
        return add({.operation = copy.operation(), .makes = {copy}, .views = {}, .reads = {out}, .is_copy = true});
    }

    const std::source_location where_;
    StepGraph graph_;
};

}  // namespace

std::vector<Tensor> StepNode::made() const {
    std::vector<Tensor> result;
    std::ranges::copy_if(makes, std::back_inserter(result), &Tensor::defined);
    return result;
}

Tensor StepGraph::known(const Tensor& tensor) const {
    const StepParts::Result* result = parts.result_of(*tensor.operation());
    const auto found = result ? results_of_parts.find({result->part.get(), result->index}) : results_of_parts.end();
    return found == results_of_parts.end() ? tensor : found->second;
}

int StepGraph::maker_of(const Tensor& tensor) const {
    const auto found = makers.find(tensor.operation().get());
    return found == makers.end() ? -1 : found->second;
}

Type StepGraph::type_of(const Tensor& tensor) const {
    const auto found = stored.find(key_of(tensor));
    return found == stored.end() ? tensor.type() : found->second;
}

bool StepGraph::is_result(const Tensor& tensor) const {
    return std::ranges::any_of(results, [&](const Tensor& r) { return r.same(tensor); });
}

StepGraph step_graph(const schedules::Declared& step, const OpenedParts& opened,
                     const std::vector<InputPart>& input_parts, std::source_location where) {
    return Making(step, opened, input_parts, where).graph();
}

}  // namespace tw
