#include <fmt/format.h>

#include "verify/fuzz_scheduled.h"
#include "verify/random_product.h"

namespace tw::fuzz {

Summary fuzz_tilings(const FuzzOptions& options) {
    return fuzz_scheduled(options, [](Random& random) {
        constexpr double log_extent = 7.6;
        const schedules::TensorProductShape shape = random_product(random, log_extent);
        const bool ampere = shape.operand != e4m3 && random.chance(0.15);
        Target some = target(ampere ? "sm_80" : "sm_90a");
        some.multiprocessors = static_cast<int>(random.between(2, 12));  // so that blocks have several tiles in turn
        const schedules::ProductTiling tiling = random_tiling(random, shape, some);
        return Proposal{
            .text =
                fmt::format("{} on {} multiprocessors of {}", describe(shape, tiling), some.multiprocessors, some.arch),
            .kind = std::holds_alternative<schedules::TensorTiles>(tiling) ? "warps"
                    : std::holds_alternative<schedules::ThinTiles>(tiling) ? "threads"
                                                                           : "warpgroups",
            .schedule = [=] { return tensor_product_schedule(declare_tensor_product(shape), tiling, some); }};
    });
}

}  // namespace tw::fuzz
