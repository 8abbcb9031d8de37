#include "schedules/as_matrices.h"

#include <algorithm>
#include <functional>
#include <optional>

#include <fmt/ranges.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/exact_types.h"
#include "schedules/free_names.h"
#include "schedules/joined_axes.h"
#include "schedules/replace_tensors.h"
#include "schedules/self_products.h"
#include "schedules/tiled_product.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

constexpr int64_t least_side = 8, least_of_units = 16;  // rows, columns and terms
constexpr double least_products = 1 << 22;              // below, copies cost more than they spare
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
    /// Of what it reads, what lies side by side; undefined if it reads nothing of several elements.
    Expr along() const {
        const Read* widest = nullptr;
        visit(element, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (read && !read->indices.empty() && (!widest || read->indices.size() > widest->indices.size()))
                widest = read;
        });
        return widest ? widest->indices.back() : Expr();
    }
    bool lies_along(const Expr& axis) const { return along().defined() && contains(along(), axis); }
    /// The element, if it is one as it lies in a tensor of that type, at indices that are axes, each once.
    const Read* plain(Type type) const {
        const Unary* truncated = element.as<Unary>();
        const Cast* cast = element.as<Cast>();
        const Expr inner = truncated && truncated->op == UnaryOp::TruncateTf32 ? truncated->a
                           : cast                                              ? cast->a
                                                                               : element;
        const Read* read = inner.as<Read>();
        if (!conditions.empty() || !read || read->guarded || inner.type() != (type == tf32 ? f32 : type))
            return nullptr;
        for (size_t d = 0; d < read->indices.size(); ++d)
            if (!read->indices[d].as<Variable>() ||
                std::ranges::count_if(read->indices, [&](const Expr& e) { return e.same(read->indices[d]); }) > 1)
                return nullptr;
        return read;
    }
};

Factor factor_of(const Expr& expr) {
    Factor factor;
    factor.element = guarded(expr, factor.conditions);
    return factor;
}

bool is_element_of(const Factor& factor, Type type) {
    const Read* read = factor.element.as<Read>();
    return read && !read->indices.empty() && factor.element.type() == type;
}

/// A sum whose axes are told apart.
struct Product {
    Factor a, b;
    std::vector<Expr> terms;       ///< axes of the sum; the last one is that along which most lies side by side
    std::vector<Expr> batch = {};  ///< axes of the result that both factors depend on
    Type type = f32;               ///< of the matrices
};

/// The type that holds both factors exactly and that tensor cores multiply; f32 if there is none.
Type common_type(const Product& product) {
    const std::vector<Type> of_a = exact_types(product.a.value()), of_b = exact_types(product.b.value());
    std::vector<Type> common;
    std::ranges::copy_if(of_a, std::back_inserter(common),
                         [&](Type type) { return std::ranges::count(of_b, type) > 0; });
    if (common.empty()) return f32;
    const auto as_it_lies =
        std::ranges::find_if(common, [&](Type type) { return product.a.plain(type) || product.b.plain(type); });
    return as_it_lies == common.end() ? common[0] : *as_it_lies;
}

/// Whether data choose what is read by each of the axes' indices; not by blocks of them.
bool is_gathered(const Read& read, const std::vector<Expr>& axes) {
    bool found = false;
    auto by_blocks = [](const Expr& e) -> Expr {
        const Binary* quotient = e.as<Binary>();
        const bool divides = quotient && quotient->op == BinaryOp::Div;
        return divides && as_constant(quotient->b).value_or(0) >= least_of_units ? integer(0) : Expr();
    };
    auto see = [&](const Expr& part) {
        const Read* chooser = part.as<Read>();
        if (!chooser) return;
        for (const Expr& own : chooser->indices)
            for (const Expr& axis : axes) found = found || contains(transform(own, by_blocks), axis);
    };
    for (const Expr& index : read.indices) visit(index, see);
    return found;
}

