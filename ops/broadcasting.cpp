#include "ops/broadcasting.h"

#include <algorithm>

#include "dsl/differentiate.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::nn {

std::vector<int64_t> broadcast_shape(const std::string& who, const std::vector<int64_t>& x,
                                     const std::vector<int64_t>& y, std::source_location where) {
    std::vector<int64_t> shape(std::max(x.size(), y.size()));
    for (size_t back = 1; back <= shape.size(); ++back) {
        const int64_t a = back > x.size() ? 1 : x[x.size() - back], b = back > y.size() ? 1 : y[y.size() - back];
        if (a != b && a != 1 && b != 1)
            user_error(where,
                       "{}: x is {}, y {}: dimension {} of x is {}, dimension {} of y is {}; dimensions are matched "
                       "from the last one on, and have to be equal, or one of them 1",
                       who, shape_text(x), shape_text(y), x.size() - back, a, y.size() - back, b);
        shape[shape.size() - back] = a == 1 ? b : a;
    }
    return shape;
}

Expr broadcast_element(const tw::Tensor& x, const std::vector<Expr>& at, const std::vector<int64_t>& shape) {
    const std::vector<int64_t> own = extents_of(x);
    const size_t missing = shape.size() - own.size();
    std::vector<Operand> places;
    for (size_t d = 0; d < own.size(); ++d)
        places.emplace_back(own[d] == shape[missing + d] ? at[missing + d] : integer(0));
    return x.read(places);
}

std::vector<int64_t> extents_of(const tw::Tensor& x) {
    std::vector<int64_t> extents;
    for (const Expr& extent : x.shape()) extents.push_back(require_constant(extent));
    return extents;
}

Type computed_type(Type type) { return info(type).is_storage_only ? f32 : type; }

Expression of_each(const std::string& name, std::function<Expr(const Expr& x)> each, std::optional<Type> result) {
    return [=](const std::vector<tw::Tensor>& in) {
        const Type type = in[0].type();
        return compute(name, {in[0].shape().begin(), in[0].shape().end()}, [&](const std::vector<Expr>& at) {
            const Expr element = in[0].read({at.begin(), at.end()});
            return tw::cast(result.value_or(type), each(tw::cast(computed_type(type), element)));
        });
    };
}

Expression of_each_with_slope(const std::string& name, std::function<Expr(const Expr& x)> each,
                              std::function<Expr(const Expr& x)> slope) {
    return [=](const std::vector<tw::Tensor>& in) {
        const tw::Tensor x = in[0];
        return with_gradient(of_each(name, each)(in), {x}, [=](const tw::Tensor&, const tw::Tensor& adjoint) {
            return std::vector{
                compute("d_" + name, {x.shape().begin(), x.shape().end()}, [&](const std::vector<Expr>& indices) {
                    const std::vector<Operand> at(indices.begin(), indices.end());
                    return adjoint.read(at) * slope(tw::cast(computed_type(x.type()), x.read(at)));
                })};
        });
    };
}

void check_one_type(std::string_view who, const Tensor& x, const Tensor& y, std::source_location where) {
    user_check(x.type() == y.type(), where, "{}: x is {}, y {}; give two of one type, cast() makes one of another", who,
               name_of(x.type()), name_of(y.type()));
}

void check_float(const std::string& who, const Tensor& x, std::source_location where) {
    user_check(is_float(x.type()), where, "{}: '{}' is {}; give floats, cast() makes some of it", who, x.name(),
               name_of(x.type()));
}

void check_boolean(const std::string& who, const Tensor& x, std::source_location where) {
    user_check(x.type() == boolean, where, "{}: '{}' is {}; give booleans, a comparison, as x != 0, makes some of it",
               who, x.name(), name_of(x.type()));
}

int dimension_of(const std::string& who, const std::vector<int64_t>& shape, int dim, std::source_location where) {
    const int rank = static_cast<int>(shape.size());
    user_check(rank > 0, where, "{}: x is a scalar, which has no dimensions; give a tensor that has dimension {}", who,
               dim);
    user_check(-rank <= dim && dim < rank, where, "{}: x is {}, which has no dimension {}; give one of -{} to {}", who,
               shape_text(shape), dim, rank, rank - 1);
    return dim < 0 ? dim + rank : dim;
}

}  // namespace tw::nn
