#include "schedules/self_products.h"

#include <algorithm>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/joined_terms.h"
#include "schedules/replace_tensors.h"
#include "schedules/tiled_product.h"
#include "schedules/unit_product.h"
#include "schedules/views.h"

namespace tw::schedules {
namespace {

bool is_of(const Read& read, const Expr& axis) {
    return std::ranges::any_of(read.indices, [&](const Expr& index) { return contains(index, axis); });
}

bool is_same_tensor(const Read& a, const Read& b) { return a.operation == b.operation && a.output == b.output; }

/// The elements of columns whose tensors the term reads in the row, too; none if an element belongs to both, or the
/// same side reads a tensor at two places.
std::vector<const Read*> read_again(const Expr& term, const Expr& row, const Expr& column) {
    std::vector<const Read*> rows, columns;
    bool is_apart = true;
    visit(term, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read) return;
        const bool of_row = is_of(*read, row), of_column = is_of(*read, column);
        is_apart = is_apart && of_row != of_column && !read->guarded;
        auto& side = of_row ? rows : columns;
        for (const Read* other : side)
            is_apart = is_apart &&
                       (!is_same_tensor(*read, *other) || std::ranges::equal(read->indices, other->indices, equal));
        side.push_back(read);
    });
    std::erase_if(columns, [&](const Read* read) {
        return std::ranges::none_of(rows, [&](const Read* other) { return is_same_tensor(*read, *other); });
    });
    return is_apart ? columns : std::vector<const Read*>();
}

class Declaring {
public:
    Declaring(const std::vector<Tensor>& outputs, const Target& target)
        : given_(outputs), target_(target), names_(outputs) {}

    Redeclared run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1 || operation->axes.size() < 2) continue;
            const Tensor given(operation, 0), found = declared(whole_.of(given));
            if (found.defined()) whole_.put(given, found);
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    Tensor declared(const Tensor& tensor) {
        const Reduce* reduction = only_reduction(body_of(tensor));
        if (!reduction || reduction->values.size() != 1) return {};
        const std::vector<Expr>& axes = tensor.operation()->axes;
        const std::vector<const Read*> columns = read_again(reduction->values[0], axes[axes.size() - 2], axes.back());
        if (columns.empty()) return {};
        const Expr body = transform(body_of(tensor), [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || std::ranges::none_of(columns, [&](const Read* each) {
                    return is_same_tensor(*read, *each) && std::ranges::equal(read->indices, each->indices, equal);
                }))
                return {};
            return view_of(Tensor(read->operation, read->output)).read({read->indices.begin(), read->indices.end()});
        });
        const Tensor found = declared_as(tensor, body);
        if (reduction->axes.size() > 1) return note(with_joined_view(with_joined_terms(found)), *columns[0]);
        return note(unit_product(found) || product_of_threads(found, target_) ? found : Tensor(), *columns[0]);
    }

    /// The product, if it is one, of what `read` is of.
    Tensor note(const Tensor& product, const Read& read) {
        if (product.defined())
            result_.notes.push_back(fmt::format("'{}' is a product of '{}' with itself, of which columns have a view",
                                                product.name(), read.operation->name));
        return product;
    }

    /// The product with views that have dimensions joined as its terms are.
    Tensor with_joined_view(const Tensor& product) {
        if (!product.defined()) return {};
        const Expr term = only_reduction(body_of(product))->axes[0];
        const Expr body = transform(body_of(product), [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || !is_again(*read->operation)) return {};
            const auto of_term = [&](const Expr& index) { return contains(index, term); };
            const auto first = std::ranges::find_if(read->indices, of_term),
                       last = std::find_if_not(first, read->indices.end(), of_term);
            std::vector<int64_t> shape;
            std::vector<Operand> places;
            for (auto index = read->indices.begin(); index != read->indices.end(); ++index) {
                const auto extent = as_constant(read->operation->shape[size_t(index - read->indices.begin())]);
                const bool is_joined = index > first && index < last;
                if (!extent) return {};
                if (is_joined)
                    shape.back() *= *extent;
                else
                    shape.push_back(*extent), places.emplace_back(index == first ? term : *index);
            }
            const Read& whole = *read->operation->outputs[0].body.as<Read>();
            return reshape(names_.take(whole.operation->name + "_again"), {whole.operation, whole.output}, shape)
                .read(places);
        });
        return declared_as(product, body);
    }

    Tensor view_of(const Tensor& tensor) {
        for (const auto& [known, view] : views_)
            if (known.same(tensor)) return view;
        const Tensor view = again(tensor, names_.take(tensor.name() + "_again"));
        views_.emplace_back(tensor, view);
        return view;
    }

    const std::vector<Tensor>& given_;
    const Target& target_;
    FreeNames names_;
    Replacement whole_;
    std::vector<std::pair<Tensor, Tensor>> views_;  ///< what they are of
    Redeclared result_;
};

}  // namespace

Redeclared self_products(const std::vector<Tensor>& outputs, const Target& target) {
    return Declaring(outputs, target).run();
}

Tensor again(const Tensor& tensor, const std::string& name) {
    const Shape shape(tensor.shape().begin(), tensor.shape().end());
    return compute(
        name, shape,
        [&](const std::vector<Expr>& at) {
            return tensor.read({at.begin(), at.end()});
        },
        tensor.operation()->where);
}

bool is_again(const Operation& operation) {
    if (operation.is_input() || operation.outputs.size() != 1) return false;
    const Read* read = operation.outputs[0].body.as<Read>();
    return read && !read->guarded && std::ranges::equal(read->indices, operation.axes, equal) &&
           std::ranges::equal(read->operation->shape, operation.shape, equal);
}

}  // namespace tw::schedules