/// Whether data choose, by an index of the result that they are equal to, which terms count: such sums scatter.
bool is_scattered(const Expr& term, const std::vector<Expr>& axes) {
    bool found = false;
    visit(term, [&](const Expr& e) {
        const Binary* equality = e.as<Binary>();
        if (!equality || equality->op != BinaryOp::Equal) return;
        bool reads = false;
        visit(e, [&](const Expr& part) { reads = reads || part.as<Read>(); });
        found = found || (reads && std::ranges::any_of(axes, [&](const Expr& axis) { return contains(e, axis); }));
    });
    return found;
}

/// Tells the axes of the result apart; false where one belongs to no factor, or one of the terms not to both.
bool tell_apart(Product& product, const std::vector<Expr>& axes) {
    for (const Expr& axis : axes) {
        const bool of_a = product.a.depends_on(axis), of_b = product.b.depends_on(axis);
        if (!of_a && !of_b) return false;
        (of_a && of_b ? product.batch : of_a ? product.a.axes : product.b.axes).push_back(axis);
    }
    return std::ranges::all_of(
        product.terms, [&](const Expr& axis) { return product.a.depends_on(axis) && product.b.depends_on(axis); });
}

std::optional<Product> product_in(const Tensor& tensor, bool of_any_types) {
    const Operation& operation = *tensor.operation();
    const Reduce* sum = only_reduction(body_of(tensor));
    if (!sum || sum->values.size() != 1 || atomic_operation(*sum->reducer) != BinaryOp::Add) return {};
    if (sum->values[0].type() != f32) return {};
    std::vector<Expr> conditions;
    const Expr value = guarded(sum->values[0], conditions);
    const Binary* times = value.as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return {};
    if (is_scattered(sum->values[0], operation.axes)) return {};
    Product product{factor_of(times->a), factor_of(times->b), sum->axes};
    if (points_of(product.terms) == 0 || points_of(operation.axes) == 0) return {};
    for (const Expr& condition : conditions) {
        const bool of_b = std::ranges::any_of(
            operation.axes, [&](const Expr& axis) { return contains(condition, axis) && product.b.depends_on(axis); });
        (of_b ? product.b : product.a).conditions.push_back(condition);
    }
    if (!tell_apart(product, operation.axes)) return {};
    const bool has_elements = is_element_of(product.a, f32) && is_element_of(product.b, f32);
    if (product.terms.size() > 1 && !has_elements && !of_any_types) return {};
    if (product.terms.size() == 1 || !has_elements) product.type = common_type(product);
    std::ranges::stable_sort(product.terms, {}, [&](const Expr& axis) {
        return int(product.a.lies_along(axis)) + int(product.b.lies_along(axis));
    });
    return product;
}

bool pays(const Product& product) {
    const int64_t m = points_of(product.a.axes), n = points_of(product.b.axes), k = points_of(product.terms);
    const double rows = double(m), columns = double(n), terms = double(k),
                 batch = double(product.batch.empty() ? 1 : points_of(product.batch));
    const bool has_elements = is_element_of(product.a, f32) && is_element_of(product.b, f32);
    return std::min({m, n, k}) >= (has_elements ? least_side : least_of_units) && batch > 0 &&
           batch * rows * columns * terms >= least_products &&
           batch * (rows + columns) * terms * bytes_of(product.type) <= most_bytes;
}

class DeclaringMatrices {
public:
    DeclaringMatrices(const std::vector<Tensor>& outputs, const Target& target, const std::vector<std::string>& windows)
        : given_(outputs), target_(target), windows_(windows), names_(outputs) {}

