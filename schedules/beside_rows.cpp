#include "schedules/beside_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "schedules/declared_as.h"
#include "schedules/replace_tensors.h"
#include "schedules/row_reads.h"

namespace tw::schedules {
namespace {

class Apart {
public:
    Apart(const std::vector<Tensor>& outputs, const Tensor& product, BesideRows as)
        : given_(outputs), product_(product), as_(as) {}

    std::vector<Tensor> run() {
        const size_t rank = product_.operation()->axes.size() - 1;
        for (const RowOperation& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1 || operation->shape.size() != rank) continue;
            const Tensor now = changed_.of(Tensor(operation, 0));
            const Expr body = with_sums(now);
            if (!body.same(body_of(now))) changed_.put(Tensor(operation, 0), declared_as(now, body));
        }
        std::vector<Tensor> found;
        for (const Tensor& output : given_) found.push_back(changed_.of(output));
        return found;
    }

private:
    /// The element with a tensor for each element of the product that it reads beside its reduction.
    Expr with_sums(const Tensor& tensor) const {
        std::vector<Expr> beside;
        visit_row_reads(*tensor.operation(), [&](const Read& read, const Reduce* sum) {
            if (!sum && read.operation == product_.operation() && !read.guarded && is_taken(*tensor.operation(), read))
                beside.push_back(make_expr(product_.type(), read));
        });
        if (beside.empty()) return body_of(tensor);
        int number = 0;
        return transform(body_of(tensor), [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read || std::ranges::none_of(beside, [&](const Expr& each) { return equal(each, e); })) return {};
            const std::string suffix = fmt::format("_beside{}", number++ == 0 ? "" : std::to_string(number));
            const std::vector<Expr>& axes = tensor.operation()->axes;
            const Tensor apart = compute(tensor.name() + suffix, {tensor.shape().begin(), tensor.shape().end()},
                                         [&](const std::vector<Expr>& at) { return over(axes, element(*read), at); });
            return make_expr(apart.type(), Read{apart.operation(), 0, axes});
        });
    }

    /// Of the own row, where a part of that is asked for.
    bool is_taken(const Operation& operation, const Read& read) const {
        if (as_ == BesideRows::OwnProducts) return operation.axes.size() == 1;
        return std::equal(operation.axes.begin(), operation.axes.end(), read.indices.begin(),
                          [](const Expr& axis, const Expr& index) { return index.same(axis); });
    }

    Expr element(const Read& read) const {
        const std::vector<Expr> at(read.indices.begin(), read.indices.end());
        if (as_ == BesideRows::OwnProducts) return over(product_.operation()->axes, body_of(product_), at);
        const Axis column = reduce_axis("column", product_.shape().back());
        std::vector<Expr> place = at;
        place.back() = column.variable;
        const Expr own = make_expr(product_.type(), Read{product_.operation(), 0, place});
        const Type type = product_.type(), sums = bytes_of(type) < 4 && is_float(type) ? f32 : type;
        return cast(type, sum(select(column == at.back(), cast(sums, own), constant(sums, 0.0)), column));
    }

    const std::vector<Tensor>& given_;
    const Tensor& product_;
    const BesideRows as_;
    Replacement changed_;
};

}  // namespace

std::vector<Tensor> beside_rows(const std::vector<Tensor>& outputs, const Tensor& product, BesideRows as) {
    return Apart(outputs, product, as).run();
}

}  // namespace tw::schedules
