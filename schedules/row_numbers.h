// What gradients of attention take of each row to make its weights again.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "schedules/attention.h"

namespace tw::schedules {

/// The tensor, or an input of that name, type and shape if it is undefined.
using DeclareGiven = std::function<Tensor(const Tensor&, const char* name, Type, const Shape&)>;
/// A number of each row that the forward pass saved, [.., rows].
struct RowNumber {
    std::string name;
    Tensor saved;
    Tensor of_keys;     ///< saved, or with rows up to a multiple of 4, as boxes want them: the last row's again
    Tensor of_queries;  ///< saved, or of_keys
    Tensor tile = {};   ///< of tiles of keys that go through tables, of_keys from the tile's first row on
};
/// What a rule needs that may add far, of rows of the shape: what is not given is made by `declare`.
SavedSoftmax softmax_of(const ScoreRule& rule, const SavedSoftmax& saved, const DeclareGiven& declare,
                        const Shape& rows);
/// top and spread, where they are saved, or else lse, infinite where a row may be empty and is. Names end with the
/// suffix.
std::vector<RowNumber> row_numbers(const Tensor& lse, const SavedSoftmax& softmax, bool may_be_empty,
                                   const std::string& suffix);
/// Those of a row.
std::vector<Expr> numbers_at(const std::vector<RowNumber>& numbers, Tensor RowNumber::*tensor,
                             const std::vector<Operand>& row);
/// Of a row that has these numbers, to base 2: the exponent of the weight of a score.
Expr exponent_of(const Expr& score, double scale, const std::vector<Expr>& numbers);

}  // namespace tw::schedules
