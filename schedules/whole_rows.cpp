#include "schedules/whole_rows.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

/// How a matrix is copied: as it lies, or turned, into rows of so many elements.
struct RowCopy {
    bool is_made = false, turns = false;
    int64_t row = 0;
};
struct RowCopies {
    RowCopy of_a, of_b;
    int64_t terms = 0;  ///< that are summed then, zeros among them
};

bool is_whole(int64_t elements, Type type) { return elements * bytes_of(type) % piece_bytes == 0; }

/// The fewest: rows along the product's rows or columns must be whole as they are; those along its terms may get zeros
/// behind them where both operands have such rows, all of which are copied then.
RowCopies copies_for(const TensorProductShape& s) {
    const Type type = s.operand;
    const bool any_side = bytes_of(type) == 2, a_has_terms = !s.transpose_a, b_has_terms = s.transpose_b,
               are_whole_terms = is_whole(s.k, type);
    RowCopies best;
    int least = 3;
    for (const auto [turns_a, turns_b] : {std::array{false, false}, {true, false}, {false, true}, {true, true}}) {
        const bool a_by_terms = a_has_terms != turns_a, b_by_terms = b_has_terms != turns_b,
                   both = a_by_terms && b_by_terms;
        if (!both && (!any_side || ((a_by_terms || b_by_terms) && !are_whole_terms))) continue;
        if ((!a_by_terms && !is_whole(s.m, type)) || (!b_by_terms && !is_whole(s.n, type))) continue;
        const bool all_copied = both && (!are_whole_terms || (turns_a && turns_b));
        const int64_t terms = all_copied ? rounded_up(s.k, sector_bytes / bytes_of(type)) : s.k;
        const RowCopy of_a{turns_a || (a_by_terms && terms != s.k), turns_a, a_by_terms ? terms : s.m},
            of_b{turns_b || (b_by_terms && terms != s.k), turns_b, b_by_terms ? terms : s.n};
        if (const int copies = of_a.is_made + of_b.is_made; copies < least) best = {of_a, of_b, terms}, least = copies;
    }
    return best;
}

/// The shape of a product of two matrices as they are stored, and of nothing else.
bool is_of_matrices(const UnitProduct& unit) {
    const TensorProductShape& s = unit.shape;
    auto is_matrix = [](const Tensor& t, int64_t rows, int64_t columns) {
        return t.rank() == 2 && is_constant(t.shape()[0], rows) && is_constant(t.shape()[1], columns);
    };
    return s.batch == 0 && s.experts == 0 && s.row_terms == RowTerms::All && !s.block_scales && unit.more.empty() &&
           unit.joined.empty() && unit.rows_of_matrix == 0 && unit.terms_of_block == 0 && !unit.a.same(unit.b) &&
           (s.transpose_a ? is_matrix(unit.a, s.k, s.m) : is_matrix(unit.a, s.m, s.k)) &&
           (s.transpose_b ? is_matrix(unit.b, s.n, s.k) : is_matrix(unit.b, s.k, s.n));
}

class CopyingRows {
public:
    CopyingRows(const std::vector<Tensor>& outputs, const Target& target)
        : given_(outputs), target_(target), names_(outputs) {}

    Redeclared run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1) continue;
            const Tensor given(operation, 0), now = whole_.of(given);
            if (const auto unit = product_that_pays(now)) whole_.put(given, declared(now, *unit));
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    struct Copied {
        Tensor of;
        RowCopy how;
        Tensor copy;
    };

    std::optional<UnitProduct> product_that_pays(const Tensor& c) const {
        if (!target_.has_wgmma || !target_.has_tma) return {};
        const Reduce* sum = only_reduction(body_of(c));
        if (!sum || sum->axes.size() != 1 || sum->values.size() != 1) return {};
        auto unit = unit_product(c);
        if (!unit || !is_of_matrices(*unit) || takes_warpgroups(unit->shape, target_)) return {};
        constexpr double least_products = 5e5;  // of a multiprocessor: fewer take no longer than the copies' launches
        const double products = as_double(unit->shape.m) * as_double(unit->shape.n) * as_double(unit->shape.k);
        if (products < least_products * std::max(target_.multiprocessors, 1)) return {};
        TensorProductShape copied = unit->shape;
        copied.copy_operands = true;
        const bool pays = takes_warpgroups(copied, target_) && wants_copied_operands(unit->shape) &&
                          std::holds_alternative<WarpgroupTiles>(best_tiling(copied, target_));
        return pays ? unit : std::nullopt;
    }

    Tensor declared(const Tensor& c, const UnitProduct& unit) {
        const RowCopies copies = copies_for(unit.shape);
        const Tensor a = copied(unit.a, copies.of_a), b = copied(unit.b, copies.of_b);
        const Expr reduction = reduction_of(c), value = reduction.as<Reduce>()->values[0],
                   term = reduction.as<Reduce>()->axes[0];
        const Axis k = reduce_axis("k", copies.terms);
        auto in_copies = [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read) return {};
            for (const auto& [given, copy, how] :
                 {std::tuple(unit.a, a, copies.of_a), std::tuple(unit.b, b, copies.of_b)}) {
                if (read->operation != given.operation() || !how.is_made) continue;
                std::vector<Operand> at(read->indices.begin(), read->indices.end());
                if (how.turns) std::swap(at[0], at[1]);
                return copy.read(at);
            }
            return {};
        };
        const Expr all = substitute(transform(value, in_copies), {{term, k}});
        std::vector<std::string> names;
        for (const auto& [of, how] : {std::pair(a, copies.of_a), std::pair(b, copies.of_b)})
            if (how.is_made) names.push_back("'" + of.name() + "'");
        result_.notes.push_back(
            fmt::format("'{}' reads copies, in rows of whole pieces: {}", c.name(), fmt::join(names, ", ")));
        return declared_as(c, exchanged(body_of(c), reduction, sum(all, k)));
    }

    /// One for all that read it so.
    Tensor copied(const Tensor& matrix, const RowCopy& how) {
        if (!how.is_made) return matrix;
        const auto known = std::ranges::find_if(copied_, [&](const Copied& other) {
            return other.of.same(matrix) && other.how.turns == how.turns && other.how.row == how.row;
        });
        if (known != copied_.end()) return known->copy;
        const Expr rows = matrix.shape()[how.turns ? 1 : 0], own = matrix.shape()[how.turns ? 0 : 1];
        const Tensor copy = compute(
            names_.take(matrix.name() + (how.turns ? "_turned" : "_padded")), {require_constant(rows), how.row},
            [&](Expr i, Expr j) {
                const std::vector<Operand> at = how.turns ? std::vector<Operand>{j, i} : std::vector<Operand>{i, j};
                return is_constant(own, how.row) ? matrix.read(at) : padded(matrix, 0).read(at);
            },
            matrix.operation()->where);
        copied_.push_back({matrix, how, copy});
        return copy;
    }

    const std::vector<Tensor>& given_;
    const Target& target_;
    FreeNames names_;
    Replacement whole_;
    std::vector<Copied> copied_;
    Redeclared result_;
};

}  // namespace

Redeclared whole_rows(const std::vector<Tensor>& outputs, const Target& target) {
    return CopyingRows(outputs, target).run();
}

}  // namespace tw::schedules
