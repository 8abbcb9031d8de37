// Mutations of the catalog's kernels: proof that the checks would see a wrong code generator.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "schedules/catalog.h"
#include "verify/catalog_trial.h"
#include "verify/fuzz.h"
#include "verify/mutate_kernel.h"

namespace tw::fuzz {

struct MutationOptions {
    int64_t count = 0;  ///< how many mutants, from all kinds alike; 0: all
    uint64_t seed = 1;
    int workers = 2;          ///< processes
    std::string kernel = {};  ///< only this one; without it, those of users if there are any, else the catalog's
    std::vector<schedules::CatalogEntry> programs = {};  ///< these instead of all others
    CatalogTrial::Data data = telling_bindings;          ///< that they are given
    std::set<MutationKind> kinds = {};                   ///< of these alone; empty: of all
    bool roles = false;           ///< only kernels with roles, on wgmma, whose rings turn several times
    double most_leaf_runs = 4e5;  ///< larger kernels of the catalog are left out
    int64_t least_elements = 9;   ///< of inputs; where one element is all, most alterations change nothing
    int mutant_seeds = 20;        ///< launches, with other orders of threads and other data, that may catch a mutant
    int original_seeds = 50;      ///< launches of each original
    double time_limit_s = 120;    ///< a worker that is silent for longer has hung
    std::function<void(const Failure&)> log = {};  ///< gets each failure at once
    std::function<void(int64_t done, int64_t total)> progress = {};
};

/// What became of the mutants of one kind.
struct MutationCounts {
    int64_t made = 0, by_verifier = 0, by_compiler = 0, by_emulator = 0, by_result = 0, by_terms = 0, equivalent = 0;
    int64_t undecided = 0;  ///< nobody objected, and the kernel is none that alterations can be compared with
    int64_t survived() const { return made - caught() - equivalent - undecided; }
    int64_t caught() const { return by_verifier + by_compiler + by_emulator + by_result + by_terms; }
};
struct MutationSummary {
    std::array<MutationCounts, kNumMutationKinds> kinds = {};
    int64_t places = 0;                       ///< mutants that there are
    int64_t originals = 0;                    ///< programs of the catalog, all silent unless listed as failures
    std::map<std::string, int64_t> programs;  ///< mutants made of each
    std::vector<Failure> equivalent;          ///< mutants that provably change nothing, each with the reason
    std::vector<Failure> not_compared;        ///< originals that cannot be run on terms, each with the reason
    std::vector<Failure> failures;            ///< survivors, originals that are not silent or cannot be built
};
/// A table of kinds.
std::string to_string(const MutationSummary& summary);

/// The names of the programs that such options draw from.
std::vector<std::string> programs_to_alter(const MutationOptions& options);

/// Lets the IR verifier, the compiler, the emulator and the comparison with the schedule's tree look at each mutant
/// until one of them objects.
MutationSummary fuzz_mutations(const MutationOptions& options);

}  // namespace tw::fuzz
