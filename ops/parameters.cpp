#include "ops/parameters.h"

namespace tw::nn {

Tensor uniform_parameter(std::shared_ptr<Backend> backend, const std::vector<int64_t>& shape, double bound,
                         uint64_t seed, const std::string& name) {
    HostArray host = host_array(f32, shape);
    fill_uniform(host, -bound, bound, seed);
    return Tensor(std::move(backend), host, name).set_requires_grad();
}

Tensor constant_tensor(std::shared_ptr<Backend> backend, const std::vector<int64_t>& shape, double value,
                       const std::string& name) {
    HostArray host = host_array(f32, shape);
    std::vector<int64_t> at(shape.size(), 0);
    for (bool more = host.num_elements() > 0; more; more = advance(at, shape)) host.set(at, make_value(f32, value));
    return Tensor(std::move(backend), host, name);
}

Tensor constant_parameter(std::shared_ptr<Backend> backend, const std::vector<int64_t>& shape, double value,
                          const std::string& name) {
    return constant_tensor(std::move(backend), shape, value, name).set_requires_grad();
}

std::vector<Tensor> joined(const std::vector<std::vector<Tensor>>& parameters) {
    std::vector<Tensor> all;
    for (const std::vector<Tensor>& each : parameters) all.insert(all.end(), each.begin(), each.end());
    return all;
}

}  // namespace tw::nn
