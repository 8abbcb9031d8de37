#include "codegen/async/pixel_walk.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int64_t most_pixels = 1024, longest_step = 8;  // of a box; between pixels

/// What descriptors hold of a tensor of so many dimensions.
struct Limits {
    int64_t least_corner, most_corner, most_offset;
};
Limits limits_of(size_t rank) {
    constexpr std::array<Limits, 3> of_rank = {{{-32768, 32767, 65535}, {-128, 127, 255}, {-16, 15, 31}}};
    return of_rank.at(rank - 3);
}

/// step * (fused / divisor % modulus) + rest, where `fused` is the loop plus what it does not change.
struct Digit {
    Expr fused, rest;
    int64_t divisor = 1, step = 1;
    std::optional<int64_t> modulus = {};
};

/// The affine form without a term, over the divisor of that term.
struct Quotient {
    Expr fused;
    int64_t divisor;
};

class Walker {
public:
    Walker(const OpLoop& loop, const std::vector<Expr>& indices, const std::vector<Expr>& shape)
        : loop_(loop), indices_(indices), shape_(shape) {}

    PixelWalk run() {
        walk_.variable = loop_.variable;
        walk_.reason = examine();
        return std::move(walk_);
    }

private:
    std::string examine() {
        const size_t rank = indices_.size();
        if (rank < 3 || rank > 5) return fmt::format("a walk over pixels needs 3 to 5 dimensions, not {}", rank);
        walk_.pixels = as_constant(loop_.extent).value_or(0);
        if (walk_.pixels < 1 || walk_.pixels > most_pixels)
            return fmt::format("a walk has at most {} pixels, not {}", most_pixels, to_string(loop_.extent));
        for (size_t d = rank - 1; d-- > 0;)
            if (contains(indices_[d], loop_.variable) && !digit_of(d)) return no_walk(d);
        for (size_t d = rank - 1; d-- > 0;)
            if (std::string reason = add(d); !reason.empty()) return reason;
        return {};
    }

    std::string no_walk(size_t d) const {
        return fmt::format("it reads at {}, which is no walk from pixel to pixel", to_string(indices_[d]));
    }

    bool walks(size_t d) const { return contains(indices_[d], loop_.variable); }
    bool walks_outside_of(size_t d) const {
        for (size_t outer = 0; outer < d; ++outer)
            if (walks(outer)) return true;
        return false;
    }

    /// The only term of an affine form in which the loop stands.
    std::optional<std::pair<Expr, int64_t>> own_term(const Affine& affine) const {
        std::optional<std::pair<Expr, int64_t>> found;
        for (const auto& term : affine.terms) {
            if (!contains(term.first, loop_.variable)) continue;
            if (found) return {};
            found = term;
        }
        return found;
    }

    static Expr without(const Affine& affine, const Expr& atom) {
        Affine rest = affine;
        erase_terms(rest, [&](const auto& term) { return term.first.same(atom); });
        return to_expr(rest);
    }

    /// a + (loop + b) / c is (loop + b + a * c) / c.
    std::optional<Quotient> quotient_of(const Expr& expr) const {
        const Affine affine = affine_of(expr);
        const auto own = own_term(affine);
        if (!own || own->second != 1) return {};
        if (own->first.same(loop_.variable)) return Quotient{expr, 1};
        const Binary* division = own->first.as<Binary>();
        if (!division || division->op != BinaryOp::Div) return {};
        const auto divisor = as_constant(division->b);
        const auto inner = divisor && *divisor > 0 ? quotient_of(division->a) : std::nullopt;
        if (!inner) return {};
        const int64_t both = *divisor * inner->divisor;
        return Quotient{inner->fused + without(affine, own->first) * both, both};
    }

    std::optional<Digit> digit_of(size_t d) const {
        const Affine affine = affine_of(indices_[d]);
        const auto own = own_term(affine);
        if (!own || own->second < 1) return {};
        Digit digit{{}, without(affine, own->first), 1, own->second};
        const Binary* remainder = own->first.as<Binary>();
        const bool wraps = remainder && remainder->op == BinaryOp::Mod;
        if (wraps) digit.modulus = as_constant(remainder->b);
        if (wraps && !digit.modulus) return {};
        const auto quotient = quotient_of(wraps ? remainder->a : own->first);
        if (!quotient) return {};
        digit.fused = quotient->fused;
        digit.divisor = quotient->divisor;
        return digit;
    }

