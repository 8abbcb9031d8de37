// The terms of a reduction that each count for one element, numbered: what sorting, searching and listing them have in
// common. Inside of dsl/ only.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "dsl/scattered.h"

namespace tw {

/// The number of points of the axes.
Expr points(const std::vector<Expr>& axes);
/// The row-major number of the point with these values of the axes.
Expr number_of(const std::vector<Expr>& axes, const std::vector<Expr>& values);
/// The axes' values at a point, from its number.
Substitution point_of(const std::vector<Expr>& axes, Expr number);

/// Terms are numbered in the order of the reduce axes, those behind the last that chooses an element left out; elements
/// likewise.
class NumberedTerms {
protected:
    using Point = const std::vector<Expr>&;

    NumberedTerms(Edit& edit, int reduction, const Scattered& terms);

    Tensor declare(const std::string& what, const Shape& shape, const std::function<Expr(Point)>& body);
    /// Whether the term with this number counts for an element, and which one.
    Expr counts_at(const Expr& term) const;
    /// The same of a term whose element is inside.
    Expr own_counts_at(const Expr& term) const;
    Expr element_at(const Expr& term) const;
    /// Whether a term counts for the element with these values of its axes.
    Expr counts_for(const Expr& term, const std::vector<Expr>& element) const;
    /// The reduction over terms of its element along these axes, of such lengths, over the axes and those before, and
    /// over what chooses no element. `term` is the number of each among all; `counts`, if given, whether it is the
    /// element's.
    void reduce_terms(const std::vector<Expr>& along, const std::vector<Expr>& lengths, const Expr& term,
                      const Expr& counts);
    void note(std::string_view text);

    Edit& edit_;
    int reduction_;
    const StageDefinition whole_;
    const Scattered& terms_;
    std::vector<Expr> sorted_, elements_;  // axes that number the terms and the elements
    Expr num_terms_, num_elements_;
    std::vector<Tensor> made_;

private:
    std::vector<Expr> own_conditions() const;
    bool is_own(const Expr& condition) const;
    std::vector<Expr> values_of(const std::vector<Expr>& axes) const;
};

}  // namespace tw
