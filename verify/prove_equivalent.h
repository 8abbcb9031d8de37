// Whether a mutant that nobody caught changes anything at all.
#pragma once
#include <optional>
#include <string>

#include "codegen/thread_ir/thread_ir.h"
#include "verify/symbolic_run.h"
#include "verify/trace_threads.h"

namespace tw::fuzz {

struct Comparison {
    enum class Outcome {
        Same,  ///< stores the same terms: equal values for all data
        SameUnlessItHangs,
        Different,  ///< other terms; their values may still be equal
        Misuse,     ///< only this run sees it: see symbolic_run.h
        Unknown,
        Undecided,  ///< nothing can be compared with the original
    } outcome;
    std::string text;
};

/// Compares what mutants of one kernel store with what the kernel stores; where that cannot be told, as roles run side
/// by side, what each thread does.
class EquivalenceProver {
public:
    EquivalenceProver(const codegen::ThreadKernel& original, const Bindings& sizes);
    Comparison compare(const codegen::ThreadKernel& mutant);
    /// Compares a mutant that only waits elsewhere, or in other threads, for the launches before.
    Comparison compare_waits(const codegen::ThreadKernel& mutant);
    /// Why nothing can be compared with the kernel: its loops or addresses depend on data, for one.
    std::optional<std::string> undecided() const;

private:
    Comparison compare_traces(const codegen::ThreadKernel& mutant);

    const Bindings& sizes_;
    Terms terms_;
    std::variant<Stored, Misuse, Undecided> original_;
    std::variant<Traces, Misuse, Undecided> traced_;
};

}  // namespace tw::fuzz
