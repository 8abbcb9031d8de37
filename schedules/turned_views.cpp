#include "schedules/turned_views.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/replace_tensors.h"
#include "schedules/self_products.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

bool are_elements(const Operation& operation) {
    return !operation.is_input() && operation.outputs.size() == 1 && operation.axes.size() > 1 &&
           !reduces(operation.outputs[0].body);
}

/// Whether neighbours along the operation's last axis are neighbours of what is read.
bool runs_along(const Read& read, const Operation& operation) {
    return !read.indices.empty() && contains(read.indices.back(), operation.axes.back());
}

/// Reads that run along another axis, of tensors that are read along the last one, too.
bool is_turned(const Read& read, const Operation& operation) {
    if (read.guarded || read.indices.size() < 2 || runs_along(read, operation)) return false;
    const bool moves =
        std::ranges::any_of(read.indices, [&](const Expr& index) { return contains(index, operation.axes.back()); });
    bool found = false;
    visit(operation.outputs[0].body, [&](const Expr& e) {
        const Read* other = e.as<Read>();
        found = found || (other && other->operation == read.operation && other->output == read.output &&
                          runs_along(*other, operation));
    });
    return moves && found;
}

bool reads_what_it_is_of(const Operation& operation, const Operation& view) {
    const Read& whole = *view.outputs[0].body.as<Read>();
    bool found = false;
    visit(operation.outputs[0].body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        found = found || (read && read->operation == whole.operation && read->output == whole.output);
    });
    return found;
}

}  // namespace

Redeclared turned_views(const std::vector<Tensor>& outputs) {
    Redeclared result;
    Replacement whole;
    FreeNames names(outputs);
    for (const auto& operation : operations_of(outputs)) {
        if (!are_elements(*operation)) continue;
        const Tensor given(operation, 0), tensor = whole.of(given);
        std::vector<std::pair<Tensor, Tensor>> views;  // what they are of
        const Expr body = transform(body_of(tensor), [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || !is_turned(*read, *tensor.operation())) return {};
            const Tensor own(read->operation, read->output);
            auto known = std::ranges::find_if(views, [&](const auto& each) { return each.first.same(own); });
            if (known == views.end())
                known = views.insert(known, {own, again(own, names.take(own.name() + "_turned"))});
            return known->second.read({read->indices.begin(), read->indices.end()});
        });
        if (views.empty()) continue;
        whole.put(given, declared_as(tensor, body));
    }
    for (const Tensor& output : outputs) result.outputs.push_back(whole.of(output));
    return result;
}

std::vector<Tensor> views_of_elements(const std::vector<Tensor>& outputs) {
    std::vector<Tensor> views;
    for (const auto& operation : operations_of(outputs)) {
        if (!are_elements(*operation)) continue;
        visit(operation->outputs[0].body, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read || !is_again(*read->operation) || !reads_what_it_is_of(*operation, *read->operation)) return;
            const Tensor view(read->operation, 0);
            auto is_it = [&](const Tensor& each) { return each.same(view); };
            if (std::ranges::none_of(views, is_it) && std::ranges::none_of(outputs, is_it)) views.push_back(view);
        });
    }
    return views;
}

}  // namespace tw::schedules
