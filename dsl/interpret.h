// Two interpreters on the CPU: the computation as declared, and a schedule's tree. Slow and obvious; they share no code
// with schedules, so that one checks the other.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dsl/evaluate.h"
#include "dsl/host_array.h"
#include "dsl/tensor.h"
#include "dsl/tree.h"

namespace tw {

/// What a launch is given, by the names of the declaration.
struct Bindings {
    std::map<std::string, HostArray> inputs;
    std::map<std::string, int64_t> sizes;
    std::map<std::string, Value> scalars;
};

/// The outputs, element by element as declared, reductions in the order of their axes. Under Precision::Float64 float
/// outputs are f64 arrays and casts between floats change nothing: the reference for error budgets. Throws Error if an
/// input, size or scalar is missing, has another type, shape or strides, or if an index computed from data leaves its
/// tensor.
std::vector<HostArray> interpret_plain(const std::vector<Tensor>& outputs, const Bindings& bindings,
                                       Precision precision = Precision::Declared);

/// A schedule's tree, run sequentially with bindings to grid, threads and vectors ignored. Its leaves are compiled
/// once. Not for several threads at once.
class TreeInterpreter {
public:
    explicit TreeInterpreter(const Tree& tree);
    TreeInterpreter(TreeInterpreter&&) noexcept;
    ~TreeInterpreter();

    /// The outputs, in the tree's order; outputs that overwrite an input start as that input. Throws Error as
    /// interpret_plain does, and where a leaf leaves a buffer or reads an element that nothing has written (the message
    /// names stage, buffer and indices), or if an element of an output was never written.
    std::vector<HostArray> run(const Bindings& bindings) const;

private:
    struct Compiled;
    std::unique_ptr<Compiled> compiled_;
};

/// TreeInterpreter(tree).run(bindings)
std::vector<HostArray> interpret_tree(const Tree& tree, const Bindings& bindings);

}  // namespace tw
