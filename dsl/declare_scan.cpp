#include "dsl/declare_scan.h"

#include "dsl/extremes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

/// An axis over the terms that the place has, and where its index is that of a term of the whole axis.
struct Terms {
    Axis axis;
    Substitution whole;
};

bool is_never_negative(const Expr& length) { return prove(extreme_of(length, false) >= 0).value_or(false); }

/// Such a place is in the hands of who gives the data.
bool is_told_by_data(const Expr& place) {
    bool found = false;
    visit(place, [&](const Expr& e) { found = found || e.as<Read>(); });
    return found;
}

Terms terms_of(const Axis& axis, const Operand& place, const ScanOptions& options, std::source_location where) {
    user_check(axis.variable.defined(), where, "scan: the axis is undefined; make it with reduce_axis()");
    user_check(place.expr.type() == Type::I64, where,
               "scan: the place is {}; it is an index of the tensor that is declared, an i64",
               name_of(place.expr.type()));
    const Expr own = integer(options.exclusive ? 0 : 1);
    const Expr length = simplify(options.reverse ? axis.extent - 1 - place.expr + own : place.expr + own);
    user_check(
        is_told_by_data(place.expr) || (is_never_negative(length) && is_never_negative(simplify(axis.extent - length))),
        where,
        "scan: the place {} may lie outside of the axis '{}', which has {} terms; give an axis as long as the "
        "dimension that the place is an index of",
        to_string(place.expr), name_of(axis.variable), to_string(axis.extent));
    Axis terms = reduce_axis(name_of(axis.variable), length, where);
    const Expr term = options.reverse ? axis.extent - 1 - terms.variable : terms.variable;
    return {terms, {{axis.variable, term}}};
}

}  // namespace

Expr scan(Reduction reduction, const Operand& value, const Axis& axis, const Operand& place, const ScanOptions& options,
          std::source_location where) {
    user_check(reduction != nullptr, where, "scan: the reduction is no function; name one, such as sum");
    const Terms terms = terms_of(axis, place, options, where);
    return reduction(Operand(substitute(value.expr, terms.whole), where), {terms.axis});
}

std::vector<Expr> scan(const Reducer& reducer, const std::vector<Operand>& values, const Axis& axis,
                       const Operand& place, const ScanOptions& options, std::source_location where) {
    const Terms terms = terms_of(axis, place, options, where);
    std::vector<Operand> own;
    for (const Operand& value : values) own.emplace_back(substitute(value.expr, terms.whole), where);
    return reduce(reducer, own, {terms.axis}, where);
}

}  // namespace tw
