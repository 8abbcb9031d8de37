// What a call of an operator runs, built once: later calls differ in their buffers alone.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/executable.h"

namespace tw::nn {

class BuiltCall {
public:
    /// `names` of the declaration: run() takes a buffer for each, in this order. The executable outlives this.
    BuiltCall(const Executable& executable, std::vector<std::string> names);

    /// What it makes, in the order of the program's outputs.
    struct Result {
        Type type;
        std::vector<int64_t> shape;
        std::string name;
    };
    const std::vector<Result>& results() const { return results_; }

    /// The launches of a call; they hold its buffers until forget(). Of equal sizes from call to call, so that after
    /// the first one nothing is looked up by name, and checked but for alignment, unless launches depend on more than
    /// addresses (tensor maps, counters). Throws what Executable::prepare() throws.
    std::span<const Launch> launches(std::span<const Buffer> buffers);
    void forget();

private:
    bool rebind(std::span<const Buffer> buffers);
    void learn(const std::vector<Launch>& prepared);
    std::optional<size_t> slot_of(const std::string& name) const;

    const Executable* executable_;
    std::vector<std::string> names_;
    std::vector<Result> results_;
    std::vector<Launch> launches_;  // of the last call
    bool is_learnt_ = false;  // then `slots_` say which buffer each of their arguments is, workspaces behind those
                              // that are given
    std::vector<std::vector<size_t>> slots_;
    std::vector<int64_t> workspace_bytes_;
};

/// What an operator runs for operands like these, forward or backward.
struct KnownCall {
    struct Operand {
        Type type;
        std::vector<int64_t> shape;
        bool requires_grad = false;
    };
    bool is_backward;
    std::vector<Operand> operands;
    BuiltCall call;
};
/// Of one operator, by the hash of what tells them apart; places stay.
using KnownCalls = std::unordered_multimap<size_t, KnownCall>;

}  // namespace tw::nn
