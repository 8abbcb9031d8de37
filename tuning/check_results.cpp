#include "tuning/check_results.h"

#include <algorithm>

#include "bench/random_data.h"
#include "ops/check.h"
#include "ops/integer_ranges.h"
#include "schedules/plain_schedule.h"
#include "support/error.h"

namespace tw::tuning {
namespace {

constexpr double most_interpreted = 4e6;     // flops; about a second
constexpr int64_t most_sampled = 2'000'000;  // terms of each output, in float64 and as declared; a few seconds

Bindings bindings_of(const Tunable& tunable) {
    constexpr int64_t many = 1 << 22;  // elements: so many are drawn on all processors
    const auto draw = [&](HostArray& array, uint64_t seed) {
        array.num_elements() < many ? fill_uniform(array, -1, 1, seed) : bench::fill_random(array, {-1, 1}, {}, seed);
    };
    Bindings bindings = random_bindings(tunable.outputs, 100, draw);
    const bench::FillInput fill = fill_of(tunable, bindings);
    uint64_t seed = 100;
    for (auto& [name, array] : bindings.inputs)
        if (!fill(name, array, ++seed) && tunable.is_exact) bench::fill_whole(array, tunable.largest, seed);
    return bindings;
}

/// What float64 says of up to so many elements; nothing if they are right.
std::optional<std::string> far_from_float64(const Tunable& tunable, const Bindings& bindings,
                                            const std::vector<HostArray>& results, const CheckOptions& options) {
    for (size_t k = 0; k < results.size(); ++k) {
        const CheckResult check = check_output(tunable.outputs[k], bindings, results[k], options);
        if (!check.ok) return fmt::format("'{}': {}", tunable.outputs[k].name(), check.text);
    }
    return {};
}

}  // namespace

bench::FillInput fill_of(const Tunable& tunable, const Bindings& numbers) {
    return [ranges = integer_ranges(tunable.outputs, numbers), own = tunable.fill](const std::string& input,
                                                                                   HostArray& array, uint64_t seed) {
        if (own && own(input, array, seed)) return true;
        const auto range = ranges.find(input);
        if (range == ranges.end()) return false;
        fill_integers(array, range->second, seed);
        return true;
    };
}

ResultCheck::ResultCheck(const Tunable& tunable, std::shared_ptr<Device> device, const Target& target)
    : tunable_(tunable), device_(std::move(device)), target_(target), bindings_(bindings_of(tunable)) {}

std::vector<HostArray> ResultCheck::by_reference() const {
    const Program program =
        build(tunable_.reference ? tunable_.reference(target_) : schedules::plain_schedule(tunable_.outputs, target_));
    Executable executable(program, device_);
    std::vector<HostArray> results = run_on(executable, bindings_);
    if (auto wrong =
            far_from_float64(tunable_, bindings_, results,
                             {.approximate = program.approximate(), .samples = 256, .most_terms = most_sampled}))
        throw_error(Error, "{}: nothing to compare results with: of the reference, {}", tunable_.name, *wrong);
    return results;
}

std::optional<std::string> ResultCheck::problem_of(Executable& executable, const std::vector<Type>& roundings) {
    const std::vector<HostArray> got = run_on(executable, bindings_);
    const bool approximate = executable.program().approximate();
    if (!tunable_.is_exact)
        return far_from_float64(tunable_, bindings_, got,
                                {.approximate = approximate, .roundings = roundings, .most_terms = most_sampled});
    if (expected_.empty())
        expected_ = tunable_.flops <= most_interpreted && !approximate ? interpret_plain(tunable_.outputs, bindings_)
                                                                       : by_reference();
    for (size_t k = 0; k < got.size(); ++k)
        if (got[k].bytes != expected_[k].bytes)
            return difference(tunable_.outputs[k].name(), got[k], expected_[k])
                .value_or("its bits differ from those expected");
    return {};
}

}  // namespace tw::tuning
