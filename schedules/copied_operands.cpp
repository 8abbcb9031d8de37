#include "schedules/copied_operands.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/matrix_factors.h"
#include "schedules/product_tiles.h"
#include "schedules/replace_tensors.h"
#include "schedules/self_products.h"
#include "schedules/thin_product.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

constexpr int64_t vector = 4;  // f32 that move at once

/// Seconds of a copy, beside an H200's: a launch behind another, and the bytes on their way in and out.
double seconds_of_copy(int64_t elements) {
    constexpr double launch = 2.3e-6, cached_rate = 4e12, dram_rate = 2.8e12, cached = 30e6;
    const double bytes = 2.0 * bytes_of(f32) * as_double(elements);
    return launch + bytes / (bytes < cached ? cached_rate : dram_rate);
}

/// Which operands are copied, and the product's shape then.
struct Copies {
    bool of_a, of_b;
    ProductShape shape;
    double seconds;  ///< of the copies
};
/// All operands that do not lie with whole vectors of rows, or columns, side by side.
Copies all_copies(const ProductShape& s) {
    Copies c{!s.transpose_a || row_of_a(s) % vector != 0 || s.a_stride % vector != 0,
             s.transpose_b || row_of_b(s) % vector != 0 || s.b_stride % vector != 0, s, 0};
    if (c.of_a) {
        c.shape.transpose_a = true, c.shape.a_row = rounded_up(s.m, vector), c.shape.a_stride = 0;
        c.seconds += seconds_of_copy(s.m * s.k);
    }
    if (c.of_b) {
        c.shape.transpose_b = false, c.shape.b_row = rounded_up(s.n, vector), c.shape.b_stride = 0;
        c.seconds += seconds_of_copy(s.n * s.k);
    }
    return c;
}

double least_seconds(const ProductShape& shape, const Target& target) {
    return seconds_of(product_tiles(shape, target), shape, target);
}

std::optional<Copies> copies_that_pay(const ProductShape& shape, const Target& target) {
    constexpr double least_products = 8e6, gain = 0.985;  // of a multiprocessor: fewer take no longer than the copies
    const double products = as_double(shape.m) * as_double(shape.n) * as_double(shape.k);
    if (products < least_products * std::max(target.multiprocessors, 1)) return {};
    const Copies copies = all_copies(shape);
    if (!copies.of_a && !copies.of_b) return {};
    const double as_given = least_seconds(shape, target);
    constexpr double most_gain = 0.2;  // of any layout
    if (copies.seconds > most_gain * as_given) return {};
    return least_seconds(copies.shape, target) + copies.seconds < gain * as_given ? std::optional(copies)
                                                                                  : std::nullopt;
}

bool has_constant_extents(const Tensor& c) {
    const Reduce* sum = only_reduction(body_of(c));
    auto is_known = [](const Expr& extent) { return as_constant(extent).has_value(); };
    return sum && std::ranges::all_of(c.shape(), is_known) &&
           std::ranges::all_of(sum->axes, [&](const Expr& axis) { return is_known(axis.as<Variable>()->extent); });
}

class Copying {
public:
    Copying(const std::vector<Tensor>& outputs, const Target& target)
        : given_(outputs), target_(target), names_(outputs) {}

    Redeclared run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1) continue;
            const Tensor given(operation, 0), now = whole_.of(given);
            const auto factors = matrix_factors(now);
            if (!factors || !factors->is_plain || !has_constant_extents(now) || factors->a.type() != f32 ||
                factors->b.type() != f32)
                continue;
            if (factors->a.rank() != 2 || factors->b.rank() != 2 || thin_tiles(factors->shape, target_)) continue;
            if (const auto copies = copies_that_pay(factors->shape, target_))
                whole_.put(given, declared(now, *factors, *copies));
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    Tensor declared(const Tensor& c, const MatrixFactors& factors, const Copies& copies) {
        const ProductShape& s = factors.shape;
        const Tensor a = copies.of_a ? copy_of(factors.a, s.transpose_a, s.m, s.k) : factors.a;
        Tensor b = copies.of_b ? copy_of(factors.b, !s.transpose_b, s.n, s.k) : factors.b;
        std::vector<std::string> names;
        for (const auto& [copied, of] : {std::pair(copies.of_a, a), std::pair(copies.of_b, b)})
            if (copied && (names.empty() || !b.same(a))) names.push_back("'" + of.name() + "'");
        result_.notes.push_back(
            fmt::format("'{}' reads copies, with a row for each term: {}", c.name(), fmt::join(names, ", ")));
        if (b.same(a)) b = again(a, names_.take(a.name() + "_again"));
        const Axis k = reduce_axis("k", s.k);
        const std::vector<Expr>& axes = c.operation()->axes;
        return declared_as(c, with_reduction(body_of(c), sum(a(k, axes[0]) * b(k, axes[1]), k)));
    }

    static Tensor tensor_of(const Read& read) { return {read.operation, read.output}; }

    /// Of a matrix, a row for each of the terms, and zeros behind its elements; one for all that read it so.
    Tensor copy_of(const Tensor& matrix, bool has_terms_as_rows, int64_t elements, int64_t terms) {
        if (is_again(*matrix.operation()))
            return copy_of(tensor_of(*body_of(matrix).as<Read>()), has_terms_as_rows, elements, terms);
        const int64_t row = rounded_up(elements, vector);
        auto is_it = [&](const Copied& other) {
            return other.of.same(matrix) && other.has_terms_as_rows == has_terms_as_rows &&
                   is_constant(other.copy.shape()[0], terms) && is_constant(other.copy.shape()[1], row);
        };
        if (const auto known = std::ranges::find_if(copied_, is_it); known != copied_.end()) return known->copy;
        auto element = [&](const Expr& k, const Expr& i) {
            const std::vector<Operand> at = has_terms_as_rows ? std::vector<Operand>{k, i} : std::vector<Operand>{i, k};
            return row == elements ? matrix.read(at) : padded(matrix, 0).read(at);
        };
        const Tensor copy =
            compute(names_.take(matrix.name() + "_turned"), {terms, row}, element, matrix.operation()->where);
        copied_.push_back({matrix, has_terms_as_rows, copy});
        return copy;
    }

    struct Copied {
        Tensor of;
        bool has_terms_as_rows;
        Tensor copy;
    };

    const std::vector<Tensor>& given_;
    const Target& target_;
    FreeNames names_;
    Replacement whole_;
    std::vector<Copied> copied_;
    Redeclared result_;
};

}  // namespace

Redeclared copied_operands(const std::vector<Tensor>& outputs, const Target& target) {
    return Copying(outputs, target).run();
}

}  // namespace tw::schedules
