// What choose_schedule() makes of computations that no rule knows by name: right, at sizes that no tile divides.
#include "tests/unknown/computations.h"

#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "ops/runner.h"
#include "schedules/choose.h"

namespace tw::unknown {
namespace {

/// Sizes of one case, drawn one after another.
class Draw {
public:
    explicit Draw(uint32_t seed) : random_(seed) {}
    int64_t operator()(int64_t least, int64_t most, int64_t multiple_of = 1) {
        return std::uniform_int_distribution<int64_t>(least, most)(random_) * multiple_of;
    }

private:
    std::mt19937 random_;
};

struct Case {
    std::string name;
    std::function<std::vector<Tensor>(Draw&)> declare;
};
void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

const std::vector<Case> cases = {
    {"squared_distances", [](Draw& d) { return squared_distances(d(3, 90), d(3, 90), d(1, 40)); }},
    {"shortest_paths", [](Draw& d) { return shortest_paths(d(3, 90), d(3, 90), d(1, 40)); }},
    {"complex_product", [](Draw& d) { return complex_product(d(16, 90), d(2, 10, 8), d(2, 8, 8)); }},
    {"similarity_matrix", [](Draw& d) { return similarity_matrix(d(16, 70), d(16, 70), d(2, 8, 8)); }},
    {"chain_of_three", [](Draw& d) { return chain_of_three(d(1, 2), d(16, 40), d(2, 4, 8), d(2, 4, 8), d(2, 5, 8)); }},
    {"low_rank", [](Draw& d) { return low_rank(d(1, 3), d(16, 40), d(2, 6, 8), d(1, 2, 16), d(2, 5, 8)); }},
    {"four_bit_product", [](Draw& d) { return four_bit_product(d(16, 70), d(2, 8, 8), d(1, 3, 32), 32); }},
    {"block_sparse_product",
     [](Draw& d) { return block_sparse_product(d(1, 3), d(1, 3), d(1, 2, 16), 128, d(2, 9, 8)); }},
    {"lstm_cell", [](Draw& d) { return lstm_cell(d(16, 40), d(2, 6, 8), d(2, 4, 8)); }},
    {"odd_product", [](Draw& d) { return odd_product(d(16, 90), d(16, 90), d(16, 90)); }},
    {"gram_matrix", [](Draw& d) { return gram_matrix(d(16, 90), d(2, 8, 8)); }},
    {"gram_of_channels", [](Draw& d) { return gram_of_channels(d(1, 2), d(16, 70), d(2, 6), d(1, 3, 8)); }},
    {"covariance", [](Draw& d) { return covariance(d(16, 700), d(16, 90)); }},
    {"eight_bit_product", [](Draw& d) { return eight_bit_product(d(16, 200), d(2, 20, 8), d(2, 20, 8)); }},
    {"gathered_product", [](Draw& d) { return gathered_product(d(16, 200), d(1, 40), d(2, 12, 8), d(2, 12, 8)); }},
    {"gathered_experts", [](Draw& d) { return gathered_experts(d(1, 2), d(1, 3), d(2, 6, 8), d(2, 6, 8)); }},
    {"few_rows_each", [](Draw& d) { return few_rows_each(d(2, 30), d(1, 9), d(2, 8, 8), d(2, 8, 8)); }},
    {"mixed_channels", [](Draw& d) { return mixed_channels(d(1, 2), d(2, 6, 8), d(1, 9), d(1, 3, 8), d(16, 60)); }},
    {"three_matrices", [](Draw& d) { return three_matrices(d(4, 60), d(4, 40), d(4, 40), d(4, 60)); }},
    {"norm_of_channels", [](Draw& d) { return norm_of_channels(d(1, 3), d(1, 90), d(1, 5), d(1, 40)); }},
    {"softmax_between", [](Draw& d) { return softmax_between(d(1, 3), d(1, 200), d(1, 90)); }},
    {"means_between", [](Draw& d) { return means_between(d(1, 4), d(1, 1500), d(1, 90)); }},
    {"sums_along_time", [](Draw& d) { return sums_along_time(d(1, 3), d(1, 400), d(1, 40)); }},
    {"symmetric_part", [](Draw& d) { return symmetric_part(d(1, 2) == 1 ? d(1, 90) : 1088); }},
    {"gaussian_sums", [](Draw& d) { return gaussian_sums(d(1, 3, 1400), d(1, 2, 520)); }},
    {"histogram", [](Draw& d) { return histogram(d(1, 2) == 1 ? d(1, 300) : d(32768, 50000), d(1, 300)); }},
    {"largest_of_segments", [](Draw& d) { return largest_of_segments(d(1, 300), d(1, 60), d(1, 20)); }},
    {"mean_within", [](Draw& d) { return mean_within(d(1, 40), d(1, 700)); }},
    {"mean_without_extremes", [](Draw& d) { return mean_without_extremes(d(1, 40), d(3, 700)); }},
    {"cosines", [](Draw& d) { return cosines(d(1, 40), d(1, 700)); }},
    {"best_expert", [](Draw& d) { return best_expert(d(1, 90), d(2, 140)); }},
    {"quantised_groups", [](Draw& d) { return quantised_groups(d(1, 20), d(1, 6, 32), 32); }},
    {"cumulative_sums", [](Draw& d) { return cumulative_sums(d(1, 20), d(1, 900)); }},
    {"log_sum_exp_pooling", [](Draw& d) { return log_sum_exp_pooling(d(1, 2), d(3, 20), d(3, 20), d(1, 20)); }},
    {"four_diffusion_steps", [](Draw& d) { return four_diffusion_steps(d(1, 90), d(1, 150)); }},
    {"moving_variance", [](Draw& d) { return moving_variance(d(1, 2), d(9, 60), d(1, 40), d(1, 9)); }},
};

class Unknown : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Computations, Unknown, testing::ValuesIn(cases),
                         [](const auto& info) { return info.param.name; });

TEST_P(Unknown, IsWhatItsDeclarationSays) {
    for (uint32_t seed = 1; seed <= 4; ++seed) {
        Draw draw(seed);
        const std::vector<Tensor> outputs = GetParam().declare(draw);
        SCOPED_TRACE(to_string(*outputs[0].operation()));
        const Schedule s = schedules::choose_schedule(outputs, target("sm_90a"));
        Runner runner(s, open_device("emulated"));
        runner.set(random_bindings(outputs, seed));
        const CheckResult check = runner.check();
        EXPECT_TRUE(check.ok) << check.text << "\n" << s.trace_as_cpp();
    }
}

}  // namespace
}  // namespace tw::unknown
