#include "bench/check_product.h"

#include "bench/random_data.h"
#include "ops/check.h"
#include "support/error.h"

namespace tw::bench {
namespace {

constexpr double most_interpreted = 2e6;  // multiplications; about a second

/// Sums of fp8 keep fewer bits.
int64_t most_of(Type operand) { return bytes_of(operand) == 1 && is_float(operand) ? 1 : 4; }

Bindings whole_numbers(const schedules::TensorProduct& product, int64_t most) {
    Bindings bindings;
    for (const auto& operation : operations_of({product.c})) {
        if (!operation->is_input()) continue;
        std::vector<int64_t> extents;
        for (const Expr& extent : operation->shape) extents.push_back(require_constant(extent));
        HostArray& array = bindings.inputs[operation->name] = host_array(operation->outputs[0].type, extents);
        uint64_t seed = 100 + bindings.inputs.size();
        if (!fill_choices(product, operation->name, array, seed)) fill_whole(array, most, seed);
    }
    return bindings;
}

bool is_small(const schedules::TensorProductShape& s) {
    double batch = static_cast<double>(std::max<int64_t>(s.batch, 1));
    return batch * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) <= most_interpreted;
}

/// With an activation, named approximations are part of the result, which the interpreter does not know.
HostArray by_warps(const schedules::TensorProduct& product, const schedules::TensorProductShape& shape,
                   const Bindings& bindings, const std::shared_ptr<Device>& device, const Target& target) {
    schedules::TensorTiles tiles{
        .block_m = 64, .block_n = 64, .block_k = 64 / bytes_of(shape.operand), .warp_m = 32, .warp_n = 32, .stages = 3};
    Program program = build(schedules::tensor_product_schedule(product, tiles, target));
    Executable executable(program, device);
    HostArray result = run_on(executable, bindings)[0];
    CheckResult check =
        check_output(product.c, bindings, result, {.approximate = program.approximate(), .samples = 256});
    if (!check.ok) throw_error(Error, "nothing to compare results with: by mma_sync in tiles of warps, {}", check.text);
    return result;
}

}  // namespace

bool fill_choices(const schedules::TensorProduct& product, const std::string& input, HostArray& array, uint64_t seed) {
    bool rows = product.rows.defined() && input == product.rows.name();
    bool experts = product.expert.defined() && input == product.expert.name();
    if (rows) fill_integers(array, 0, require_constant(product.a.shape()[1]), seed);
    if (experts) fill_ascending(array, {0, static_cast<double>(require_constant(product.b.shape()[0]))}, seed);
    return rows || experts;
}

ProductCheck::ProductCheck(const schedules::TensorProductShape& shape, const std::shared_ptr<Device>& device,
                           const Target& target)
    : product_(declare_tensor_product(shape)), bindings_(whole_numbers(product_, most_of(shape.operand))) {
    expected_ = is_small(shape) && shape.activation == schedules::Activation::None
                    ? interpret_plain({product_.c}, bindings_)[0]
                    : by_warps(product_, shape, bindings_, device, target);
}

std::optional<std::string> ProductCheck::problem_of(Executable& executable) const {
    HostArray got = run_on(executable, bindings_)[0];
    if (got.bytes == expected_.bytes) return {};
    return difference(product_.c.name(), got, expected_).value_or("its bits differ from those expected");
}

}  // namespace tw::bench
