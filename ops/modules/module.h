// Modules: what a network is made of, with names.
//
//   struct Block : nn::Module {
//       nn::LayerNorm norm;
//       nn::Linear up, down;
//       Block(const std::shared_ptr<nn::Backend>& backend, int64_t width, uint64_t seed)
//           : norm(register_module("norm", nn::LayerNorm(backend, {width}))),
//             up(register_module("up", nn::Linear(backend, width, 4 * width, seed))),
//             down(register_module("down", nn::Linear(backend, 4 * width, width, seed + 1))) {}
//       nn::Tensor operator()(const nn::Tensor& x) const { return nn::add(x, down(nn::gelu(up(norm(x))))); }
//   };
//   Block block(backend, 64, 1);
//   for (const auto& [name, tensor] : block.named_parameters()) ...  // "norm.weight", "norm.bias", "up.weight", ...
#pragma once
#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/modules/scope.h"
#include "ops/tensor.h"

namespace tw::nn {

/// "blocks.0.attention.qkv.weight" and the tensor.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// Parameters, buffers (what a layer keeps besides, and no optimizer moves) and other modules, each under a name. A
/// handle, as tensors are: copies are the same module. Layers derive from it, and have a call of their own.
class Module {
public:
    Module();
    Module(const Module&) = default;  // no moves: what was moved from would be nothing
    Module& operator=(const Module&) = default;

    /// Its own, then those of its modules, in the order in which they were registered, each tensor under its first
    /// name.
    NamedTensors named_parameters() const;
    NamedTensors named_buffers() const;
    /// named_parameters() without names: for an optimizer.
    std::vector<Tensor> parameters() const;

    /// Of this module and all inside: whether layers that do something else in training do that (batch norm, dropout).
    /// So they begin. What is compiled or recorded stays as it was.
    void train(bool on = true) const;
    void eval() const { train(false); }
    bool is_training() const;

    /// Stands first in a module's call: what a captured step calls while it lives belongs to this module, under the
    /// names that it and those around it are registered by, "blocks.3.attention"; calls of modules inside to these.
    /// Modules of this library have it.
    Scope scope() const;

    /// Of all parameters, of this module and all inside: with `false` they are frozen (Tensor::set_requires_grad()).
    void set_requires_grad(bool on = true, TW_HERE) const;

    // These return what they are given, which makes them initialisers of members. They throw Error if the name is
    // empty, has a dot or has been registered before in this module, if a tensor is undefined, if a parameter is no
    // float, and if a module would be inside of itself.
    /// From here on, the tensor requires a gradient.
    Tensor register_parameter(const std::string& name, const Tensor& tensor, TW_HERE);
    Tensor register_buffer(const std::string& name, const Tensor& tensor, TW_HERE);
    template <std::derived_from<Module> M>
    M register_module(const std::string& name, const M& module, TW_HERE) {
        add_module(name, module, where);
        return module;
    }

private:
    struct State;
    void require_free(const std::string& name, std::source_location where) const;
    void add_module(const std::string& name, const Module& module, std::source_location where);
    bool holds(const Module& other) const;
    void collect(NamedTensors State::*kind, const std::string& prefix, NamedTensors& found) const;

    std::shared_ptr<State> state_;
};

/// Modules of one class by number: "0", "1", ...
template <std::derived_from<Module> Layer>
class ModuleList : public Module {
public:
    void push_back(const Layer& layer, TW_HERE) {
        layers_->push_back(register_module(std::to_string(size()), layer, where));
    }
    size_t size() const { return layers_->size(); }
    const Layer& operator[](size_t index) const { return layers_->at(index); }
    auto begin() const { return layers_->cbegin(); }
    auto end() const { return layers_->cend(); }

private:
    std::shared_ptr<std::vector<Layer>> layers_ = std::make_shared<std::vector<Layer>>();
};

}  // namespace tw::nn
