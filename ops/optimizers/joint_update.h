// Small parameters of a group as parts of one tensor, which one operation updates: one launch for all of them
// (elsewhere called multi-tensor, or foreach).
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "ops/optimizers/element_update.h"
#include "ops/overwriting.h"

namespace tw::nn {

/// Lists of places in a list of parameters: those that one operation is to update. Of small ones, for which a launch
/// counts, whose memory nobody else has, no compiled step, view or handle, so that it may be left; or which an
/// optimizer before has put together so. None where there is one alone, and while a step is recorded or captured.
std::vector<std::vector<size_t>> updated_together(const std::vector<Tensor>& parameters);

class JointUpdate {
public:
    /// Moves the parameters into one tensor, in their order, unless they lie so already, and makes one for each state,
    /// zeros. Parts begin at multiples of 256 bytes, as memory of their own does.
    JointUpdate(const std::vector<Tensor>& parameters, const ElementUpdate& update);

    /// States of a parameter, each of its shape, a part of that state of all.
    std::vector<Tensor> states_of(size_t parameter) const;
    /// Whether a step that is captured updates them one by one: rules without states stand behind the products that
    /// make gradients, unless the step has overwritten all of them together before; others where it has overwritten
    /// one.
    bool is_one_by_one() const;
    /// Enqueues the update of all that require gradients, or writes it down; the others and their states keep their
    /// bits. Nothing if none does. `scalars`: as ElementUpdate::next() reads them.
    void run(const std::vector<NamedTensor>& scalars, bool is_scaled);

private:
    using Moved = std::vector<bool>;  // a parameter each
    Overwriting overwriting(const Moved& moved, bool is_scaled) const;

    ElementUpdate update_;
    std::vector<Tensor> each_;
    std::vector<int64_t> first_;  // element of each; and how many there are
    Tensor parameters_;           // f32 [elements]
    std::vector<Tensor> states_;
    std::map<std::pair<Moved, bool>, Overwriting> overwritings_;
};

}  // namespace tw::nn
