#include "schedules/columns_in_turns.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "dsl/scaled_product.h"
#include "dsl/simplify.h"
#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/joined_axes.h"
#include "schedules/product_cycles.h"
#include "schedules/register_product.h"
#include "schedules/replace_tensors.h"
#include "schedules/thin_product.h"
#include "schedules/unit_product.h"
#include "schedules/warp_space.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

using OperationPointer = std::shared_ptr<const Operation>;

std::vector<Expr> reductions_of(const Expr& body) {
    std::vector<Expr> found;
    visit(body, [&](const Expr& e) {
        if (e.as<Reduce>() && std::ranges::none_of(found, [&](const Expr& each) { return equal(each, e); }))
            found.push_back(e);
    });
    return found;
}

/// A sum of products, and which of its factors knows the column.
struct Product {
    Expr sum, rows, columns;
    Expr term;     ///< the axis
    Expr element;  ///< of the matrix, that `columns` converts

    bool has_terms_last() const { return contains(element.as<Read>()->indices.back(), term); }
};

std::optional<Product> product_of(const Tensor& tensor, const Expr& sum) {
    const std::vector<Expr>& axes = tensor.operation()->axes;
    const Reduce& own = *sum.as<Reduce>();
    const auto unit = unit_product(declared_as(tensor, sum));
    if (!unit || unit->rows_of_matrix > 0 || !unit->more.empty()) return {};
    const auto product = scaled_product(own.values[0]);
    if (!product) return {};
    Product found{sum, product->a, product->b, own.axes[0], {}};
    if (contains(found.rows, axes.back())) std::swap(found.rows, found.columns);
    visit(found.columns, [&](const Expr& e) {
        if (e.as<Read>() && !found.element.defined()) found.element = e;
    });
    const bool shared =
        std::none_of(axes.begin(), axes.end() - 1, [&](const Expr& axis) { return contains(found.columns, axis); });
    return shared && !found.element.as<Read>()->guarded ? std::optional(found) : std::nullopt;
}

/// Whether both multiply the same rows, and elements that lie in the same way.
bool go_together(const Product& a, const Product& b) {
    auto with_term_of_a = [&](const Expr& e) { return substitute(e, {{b.term, a.term}}); };
    return extent_of(a.term) == extent_of(b.term) && equal(a.rows, with_term_of_a(b.rows)) &&
           a.columns.type() == b.columns.type() && a.element.type() == b.element.type() &&
           a.has_terms_last() == b.has_terms_last();
}

class Turns {
public:
    Turns(const std::vector<Tensor>& outputs, const Target& target)
        : given_(outputs), all_(operations_of(outputs)), target_(target), names_(outputs) {}

