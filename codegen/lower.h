// From a schedule's tree to CUDA text.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/print/print_cuda.h"
#include "dsl/cite.h"
#include "dsl/target.h"
#include "dsl/tree.h"

namespace tw::codegen {

struct LowerOptions {
    std::vector<std::vector<std::string>> headers;  ///< a nest each: lines of the comment on top of its kernel
    CiteStep cite = {};                             ///< for errors: where a step stands and what it says
    /// Sees every kernel after each pass, as text.
    std::function<void(std::string_view pass, std::string_view kernel, const std::string& text)> dump = {};
    /// Sees every kernel as it is printed, but for what lets kernels overlap.
    std::function<void(const ThreadKernel& kernel)> printed = {};
};

struct Lowered {
    std::vector<KernelText> kernels;  ///< in launch order
    std::vector<std::string> notes;   ///< the defaults taken, a line each, none twice
};

/// All kernels of a schedule. Throws Error, citing the step, if a limit of the target is exceeded.
Lowered lower(const Tree& tree, const Target& target, const LowerOptions& options = {});

/// The kernel of one nest, before what lets it overlap with others, and the defaults taken; no kernel if it computes
/// nothing. Throws Error as lower() does, which does not lower the nest again if it is asked soon.
struct LoweredNest {
    std::optional<ThreadKernel> kernel;
    std::vector<std::string> notes;
};
LoweredNest lower_nest(const Tree& tree, size_t nest, const Target& target, const LowerOptions& options = {});

/// Whom LowerOptions::dump shows kernels behind, in order.
std::vector<std::string> pass_names();

/// The program of one thread of one kernel, before barriers.
ThreadKernel lower_to_threads(const Tree& tree, const Nest& nest, const Target& target, const LowerOptions& options,
                              std::vector<std::string>& notes);

}  // namespace tw::codegen
