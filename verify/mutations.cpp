#include "verify/mutations.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/emulator/emulator.h"
#include "schedules/register_kernel.h"
#include "support/error.h"
#include "verify/examine_mutants.h"
#include "verify/random.h"
#include "verify/random_step.h"

namespace tw::fuzz {
namespace {

constexpr size_t kMutantsPerBatch = 24;

/// Kernels with roles, small: more steps along k than stages, and more tiles than blocks, ragged at each side.
const char* const kWithRoles[] = {
    "gemm_bf16_136x24x104_tb_tile64x16x32g1s3r",        "gemm_bf16_200x24x104_tb_tile64x16x32g1c2s3r",
    "gemm_bf16_200x24x72_tb_tile64x16x32g1u2s2r",       "gemm_bf16_136x24x72_tb_f32_tile128x16x32g2s2",
    "gemm_bf16_8x136x104_tb_bias_tile8x64x32g1s3rt",    "gemm_bf16_136x16x224_tb_tile64x16x32g1s2p2",
    "gemm_f16_200x64x80_ta_tile64x64x16g1s4r",          "gemm_i8_72x32x160_tb_tile64x16x32g1s4",
    "gemm_e4m3_72x32x256_tb_tile64x16x32g1k64s3r",      "gemm_bf16_200x24x72_tb_bias_tile64x16x32g1u2s2rb",
    "gemm_bf16_200x24x256_tb_lower_tile64x16x64g1u2s3", "gemm_bf16_200x64x72_tb_bias_f32_tile64x64x32g1u2s2r32b",
    "gemm_bf16_72x72x104_tb_tile64x32x32g1c2x2s3",
};

/// Kernels on tensor cores, of types that the catalog has only with roles, or larger.
const char* const kOfOtherTypes[] = {"gemm_f16_33x20x44_ta_tile32x16x16w16x8s3",
                                     "gemm_e4m3_33x24x64_tb_tile32x16x32w16x8s3",
                                     "gemm_tf32_33x20x44_ta_tile32x16x16w16x8s3",
                                     "gemm_i8_20x33x50_tile16x32x64w16x16s2"};

/// Whether elements are combined with values where they lie.
bool has_updates(const Stmt& stmt) {
    if (const For* loop = stmt.as<For>()) return has_updates(loop->body);
    if (const Allocate* allocate = stmt.as<Allocate>()) return has_updates(allocate->body);
    if (const Sequence* block = stmt.as<Sequence>())
        return std::ranges::any_of(block->stmts, [](const Stmt& kid) { return has_updates(kid); });
    return std::ranges::any_of(stmt.as<Leaf>()->stores, [](const StoreTo& store) { return store.atomic.has_value(); });
}
bool has_updates(const Tree& tree) {
    return std::ranges::any_of(tree.nests, [](const Nest& nest) { return has_updates(nest.body); });
}

int64_t input_elements(const Tree& tree) {
    int64_t sum = 0;
    for (const BufferRef& input : tree.inputs) {
        int64_t elements = 1;
        for (const Expr& extent : input->shape) elements *= as_constant(extent).value_or(1);
        sum += elements;
    }
    return sum;
}

bool has_roles(const CatalogTrial& trial) {
    return std::any_of(trial.kernels().begin(), trial.kernels().end(),
                       [](const codegen::ThreadKernel& kernel) { return kernel.producer_threads > 0; });
}

struct Subjects {
    std::vector<MutationSubject> all = {};
    std::vector<std::string> broken = {};  ///< why there is no subject: "name: the error"
};

MutationSubject subject_of(const schedules::CatalogEntry& entry) {
    return {entry.name, std::make_unique<CatalogTrial>(entry)};
}

/// Kernels of users: one that is broken does not keep the others from being tried.
Subjects registered_subjects(const std::vector<const schedules::UserKernel*>& kernels) {
    Subjects subjects;
    for (const schedules::UserKernel* kernel : kernels) try {
            MutationSubject subject = subject_of(kernel->entry);
            subject.trial->sizes();  // the results that are expected
            subjects.all.push_back(std::move(subject));
        } catch (const Error& error) {
            subjects.broken.push_back(fmt::format("{}, unaltered\n    {}", kernel->entry.name, error.what()));
        }
    std::erase_if(subjects.all, [](const MutationSubject& subject) { return subject.trial->kernels().empty(); });
    return subjects;
}

Subjects subjects_of(const MutationOptions& options) {
    Subjects subjects;
    const auto of_users = schedules::registered_kernels();
    const bool any = options.roles || !options.kernel.empty();
    auto add = [&](const schedules::CatalogEntry& entry) {
        MutationSubject subject = subject_of(entry);
        // Kernels of the catalog with roles are so small that no ring turns: what guards it changes nothing.
        if (!subject.trial->kernels().empty() && (any || !has_roles(*subject.trial)))
            subjects.all.push_back(std::move(subject));
    };
    if (!options.kernel.empty()) {
        const schedules::CatalogEntry* entry = schedules::find_kernel(options.kernel);
        if (!entry) throw_error(Error, "no kernel named '{}'; 'tw list' shows those of the catalog", options.kernel);
        add(*entry);
        return subjects;
    }
    if (!options.programs.empty()) {
        for (const schedules::CatalogEntry& entry : options.programs)
            subjects.all.push_back({entry.name, std::make_unique<CatalogTrial>(entry, options.data)});
        return subjects;
    }
    if (options.roles) {
        for (const char* name : kWithRoles) add(*schedules::find_kernel(name));
        return subjects;
    }
    if (!of_users.empty()) return registered_subjects(of_users);
    auto add_if_small = [&](const schedules::CatalogEntry& entry) {
        Schedule s = entry.make(target("sm_90a"));
        // Where updates go, data say, of which no proof knows.
        if (has_updates(s.tree())) return;
        if (s.deterministic() && input_elements(s.tree()) >= options.least_elements &&
            leaf_runs(s.tree()) <= options.most_leaf_runs)
            add(entry);
    };
    for (const auto& entry : schedules::catalog()) add_if_small(entry);
    for (const char* name : kOfOtherTypes) add_if_small(*schedules::find_kernel(name));
    return subjects;
}

std::vector<MutantCase> cases_of(const std::vector<MutationSubject>& subjects, const std::set<MutationKind>& kinds) {
    std::vector<MutantCase> cases;
    for (size_t s = 0; s < subjects.size(); ++s)
        for (size_t k = 0; k < subjects[s].trial->kernels().size(); ++k)
            for (Mutant& mutant : mutants_of(subjects[s].trial->kernels()[k]))
                if (kinds.empty() || kinds.contains(mutant.kind)) cases.push_back({s, k, std::move(mutant)});
    return cases;
}

/// Numbers of the cases to try, ascending: those of the kinds by turns, so that rare ones have their share.
std::vector<int64_t> drawn(const std::vector<MutantCase>& cases, const MutationOptions& options) {
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

/// Each original is with the first of its mutants: who has compiled and interpreted it has done so for both.
std::vector<std::vector<int64_t>> batches_of(const std::vector<int64_t>& chosen, const std::vector<MutantCase>& cases,
                                             size_t num_subjects) {
    std::vector<std::vector<int64_t>> batches;
    std::vector<bool> seen(num_subjects);
    auto original = [&](size_t subject) { return static_cast<int64_t>(cases.size() + subject); };
    for (size_t c = 0; c < chosen.size(); ++c) {
        if (c % kMutantsPerBatch == 0) batches.emplace_back();
        const size_t subject = cases[static_cast<size_t>(chosen[c])].subject;
        if (!seen[subject]) batches.back().push_back(original(subject));
        seen[subject] = true;
        batches.back().push_back(chosen[c]);
    }
    for (size_t s = 0; s < num_subjects; ++s)
        if (!seen[s]) batches.push_back({original(s)});
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
        case Verdict::By::Undecided: ++counts.undecided; break;
        case Verdict::By::Nobody: break;
    }
}

}  // namespace

std::vector<std::string> programs_to_alter(const MutationOptions& options) {
    std::vector<std::string> names;
    for (const MutationSubject& subject : subjects_of(options).all) names.push_back(subject.name);
    return names;
}

MutationSummary fuzz_mutations(const MutationOptions& options) {
    Subjects made = subjects_of(options);
    std::vector<MutationSubject>& subjects = made.all;
    std::vector<MutantCase> cases = cases_of(subjects, options.kinds);
    std::vector<int64_t> chosen = drawn(cases, options);
    MutationSummary summary;
    summary.places = static_cast<int64_t>(cases.size());
    summary.originals = static_cast<int64_t>(subjects.size());
    int64_t done = 0, total = static_cast<int64_t>(chosen.size() + subjects.size());

    auto fail = [&](int64_t number, const std::string& text) {
        summary.failures.push_back({number, text});
        if (options.log) options.log(summary.failures.back());
    };
    for (size_t k = 0; k < made.broken.size(); ++k)
        fail(static_cast<int64_t>(cases.size() + subjects.size() + k), made.broken[k]);

    auto name_of = [&](int64_t number) {
        auto n = static_cast<size_t>(number);
        if (n >= cases.size()) return subjects[n - cases.size()].name + ", unaltered";
        const MutantCase& current = cases[n];
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
        if (n >= cases.size() && by == Verdict::By::Undecided)
            summary.not_compared.push_back({number, name_of(number) + ": " + text});
        if (by == Verdict::By::Nobody) fail(number, name_of(number) + "\n    " + text);
        if (options.progress) options.progress(++done, total);
    };
    auto work = [&](const std::vector<int64_t>& numbers, const Tell& tell) {
        MutantExaminer(options, subjects, cases, tell).run(numbers);
    };
    auto result = [&](const Message& message) {
        Verdict verdict = unpacked(message.text);
        finish(message.number, verdict.by, verdict.text);
    };
    auto died = [&](int64_t number, const std::string& how, const std::string& notes) {
        finish(number, Verdict::By::Nobody, how + " " + notes);
    };
    emulator::ask_host_compiler();
    run_in_workers(batches_of(chosen, cases, subjects.size()), {options.workers, options.time_limit_s}, work, result,
                   died);
    return summary;
}

std::string to_string(const MutationSummary& summary) {
    std::string text = fmt::format("{} programs, {} of them altered, {} possible mutants\n", summary.originals,
                                   summary.programs.size(), summary.places);
    text += fmt::format("{:<12} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>11} {:>10} {:>9}\n", "kind", "made", "verifier",
                        "compiler", "emulator", "result", "terms", "equivalent", "undecided", "survived");
    for (int k = 0; k < kNumMutationKinds; ++k) {
        const MutationCounts& counts = summary.kinds[static_cast<size_t>(k)];
        text += fmt::format("{:<12} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>11} {:>10} {:>9}\n",
                            to_string(static_cast<MutationKind>(k)), counts.made, counts.by_verifier,
                            counts.by_compiler, counts.by_emulator, counts.by_result, counts.by_terms,
                            counts.equivalent, counts.undecided, counts.survived());
    }
    return text;
}

}  // namespace tw::fuzz
