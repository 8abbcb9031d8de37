// A step that is written down instead of run: calls of operators, gradients and updates as one graph of declarations.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/autograd.h"
#include "ops/input_part.h"
#include "ops/made_between.h"
#include "schedules/declared.h"

namespace tw::nn {

/// What a backend writes down while nn::compile() calls the step's function (ops/step/compile_step.h).
class Capture {
public:
    /// What the tensor is now: an input of the step, what a call has made, or what has overwritten it, or what it is a
    /// part of.
    tw::Tensor symbol_of(const Tensor& tensor);
    /// A tensor that a call makes. Its declaration gets a name of its own.
    Tensor made(const std::shared_ptr<Backend>& backend, const tw::Tensor& symbol, const std::string& name);
    /// From here on, the tensor is this: what is returned, under a name of its own. Throws Error if the function has
    /// allocated the tensor: it would be new in each call, and is the same in each run. Throws Error of a tensor that
    /// shares memory with one that is overwritten as a part of it, or as its whole.
    tw::Tensor overwrite(const Tensor& tensor, const tw::Tensor& value);
    /// The same of several tensors and the first outputs of one operation, which gets new names. Returns all of its
    /// outputs.
    std::vector<tw::Tensor> overwrite(const std::vector<Tensor>& tensors, const std::vector<tw::Tensor>& outputs);
    /// d loss / d leaf, for each. Throws Error if one has been overwritten since.
    std::vector<Tensor> gradients_of(const Tensor& loss, const std::vector<Tensor>& leaves, std::source_location where);

    /// Memory that the function allocates: what is overwritten is none of it.
    void note_allocated(const Tensor& tensor) { allocated_.push_back(tensor); }

    /// Calls `f`: what the step makes for its results alone, and did not make before, is not kept for the backward
    /// pass.
    std::vector<Tensor> not_kept(const std::function<std::vector<Tensor>()>& f);
    const std::vector<MadeBetween>& regions() const { return regions_; }

    /// Whether the function has overwritten it; or a part of it.
    bool has_overwritten(const Tensor& tensor) const;
    bool has_overwritten_part_of(const Tensor& whole) const;

    /// All that the results and what is overwritten need.
    schedules::Declared declared(const std::vector<Tensor>& results);
    /// Inputs that are parts of what is overwritten; behind declared().
    std::vector<InputPart> parts() const;
    /// Memory of inputs, by their names in the declaration.
    std::map<std::string, Buffer> given() const;

private:
    /// The same operation under a name that no other has; so have its outputs, which may be given others.
    tw::Tensor named(const tw::Tensor& symbol, const std::string& name, const std::vector<std::string>& outputs = {});
    /// The same, or if another one has its name already, under a name of its own.
    tw::Tensor with_own_name(const tw::Tensor& symbol);
    std::string free_name(const std::string& wish);

    struct Input {
        Tensor tensor;
        tw::Tensor symbol;  ///< as it is given
        tw::Tensor now;
    };
    Input& input_for(const Tensor& tensor);
    Input* known_input(const Tensor& tensor);
    /// Elements of what has overwritten its whole.
    tw::Tensor view_of_part(const Tensor& part, const tw::Tensor& whole_now);
    /// Throws Error if the step could not go on with it.
    void require_outside(const Tensor& overwritten) const;
    void require_no_part_overwritten(const Tensor& overwritten);

    std::vector<Input> inputs_;
    std::vector<Tensor> allocated_;
    std::set<std::string> names_;
    std::vector<std::shared_ptr<const Operation>> named_;
    std::map<std::tuple<const void*, const Operation*, int>, tw::Tensor> views_of_parts_;
    std::vector<MadeBetween> regions_;  // inner ones first
};

}  // namespace tw::nn
