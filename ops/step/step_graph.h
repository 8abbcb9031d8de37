// A step of computation as a graph: operations, what they read, and what has to come before what.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <source_location>
#include <utility>
#include <vector>

#include "dsl/schedule_options.h"
#include "ops/input_part.h"
#include "ops/step/step_parts.h"
#include "schedules/declared.h"

namespace tw {

/// What a tensor is known by.
using TensorKey = std::pair<const Operation*, int>;
inline TensorKey key_of(const Tensor& tensor) { return {tensor.operation().get(), tensor.output()}; }

/// An operation whose results have memory, or a part with a schedule of its own.
struct StepNode {
    std::shared_ptr<const Operation> operation;            ///< of a part, one that makes a result of it
    std::shared_ptr<const OwnSchedule> own_schedule = {};  ///< of a part
    /// Its outputs; of a part, its results, those undefined that nobody needs.
    std::vector<Tensor> makes;
    /// Operations that it reads through, producers first: each element of theirs is an element of another tensor. They
    /// have no memory; each reader has them for itself.
    std::vector<std::shared_ptr<const Operation>> views;
    std::vector<Tensor> reads;  ///< inputs of the step, and results of other nodes, each once
    bool is_copy = false;       ///< of a result, to the input that it overwrites

    std::vector<Tensor> made() const;  ///< those that are needed
};

/// What is made between some tensors of the step (ops/made_between.h), as nodes.
struct StepRegion {
    std::set<int> nodes;                  ///< those inside
    std::vector<Tensor> inside, results;  ///< what these make, but for results; and the results
    std::set<int> makers;                 ///< nodes that make results
};

struct StepGraph {
    std::vector<StepNode> nodes;                        ///< producers first
    std::vector<Tensor> inputs;                         ///< of the step, in the order in which they are met
    std::vector<Tensor> results;                        ///< in the order in which they were given
    std::vector<std::pair<Tensor, Tensor>> overwrites;  ///< (result, input)
    /// Pairs of nodes: the second one overwrites what the first one reads.
    std::vector<std::pair<int, int>> before;
    std::map<TensorKey, std::vector<int>> readers;  ///< nodes that read the tensor

    /// Of tensors that have another type in memory than they are computed in, unless the group that makes them alone
    /// reads them.
    std::map<TensorKey, Type> stored;

    /// Those that are made again where they are needed late; filled by who knows them (recompute.h). No group has a
    /// part of one with what is neither in it nor a result of it.
    std::vector<StepRegion> regions;

    /// Those that the step reads.
    std::vector<InputPart> input_parts;

    /// Views that have all elements of a tensor with memory in its order, and that tensor: they lie where it lies.
    std::map<const Operation*, Tensor> reshaped;

    /// What it has in memory.
    Type type_of(const Tensor& tensor) const;
    /// Of tensors that are the same result of a part, the one that has memory; any other one itself.
    Tensor known(const Tensor& tensor) const;
    /// The node that makes the tensor; -1 for inputs.
    int maker_of(const Tensor& tensor) const;
    bool is_result(const Tensor& tensor) const;
    std::map<const Operation*, int> makers;
    std::map<std::pair<const OwnSchedule*, int>, Tensor> results_of_parts;
    StepParts parts;
};

/// Of what the results need. A result that overwrites an input has the input's memory, if each element replaces the one
/// that it is made of, and nobody who reads the input needs the result; else it is written elsewhere, and copied by a
/// node of its own behind all of these. Throws Error if there are no results, a result is an input, names of inputs and
/// results are not all different, a shape is no constant or a scalar is read, and if an overwritten tensor is no input
/// that the step reads, or is a part of one, is overwritten twice, or has another shape or type or gaps between its
/// rows.
StepGraph step_graph(const schedules::Declared& step, const OpenedParts& opened = {},
                     const std::vector<InputPart>& input_parts = {}, TW_HERE);

}  // namespace tw
