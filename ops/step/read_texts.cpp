#include "ops/step/read_texts.h"

#include <set>

#include <fmt/format.h>

#include "dsl/walk.h"

namespace tw {
namespace {

std::string without_numbers(const Expr& expr) {
    if (!expr.defined()) return "none";
    if (expr.as<IntConstant>()) return "#";
    if (const Variable* variable = expr.as<Variable>()) return variable->name;
    std::string text = fmt::format("({}", (*expr).kind.index());
    if (const Unary* unary = expr.as<Unary>()) text += fmt::format(":{}", static_cast<int>(unary->op));
    if (const Binary* binary = expr.as<Binary>()) text += fmt::format(":{}", static_cast<int>(binary->op));
    if (const Read* read = expr.as<Read>()) text += fmt::format(":{}", read->operation->name);
    for_each_child(*expr, [&](const Expr& child) { text += ' ' + without_numbers(child); });
    return text + ")";
}

class Texts {
public:
    explicit Texts(const StepNode& node) {
        for (const auto& view : node.views) see(*view, view.get());
        see(*node.operation, nullptr);
    }
    std::map<TensorKey, std::string> of_tensors() && { return std::move(texts_); }

private:
    /// A view is read as what it is of, at its places.
    void see(const Operation& operation, const Operation* view) {
        for (const Operation::Output& output : operation.outputs) {
            if (!output.body.defined()) continue;
            visit_with_extents(output.body, [&](const Expr& expr) {
                if (const Read* read = expr.as<Read>()) see(*read, output.type, view);
            });
        }
    }
    void see(const Read& read, Type type, const Operation* view) {
        std::string text = fmt::format("{}{} {}", view ? "view " : "", name_of(type), read.guarded);
        for (const Expr& index : read.indices) text += ' ' + without_numbers(index);
        if (view) text += shape_of(*view);
        const auto known = of_views_.find(read.operation.get());
        if (known == of_views_.end()) {
            add({read.operation.get(), read.output}, text, view);
            return;
        }
        for (const TensorKey& tensor : known->second) add(tensor, text, view);
    }
    void add(const TensorKey& tensor, const std::string& text, const Operation* view) {
        texts_[tensor] += text + '\n';
        if (view) of_views_[view].insert(tensor);
    }
    static std::string shape_of(const Operation& operation) {
        std::string text = " of";
        for (const Expr& extent : operation.shape) text += ' ' + to_string(extent);
        return text;
    }

    std::map<TensorKey, std::string> texts_;
    std::map<const Operation*, std::set<TensorKey>> of_views_;
};

}  // namespace

std::map<TensorKey, std::string> read_texts(const StepNode& node) { return Texts(node).of_tensors(); }

std::set<const Operation*> read_unguarded(const StepNode& node) {
    std::set<const Operation*> found;
    auto see = [&](const Operation& operation) {
        for (const Operation::Output& output : operation.outputs)
            if (output.body.defined())
                visit_with_extents(output.body, [&](const Expr& expr) {
                    const Read* read = expr.as<Read>();
                    if (read && !read->guarded) found.insert(read->operation.get());
                });
    };
    see(*node.operation);
    for (auto view = node.views.rbegin(); view != node.views.rend(); ++view)  // readers of views first
        if (found.contains(view->get())) see(**view);
    return found;
}

}  // namespace tw
