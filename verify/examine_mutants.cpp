#include "verify/examine_mutants.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "support/error.h"
#include "verify/telling_data.h"

namespace tw::fuzz {
namespace {

constexpr int kPatience = 10;  // as many times the launches for a mutant whose terms differ

/// Compiles texts together; those that do not compile stay without a module. They are few, and found at once: where
/// some are among many, each half is tried.
std::vector<CompiledText> compiled(std::span<const codegen::KernelText> texts, std::vector<std::string>& errors) {
    std::vector<CompiledText> result;
    for (const codegen::KernelText& text : texts) result.push_back({text, nullptr});
    errors.assign(texts.size(), "");
    try {
        auto modules = emulator::compile_together(sources_of(texts));
        for (size_t t = 0; t < texts.size(); ++t) result[t].module = modules[t];
    } catch (const emulator::CompileFailed& failed) {
        if (texts.size() == 1) {
            errors[0] = failed.what();
            return result;
        }
        std::vector<std::string> others;
        const size_t half = texts.size() / 2;
        result = compiled(texts.first(half), errors);
        for (CompiledText& text : compiled(texts.subspan(half), others)) result.push_back(std::move(text));
        errors.insert(errors.end(), others.begin(), others.end());
    }
    return result;
}

codegen::KernelText printed_text(const Mutant& mutant) {
    codegen::KernelText text =
        codegen::print_cuda(mutant.waits ? mutant.kernel : codegen::programmatic_launch(mutant.kernel));
    const size_t at = mutant.in_text.empty() ? std::string::npos : text.cuda.find(mutant.in_text);
    internal_check(mutant.in_text.empty() || at != std::string::npos, "no '{}' in {}", mutant.in_text, text.name);
    if (at != std::string::npos) text.cuda.replace(at, mutant.in_text.size(), mutant.with);
    return text;
}

bool same_launch(const codegen::KernelText& a, const codegen::KernelText& b) {
    bool same_grid = equal(a.grid[0], b.grid[0]) && equal(a.grid[1], b.grid[1]) && equal(a.grid[2], b.grid[2]);
    bool same_maps = std::equal(a.maps.begin(), a.maps.end(), b.maps.begin(), b.maps.end(),
                                [](const codegen::TensorMapUse& one, const codegen::TensorMapUse& other) {
                                    return one.box == other.box && one.swizzle == other.swizzle &&
                                           one.traversal_strides == other.traversal_strides &&
                                           one.im2col == other.im2col;
                                });
    return same_grid && same_maps && a.threads == b.threads && a.cluster == b.cluster;
}

}  // namespace

std::string packed(const Verdict& verdict) { return fmt::format("{}{}", static_cast<char>(verdict.by), verdict.text); }
Verdict unpacked(const std::string& text) { return {static_cast<Verdict::By>(text.at(0)), text.substr(1)}; }

void MutantExaminer::run(const std::vector<int64_t>& numbers) {
    std::vector<int64_t> mutants;
    for (int64_t number : numbers) {
        auto n = static_cast<size_t>(number);
        if (n < cases_.size())
            mutants.push_back(number);
        else
            examine_original(number, n - cases_.size());
    }
    examine(mutants);
}

void MutantExaminer::say(int64_t number, const Verdict& verdict) {
    tell_({Message::Kind::Result, number, packed(verdict)});
}

void MutantExaminer::examine_original(int64_t number, size_t subject) {
    tell_({Message::Kind::Begin, number, subjects_[subject].name + ", unaltered"});
    CatalogTrial& trial = *subjects_[subject].trial;
    Verdict verdict{Verdict::By::Equivalent, ""};
    for (int seed = 0; seed < options_.original_seeds && verdict.by == Verdict::By::Equivalent; ++seed)
        if (auto complaint =
                trial.run(originals_of(subject), {static_cast<uint64_t>(seed), static_cast<uint64_t>(seed), false}))
            verdict = {Verdict::By::Nobody, fmt::format("seed {}: {}", seed, complaint->text)};
    for (size_t k = 0; k < trial.kernels().size() && verdict.by != Verdict::By::Nobody; ++k) {
        Comparison with_itself = prover_of(subject, k).compare(trial.kernels()[k]);
        if (with_itself.outcome == Comparison::Outcome::Same) continue;
        const bool undecided = with_itself.outcome == Comparison::Outcome::Undecided;
        verdict = {undecided ? Verdict::By::Undecided : Verdict::By::Nobody,
                   fmt::format("kernel {}, run on terms: {}", k, with_itself.text)};
    }
    say(number, verdict);
}

void MutantExaminer::examine(const std::vector<int64_t>& numbers) {
    std::vector<int64_t> printed;
    std::vector<codegen::KernelText> texts;
    for (int64_t number : numbers) {
        tell_({Message::Kind::Begin, number, ""});
        const MutantCase& current = case_of(number);
        try {
            codegen::verify_thread_ir(current.mutant.kernel);
        } catch (const InternalError& refused) {
            say(number, {Verdict::By::Verifier, refused.what()});
            continue;
        }
        codegen::KernelText text = printed_text(current.mutant);
        const codegen::KernelText& original = subjects_[current.subject].trial->texts()[current.kernel];
        if (text.cuda == original.cuda && same_launch(text, original)) {
            say(number, {Verdict::By::Equivalent, "prints the same text"});
            continue;
        }
        printed.push_back(number);
        texts.push_back(std::move(text));
    }
    if (texts.empty()) return;
    tell_({Message::Kind::Begin, numbers.size() == 1 ? numbers[0] : -1, "while it was compiled"});
    std::vector<std::string> errors;
    std::vector<CompiledText> all = compiled(texts, errors);
    for (size_t t = 0; t < all.size(); ++t) {
        tell_({Message::Kind::Begin, printed[t], "while it ran"});
        say(printed[t], all[t].module ? judge(case_of(printed[t]), all[t]) : Verdict{Verdict::By::Compiler, errors[t]});
    }
}

Verdict MutantExaminer::judge(const MutantCase& current, const CompiledText& mutant) {
    CatalogTrial& trial = *subjects_[current.subject].trial;
    std::vector<CompiledText> kernels = originals_of(current.subject);
    kernels[current.kernel] = mutant;
    // Threads in step do not miss a barrier: only other orders do.
    int enough = current.mutant.kind == MutationKind::Barrier ? options_.mutant_seeds : kKindsOfData;
    Comparison comparison{Comparison::Outcome::Unknown, ""};
    int most = options_.mutant_seeds;
    for (int seed = 0; seed < most; ++seed) {
        if (seed == enough) comparison = compare(current);
        // The result may differ by a rounding, for few inputs.
        if (comparison.outcome == Comparison::Outcome::Different) most = kPatience * options_.mutant_seeds;
        if (comparison.outcome == Comparison::Outcome::Same) return {Verdict::By::Equivalent, comparison.text};
        if (comparison.outcome == Comparison::Outcome::Misuse) return {Verdict::By::Symbolic, comparison.text};
        // Threads that do what those of the original do only hang or race, whatever the data.
        const bool is_timing = comparison.outcome == Comparison::Outcome::SameUnlessItHangs;
        const int data = is_timing ? seed % kKindsOfData : seed;
        if (auto complaint = trial.run(kernels, {static_cast<uint64_t>(seed), static_cast<uint64_t>(data), true})) {
            if (complaint->by == Complaint::By::Emulator) return {Verdict::By::Emulator, complaint->text};
            return confirmed(current, complaint->text, static_cast<uint64_t>(data));
        }
    }
    if (comparison.outcome == Comparison::Outcome::SameUnlessItHangs)
        return {Verdict::By::Equivalent, comparison.text + fmt::format(", and ends in {} orders of threads", most)};
    if (comparison.outcome == Comparison::Outcome::Undecided) return {Verdict::By::Undecided, comparison.text};
    return {Verdict::By::Nobody, comparison.text};
}

/// A mutant with another result must not be "proven" to have the same one, of finite data.
Verdict MutantExaminer::confirmed(const MutantCase& current, const std::string& complaint, uint64_t data) {
    const bool same = compare(current).outcome == Comparison::Outcome::Same;
    if (!same || subjects_[current.subject].trial->meets_infinities(originals_of(current.subject), data))
        return {Verdict::By::Result, complaint};
    return {Verdict::By::Nobody, "said to be equivalent, though: " + complaint};
}

Comparison MutantExaminer::compare(const MutantCase& current) {
    if (!current.mutant.in_text.empty()) return {Comparison::Outcome::Unknown, "altered behind what is compared"};
    EquivalenceProver& prover = prover_of(current.subject, current.kernel);
    return current.mutant.waits ? prover.compare_waits(current.mutant.kernel) : prover.compare(current.mutant.kernel);
}

const std::vector<CompiledText>& MutantExaminer::originals_of(size_t subject) {
    auto known = originals_.find(subject);
    if (known != originals_.end()) return known->second;
    std::vector<std::string> errors;
    return originals_[subject] = compiled(subjects_[subject].trial->texts(), errors);
}

EquivalenceProver& MutantExaminer::prover_of(size_t subject, size_t kernel) {
    CatalogTrial& trial = *subjects_[subject].trial;
    return provers_.try_emplace({subject, kernel}, trial.kernels()[kernel], trial.sizes()).first->second;
}

}  // namespace tw::fuzz
