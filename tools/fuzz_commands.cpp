// tw fuzz: random legal schedules, illegal steps, and mutations of kernels.
#include <algorithm>
#include <limits>
#include <memory>
#include <thread>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "support/progress.h"
#include "tools/commands.h"
#include "tools/near_names.h"
#include "tools/numbers.h"
#include "tools/output.h"
#include "verify/fuzz.h"
#include "verify/mutations.h"
#include "verify/run_kernels.h"

namespace tw {
namespace {

struct Options {
    int64_t count = 200, first = 0;
    uint64_t seed = 1;
    std::string computation, kernel, device = "emulated";
    bool interpreter_only = false, roles = false, json = false;
};

nlohmann::json as_json(const std::vector<fuzz::Failure>& cases) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& one : cases) list.push_back({{"case", one.number}, {"text", one.text}});
    return list;
}

std::string told(const fuzz::Failure& failure) { return fmt::format("case {}:\n{}\n", failure.number, failure.text); }

std::string all_told(const std::vector<fuzz::Failure>& failures) {
    std::string text;
    for (const auto& failure : failures) text += told(failure);
    return text;
}

int report(nlohmann::json facts, const std::string& text, const std::vector<fuzz::Failure>& failures, bool json,
           bool already_told = false) {
    if (json) {
        facts["failures"] = as_json(failures);
        print("{}\n", json_text(facts));
    } else {
        print("{}{}\n{} wrong\n", already_told ? "" : all_told(failures), text, failures.size());
    }
    return failures.empty() ? StatusDone : StatusFailed;
}

void check_computation(const std::string& wish) {
    std::vector<std::string> names;
    for (const auto& known : fuzz::computations()) names.push_back(known.name);
    if (wish.empty() || std::find(names.begin(), names.end(), wish) != names.end()) return;
    std::vector<std::string> close = near_names(wish, names, names.size());
    throw CLI::ValidationError(
        fmt::format("no computation named '{}'; there are {}", wish, fmt::join(close.empty() ? names : close, ", ")));
}

fuzz::FuzzOptions cases_of(const Options& o, Progress& progress) {
    fuzz::FuzzOptions options;
    options.count = o.count;
    options.seed = o.seed;
    options.first = o.first;
    options.computation = o.computation;
    if (!o.interpreter_only) options.run_kernels = fuzz::run_on_device(o.device);
    options.progress = [&progress](int64_t done) { progress.show(done); };
    return options;
}

/// Steps by verb: {"split": {"accepted": 12, "refused": 3}, ...}
nlohmann::json verbs_of(const fuzz::Summary& summary) {
    nlohmann::json verbs = nlohmann::json::object();
    auto add = [&](const char* what, const std::map<std::string, int64_t>& counts) {
        for (const auto& [verb, count] : counts) {
            verbs.emplace(verb, nlohmann::json{{"accepted", 0}, {"refused", 0}});
            verbs[verb][what] = count;
        }
    };
    add("accepted", summary.accepted_verbs);
    add("refused", summary.refused_verbs);
    return verbs;
}

int fuzz_schedules(const Options& o) {
    check_computation(o.computation);
    Progress progress("schedules", o.count);
    fuzz::Summary summary = fuzz::fuzz_schedules(cases_of(o, progress));
    progress.clear();
    nlohmann::json facts{{"cases", summary.cases},
                         {"seed", o.seed},
                         {"steps_accepted", summary.accepted},
                         {"steps_refused", summary.refused},
                         {"kernels", summary.kernels},
                         {"kernels_refused", summary.kernels_refused},
                         {"computations", summary.computations},
                         {"verbs", verbs_of(summary)}};
    return report(facts, fuzz::to_string(summary), summary.failures, o.json);
}

int fuzz_scheduled(const Options& o, const char* what, fuzz::Summary (*run)(const fuzz::FuzzOptions&)) {
    Progress progress(what, o.count);
    fuzz::Summary summary = run(cases_of(o, progress));
    progress.clear();
    nlohmann::json facts{{"cases", summary.cases},
                         {"seed", o.seed},
                         {"kernels", summary.kernels},
                         {"refused", summary.kernels_refused},
                         {"kinds", summary.computations}};
    std::string text = fmt::format("{} {}: {} ran, {} are over the target's limits", summary.cases, what,
                                   summary.kernels, summary.kernels_refused);
    return report(facts, text, summary.failures, o.json);
}

int fuzz_illegal(const Options& o) {
    fuzz::IllegalSummary summary = fuzz::fuzz_illegal(o.count, o.seed);
    nlohmann::json kinds = nlohmann::json::object();
    std::string text;
    for (const auto& kind : summary.kinds) {
        kinds[kind.name] = kind.tried;
        text += fmt::format("{:<40} {:>6}\n", kind.name, kind.tried);
    }
    return report({{"seed", o.seed}, {"kinds", kinds}}, text, summary.failures, o.json);
}

