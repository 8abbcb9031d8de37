// Whether a mutant that nobody caught changes anything at all.
#pragma once
#include <string>

#include "codegen/thread_ir.h"
#include "tools/fuzz/symbolic_run.h"

namespace tw::fuzz {

struct Comparison {
    enum class Outcome {
        Same,       ///< stores the same terms: equal values for all data
        Different,  ///< other terms; their values may still be equal
        Misuse,     ///< only this run sees it: see symbolic_run.h
        Unknown,
    } outcome;
    std::string text;
};

/// Compares what mutants of one kernel store with what the kernel stores.
class EquivalenceProver {
public:
    EquivalenceProver(const codegen::ThreadKernel& original, const Bindings& sizes);
    Comparison compare(const codegen::ThreadKernel& mutant);

private:
    const Bindings& sizes_;
    Terms terms_;
    std::variant<Stored, Misuse, Undecided> original_;
};

}  // namespace tw::fuzz
