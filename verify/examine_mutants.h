// The worker's side of the mutation fuzzer: who objects to a mutant.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verify/catalog_trial.h"
#include "verify/mutations.h"
#include "verify/prove_equivalent.h"
#include "verify/workers.h"

namespace tw::fuzz {

/// A program whose kernels are altered.
struct MutationSubject {
    std::string name;
    std::unique_ptr<CatalogTrial> trial;
};

/// A mutant of a subject's kernel.
struct MutantCase {
    size_t subject, kernel;
    Mutant mutant;
};

struct Verdict {
    enum class By { Verifier, Compiler, Emulator, Result, Symbolic, Equivalent, Undecided, Nobody } by = By::Nobody;
    std::string text;
};
/// As the text of a message, and back.
std::string packed(const Verdict& verdict);
Verdict unpacked(const std::string& text);

/// Judges mutants, and originals, which must be silent. Where nothing can be compared with the original, what nobody
/// objects to is Undecided.
class MutantExaminer {
public:
    MutantExaminer(const MutationOptions& options, std::vector<MutationSubject>& subjects,
                   const std::vector<MutantCase>& cases, const Tell& tell)
        : options_(options), subjects_(subjects), cases_(cases), tell_(tell) {}

    /// Tells the verdict on each. Numbers from cases.size() on are the subjects unaltered.
    void run(const std::vector<int64_t>& numbers);

private:
    void say(int64_t number, const Verdict& verdict);
    void examine_original(int64_t number, size_t subject);
    void examine(const std::vector<int64_t>& numbers);
    Verdict judge(const MutantCase& current, const CompiledText& mutant);
    Verdict confirmed(const MutantCase& current, const std::string& complaint, uint64_t data);
    Comparison compare(const MutantCase& current);

    const MutantCase& case_of(int64_t number) const { return cases_[static_cast<size_t>(number)]; }
    const std::vector<CompiledText>& originals_of(size_t subject);
    EquivalenceProver& prover_of(size_t subject, size_t kernel);

    const MutationOptions& options_;
    std::vector<MutationSubject>& subjects_;
    const std::vector<MutantCase>& cases_;
    const Tell& tell_;
    std::map<size_t, std::vector<CompiledText>> originals_;
    std::map<std::pair<size_t, size_t>, EquivalenceProver> provers_;
};

}  // namespace tw::fuzz
