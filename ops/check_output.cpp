#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "ops/check.h"
#include "ops/rounded_declaration.h"
#include "ops/sample_elements.h"
#include "support/error.h"

namespace tw {
namespace {

using Point = std::vector<int64_t>;

std::vector<Point> all_points(const std::vector<int64_t>& shape) {
    std::vector<Point> points;
    Point next(shape.size(), 0);
    do points.push_back(next);
    while (advance(next, shape));
    return points;
}

std::vector<Point> random_points(const std::vector<int64_t>& shape, int64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Point> points(static_cast<size_t>(count));
    for (Point& point : points)
        for (int64_t extent : shape) point.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(extent)));
    return points;
}

std::vector<Point> chosen_points(const HostArray& array, int64_t samples, uint64_t seed) {
    if (array.num_elements() == 0) return {};
    return array.num_elements() <= samples ? all_points(array.shape) : random_points(array.shape, samples, seed);
}

double as_double(const Value& value) { return is_float(value.type) ? value.real : static_cast<double>(value.integer); }

/// The least number that rounds to infinity of the type, if there is any.
double least_infinite(Type type) {
    if (!is_float(type) || type == Type::F64 || type == Type::E4M3) return HUGE_VAL;
    const int exponents = type == Type::F16 || type == Type::E5M2 ? 16 : 128;
    return std::ldexp(1 - unit_roundoff(type) / 2, exponents);
}

/// Where float64 has a number that may round to infinity, an infinity stands for the nearest to it that does.
double widened(double value, double expected, Type type) {
    const double least = least_infinite(type);
    const bool may_round_so = std::isinf(value) && std::isfinite(expected) && std::isfinite(least) &&
                              (value > 0 ? expected : -expected) > least * (1 - 2 * unit_roundoff(type));
    return may_round_so ? std::copysign(std::max(std::abs(expected), least), value) : value;
}

/// The largest errors so far. An element whose value is not finite must be what the declaration gives in its own types,
/// but NaN only where float64 has it, too: a declaration that makes NaN of finite data has lost its result.
struct Errors {
    double got = 0, plain = 0, largest = 0;
    double unit = 0;           ///< that tensor cores may make
    double beyond = 0;         ///< what is left of `got` without what they may make of the element
    double scales = HUGE_VAL;  ///< up to which results are what errors are relative to: others overflow

    void add(double value, double expected, double declared, double unit_error) {
        if (std::isnan(value) && !std::isnan(expected)) {
            got = beyond = HUGE_VAL;
            return;
        }
        const bool lost = std::isnan(declared) && std::isfinite(expected);
        if (!lost && (!std::isfinite(expected) || !std::isfinite(declared))) {
            bool same = value == declared || (std::isnan(value) && std::isnan(declared));
            if (!same) got = beyond = HUGE_VAL;
            return;
        }
        const double error = std::abs(value - expected);
        got = std::max(got, error);
        beyond = std::max(beyond, error - unit_error);
        unit = std::max(unit, unit_error);
        if (!lost) plain = std::max(plain, std::abs(declared - expected));
        if (std::abs(expected) <= scales) largest = std::max(largest, std::abs(expected));
    }
};

constexpr int64_t few = 64;                   // elements, of which the largest error is a matter of luck
constexpr double luck_of_few = 4;             // so many times that of as few others
constexpr int orders_of_few = 8;              // in which plain errors of few elements are measured
constexpr int64_t terms_of_orders = 1 << 20;  // that are reduced for it at most

/// A few roundings, relative to the largest element: where the plain computation happens to be exact.
double rounding_allowance(Type type) {
    if (type == Type::F64) return 1e-15;
    return type == Type::F32 ? 2.5e-7 : 0;
}

/// Relative to the largest element: a multiple of the plain error. Of few elements that may be small by luck; what is
/// rounded to a narrow type errs by its rounding, whatever the luck.
double allowed_error(double plain_error, Type type, int64_t elements, const CheckOptions& options) {
    const double factor = options.approximate ? 4 : 1.5;
    if (elements >= few || !is_float(type)) return std::max(factor * plain_error, rounding_allowance(type));
    if (bytes_of(type) < 4) return factor * std::max(plain_error, unit_roundoff(type));
    return luck_of_few * std::max(factor * plain_error, rounding_allowance(type));
}

/// Of many elements, relative to the largest: what types that declarations compute in round is far less. A declaration
/// that errs by more tells nothing of a schedule.
constexpr double most_plain_error = 0.25;

