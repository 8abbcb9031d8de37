// Modules and functions one behind the other.
//
//   nn::Sequential network{nn::Linear(backend, 64, 128, 1), nn::relu, nn::Linear(backend, 128, 10, 2)};
//   nn::Tensor y = network(x);
#pragma once
#include <functional>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <vector>

#include "dsl/schedule_options.h"
#include "ops/modules/module.h"

namespace tw::nn {

/// A call that makes a tensor of one: a module, a function of this library, a lambda.
class SequentialStage {
public:
    template <class F>
    requires std::is_invocable_r_v<Tensor, const F&, const Tensor&> ||
        std::is_invocable_r_v<Tensor, const F&, const Tensor&, std::source_location>
        SequentialStage(F f) {
        if constexpr (std::derived_from<F, Module>) module = std::make_shared<Module>(f);
        call = [f](const Tensor& x, [[maybe_unused]] std::source_location where) -> Tensor {
            if constexpr (std::is_invocable_v<const F&, const Tensor&, std::source_location>)
                return f(x, where);
            else
                return f(x);
        };
    }

    std::function<Tensor(const Tensor& x, std::source_location where)> call;
    std::shared_ptr<const Module> module;  ///< nullptr of functions
};

/// Names are places, those of functions counted: of the network above "0.weight", "0.bias", "2.weight", "2.bias".
class Sequential : public Module {
public:
    Sequential(std::initializer_list<SequentialStage> stages = {});
    void push_back(const SequentialStage& stage);
    size_t size() const { return stages_->size(); }
    Tensor operator()(const Tensor& x, TW_HERE) const;

private:
    std::shared_ptr<std::vector<SequentialStage>> stages_ = std::make_shared<std::vector<SequentialStage>>();
};

}  // namespace tw::nn
