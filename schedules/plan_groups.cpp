#include "schedules/plan_groups.h"

#include "schedules/whole_tiles.h"

namespace tw::schedules {
namespace {

constexpr int64_t row_of_shared = 64, unit = 16;  // elements of 2 bytes, columns and terms

GroupPlan joined(const ConvolutionShape& s, ConvolutionPass pass, int64_t channels, int64_t filters) {
    const int64_t of_filters = pass == ConvolutionPass::WeightGradient ? row_of_shared : unit;
    auto suits = [&](int64_t together) {
        return s.groups % together == 0 && together * channels >= row_of_shared && together * channels % unit == 0 &&
               together * filters % of_filters == 0;
    };
    int64_t together = 1;
    while (together < s.groups && !suits(together)) ++together;
    return {together, channels * together, filters * together};
}

/// Seconds of a copy, to the tensor with the zeros or from it.
double copied(int64_t pixels, int64_t elements) {
    constexpr double bytes_a_second = 2.5e12, launch = 2e-6;
    return as_double(pixels * elements) * 4 / bytes_a_second + launch;
}

}  // namespace

GroupPlan padded_groups(const ConvolutionShape& s, ConvolutionPass pass) {
    const bool forward = pass == ConvolutionPass::Forward;
    return {1, rounded_up(s.channels / s.groups, forward ? row_of_shared : unit),
            rounded_up(s.filters / s.groups, forward ? unit : row_of_shared)};
}

GroupPlan plan_groups(const ConvolutionShape& s, ConvolutionPass pass) {
    constexpr double sums_a_second = 600e12, sure = 1.3;
    const int64_t channels = s.channels / s.groups, filters = s.filters / s.groups;
    const GroupPlan together = joined(s, pass, channels, filters), alone = padded_groups(s, pass);
    if (together.joined == 1 || 2 * channels <= row_of_shared) return together;
    double seconds =
        s.flops() / sums_a_second * as_double(alone.channels * alone.filters) / as_double(channels * filters);
    if (alone.channels > channels) seconds += copied(s.images * s.height * s.width, s.groups * alone.channels);
    if (alone.filters > filters) seconds += copied(s.images * s.rows() * s.columns(), s.groups * alone.filters);
    return sure * seconds < s.flops() / sums_a_second * as_double(together.joined) ? alone : together;
}

}  // namespace tw::schedules
