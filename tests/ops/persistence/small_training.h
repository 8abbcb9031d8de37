// A training with all that must not be forgotten: parameters, moments, the number of steps on the device, averages, and
// on the host the step, the order of the data, the place in it and the state of what shuffles it.
#pragma once
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ops/layers.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/persistence/checkpoint.h"
#include "ops/step/compile_step.h"

namespace tw::nn {

class SmallTraining {
public:
    /// `seed` is that of the parameters; the data are always the same.
    SmallTraining(const std::shared_ptr<Device>& device, uint64_t seed)
        : backend(std::make_shared<Backend>(device)),
          x(backend, f32, {Batch, 6}, "x"),
          labels(backend, i32, {Batch}, "labels"),
          hidden(backend, 6, 8, seed),
          output(backend, 8, 3, seed + 1),
          parameters(joined({hidden.parameters(), output.parameters()})),
          adam({parameters}, rate_of(0), {.beta2 = 0.95, .weight_decay = 0.1, .max_norm = 1}),
          ema(parameters, 0.9),
          order(host_array(i64, {Batches})),
          compiled(compile(backend, [&] {
              const Tensor loss = cross_entropy(output(relu(hidden(x))), labels);
              backward(loss);
              adam.step();
              ema.step();
              return std::vector{loss};
          })) {
        for (int64_t k = 0; k < Batches; ++k) order.set({k}, make_value(i64, k));
        checkpoint.add("network", parameters).add("adam", adam.states()).add("ema", ema.averages());
        checkpoint.add("order", order).add("position", position).add("shuffle", shuffle).add("step", step);
    }
    SmallTraining(const SmallTraining&) = delete;
    SmallTraining& operator=(const SmallTraining&) = delete;

    void advance() {
        if (position == 0) shuffle_order();
        const auto batch = static_cast<uint64_t>(order.at({position}).integer);
        HostArray rows = host_array(f32, {Batch, 6}), classes = host_array(i32, {Batch});
        fill_uniform(rows, -1, 1, batch);
        fill_integers(classes, 0, 2, batch);
        x.copy_from_host(rows);
        labels.copy_from_host(classes);
        adam.set_rate(rate_of(step));
        compiled.run();
        position = (position + 1) % Batches;
        ++step;
    }

    /// Everything, with names.
    std::vector<std::pair<std::string, HostArray>> state() const {
        std::vector<std::pair<std::string, HostArray>> all;
        for (const std::vector<Tensor>& tensors : {parameters, adam.states(), ema.averages()})
            for (const Tensor& tensor : tensors) all.emplace_back(tensor.name(), tensor.to_host());
        all.emplace_back("order", order);
        for (const int64_t number : {position, shuffle, step}) {
            all.emplace_back("number", host_array(i64, {}));
            all.back().second.set({}, make_value(i64, number));
        }
        return all;
    }

    static constexpr int64_t Batch = 8, Batches = 5;
    static double rate_of(int64_t step) { return cosine_rate({.peak = 0.05, .warmup = 3, .steps = 200})(step); }

    std::shared_ptr<Backend> backend;
    Tensor x, labels;
    Linear hidden, output;
    std::vector<Tensor> parameters;
    AdamW adam;
    Ema ema;
    HostArray order;
    int64_t position = 0, shuffle = 1, step = 0;
    CompiledStep compiled;
    Checkpoint checkpoint;

private:
    /// From the order that there is: so it is a part of the state.
    void shuffle_order() {
        for (int64_t k = Batches - 1; k > 0; --k) {
            shuffle = (shuffle * 48271) % 2147483647;  // minstd_rand (Park, Miller, Stockmeyer 1993)
            const Value last = order.at({k});
            order.set({k}, order.at({shuffle % (k + 1)}));
            order.set({shuffle % (k + 1)}, last);
        }
    }
};

}  // namespace tw::nn