int fuzz_mutations(const Options& o) {
    std::unique_ptr<Progress> progress;
    fuzz::MutationOptions options;
    options.count = o.count;
    options.seed = o.seed;
    options.kernel = o.kernel;
    options.roles = o.roles;
    options.workers = std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
    options.progress = [&](int64_t done, int64_t total) {
        if (!progress) progress = std::make_unique<Progress>("mutants", total);
        progress->show(done);
    };
    options.log = [&](const fuzz::Failure& failure) {
        if (progress) progress->clear();
        if (!o.json) print("{}", told(failure));
    };
    fuzz::MutationSummary summary = fuzz::fuzz_mutations(options);
    progress.reset();
    nlohmann::json kinds = nlohmann::json::object();
    for (int k = 0; k < fuzz::kNumMutationKinds; ++k) {
        const fuzz::MutationCounts& counts = summary.kinds[static_cast<size_t>(k)];
        kinds[to_string(static_cast<fuzz::MutationKind>(k))] = {{"made", counts.made},
                                                                {"verifier", counts.by_verifier},
                                                                {"compiler", counts.by_compiler},
                                                                {"emulator", counts.by_emulator},
                                                                {"result", counts.by_result},
                                                                {"terms", counts.by_terms},
                                                                {"equivalent", counts.equivalent},
                                                                {"undecided", counts.undecided}};
    }
    std::string text;
    for (const auto& same : summary.equivalent)
        text += fmt::format("case {} changes nothing: {}\n", same.number, same.text);
    for (const auto& one : summary.not_compared)
        text += fmt::format("case {} is not compared with mutants, only run: {}\n", one.number, one.text);
    return report({{"seed", o.seed},
                   {"kinds", kinds},
                   {"equivalent", as_json(summary.equivalent)},
                   {"not_compared", as_json(summary.not_compared)},
                   {"originals", summary.originals}},
                  text + to_string(summary), summary.failures, o.json, true);
}

}  // namespace

void add_fuzz_commands(CLI::App& app, int& status) {
    auto o = std::make_shared<Options>();
    auto* group = app.add_subcommand("fuzz", "random checks");
    group->require_subcommand(1);
    auto add_common = [o](CLI::App* command) {
        command->add_option("--count", o->count, "how many cases")
            ->check(whole_number(0, std::numeric_limits<int64_t>::max()));
        command->add_option("--seed", o->seed, "case k of a seed is always the same")->check(seed_number());
        command->add_flag("--json", o->json, "as JSON");
    };
    auto add_first = [o](CLI::App* command) {
        command->add_option("--first", o->first, "the number of the first case, to run one again")
            ->check(whole_number(0, std::numeric_limits<int64_t>::max()));
    };
    auto add_device = [o](CLI::App* command) {
        command->add_option("--device", o->device, "cuda, cuda:1 or emulated; the emulator if not given");
    };
    auto* schedules =
        group->add_subcommand("schedules", "random legal schedules, checked after each step and as kernels");
    add_common(schedules);
    add_first(schedules);
    add_device(schedules);
    schedules->add_option("--computation", o->computation, "only this one");
    schedules->add_flag("--interpreter-only", o->interpreter_only, "no kernels");
    schedules->callback([o, &status] { status = fuzz_schedules(*o); });
    auto* tilings = group->add_subcommand("tilings", "random products on tensor cores in random tilings, as kernels");
    add_common(tilings);
    add_first(tilings);
    add_device(tilings);
    tilings->callback([o, &status] { status = fuzz_scheduled(*o, "products", fuzz::fuzz_tilings); });
    auto* convolutions =
        group->add_subcommand("convolutions", "random convolutions and their gradients on tensor cores, as kernels");
    add_common(convolutions);
    add_first(convolutions);
    add_device(convolutions);
    auto* automatic =
        group->add_subcommand("automatic", "random computations as choose_schedule takes them, as kernels");
    add_common(automatic);
    add_first(automatic);
    add_device(automatic);
    automatic->callback([o, &status] { status = fuzz_scheduled(*o, "computations", fuzz::fuzz_automatic); });
    convolutions->callback([o, &status] { status = fuzz_scheduled(*o, "convolutions", fuzz::fuzz_convolutions); });
    auto* illegal = group->add_subcommand("illegal", "steps that must be refused");
    add_common(illegal);
    illegal->callback([o, &status] { status = fuzz_illegal(*o); });
    auto* mutations = group->add_subcommand(
        "mutations", "kernels of the catalog, or of --load, with one place altered, which the checks must catch");
    add_common(mutations);
    mutations->get_option("--count")->description("how many mutants; 0: all of them");
    mutations->add_option("--kernel", o->kernel, "a name of `tw list`: only this one");
    mutations->add_flag("--roles", o->roles, "only kernels with roles, on wgmma");
    add_load_option(mutations);
    mutations->callback([o, &status] { status = fuzz_mutations(*o); });
}

}  // namespace tw