    Redeclared run() {
        for (const OperationPointer& operation : all_) {
            if (operation->is_input() || operation->outputs.size() != 1 || operation->axes.size() < 2) continue;
            const Tensor given(operation, 0);
            if (is_inlined(operation)) continue;
            if (const Tensor found = in_turns(given); found.defined()) whole_.put(given, found);
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    bool is_output(const OperationPointer& operation) const {
        return std::ranges::any_of(given_, [&](const Tensor& each) { return each.operation() == operation; });
    }
    std::vector<OperationPointer> readers_of(const OperationPointer& read) const {
        std::vector<OperationPointer> found;
        for (const OperationPointer& each : all_)
            for (const Operation::Output& output : each->outputs)
                if (output.body.defined() && reads_of({read, 0}, *each, output.body).any) found.push_back(each);
        return found;
    }
    /// Whether it is made where others read it: elements that no sum reads.
    bool is_inlined(const OperationPointer& operation) const {
        if (is_output(operation) || reduces(operation->outputs[0].body)) return false;
        const std::vector<OperationPointer> readers = readers_of(operation);
        return std::ranges::none_of(readers,
                                    [](const OperationPointer& each) { return reduces(each->outputs[0].body); });
    }
    /// Whether all that reads it, itself or through elements that are inlined, is the one operation.
    bool is_read_by(const OperationPointer& operation, const OperationPointer& alone) const {
        return !is_output(operation) && std::ranges::all_of(readers_of(operation), [&](const OperationPointer& each) {
            return each == alone || (is_inlined(each) && is_read_by(each, alone));
        });
    }

    /// What the tensor is, with the products that nobody else reads where it reads them.
    Expr with_products(const Tensor& given) const {
        std::vector<Tensor> stored = given_;
        return transform(with_elements(body_of(given), stored, true), [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || read->operation->is_input() || read->guarded) return {};
            const Tensor stage(read->operation, 0);
            if (read->operation->outputs.size() != 1 || !unit_product(stage) || register_product(stage, given_) ||
                !is_read_by(read->operation, given.operation()))
                return {};
            return over(read->operation->axes, body_of(stage), read->indices);
        });
    }

    /// Undefined if it is not made of several products that go together, or that does not pay.
    Tensor in_turns(const Tensor& given) {
        const Expr body = with_products(given);
        const std::vector<Expr> sums = reductions_of(body);
        const int64_t columns = as_constant(given.shape().back()).value_or(0);
        if (sums.size() < 2 || columns == 0 || columns % gated_columns != 0) return {};
        std::vector<Product> products;
        for (const Expr& sum : sums) {
            const auto product = product_of(given, sum);
            if (!product || (!products.empty() && !go_together(products[0], *product))) return {};
            products.push_back(*product);
        }
        const Tensor matrix = matrix_of(given, products), sum = product_with(given, products[0], matrix);
        const auto turns = static_cast<int64_t>(products.size());
        const Expr& column = given.operation()->axes.back();
        std::vector<Operand> at(given.operation()->axes.begin(), given.operation()->axes.end());
        const Expr changed = transform(body, [&](const Expr& e) -> Expr {
            const auto own = std::ranges::find_if(products, [&](const Product& each) { return equal(each.sum, e); });
            if (own == products.end()) return {};
            at.back() = column / gated_columns * (turns * gated_columns) + column % gated_columns +
                        (own - products.begin()) * gated_columns;
            return sum.read(at);
        });
        const Tensor found = declared_as(given, changed);
        const auto together = register_product(sum, {found});
        if (!together || !pays(*together, turns, matrix) || !can_be_built(*together, target_)) return {};
        result_.notes.push_back(
            fmt::format("'{}': the matrices of the {} products that '{}' is made of, as columns by "
                        "turns",
                        matrix.name(), turns, given.name()));
        return found;
    }

    /// A copy with columns of each by turns, which lies as they do.
    Tensor matrix_of(const Tensor& given, const std::vector<Product>& products) {
        const auto turns = static_cast<int64_t>(products.size());
        const int64_t columns = turns * require_constant(given.shape().back()), terms = extent_of(products[0].term);
        auto element = [&](const Expr& column, const Expr& term) {
            const Expr own = column / (turns * gated_columns) * gated_columns + column % gated_columns;
            Expr found;
            for (int64_t turn = turns; turn-- > 0;) {
                const Product& p = products[static_cast<size_t>(turn)];
                const Expr value = substitute(p.element, {{given.operation()->axes.back(), own}, {p.term, term}});
                found = found.defined() ? select(column / gated_columns % turns == turn, value, found) : value;
            }
            return found;
        };
        const std::string name = names_.take(given.name() + "_matrix");
        if (products[0].has_terms_last()) return compute(name, {columns, terms}, element);
        return compute(name, {terms, columns}, [&](Expr term, Expr column) { return element(column, term); });
    }

    Tensor product_with(const Tensor& given, const Product& first, const Tensor& matrix) {
        const std::vector<Expr>& axes = given.operation()->axes;
        const bool terms_last = first.has_terms_last();
        const Axis k = reduce_axis("k", extent_of(first.term));
        Shape shape(given.shape().begin(), given.shape().end());
        shape.back() = matrix.shape()[terms_last ? 0 : 1];
        return compute(names_.take(given.name() + "_product"), shape, [&](const std::vector<Expr>& at) {
            const Expr rows = substitute(over(axes, first.rows, at), {{first.term, k}});
            const Expr element = terms_last ? matrix(at.back(), k) : matrix(k, at.back());
            const Expr column =
                transform(first.columns, [&](const Expr& e) { return e.same(first.element) ? element : Expr(); });
            return tw::sum(rows * column, k);
        });
    }

    /// Beside as many products whose sums another kernel takes from memory.
    bool pays(const RegisterProduct& together, int64_t turns, const Tensor& matrix) const {
        TensorProductShape one = together.shape;
        one.n /= turns;
        one.activation = Activation::None;
        one.result = f32;
        const double elements = as_double(require_constant(matrix.shape()[0]) * require_constant(matrix.shape()[1]));
        const double copied = copied_cycles(elements * bytes_of(matrix.type()));
        return copied + cycles_of(together.shape) < as_double(turns) * cycles_of(one) + gating_cycles(together.shape);
    }
    double cycles_of(const TensorProductShape& shape) const {
        return std::visit([&](const auto& tiles) { return predicted_cycles(tiles, shape, target_); },
                          best_tiling(shape, target_));
    }

    const std::vector<Tensor>& given_;
    const std::vector<OperationPointer> all_;
    const Target& target_;
    FreeNames names_;
    Replacement whole_;
    Redeclared result_;
};

}  // namespace

Redeclared columns_in_turns(const std::vector<Tensor>& outputs, const Target& target) {
    return Turns(outputs, target).run();
}

}  // namespace tw::schedules
