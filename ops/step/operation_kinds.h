// What operations of a step are, by their declarations alone, and how many FLOPs these have.
#pragma once
#include <array>
#include <string_view>
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// The first of these that an operation is.
enum class OperationKind {
    OwnSchedule,    ///< a part with a schedule of its own (own_schedule.h)
    SumOfProducts,  ///< a sum whose terms are products of two factors, read along different axes
    Scatter,        ///< a reduction of terms that each say which element they belong to
    Reduction,
    Gather,  ///< of elements that others name
    Elements,
    View  ///< elements of one tensor, by their places alone
};
inline constexpr std::array all_operation_kinds{
    OperationKind::OwnSchedule, OperationKind::SumOfProducts, OperationKind::Scatter, OperationKind::Reduction,
    OperationKind::Gather,      OperationKind::Elements,      OperationKind::View};
/// "own schedule", "sum of products", "scatter", "reduction", "gather", "elements", "view".
std::string_view name_of(OperationKind kind);

/// Of an operation that is no input; never OwnSchedule, which a declaration does not tell.
OperationKind kind_of(const Operation& operation);

/// Whether it has a reduction of such terms, whatever else it is of.
bool scatters(const Operation& operation);

struct DeclaredFlops {
    double all = 0;
    double f64 = 0;  ///< of all, those of f64
};
/// Arithmetic on floats that computing these takes, each element of each operation once: a term of a sum of products
/// counts two, any other addition, multiplication, exponential, .. one; conversions, comparisons and choices none, both
/// sides of a choice. A scatter counts each term for one element. Extents that data decide are at their largest.
DeclaredFlops declared_flops(const std::vector<Tensor>& outputs);

}  // namespace tw
