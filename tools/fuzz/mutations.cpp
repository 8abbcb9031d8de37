#include "tools/fuzz/mutations.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <sstream>

#include <fmt/format.h>

#include "codegen/passes.h"
#include "codegen/thread_walk.h"
#include "support/error.h"
#include "tools/fuzz/catalog_trial.h"
#include "tools/fuzz/prove_equivalent.h"
#include "tools/fuzz/random.h"
#include "tools/fuzz/random_step.h"
#include "tools/fuzz/telling_data.h"
#include "tools/fuzz/workers.h"

namespace tw::fuzz {
namespace {

constexpr size_t kMutantsPerBatch = 24;
constexpr int kPatience = 10;  // as many times the launches for a mutant whose terms differ

struct Subject {
    std::string name;
    std::unique_ptr<CatalogTrial> trial;
};

/// A mutant of a subject's kernel.
struct Case {
    size_t subject, kernel;
    Mutant mutant;
};

struct Verdict {
    enum class By { Verifier, Compiler, Emulator, Result, Symbolic, Equivalent, Nobody } by = By::Nobody;
    std::string text;
};

std::vector<Subject> subjects_of(const MutationOptions& options) {
    std::vector<Subject> subjects;
    auto add = [&](const schedules::CatalogEntry& entry) {
        Subject subject{entry.name, std::make_unique<CatalogTrial>(entry)};
        if (!subject.trial->kernels().empty()) subjects.push_back(std::move(subject));
    };
    if (!options.kernel.empty()) {
        const schedules::CatalogEntry* entry = schedules::find_kernel(options.kernel);
        if (!entry) throw_error(Error, "no kernel named '{}'; 'tw list' shows those of the catalog", options.kernel);
        add(*entry);
        return subjects;
    }
    for (const auto& entry : schedules::catalog())
        if (Schedule s = entry.make(target("sm_90a")); s.deterministic() && leaf_runs(s.tree()) <= options.most_leaf_runs)
            add(entry);
    return subjects;
}

std::vector<Case> cases_of(const std::vector<Subject>& subjects) {
    std::vector<Case> cases;
    for (size_t s = 0; s < subjects.size(); ++s)
        for (size_t k = 0; k < subjects[s].trial->kernels().size(); ++k)
            for (Mutant& mutant : mutants_of(subjects[s].trial->kernels()[k]))
                cases.push_back({s, k, std::move(mutant)});
    return cases;
}

/// Numbers of the cases to try, ascending: those of the kinds by turns, so that rare ones have their share.
std::vector<int64_t> drawn(const std::vector<Case>& cases, const MutationOptions& options) {
    std::array<std::vector<int64_t>, kNumMutationKinds> kinds;
    for (size_t c = 0; c < cases.size(); ++c)
        kinds[static_cast<size_t>(cases[c].mutant.kind)].push_back(static_cast<int64_t>(c));
    Random random(options.seed);
    for (auto& kind : kinds) random.shuffle(kind);
    size_t wanted = options.count <= 0 ? cases.size() : std::min(cases.size(), static_cast<size_t>(options.count));
    std::vector<int64_t> chosen;
    for (size_t turn = 0; chosen.size() < wanted; ++turn)
        for (const auto& kind : kinds)
            if (turn < kind.size() && chosen.size() < wanted) chosen.push_back(kind[turn]);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

/// Compiles texts together; those that do not compile stay without a module.
std::vector<CompiledText> compiled(const std::vector<codegen::KernelText>& texts, std::vector<std::string>& errors) {
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
        for (size_t t = 0; t < texts.size(); ++t) {
            std::vector<std::string> error;
            result[t] = compiled({texts[t]}, error)[0];
            errors[t] = error[0];
        }
    }
    return result;
}

/// The worker's side: mutants of a batch, and originals.
class Examiner {
public:
    Examiner(const MutationOptions& options, std::vector<Subject>& subjects, const std::vector<Case>& cases,
             const Tell& tell)
        : options_(options), subjects_(subjects), cases_(cases), tell_(tell) {}