bool is_lost(double plain_error, Type type, int64_t elements) {
    return is_float(type) && elements >= few && plain_error > most_plain_error;
}

CheckResult verdict(const Errors& errors, Type type, int64_t elements, const CheckOptions& options) {
    double scale = errors.largest > 0 ? errors.largest : 1;
    CheckResult result;
    result.error = errors.got / scale;
    result.plain_error = errors.plain / scale;
    result.unit_error = errors.unit / scale;
    result.elements = elements;
    double allowed = allowed_error(result.plain_error, type, elements, options);
    for (Type rounded : options.roundings) allowed += unit_roundoff(rounded);
    const bool lost = is_lost(result.plain_error, type, elements);
    result.ok = errors.beyond / scale <= allowed && !lost;
    const std::string how = options.rounded.empty() ? "" : ", rounded as the schedule says";
    std::string units = result.unit_error > 0 ? fmt::format(", by tensor cores up to {:.2g}", result.unit_error) : "";
    result.text = fmt::format("max error {:.2g} against float64 (plain {}{}: {:.2g}{}), {} elements: {}", result.error,
                              name_of(type), how, result.plain_error, units, elements, result.ok ? "ok" : "WRONG");
    if (lost)
        result.text += fmt::format(", as far as the declaration can tell: in its own types{} it loses its result; {}",
                                   how, options.rounded.empty() ? "rewrite it" : "rewrite it, or round less");
    return result;
}

/// In how many orders of their terms the plain errors of the elements are measured: the largest counts. Long sums err
/// by more in one order than in trees of threads.
int orders_of(const std::vector<SampledElement>& elements) {
    if (static_cast<int64_t>(elements.size()) >= few) return 1;
    int64_t terms = 0;
    for (const SampledElement& element : elements) terms += element.terms;
    return terms == 0 ? 1 : static_cast<int>(std::clamp<int64_t>(terms_of_orders / terms, 1, orders_of_few));
}

/// As many of the points as may be evaluated, judged by the first few.
void keep_affordable(std::vector<Point>& points, const Tensor& output, const Bindings& bindings,
                     const SampleOptions& sampling, int64_t most_terms) {
    constexpr size_t least = 4;
    if (most_terms == 0 || points.size() <= least) return;
    const std::vector<Point> first(points.begin(), points.begin() + least);
    int64_t terms = 0;
    for (const SampledElement& element : sample_elements(output, first, bindings, sampling)) terms += element.terms;
    const int64_t of_each = std::max<int64_t>(terms / static_cast<int64_t>(least), 1);
    const auto affordable = static_cast<size_t>(most_terms / of_each);
    if (affordable < points.size()) points.resize(std::max(affordable, least));
}

}  // namespace

CheckResult check_output(const Tensor& output, const Bindings& bindings, const HostArray& got,
                         const CheckOptions& options) {
    if (!output.defined()) throw_error(Error, "check_output: the output is an undefined tensor");
    std::vector<Point> points = chosen_points(got, options.samples, options.seed);
    SampleOptions sampling{.rounds_operands = !options.roundings.empty(), .few_bits = options.few_bits};
    sampling.precision = Precision::Float64;
    keep_affordable(points, output, bindings, sampling, options.most_terms);
    const std::vector<SampledElement> reference = sample_elements(output, points, bindings, sampling);
    sampling.precision = Precision::Declared;
    const Tensor as_rounded = with_roundings(output, options.rounded);
    Errors errors;
    if (is_float(got.type)) errors.scales = least_infinite(got.type) * (1 + 2 * unit_roundoff(got.type));
    for (int order = 0; order < orders_of(reference); ++order) {
        sampling.order = order;
        const std::vector<SampledElement> plain = sample_elements(as_rounded, points, bindings, sampling);
        for (size_t p = 0; p < points.size(); ++p) {
            const double expected = as_double(reference[p].value),
                         declared = widened(as_double(plain[p].value), expected, got.type);
            if (order == 0)
                errors.add(widened(as_double(got.at(points[p])), expected, got.type), expected, declared,
                           reference[p].unit_error);
            else if (std::isfinite(expected) && std::isfinite(declared))
                errors.plain = std::max(errors.plain, std::abs(declared - expected));
        }
    }
    return verdict(errors, got.type, static_cast<int64_t>(points.size()), options);
}

}  // namespace tw
