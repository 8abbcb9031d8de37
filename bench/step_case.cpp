#include "bench/step_case.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include "runtime/driver/timer.h"
#include "support/error.h"

namespace tw::bench {
namespace {

std::string written(const std::string& folder, const std::string& name, const HostArray& array) {
    if (folder.empty()) return "";
    const std::string path = folder + "/" + name;
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(array.bytes.data()), static_cast<std::streamsize>(array.bytes.size()));
    if (!file.flush()) throw_error(Error, "prepare: cannot write {}; give a folder with room in \"folder\"", path);
    return path;
}

/// Launches that need not wait for the one in front of them.
size_t num_beside(const PlannedStep& step) {
    size_t beside = 0;
    for (size_t n = 1; n < step.after().size(); ++n) beside += std::ranges::count(step.after()[n], n - 1) == 0;
    return beside;
}

}  // namespace

StepCase::StepCase(const TrainStepRequest& request, std::shared_ptr<Device> device, const std::string& folder)
    : device_(std::move(device)) {
    const auto begin = std::chrono::steady_clock::now();
    made_ = make_train_step(request, device_);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const StepPlan& plan = made_.step.plan();
    facts_ = {{"sizes", made_.sizes},
              {"launches", plan.num_kernels()},
              {"groups", plan.groups.size()},
              {"beside", num_beside(made_.step.planned())},
              {"distinct", plan.num_distinct()},
              {"predicted_ms", plan.seconds() * 1e3},
              {"arena", plan.arena_bytes},
              {"seconds", took.count()},
              {"tensors", nlohmann::json::object()}};
    const std::vector<nn::Tensor>& results = made_.step.results();
    auto is_result = [&](const nn::Tensor& tensor) {
        return std::ranges::any_of(results, [&](const nn::Tensor& each) { return each.same(tensor); });
    };
    for (const auto& [name, tensor] : made_.tensors) {
        nlohmann::json& facts = facts_["tensors"][name] = {{"type", name_of(tensor.type())}, {"shape", tensor.shape()}};
        if (!is_result(tensor)) facts["before"] = written(folder, "before_" + name, tensor.to_host());
    }
    made_.step.run();
    for (const auto& [name, tensor] : made_.tensors)
        facts_["tensors"][name]["after"] = written(folder, "after_" + name, tensor.to_host());
}

nlohmann::json StepCase::profile() {
    constexpr int runs = 20;
    nlohmann::json kernels = nlohmann::json::array();
    for (const Launch& launch : made_.step.planned().launches()) {
        const Graph many = device_->record(std::vector<Launch>(runs, launch));
        const double seconds =
            time_on(*device_, [&](const Stream& stream) { many.run(stream); }, {.warmups = 1, .samples = 3})
                .median_seconds;
        kernels.push_back({{"kernel", launch.kernel().entry()}, {"us", seconds / runs * 1e6}});
    }
    return kernels;
}

double StepCase::burst(int64_t runs) {
    if (runs < 1) throw_error(Error, "burst: \"n\" is {}; give at least 1", runs);
    auto replay = [&](const Stream& stream) {
        for (int64_t run = 0; run < runs; ++run) made_.step.planned().run(stream);
    };
    const int warmups = is_warm_ ? 0 : 1;
    is_warm_ = true;
    return time_on(*device_, replay, {.warmups = warmups, .samples = 1}).median_seconds / static_cast<double>(runs);
}

}  // namespace tw::bench
