#include "schedules/as_matrices.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/joined_axes.h"
#include "schedules/replace_tensors.h"
#include "schedules/tiled_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

constexpr int64_t least_side = 8;           // rows, columns and terms
constexpr double least_products = 1 << 22;  // below, copies cost more than they spare
constexpr double most_bytes = 4.0 * (int64_t{1} << 30);

/// What is multiplied, where its conditions hold; zero elsewhere.
struct Factor {
    Expr element;
    std::vector<Expr> conditions;
    std::vector<Expr> axes = {};  ///< of the result, that it alone depends on

    Expr value() const {
        Expr value = element;
        for (const Expr& condition : conditions) value = select(condition, value, constant(f32, 0.0));
        return value;
    }
    bool depends_on(const Expr& axis) const {
        return contains(element, axis) ||
               std::ranges::any_of(conditions, [&](const Expr& each) { return contains(each, axis); });
    }
    /// Of what it reads, what lies side by side.
    const Expr& along() const { return element.as<Read>()->indices.back(); }
};

std::optional<Factor> factor_of(const Expr& expr) {
    Factor factor;
    factor.element = guarded(expr, factor.conditions);
    const Read* read = factor.element.as<Read>();
    if (!read || read->indices.empty() || read->operation->outputs[size_t(read->output)].type != f32) return {};
    return factor;
}

/// A sum whose axes are told apart.
struct Product {
    Factor a, b;
    std::vector<Expr> terms;  ///< axes of the sum; the last one is that along which most lies side by side
};

std::optional<Product> product_in(const Tensor& tensor) {
    const Operation& operation = *tensor.operation();
    const Reduce* sum = nullptr;
    int sums = 0;
    visit(body_of(tensor), [&](const Expr& e) {
        if (const Reduce* reduce = e.as<Reduce>()) sum = reduce, ++sums;
    });
    if (sums != 1) return {};
    if (sum->values.size() != 1 || atomic_operation(*sum->reducer) != BinaryOp::Add) return {};
    if (sum->values[0].type() != f32) return {};
    std::vector<Expr> conditions;
    const Expr value = guarded(sum->values[0], conditions);
    const Binary* times = value.as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return {};
    const auto a = factor_of(times->a), b = factor_of(times->b);
    if (!a || !b) return {};
    Product product{*a, *b, sum->axes};
    if (points_of(product.terms) == 0 || points_of(operation.axes) == 0) return {};
    for (const Expr& condition : conditions) {
        const bool of_b = std::ranges::any_of(
            operation.axes, [&](const Expr& axis) { return contains(condition, axis) && product.b.depends_on(axis); });
        (of_b ? product.b : product.a).conditions.push_back(condition);
    }
    for (const Expr& axis : operation.axes) {
        if (product.a.depends_on(axis) == product.b.depends_on(axis)) return {};
        (product.a.depends_on(axis) ? product.a : product.b).axes.push_back(axis);
    }
    for (const Expr& axis : product.terms)
        if (!product.a.depends_on(axis) || !product.b.depends_on(axis)) return {};
    std::ranges::stable_sort(product.terms, {}, [&](const Expr& axis) {
        return int(contains(product.a.along(), axis)) + int(contains(product.b.along(), axis));
    });
    return product;
}

bool pays(const Product& product) {
    const int64_t m = points_of(product.a.axes), n = points_of(product.b.axes), k = points_of(product.terms);
    const double rows = double(m), columns = double(n), terms = double(k);
    return std::min({m, n, k}) >= least_side && rows * columns * terms >= least_products &&
           (rows + columns) * terms * bytes_of(f32) <= most_bytes;
}

class DeclaringMatrices {
public:
    DeclaringMatrices(const std::vector<Tensor>& outputs, const Target& target)
        : given_(outputs), target_(target), names_(outputs) {}

    Redeclared run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1 || operation->axes.size() < 2) continue;
            const Tensor given(operation, 0), present = whole_.of(given);
            const auto product = product_in(present);
            if (product && pays(*product) && !product_of_threads(present, target_))
                whole_.put(given, declared(present, *product));
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    Tensor declared(const Tensor& tensor, const Product& product) {
        const auto [a, a_lies_along] = matrix(tensor, product.a, product.terms, "_rows");
        const auto [b, b_lies_along] = matrix(tensor, product.b, product.terms, "_columns");
        const Axis t = reduce_axis("t", points_of(product.terms));
        const Tensor sums = compute(
            names_.take(tensor.name() + "_product"), {points_of(product.a.axes), points_of(product.b.axes)},
            [&, a = a, b = b, by_a = a_lies_along, by_b = b_lies_along](Expr i, Expr j) {
                return sum((by_a ? a(t, i) : a(i, t)) * (by_b ? b(t, j) : b(j, t)), t);
            },
            tensor.operation()->where);
        result_.notes.push_back(
            fmt::format("'{}' is a product of matrices, {} x {} of {} terms, which are copied first: "
                        "'{}', '{}'",
                        tensor.name(), points_of(product.a.axes), points_of(product.b.axes), points_of(product.terms),
                        a.name(), b.name()));
        return declared_as(tensor,
                           with_reduction(body_of(tensor), sums(place_of(product.a.axes), place_of(product.b.axes))));
    }

    /// With terms as rows, if what the factor reads lies side by side along an axis of the result.
    std::pair<Tensor, bool> matrix(const Tensor& tensor, const Factor& factor, const std::vector<Expr>& terms,
                                   const char* suffix) {
        const bool lies_along =
            std::ranges::any_of(factor.axes, [&](const Expr& axis) { return contains(factor.along(), axis); }) &&
            std::ranges::none_of(terms, [&](const Expr& axis) { return contains(factor.along(), axis); });
        const int64_t own = points_of(factor.axes), of_terms = points_of(terms);
        const Shape shape = lies_along ? Shape{of_terms, own} : Shape{own, of_terms};
        const Tensor made = compute(
            names_.take(tensor.name() + suffix), shape,
            [&](Expr row, Expr column) {
                Substitution at = digits(factor.axes, lies_along ? column : row);
                const Substitution of_term = digits(terms, lies_along ? row : column);
                at.insert(at.end(), of_term.begin(), of_term.end());
                return substitute(factor.value(), at);
            },
            tensor.operation()->where);
        return {made, lies_along};
    }

    const std::vector<Tensor> given_;
    const Target& target_;
    FreeNames names_;
    Replacement whole_;
    Redeclared result_;
};

}  // namespace

Redeclared as_matrices(const std::vector<Tensor>& outputs, const Target& target) {
    return DeclaringMatrices(outputs, target).run();
}

}  // namespace tw::schedules