    /// Numbers from cases.size() on are originals.
    void run(const std::vector<int64_t>& numbers) {
        std::vector<int64_t> mutants;
        for (int64_t number : numbers) {
            auto n = static_cast<size_t>(number);
            if (n < cases_.size())
                mutants.push_back(number);
            else
                original(number, n - cases_.size());
        }
        examine(mutants);
    }

private:
    void say(int64_t number, const Verdict& verdict) {
        tell_({Message::Kind::Result, number, fmt::format("{}{}", static_cast<char>(verdict.by), verdict.text)});
    }

    const std::vector<CompiledText>& originals_of(size_t subject) {
        auto known = originals_.find(subject);
        if (known != originals_.end()) return known->second;
        std::vector<std::string> errors;
        return originals_[subject] = compiled(subjects_[subject].trial->texts(), errors);
    }

    void original(int64_t number, size_t subject) {
        tell_({Message::Kind::Begin, number, subjects_[subject].name + ", unaltered"});
        CatalogTrial& trial = *subjects_[subject].trial;
        Verdict verdict{Verdict::By::Equivalent, ""};
        for (int seed = 0; seed < options_.original_seeds && verdict.by == Verdict::By::Equivalent; ++seed)
            if (auto complaint = trial.run(originals_of(subject), {static_cast<uint64_t>(seed), false}))
                verdict = {Verdict::By::Nobody, fmt::format("seed {}: {}", seed, complaint->text)};
        for (size_t k = 0; k < trial.kernels().size(); ++k) {
            Comparison with_itself = prover_of(subject, k).compare(trial.kernels()[k]);
            if (with_itself.outcome != Comparison::Outcome::Same)
                verdict = {Verdict::By::Nobody, fmt::format("kernel {}, run on terms: {}", k, with_itself.text)};
        }
        say(number, verdict);
    }

    void examine(const std::vector<int64_t>& numbers) {
        std::vector<int64_t> printed;
        std::vector<codegen::KernelText> texts;
        for (int64_t number : numbers) {
            tell_({Message::Kind::Begin, number, ""});
            const Case& current = case_of(number);
            const codegen::KernelText& original = subjects_[current.subject].trial->texts()[current.kernel];
            try {
                codegen::verify_thread_ir(current.mutant.kernel);
            } catch (const InternalError& refused) {
                say(number, {Verdict::By::Verifier, refused.what()});
                continue;
            }
            codegen::KernelText text = codegen::print_cuda(current.mutant.kernel);
            bool same = text.cuda == original.cuda && text.threads == original.threads && same_grid(text, original);
            if (same) {
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
            say(printed[t],
                all[t].module ? judge(case_of(printed[t]), all[t]) : Verdict{Verdict::By::Compiler, errors[t]});
        }
    }

    static bool same_grid(const codegen::KernelText& a, const codegen::KernelText& b) {
        return equal(a.grid[0], b.grid[0]) && equal(a.grid[1], b.grid[1]) && equal(a.grid[2], b.grid[2]);
    }

    const Case& case_of(int64_t number) const { return cases_[static_cast<size_t>(number)]; }

    Verdict judge(const Case& current, const CompiledText& mutant) {
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
            if (auto complaint = trial.run(kernels, {static_cast<uint64_t>(seed), true})) {
                if (complaint->by == Complaint::By::Emulator) return {Verdict::By::Emulator, complaint->text};
                return confirmed(current, complaint->text);
            }
        }
        return {Verdict::By::Nobody, comparison.text};
    }

    /// A mutant with another result must not be "proven" to have the same one.
    Verdict confirmed(const Case& current, const std::string& complaint) {
        if (compare(current).outcome != Comparison::Outcome::Same) return {Verdict::By::Result, complaint};
        return {Verdict::By::Nobody, "said to be equivalent, though: " + complaint};
    }

    Comparison compare(const Case& current) {
        return prover_of(current.subject, current.kernel).compare(current.mutant.kernel);
    }

    EquivalenceProver& prover_of(size_t subject, size_t kernel) {
        CatalogTrial& trial = *subjects_[subject].trial;
        return provers_.try_emplace({subject, kernel}, trial.kernels()[kernel], trial.sizes()).first->second;
    }

