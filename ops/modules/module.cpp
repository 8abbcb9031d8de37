#include "ops/modules/module.h"

#include <algorithm>

#include "support/error.h"

namespace tw::nn {

struct Module::State {
    NamedTensors parameters, buffers;
    std::vector<std::pair<std::string, Module>> modules;
    bool is_training = true;
    std::shared_ptr<ModuleName> name = std::make_shared<ModuleName>();
};

Module::Module() : state_(std::make_shared<State>()) {}

void Module::require_free(const std::string& name, std::source_location where) const {
    user_check(!name.empty() && name.find('.') == std::string::npos, where,
               "Module: '{}' is no name; give one that is not empty and has no dot, which joins names", name);
    const auto has_it = [&](const auto& all) {
        return std::ranges::any_of(all, [&](const auto& each) { return each.first == name; });
    };
    user_check(!has_it(state_->parameters) && !has_it(state_->buffers) && !has_it(state_->modules), where,
               "Module: '{}' has been registered before; give each part of a module a name of its own", name);
}

Tensor Module::register_parameter(const std::string& name, const Tensor& tensor, std::source_location where) {
    require_free(name, where);
    user_check(tensor.defined(), where, "Module: parameter '{}' is an undefined tensor; make it first", name);
    state_->parameters.emplace_back(name, tensor.set_requires_grad());
    return tensor;
}

Tensor Module::register_buffer(const std::string& name, const Tensor& tensor, std::source_location where) {
    require_free(name, where);
    user_check(tensor.defined(), where, "Module: buffer '{}' is an undefined tensor; make it first", name);
    state_->buffers.emplace_back(name, tensor);
    return tensor;
}

void Module::add_module(const std::string& name, const Module& module, std::source_location where) {
    require_free(name, where);
    user_check(!module.holds(*this), where,
               "Module: '{}' is this module, or has it inside; register it in one that stands above", name);
    state_->modules.emplace_back(name, module);
    ModuleName& known = *module.state_->name;
    if (known.name.empty()) known = {name, state_->name};
}

bool Module::holds(const Module& other) const {
    return state_ == other.state_ ||
           std::ranges::any_of(state_->modules, [&](const auto& each) { return each.second.holds(other); });
}

void Module::collect(NamedTensors State::*kind, const std::string& prefix, NamedTensors& found) const {
    for (const auto& [name, tensor] : state_.get()->*kind) {
        const auto same = [&, &tensor = tensor](const auto& known) { return known.second.same(tensor); };
        if (std::ranges::none_of(found, same)) found.emplace_back(prefix + name, tensor);
    }
    for (const auto& [name, module] : state_->modules) module.collect(kind, prefix + name + ".", found);
}

NamedTensors Module::named_parameters() const {
    NamedTensors found;
    collect(&State::parameters, "", found);
    return found;
}

NamedTensors Module::named_buffers() const {
    NamedTensors found;
    collect(&State::buffers, "", found);
    return found;
}

std::vector<Tensor> Module::parameters() const {
    std::vector<Tensor> all;
    for (const auto& [name, tensor] : named_parameters()) all.push_back(tensor);
    return all;
}

void Module::train(bool on) const {
    state_->is_training = on;
    for (const auto& [name, module] : state_->modules) module.train(on);
}

void Module::set_requires_grad(bool on, std::source_location where) const {
    for (const Tensor& parameter : parameters()) parameter.set_requires_grad(on, where);
}

Scope Module::scope() const { return Scope(state_->name); }

bool Module::is_training() const { return state_->is_training; }

}  // namespace tw::nn
