#include "ops/capture.h"

#include <algorithm>

#include "dsl/joint_gradient.h"
#include "ops/backend.h"
#include "ops/tape/memory_views.h"
#include "ops/tape/tape.h"
#include "runtime/driver/no_host_access.h"
#include "support/error.h"

namespace tw::nn {
namespace {

bool is_part_of(const Tensor& part, const Tensor& whole) {
    return Tape::whole_of(part).defined() && Tape::whole_of(part).same(whole);
}

}  // namespace

std::string Capture::free_name(const std::string& wish) {
    std::string name = wish;
    for (int n = 2; !names_.insert(name).second; ++n) name = fmt::format("{}_{}", wish, n);
    return name;
}

tw::Tensor Capture::named(const tw::Tensor& symbol, const std::string& name, const std::vector<std::string>& outputs) {
    Operation operation = *symbol.operation();
    operation.name = free_name(name);
    for (size_t k = 0; k < outputs.size(); ++k) operation.outputs[k].name = outputs[k];
    for (Operation::Output& output : operation.outputs)
        if (!output.name.empty()) output.name = free_name(output.name);
    named_.push_back(std::make_shared<const Operation>(std::move(operation)));
    return {named_.back(), symbol.output()};
}

Capture::Input* Capture::known_input(const Tensor& tensor) {
    const auto found = std::ranges::find_if(inputs_, [&](const Input& each) { return each.tensor.same(tensor); });
    return found == inputs_.end() ? nullptr : &*found;
}

Capture::Input& Capture::input_for(const Tensor& tensor) {
    if (Input* known = known_input(tensor)) return *known;
    const Shape shape(tensor.shape().begin(), tensor.shape().end());
    const tw::Tensor symbol = input(free_name(tensor.name()), tensor.type(), shape);
    const Buffer& memory = Tape::memory_of(tensor);
    NoHostAccess::note_used(*memory.device(), memory.pointer(), memory.bytes());
    return inputs_.emplace_back(Input{tensor, symbol, symbol});
}

tw::Tensor Capture::symbol_of(const Tensor& tensor) {
    if (tensor.symbol().defined()) return tensor.symbol();
    if (const Tensor& whole = Tape::whole_of(tensor); whole.defined())
        if (const Input* known = known_input(whole); known && !known->now.same(known->symbol))
            return view_of_part(tensor, known->now);
    return input_for(tensor).now;
}

tw::Tensor Capture::view_of_part(const Tensor& part, const tw::Tensor& whole_now) {
    tw::Tensor& view = views_of_parts_[{Tape::id(part), whole_now.operation().get(), whole_now.output()}];
    if (view.defined()) return view;
    const std::vector<int64_t>& shape = part.shape();
    const int64_t first = Tape::first_in_whole(part);
    const tw::Tensor elements = compute(part.name(), {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
        Expr place = integer(0);
        for (size_t d = 0; d < at.size(); ++d) place = place * shape[d] + at[d];
        return whole_now.read({place + first});
    });
    return view = named(elements, part.name());
}

Tensor Capture::made(const std::shared_ptr<Backend>& backend, const tw::Tensor& symbol, const std::string& name) {
    const bool is_known =
        symbol.operation()->is_input() || std::ranges::find(named_, symbol.operation()) != named_.end();
    return Tensor(backend, is_known ? symbol : named(symbol, name), name);
}

tw::Tensor Capture::with_own_name(const tw::Tensor& symbol) {
    if (std::ranges::find(named_, symbol.operation()) != named_.end()) return symbol;
    if (!names_.insert(symbol.name()).second) return named(symbol, symbol.name());
    named_.push_back(symbol.operation());
    return symbol;
}

void Capture::require_outside(const Tensor& overwritten) const {
    internal_check(!overwritten.symbol().defined(), "'{}' is overwritten, but is made by the step", overwritten.name());
    if (std::ranges::any_of(allocated_, [&](const Tensor& each) { return each.same(overwritten); }))
        throw_error(Error,
                    "'{}' is allocated by the function that is captured, and overwritten there: calls would begin with "
                    "it anew, and runs of the step go on with it; make it outside of the function",
                    overwritten.name());
}

bool Capture::has_overwritten(const Tensor& tensor) const {
    return std::ranges::any_of(
        inputs_, [&](const Input& each) { return each.tensor.same(tensor) && !each.now.same(each.symbol); });
}

bool Capture::has_overwritten_part_of(const Tensor& whole) const {
    return std::ranges::any_of(
        inputs_, [&](const Input& each) { return is_part_of(each.tensor, whole) && has_overwritten(each.tensor); });
}

void Capture::require_no_part_overwritten(const Tensor& overwritten) {
    const auto refuse = [&](const Input* other) {
        if (!other || !has_overwritten(other->tensor)) return;
        throw_error(Error,
                    "'{}' {} and '{}' {}, one of which is a part of the other one, are both overwritten in the step "
                    "that is captured: an optimizer updates small parameters together; give it .together = false",
                    overwritten.name(), shape_text(overwritten.shape()), other->tensor.name(),
                    shape_text(other->tensor.shape()));
    };
    if (const Tensor& whole = Tape::whole_of(overwritten); whole.defined()) refuse(known_input(whole));
    for (const Input& each : inputs_)
        if (is_part_of(each.tensor, overwritten)) refuse(&each);
}

tw::Tensor Capture::overwrite(const Tensor& tensor, const tw::Tensor& value) {
    require_outside(tensor);
    require_no_part_overwritten(tensor);
    return input_for(tensor).now = named(value, tensor.name() + "_next");
}

std::vector<tw::Tensor> Capture::overwrite(const std::vector<Tensor>& tensors, const std::vector<tw::Tensor>& outputs) {
    std::vector<std::string> names;
    for (const Tensor& tensor : tensors) {
        require_outside(tensor);
        require_no_part_overwritten(tensor);
        names.push_back(tensor.name() + "_next");
    }
    for (size_t k = 0; k < outputs.size(); ++k)
        internal_check(outputs[k].operation() == outputs[0].operation() && outputs[k].output() == static_cast<int>(k),
                       "'{}' is not output {} of '{}'", outputs[k].name(), k, outputs[0].operation()->name);
    const tw::Tensor next = named(outputs.at(0), outputs[0].operation()->name, names);
    std::vector<tw::Tensor> result;
    for (size_t k = 0; k < outputs.size(); ++k) {
        result.emplace_back(next.operation(), static_cast<int>(k));
        if (k < tensors.size()) input_for(tensors[k]).now = result[k];
    }
    return result;
}

std::vector<Tensor> Capture::gradients_of(const Tensor& loss, const std::vector<Tensor>& leaves,
                                          std::source_location where) {
    std::vector<tw::Tensor> symbols;
    const auto operations = operations_with_rules(loss.symbol());
    for (const Tensor& leaf : leaves) {
        symbols.push_back(symbol_of(leaf));
        user_check(std::ranges::find(operations, symbols.back().operation()) != operations.end(), where,
                   "backward: '{}' was overwritten since '{}' was made of it; call backward() before the update",
                   leaf.name(), loss.name());
    }
    const tw::Tensor one = compute("one", {}, [](const std::vector<Expr>&) { return constant(f32, 1.0); });
    std::vector<Tensor> result;
    const std::vector<tw::Tensor> found = gradients(loss.symbol(), one, symbols);
    for (size_t k = 0; k < leaves.size(); ++k)
        result.emplace_back(leaves[k].backend(), with_own_name(found[k]), "d_" + leaves[k].name());
    return result;
}

std::vector<Tensor> Capture::not_kept(const std::function<std::vector<Tensor>()>& f) {
    const size_t num_before = named_.size();
    const std::vector<Tensor> results = f();
    std::vector<tw::Tensor> before, made;
    for (size_t k = 0; k < num_before; ++k) before.emplace_back(named_[k], 0);
    for (const Tensor& result : results)
        if (result.symbol().defined()) made.push_back(result.symbol());
    if (!made.empty()) regions_.push_back(made_between(before, made));
    return results;
}

schedules::Declared Capture::declared(const std::vector<Tensor>& results) {
    schedules::Declared step;
    for (const Tensor& result : results) step.outputs.push_back(result.symbol());
    for (const Input& each : inputs_) {
        if (each.now.same(each.symbol)) continue;
        step.outputs.push_back(each.now);
        step.in_place.emplace_back(each.now, each.symbol);
    }
    const auto operations = operations_of(step.outputs);
    std::erase_if(inputs_, [&](const Input& each) {  // what nothing is made of in the end
        return each.now.same(each.symbol) && std::ranges::find(operations, each.symbol.operation()) == operations.end();
    });
    for (const Input& each : inputs_)
        for (const Input& other : inputs_)
            if (!each.now.same(each.symbol) && !other.tensor.same(each.tensor) &&
                !is_part_of(other.tensor, each.tensor))
                check_apart(each.tensor, other.tensor);
    for (const auto& operation : operations) {
        const bool is_own =
            std::ranges::any_of(inputs_, [&](const Input& each) { return each.symbol.operation() == operation; });
        if (operation->is_input() && !is_own)
            throw_error(Error,
                        "'{}' belongs to another step that was captured, and is no tensor of this one; make it "
                        "anew in the function",
                        operation->name);
    }
    return step;
}

std::vector<InputPart> Capture::parts() const {
    std::vector<InputPart> parts;
    for (const Input& part : inputs_)
        for (const Input& whole : inputs_)
            if (is_part_of(part.tensor, whole.tensor))
                parts.push_back({part.symbol, whole.symbol, Tape::first_in_whole(part.tensor)});
    return parts;
}

std::map<std::string, Buffer> Capture::given() const {
    std::map<std::string, Buffer> memory;
    for (const Input& each : inputs_) memory[each.symbol.name()] = Tape::memory_of(each.tensor);
    return memory;
}

}  // namespace tw::nn
