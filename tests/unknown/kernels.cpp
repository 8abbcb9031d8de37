// The computations of this folder at sizes that keep a large GPU busy, scheduled by rule, for `tw --load` and
// bench/compare.py. A name is "unknown_", what it computes, and its sizes.
#include <tilewright/kernel.h>

#include "schedules/choose.h"
#include "tests/unknown/computations.h"

using namespace tw;

#define TW_UNKNOWN_KERNEL(name, outputs, operations)                                                              \
    TW_KERNEL(name, [](const Target& target) -> Schedule { return schedules::choose_schedule(outputs, target); }, \
              {.description = "by rule", .flops = operations})

TW_UNKNOWN_KERNEL("unknown_squared_distances_8192x8192x256", unknown::squared_distances(8192, 8192, 256),
                  3.0 * 8192 * 8192 * 256);
TW_UNKNOWN_KERNEL("unknown_shortest_paths_4096x4096x1024", unknown::shortest_paths(4096, 4096, 1024),
                  2.0 * 4096 * 4096 * 1024);
TW_UNKNOWN_KERNEL("unknown_complex_product_4096x4096x1024", unknown::complex_product(4096, 4096, 1024),
                  8.0 * 4096 * 4096 * 1024);
TW_UNKNOWN_KERNEL("unknown_similarity_matrix_8192x8192x512", unknown::similarity_matrix(8192, 8192, 512),
                  2.0 * 8192 * 8192 * 512);
TW_UNKNOWN_KERNEL("unknown_chain_of_three_8x1024x1024x1024x1024", unknown::chain_of_three(8, 1024, 1024, 1024, 1024),
                  4.0 * 8 * 1024 * 1024 * 1024);
TW_UNKNOWN_KERNEL("unknown_low_rank_16x1024x4096x64x4096", unknown::low_rank(16, 1024, 4096, 64, 4096),
                  4.0 * 16 * 1024 * 4096 * 64);
TW_UNKNOWN_KERNEL("unknown_four_bit_product_2048x4096x4096x128", unknown::four_bit_product(2048, 4096, 4096, 128),
                  2.0 * 2048 * 4096 * 4096);
TW_UNKNOWN_KERNEL("unknown_block_sparse_product_128x16x64x8192x1024",
                  unknown::block_sparse_product(128, 16, 64, 8192, 1024), 2.0 * 128 * 16 * 64 * 64 * 1024);
TW_UNKNOWN_KERNEL("unknown_lstm_cell_4096x1024x1024", unknown::lstm_cell(4096, 1024, 1024), 2.0 * 4096 * 4096 * 2048);
TW_UNKNOWN_KERNEL("unknown_odd_product_4000x3001x1001", unknown::odd_product(4000, 3001, 1001),
                  2.0 * 4000 * 3001 * 1001);
TW_UNKNOWN_KERNEL("unknown_gram_matrix_4096x1024", unknown::gram_matrix(4096, 1024), 2.0 * 4096 * 4096 * 1024);
TW_UNKNOWN_KERNEL("unknown_gram_of_channels_16x128x64x64", unknown::gram_of_channels(16, 128, 64, 64),
                  2.0 * 16 * 128 * 128 * 64 * 64);
TW_UNKNOWN_KERNEL("unknown_covariance_65536x512", unknown::covariance(65536, 512), 2.0 * 65536 * 512 * 512);
TW_UNKNOWN_KERNEL("unknown_eight_bit_product_512x4096x4096", unknown::eight_bit_product(512, 4096, 4096),
                  2.0 * 512 * 4096 * 4096);
TW_UNKNOWN_KERNEL("unknown_gathered_product_8192x50000x512x2048", unknown::gathered_product(8192, 50000, 512, 2048),
                  2.0 * 8192 * 512 * 2048);
TW_UNKNOWN_KERNEL("unknown_gathered_experts_64x8x1024x1024", unknown::gathered_experts(64, 8, 1024, 1024),
                  2.0 * 64 * 128 * 1024 * 1024);
TW_UNKNOWN_KERNEL("unknown_few_rows_each_4096x8x512x512", unknown::few_rows_each(4096, 8, 512, 512),
                  2.0 * 4096 * 8 * 512 * 512);
TW_UNKNOWN_KERNEL("unknown_mixed_channels_64x64x56x56x256", unknown::mixed_channels(64, 64, 56, 56, 256),
                  2.0 * 64 * 64 * 56 * 56 * 256);
TW_UNKNOWN_KERNEL("unknown_three_matrices_1024x512x512x1024", unknown::three_matrices(1024, 512, 512, 1024),
                  2.0 * 1024 * 512 * (512 + 1024));
TW_UNKNOWN_KERNEL("unknown_norm_of_channels_32x256x56x56", unknown::norm_of_channels(32, 256, 56, 56),
                  7.0 * 32 * 256 * 56 * 56);
TW_UNKNOWN_KERNEL("unknown_softmax_between_64x512x1024", unknown::softmax_between(64, 512, 1024),
                  5.0 * 64 * 512 * 1024);
TW_UNKNOWN_KERNEL("unknown_means_between_128x512x1024", unknown::means_between(128, 512, 1024), 128.0 * 512 * 1024);
TW_UNKNOWN_KERNEL("unknown_sums_along_time_32x2048x512", unknown::sums_along_time(32, 2048, 512), 32.0 * 2048 * 512);
TW_UNKNOWN_KERNEL("unknown_symmetric_part_8192", unknown::symmetric_part(8192), 2.0 * 8192 * 8192);
TW_UNKNOWN_KERNEL("unknown_gaussian_sums_32768x32768", unknown::gaussian_sums(32768, 32768), 4.0 * 32768 * 32768);
TW_UNKNOWN_KERNEL("unknown_histogram_16777216x256", unknown::histogram(16777216, 256), 16777216.0);
TW_UNKNOWN_KERNEL("unknown_largest_of_segments_65536x1000x128", unknown::largest_of_segments(65536, 1000, 128),
                  65536.0 * 128);
TW_UNKNOWN_KERNEL("unknown_mean_within_16384x4096", unknown::mean_within(16384, 4096), 4.0 * 16384 * 4096);
TW_UNKNOWN_KERNEL("unknown_mean_without_extremes_16384x4096", unknown::mean_without_extremes(16384, 4096),
                  3.0 * 16384 * 4096);
TW_UNKNOWN_KERNEL("unknown_cosines_65536x1024", unknown::cosines(65536, 1024), 6.0 * 65536 * 1024);
TW_UNKNOWN_KERNEL("unknown_best_expert_262144x128", unknown::best_expert(262144, 128), 4.0 * 262144 * 128);
TW_UNKNOWN_KERNEL("unknown_quantised_groups_16384x4096x128", unknown::quantised_groups(16384, 4096, 128),
                  4.0 * 16384 * 4096);
TW_UNKNOWN_KERNEL("unknown_cumulative_sums_8192x4096", unknown::cumulative_sums(8192, 4096), 8192.0 * 4096);
TW_UNKNOWN_KERNEL("unknown_log_sum_exp_pooling_32x113x113x128", unknown::log_sum_exp_pooling(32, 113, 113, 128),
                  36.0 * 32 * 56 * 56 * 128);
TW_UNKNOWN_KERNEL("unknown_four_diffusion_steps_8192x8192", unknown::four_diffusion_steps(8192, 8192),
                  24.0 * 8192 * 8192);
TW_UNKNOWN_KERNEL("unknown_moving_variance_16x4096x512x32", unknown::moving_variance(16, 4096, 512, 32),
                  4.0 * 16 * 4065 * 512 * 32);