    /// Whether the two are the same iteration of a fused loop, as far as its digits below `divisor` say.
    static bool agree(const Expr& a, const Expr& b, int64_t divisor) {
        const Affine difference = affine_of(simplify(a - b));
        return difference.offset % divisor == 0 && std::ranges::all_of(difference.terms, [&](const auto& term) {
                   return (divisor_of(term.first) * term.second) % divisor == 0;
               });
    }

    /// Whether the walk never passes a multiple of the number.
    bool stays_below(int64_t count) const {
        const Expr first = simplify(substitute(fused_, {{loop_.variable, constant(Type::I64, int64_t{0})}}));
        return walk_.pixels <= std::gcd(divisor_of(first), count);
    }

    std::string add(size_t d) {
        if (!walks(d)) return add_still(d);
        const Digit digit = *digit_of(d);
        if (digit.divisor != inside_) return no_walk(d);
        if (fused_.defined() && !agree(fused_, digit.fused, inside_)) return no_walk(d);
        fused_ = digit.fused;
        const bool last = !walks_outside_of(d);
        if (digit.modulus) inside_ *= *digit.modulus;
        if (last ? digit.modulus && !stays_below(inside_) : !digit.modulus) return no_walk(d);
        if (d == 0) {
            walk_.image = indices_[0];
            walk_.fused = simplify(fused_ + digit.rest * digit.divisor);
            walk_.pixels_of_image = inside_;
            return digit.step == 1 ? "" : no_walk(0);
        }
        if (digit.step > longest_step)
            return fmt::format("its pixels are {} apart; a walk steps by at most {}", digit.step, longest_step);
        return last ? add_whole(d, digit.step) : add_wrapping(d, digit.step, digit.rest, *digit.modulus);
    }

    /// A dimension in which the walk stands still.
    std::string add_still(size_t d) {
        if (d == 0) {
            walk_.image = indices_[0];
            return {};
        }
        return walks_outside_of(d) ? add_wrapping(d, 1, indices_[d], 1) : add_whole(d, 1);
    }

    /// The base goes from the least offset on, `count` times a step, and wraps.
    std::string add_wrapping(size_t d, int64_t step, const Expr& rest, int64_t count) {
        const Interval range = bounds_of(rest);
        const auto extent = as_constant(shape_[d]);
        if (!range.min || !range.max || !extent) return fmt::format("nothing bounds how far {} goes", to_string(rest));
        const int64_t lower = *range.min;
        return add({step, lower, lower + (count - 1) * step + 1 - *extent, simplify(indices_[d] - (rest - lower)),
                    simplify(rest - lower)},
                   *range.max - lower);
    }

    /// The outermost dimension, which ends nowhere: its bounding box holds all that is read.
    std::string add_whole(size_t d, int64_t step) {
        const Interval range = bounds_of(indices_[d]);
        const auto extent = as_constant(shape_[d]);
        if (!range.min || !range.max || !extent)
            return fmt::format("nothing bounds how far {} goes", to_string(indices_[d]));
        return add({step, *range.min, *range.max + 1 - *extent, indices_[d], constant(Type::I64, int64_t{0})}, 0);
    }

    std::string add(PixelWalk::Dimension dimension, int64_t farthest) {
        const Limits limits = limits_of(indices_.size());
        if (std::min(dimension.lower, dimension.upper) < limits.least_corner ||
            std::max(dimension.lower, dimension.upper) > limits.most_corner || farthest > limits.most_offset)
            return fmt::format(
                "its pixels lie {} before the tensor's first and {} behind its last, {} from each other; "
                "a walk over {} dimensions holds corners from {} to {} and offsets to {}",
                -dimension.lower, dimension.upper, farthest, indices_.size(), limits.least_corner, limits.most_corner,
                limits.most_offset);
        walk_.dimensions.push_back(std::move(dimension));
        return {};
    }

    const OpLoop& loop_;
    const std::vector<Expr>& indices_;
    const std::vector<Expr>& shape_;
    PixelWalk walk_;
    Expr fused_;          // of the digits so far
    int64_t inside_ = 1;  // pixels of the dimensions so far
};

}  // namespace

PixelWalk walk_of(const OpLoop& loop, const std::vector<Expr>& indices, const std::vector<Expr>& shape) {
    return Walker(loop, indices, shape).run();
}

int64_t most_offset_of_walk(size_t rank) { return limits_of(rank).most_offset; }

}  // namespace tw::codegen
