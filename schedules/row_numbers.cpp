#include "schedules/row_numbers.h"

#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t numbers_of_box = 4;  // of 16 bytes

RowNumber row_number(const Tensor& saved, const std::string& name, bool may_be_empty, const std::string& suffix) {
    const Shape extents(saved.shape().begin(), saved.shape().end());
    const int64_t rows = as_constant(extents.back().expr).value(), with_more = rounded_up(rows, numbers_of_box);
    if (with_more == rows && !may_be_empty) return {name, saved, saved, saved};
    Shape filled = extents;
    filled.back() = with_more;
    const Tensor of_keys = compute(name + "_of_keys" + suffix, filled, [&](const std::vector<Expr>& at) {
        std::vector<Operand> row(at.begin(), at.end());
        if (with_more != rows) row.back() = min(at.back(), rows - 1);
        const Expr number = saved.read(row);
        return may_be_empty ? select(number == -infinity, infinity, number) : number;
    });
    return {name, saved, of_keys, may_be_empty ? of_keys : saved};
}

}  // namespace

SavedSoftmax softmax_of(const ScoreRule& rule, const SavedSoftmax& saved, const DeclareGiven& declare,
                        const Shape& rows) {
    if (!may_add_far(rule)) return {};
    return {declare(saved.top, "top", f32, rows), declare(saved.spread, "spread", f32, rows)};
}

std::vector<RowNumber> row_numbers(const Tensor& lse, const SavedSoftmax& softmax, bool may_be_empty,
                                   const std::string& suffix) {
    if (softmax.defined())
        return {row_number(softmax.top, "top", false, suffix), row_number(softmax.spread, "spread", false, suffix)};
    return {row_number(lse, "lse", may_be_empty, suffix)};
}

std::vector<Expr> numbers_at(const std::vector<RowNumber>& numbers, Tensor RowNumber::*tensor,
                             const std::vector<Operand>& row) {
    std::vector<Expr> all;
    for (const RowNumber& each : numbers) all.push_back((each.*tensor).read(row));
    return all;
}

Expr exponent_of(const Expr& score, double scale, const std::vector<Expr>& numbers) {
    internal_check(numbers.size() == 1 || numbers.size() == 2, "{} numbers of a row", numbers.size());
    if (numbers.size() == 1) return score * scale - numbers[0];
    return (score - numbers[0]) * scale - numbers[1];
}

}  // namespace tw::schedules