    Redeclared run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1 || operation->axes.size() < 2) continue;
            const Tensor given(operation, 0), present = whole_.of(given);
            if (const auto unit = unit_product(present)) {
                if (const Tensor found = with_rows_together(present, *unit); found.defined()) whole_.put(given, found);
                continue;
            }
            const auto product = product_in(present, std::ranges::count(windows_, present.name()) > 0);
            if (!product || !pays(*product) || is_tiled_as_it_is(present, *product)) continue;
            const Tensor found = on_units(present, *product);
            whole_.put(given, found.defined() ? found : declared(present, *product));
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    bool is_tiled_as_it_is(const Tensor& tensor, const Product& product) const {
        if (product_of_joined_axes(tensor)) return true;
        // What threads cast as they read it takes them longer than a copy.
        const bool has_elements = is_element_of(product.a, f32) && is_element_of(product.b, f32);
        return has_elements && product_of_threads(tensor, target_);
    }

    /// What data choose for each row, column or term, which no tile of a tensor holds, is copied; undefined if there is
    /// no such factor.
    Tensor with_rows_together(const Tensor& tensor, const UnitProduct& unit) {
        const std::vector<Expr>& axes = tensor.operation()->axes;
        const Expr term = only_reduction(body_of(tensor))->axes[0];
        Expr body = body_of(tensor);
        for (const Tensor& operand : {unit.a, unit.b}) {
            Expr element;
            visit(only_reduction(body)->values[0], [&](const Expr& e) {
                const Read* read = e.as<Read>();
                if (read && read->operation == operand.operation() &&
                    is_gathered(*read, {axes[axes.size() - 2], axes.back(), term}))
                    element = e;
            });
            if (!element.defined()) continue;
            std::vector<Expr> own;
            std::ranges::copy_if(axes, std::back_inserter(own),
                                 [&](const Expr& axis) { return contains(element, axis); });
            own.push_back(term);
            const Tensor copy = compute(
                names_.take(tensor.name() + "_of_" + operand.name()), extents_of(own),
                [&](const std::vector<Expr>& at) { return over(own, element, at); }, tensor.operation()->where);
            result_.notes.push_back(fmt::format("'{}' reads what data choose of '{}' as '{}', which is copied first",
                                                tensor.name(), operand.name(), copy.name()));
            body = exchanged(body, element, copy.read({own.begin(), own.end()}));
        }
        return body.same(body_of(tensor)) ? Tensor() : declared_as(tensor, body);
    }

    /// The product for tensor cores of factors where they lie, in rows of however many dimensions, and of copies of the
    /// others; undefined if that is none.
    Tensor on_units(const Tensor& tensor, const Product& product) {
        if (product.type == f32) return {};
        const bool lies_a = lies_in_order(product.a, product), lies_b = lies_in_order(product.b, product);
        if (lies_a && lies_b && product.terms.size() == 1) return {};  // what units do not read so
        for (const auto [keeps_a, keeps_b] : {std::array{true, true}, {true, false}, {false, true}, {false, false}}) {
            if ((keeps_a && !lies_a) || (keeps_b && !lies_b)) continue;
            FreeNames names = names_;
            copied_.clear();
            const Axis t = reduce_axis("t", points_of(product.terms));
            const Expr a = multiplied(tensor, product, product.a, keeps_a, t, "_rows", names),
                       b = multiplied(tensor, product, product.b, keeps_b, t, "_columns", names);
            const Tensor found = declared_as(tensor, with_reduction(body_of(tensor), sum(a * b, t)));
            if (!unit_product(found) && !product_of_joined_axes(found)) continue;
            if (copied_.size() == 2 && says_the_same(copied_[0], copied_[1])) return {};  // one is enough
            names_ = names;
            const char* copies = copied_.size() == 1 ? "of which {} is copied first" : "which are copied first: {}";
            result_.notes.push_back(fmt::format("'{}' is a product of matrices, {}", tensor.name(),
                                                fmt::format(fmt::runtime(copies), copied_names())));
            return found;
        }
        return {};
    }

    std::string copied_names() const {
        std::vector<std::string> names;
        for (const Tensor& copy : copied_) names.push_back("'" + copy.name() + "'");
        return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
    }

    /// Whether the factor is an element as it lies, at indices of which those along terms are one behind the other.
    static bool lies_in_order(const Factor& factor, const Product& product) {
        const Read* read = factor.plain(product.type);
        return read && !std::ranges::search(read->indices, product.terms, [](const Expr& a, const Expr& b) {
                            return a.same(b);
                        }).empty();
    }

    /// The factor's element at the term, where it lies or in a copy.
    Expr multiplied(const Tensor& tensor, const Product& product, const Factor& factor, bool keeps, const Axis& t,
                    const char* suffix, FreeNames& names) {
        if (keeps) return substitute(factor.element, digits(product.terms, t));
        std::vector<Expr> own;
        std::ranges::copy_if(tensor.operation()->axes, std::back_inserter(own),
                             [&](const Expr& axis) { return factor.depends_on(axis); });
        const bool lies_along =
            !own.empty() && factor.lies_along(own.back()) &&
            std::ranges::none_of(product.terms, [&](const Expr& axis) { return factor.lies_along(axis); });
        const auto place = static_cast<std::ptrdiff_t>(own.size()) - (lies_along ? 1 : 0);
        Shape shape = extents_of(own);
        shape.insert(shape.begin() + place, points_of(product.terms));
        const Tensor copy = compute(
            names.take(tensor.name() + suffix), shape,
            [&](std::vector<Expr> at) {
                Substitution values = digits(product.terms, at[static_cast<size_t>(place)]);
                at.erase(at.begin() + place);
                for (size_t d = 0; d < own.size(); ++d) values.emplace_back(own[d], at[d]);
                return as_stored(substitute(factor.value(), values), product.type);
            },
            tensor.operation()->where);
        copied_.push_back(copy);
        std::vector<Operand> at(own.begin(), own.end());
        at.insert(at.begin() + place, t);
        return as_multiplied(copy.read(at), product);
    }

    /// A factor as a matrix, for each element of the batch.
    struct Matrix {
        Tensor tensor;
        bool has_terms_as_rows;
        std::function<Expr(const std::vector<Expr>& batch, Expr own, Expr term)> element;
    };
    static Matrix as_element_of(const Tensor& tensor, bool has_terms_as_rows) {
        return {tensor, has_terms_as_rows, [=](const std::vector<Expr>& at, const Expr& own, const Expr& term) {
                    std::vector<Operand> places(at.begin(), at.end());
                    places.insert(places.end(), {has_terms_as_rows ? term : own, has_terms_as_rows ? own : term});
                    return tensor.read(places);
                }};
    }
    static bool says_the_same(const Tensor& a, const Tensor& b) {
        return !a.operation()->is_input() && !b.operation()->is_input() && a.type() == b.type() &&
               std::ranges::equal(a.shape(), b.shape(), equal) &&
               equal(over(b.operation()->axes, body_of(b), a.operation()->axes), body_of(a));
    }

    Tensor declared(const Tensor& tensor, const Product& product) {
        copied_.clear();
        const Matrix a = matrix(tensor, product, product.a, "_rows");
        Matrix b = matrix(tensor, product, product.b, "_columns");
        if (says_the_same(a.tensor, b.tensor)) {
            copied_.pop_back();
            b = as_element_of(again(a.tensor, names_.take(a.tensor.name() + "_again")), b.has_terms_as_rows);
        }
        result_.notes.push_back(fmt::format(
            "'{}' is a product of matrices, {} x {} of {} terms, which are copied first: {}", tensor.name(),
            points_of(product.a.axes), points_of(product.b.axes), points_of(product.terms), copied_names()));
        const Axis t = reduce_axis("t", points_of(product.terms));
        auto sums_at = [&](const std::vector<Expr>& batch, const Expr& i, const Expr& j) {
            return sum(as_multiplied(a.element(batch, i, t), product) * as_multiplied(b.element(batch, j, t), product),
                       t);
        };
        const std::vector<Expr>& axes = tensor.operation()->axes;
        if (has_own_loops(product, axes))
            return declared_as(
                tensor, with_reduction(body_of(tensor), sums_at(product.batch, product.a.axes[0], product.b.axes[0])));
        Shape shape = extents_of(product.batch);
        shape.insert(shape.end(), {points_of(product.a.axes), points_of(product.b.axes)});
        const Tensor sums = compute(
            names_.take(tensor.name() + "_product"), shape,
            [&](const std::vector<Expr>& at) {
                return sums_at({at.begin(), at.end() - 2}, at[at.size() - 2], at.back());
            },
            tensor.operation()->where);
        std::vector<Operand> at(product.batch.begin(), product.batch.end());
        at.insert(at.end(), {place_of(product.a.axes), place_of(product.b.axes)});
        return declared_as(tensor, with_reduction(body_of(tensor), sums.read(at)));
    }

    /// Whether the result's last axes are a row and a column of the product, the others its batch, and factors are no
    /// windows: then its sums need no tensor of their own.
    static bool has_own_loops(const Product& product, const std::vector<Expr>& axes) {
        if (product.a.axes.size() != 1 || product.b.axes.size() != 1 || product.terms.size() != 1) return false;
        return !axes.back().same(product.batch.empty() ? Expr() : product.batch.back()) &&
               !axes[axes.size() - 2].same(product.batch.empty() ? Expr() : product.batch.back());
    }

    static Shape extents_of(const std::vector<Expr>& axes) {
        Shape shape;
        for (const Expr& axis : axes) shape.emplace_back(extent_of(axis));
        return shape;
    }

    static Expr as_multiplied(const Expr& element, const Product& product) {
        return product.type == tf32 ? truncate_tf32(element) : product.type == f32 ? element : cast(f32, element);
    }

    /// The tensor that the factor is an element of, if that is a matrix and no other's.
    Matrix matrix(const Tensor& tensor, const Product& product, const Factor& factor, const char* suffix) {
        const Read* plain = factor.plain(product.type);
        const bool is_matrix = plain && factor.axes.size() == 1 && product.terms.size() == 1;
        if (is_matrix && !(&factor == &product.b && reads(product.a, *plain))) {
            const Tensor whole(plain->operation, plain->output);
            return {whole, false,
                    [=, own_axis = factor.axes[0], term_axis = product.terms[0], axes = product.batch,
                     indices = plain->indices](const std::vector<Expr>& batch, Expr own, Expr term) {
                        Substitution at{{own_axis, own}, {term_axis, term}};
                        for (size_t d = 0; d < axes.size(); ++d) at.emplace_back(axes[d], batch[d]);
                        std::vector<Operand> places;
                        for (const Expr& index : indices) places.emplace_back(substitute(index, at));
                        return whole.read(places);
                    }};
        }
        return copy_of(tensor, product, factor, suffix);
    }
    static bool reads(const Factor& factor, const Read& read) {
        bool found = false;
        visit(factor.element,
              [&](const Expr& e) { found = found || (e.as<Read>() && e.as<Read>()->operation == read.operation); });
        return found;
    }

    /// With terms as rows, if what the factor reads lies side by side along an axis of the result.
    Matrix copy_of(const Tensor& tensor, const Product& product, const Factor& factor, const char* suffix) {
        const bool lies_along =
            std::ranges::any_of(factor.axes, [&](const Expr& axis) { return factor.lies_along(axis); }) &&
            std::ranges::none_of(product.terms, [&](const Expr& axis) { return factor.lies_along(axis); });
        const int64_t own = points_of(factor.axes), of_terms = points_of(product.terms);
        const std::vector<Expr>& batch = product.batch;
        Shape shape = extents_of(batch);
        shape.insert(shape.end(), {lies_along ? of_terms : own, lies_along ? own : of_terms});
        const Tensor made = compute(
            names_.take(tensor.name() + suffix), shape,
            [&](const std::vector<Expr>& places) {
                const Expr &row = places[places.size() - 2], &column = places.back();
                Substitution at = digits(factor.axes, lies_along ? column : row);
                const Substitution of_term = digits(product.terms, lies_along ? row : column);
                at.insert(at.end(), of_term.begin(), of_term.end());
                for (size_t d = 0; d < batch.size(); ++d) at.emplace_back(batch[d], places[d]);
                return as_stored(substitute(factor.value(), at), product.type);
            },
            tensor.operation()->where);
        copied_.push_back(made);
        return as_element_of(made, lies_along);
    }

    static Expr as_stored(const Expr& value, Type type) {
        return type == f32 || type == tf32 ? value : cast(type, value);
    }

    const std::vector<Tensor> given_;
    const Target& target_;
    const std::vector<std::string>& windows_;
    FreeNames names_;
    Replacement whole_;
    std::vector<Tensor> copied_;  ///< of one product
    Redeclared result_;
};

}  // namespace

Redeclared as_matrices(const std::vector<Tensor>& outputs, const Target& target,
                       const std::vector<std::string>& windows) {
    return DeclaringMatrices(outputs, target, windows).run();
}

}  // namespace tw::schedules