    const MutationOptions& options_;
    std::vector<Subject>& subjects_;
    const std::vector<Case>& cases_;
    const Tell& tell_;
    std::map<size_t, std::vector<CompiledText>> originals_;
    std::map<std::pair<size_t, size_t>, EquivalenceProver> provers_;
};

std::vector<std::vector<int64_t>> batches_of(const std::vector<int64_t>& chosen, size_t num_cases,
                                             size_t num_subjects) {
    std::vector<std::vector<int64_t>> batches;
    for (size_t s = 0; s < num_subjects; ++s) batches.push_back({static_cast<int64_t>(num_cases + s)});
    for (size_t first = 0; first < chosen.size(); first += kMutantsPerBatch)
        batches.emplace_back(
            chosen.begin() + static_cast<ptrdiff_t>(first),
            chosen.begin() + static_cast<ptrdiff_t>(std::min(first + kMutantsPerBatch, chosen.size())));
    return batches;
}

void count(Verdict::By by, MutationCounts& counts) {
    ++counts.made;
    switch (by) {
        case Verdict::By::Verifier: ++counts.by_verifier; break;
        case Verdict::By::Compiler: ++counts.by_compiler; break;
        case Verdict::By::Emulator: ++counts.by_emulator; break;
        case Verdict::By::Result: ++counts.by_result; break;
        case Verdict::By::Symbolic: ++counts.by_terms; break;
        case Verdict::By::Equivalent: ++counts.equivalent; break;
        case Verdict::By::Nobody: break;
    }
}

}  // namespace

MutationSummary fuzz_mutations(const MutationOptions& options) {
    std::vector<Subject> subjects = subjects_of(options);
    std::vector<Case> cases = cases_of(subjects);
    std::vector<int64_t> chosen = drawn(cases, options);
    MutationSummary summary;
    summary.places = static_cast<int64_t>(cases.size());
    summary.originals = static_cast<int64_t>(subjects.size());
    int64_t done = 0, total = static_cast<int64_t>(chosen.size() + subjects.size());

    auto name_of = [&](int64_t number) {
        auto n = static_cast<size_t>(number);
        if (n >= cases.size()) return subjects[n - cases.size()].name + ", unaltered";
        const Case& current = cases[n];
        return fmt::format("{}, kernel {}, {}: {}", subjects[current.subject].name,
                           subjects[current.subject].trial->texts()[current.kernel].name,
                           to_string(current.mutant.kind), current.mutant.text);
    };
    auto finish = [&](int64_t number, Verdict::By by, const std::string& text) {
        auto n = static_cast<size_t>(number);
        if (n < cases.size()) {
            count(by, summary.kinds[static_cast<size_t>(cases[n].mutant.kind)]);
            ++summary.programs[subjects[cases[n].subject].name];
            if (by == Verdict::By::Equivalent) summary.equivalent.push_back({number, name_of(number) + ": " + text});
        }
        if (by == Verdict::By::Nobody) {
            summary.failures.push_back({number, name_of(number) + "\n    " + text});
            if (options.log) options.log(summary.failures.back().text);
        }
        if (options.progress) options.progress(++done, total);
    };
    auto work = [&](const std::vector<int64_t>& numbers, const Tell& tell) {
        Examiner(options, subjects, cases, tell).run(numbers);
    };
    auto result = [&](const Message& message) {
        finish(message.number, static_cast<Verdict::By>(message.text.at(0)), message.text.substr(1));
    };
    auto died = [&](int64_t number, const std::string& how, const std::string& notes) {
        finish(number, Verdict::By::Nobody, how + " " + notes);
    };
    run_in_workers(batches_of(chosen, cases.size(), subjects.size()), {options.workers, options.time_limit_s}, work,
                   result, died);
    return summary;
}

std::string to_string(const MutationSummary& summary) {
    std::string text = fmt::format("{} programs of the catalog, {} of them altered, {} possible mutants\n",
                                   summary.originals, summary.programs.size(), summary.places);
    text += fmt::format("{:<12} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>11} {:>9}\n", "kind", "made", "verifier",
                        "compiler", "emulator", "result", "terms", "equivalent", "survived");
    for (int k = 0; k < kNumMutationKinds; ++k) {
        const MutationCounts& counts = summary.kinds[static_cast<size_t>(k)];
        text += fmt::format("{:<12} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>11} {:>9}\n",
                            to_string(static_cast<MutationKind>(k)), counts.made, counts.by_verifier,
                            counts.by_compiler, counts.by_emulator, counts.by_result, counts.by_terms,
                            counts.equivalent, counts.made - counts.caught() - counts.equivalent);
    }
    return text;
}

}  // namespace tw::fuzz
