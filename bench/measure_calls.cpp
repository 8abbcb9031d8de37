#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "bench/measures.h"
#include "bench/train_steps.h"
#include "ops/layers.h"
#include "ops/normalization.h"
#include "support/error.h"

namespace tw::bench {
namespace {

constexpr int Calls = 200;  // fewer than the driver's queue holds, so that none waits for the device
constexpr int Rounds = 30;

/// The median over rounds of host microseconds of one call; the device is idle when a round begins.
double host_microseconds(Device& device, int calls, const std::function<void()>& call) {
    std::vector<double> each;
    for (int round = 0; round < Rounds; ++round) {
        device.synchronize();
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < calls; ++i) call();
        each.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e6 / calls);
    }
    device.synchronize();
    std::ranges::nth_element(each, each.begin() + Rounds / 2);
    return each[Rounds / 2];
}

nn::Tensor random_tensor(const std::shared_ptr<nn::Backend>& backend, const char* name) {
    HostArray host = host_array(f32, {64, 64});
    fill_uniform(host, -1, 1, 7);
    return {backend, host, name};
}

bool relu_is_right(const nn::Tensor& x) {
    const HostArray before = x.to_host(), after = nn::relu(x).to_host();
    for (int64_t i = 0; i < 64; ++i)
        for (int64_t j = 0; j < 64; ++j)
            if (after.at({i, j}).real != std::max(before.at({i, j}).real, 0.0)) return false;
    return true;
}

}  // namespace

nlohmann::json measure_calls(const std::shared_ptr<Device>& device) {
    if (device->kind() != DeviceKind::Cuda)
        throw_error(Error, "calls: host time on the {} device is that of the kernels themselves; give --device cuda",
                    to_string(device->kind()));
    auto backend = std::make_shared<nn::Backend>(device);
    const nn::Tensor x = random_tensor(backend, "x"), y = random_tensor(backend, "y");
    const nn::Tensor leaf = random_tensor(backend, "leaf").set_requires_grad();
    const nn::Linear linear(backend, 64, 64, 1);
    const nn::LayerNorm norm(backend, {64});
    const std::map<std::string, std::function<void()>> operators = {
        {"relu", [&] { nn::relu(x); }},
        {"add", [&] { nn::add(x, y); }},
        {"linear", [&] { linear(x); }},
        {"layer_norm", [&] { norm(x); }},
        {"relu, on tape", [&] { nn::relu(leaf); }},
    };
    nlohmann::json facts{{"operators", nlohmann::json::object()}, {"correct", relu_is_right(x)}};
    for (const auto& [name, call] : operators) {
        for (int i = 0; i < Calls; ++i) call();  // builds, and fills the pool of memory
        facts["operators"][name] = host_microseconds(*device, Calls, call);
    }
    const TrainStep made = make_train_step({.step = "mlp"}, device);
    constexpr int Replays = 20;
    for (int i = 0; i < Replays; ++i) made.step.run();
    facts["step_us"] = host_microseconds(*device, Replays, [&] { made.step.run(); });
    facts["step_kernels"] = made.step.plan().num_kernels();
    facts["correct"] = facts["correct"] && std::isfinite(made.step.results().at(0).to_host().at({}).real);
    return facts;
}

}  // namespace tw::bench
