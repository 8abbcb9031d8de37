#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/measures.h"
#include "runtime/compile/library.h"
#include "runtime/driver/timer.h"

namespace tw::bench {
namespace {

constexpr int Launches = 500;  // fewer than the driver's queue holds, so that none waits for the device
constexpr int Rounds = 30;

constexpr const char* SmallKernel = R"(
extern "C" __global__ void add_one(float* x, long long n) {
    long long i = blockIdx.x * 64LL + threadIdx.x;
    if (i < n) x[i] += 1.0f;
}
)";

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
    return values[values.size() / 2];
}

template <class Work>
double microseconds_each(Device& device, const Work& launch) {
    device.synchronize();
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < Launches; ++i) launch();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e6 / Launches;
}

void check(const DriverTable& call, cuda::Result result, const char* what) {
    if (result != cuda::Success) throw_error(Error, "launch: {}: {}", what, describe(call, result));
}

/// The same kernel as the driver itself knows it.
class BareKernel {
public:
    BareKernel(const DriverTable& call, const Kernel& kernel) : call_(call) {
        check(call_, call_.module_load_data(&module_, kernel.compiled()->cubin.data()), "cuModuleLoadData");
        check(call_, call_.module_get_function(&function_, module_, kernel.entry().c_str()), "cuModuleGetFunction");
    }
    ~BareKernel() { call_.module_unload(module_); }
    BareKernel(const BareKernel&) = delete;

    void run(cuda::StreamHandle stream, void** arguments) const {
        call_.launch_kernel(function_, 1, 1, 1, 64, 1, 1, 0, stream, arguments, nullptr);
    }

private:
    const DriverTable& call_;
    cuda::Module module_ = nullptr;
    cuda::Function function_ = nullptr;
};

}  // namespace

nlohmann::json measure_launch(const std::shared_ptr<Device>& device, int graph_kernels) {
    if (device->kind() != DeviceKind::Cuda)
        throw_error(Error, "launch: the {} device has no driver whose call could be compared; give --device cuda",
                    to_string(device->kind()));
    if (graph_kernels < 1) throw_error(Error, "launch: a graph of {} kernels; give at least 1", graph_kernels);
    Buffer x = device->allocate(64 * 4, "x");
    x.fill(0);
    Kernel kernel = device->load({.name = "add_one.cu", .source = SmallKernel, .entry = "add_one"});
    Launch launch = device->prepare(kernel, {.grid = {1}, .block = {64}}, {x, int64_t{64}});
    BareKernel bare(load_driver().call, kernel);
    auto stream = static_cast<cuda::StreamHandle>(device->default_stream().handle());

    std::vector<double> prepared_us, bare_us;
    for (int round = 0; round < Rounds; ++round) {
        prepared_us.push_back(microseconds_each(*device, [&] { launch.run(); }));
        bare_us.push_back(microseconds_each(*device, [&] { bare.run(stream, launch.arguments().addresses()); }));
    }
    device->synchronize();
    const float expected = 2.0f * Launches * Rounds;
    const bool correct = x.read<float>() == std::vector<float>(64, expected);

    Graph graph = device->record(std::vector<Launch>(static_cast<size_t>(graph_kernels), launch));
    Timing timing =
        time_on(*device, [&](const Stream& on) { graph.run(on); }, {.samples = Rounds, .runs_per_sample = 20});
    return {{"prepared_us", median(prepared_us)},
            {"bare_us", median(bare_us)},
            {"graph_us", timing.median_seconds * 1e6 / graph_kernels},
            {"correct", correct}};
}

}  // namespace tw::bench
