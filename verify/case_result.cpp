#include "verify/case_result.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "runtime/emulator/emulator.h"
#include "support/error.h"

namespace tw::fuzz {
namespace {

void add(const Message& message, Summary& summary) {
    std::istringstream in(message.text);
    std::string word, verb;
    ++summary.cases;
    while (in >> word) {
        int64_t count = 0;
        if (word == "failure") {
            in.ignore();
            summary.failures.push_back({message.number, std::string(std::istreambuf_iterator<char>(in), {})});
            return;
        }
        in >> count;
        if (word == "kernels") summary.kernels += count;
        if (word == "kernels_refused") summary.kernels_refused += count;
        std::getline(in >> std::ws, verb);
        if (word == "computation") summary.computations[verb] += count;
        if (word == "accepted") summary.accepted += count, summary.accepted_verbs[verb] += count;
        if (word == "refused") summary.refused += count, summary.refused_verbs[verb] += count;
    }
}

std::vector<std::vector<int64_t>> batches_of(const FuzzOptions& options) {
    std::vector<std::vector<int64_t>> batches;
    for (int64_t first = 0; first < options.count; first += options.batch) {
        batches.emplace_back(static_cast<size_t>(std::min(options.batch, options.count - first)));
        std::iota(batches.back().begin(), batches.back().end(), options.first + first);
    }
    return batches;
}

}  // namespace

/// Lines of a word, a count and a name.
std::string CaseResult::encode() const {
    std::string text =
        fmt::format("computation 1 {}\nkernels {} -\nkernels_refused {} -\n", computation, kernels, kernels_refused);
    for (const auto& [verb, count] : accepted) text += fmt::format("accepted {} {}\n", count, verb);
    for (const auto& [verb, count] : refused) text += fmt::format("refused {} {}\n", count, verb);
    return failure.empty() ? text : text + "failure\n" + failure;
}

Problem problem_for(const FuzzOptions& options, int64_t number, Random& random) {
    const auto& all = computations();
    const Computation& chosen =
        options.computation.empty() ? all[static_cast<size_t>(number) % all.size()] : computation(options.computation);
    Problem problem = chosen.make(random);
    problem.name = chosen.name;
    return problem;
}

Summary collect(const FuzzOptions& options, const std::function<void(const std::vector<int64_t>&, const Tell&)>& work) {
    Summary summary;
    auto log = [&] {
        const Failure& last = summary.failures.back();
        if (options.log) options.log(fmt::format("case {} of seed {}: {}", last.number, options.seed, last.text));
    };
    auto result = [&](const Message& message) {
        size_t before = summary.failures.size();
        add(message, summary);
        if (summary.failures.size() > before) log();
        if (options.progress) options.progress(summary.cases);
    };
    auto died = [&](int64_t number, const std::string& how, const std::string& notes) {
        ++summary.cases;
        summary.failures.push_back({number, how + "\n" + notes});
        log();
    };
    if (options.run_kernels) emulator::ask_host_compiler();
    run_in_workers(batches_of(options), {options.workers, options.time_limit_s}, work, result, died);
    return summary;
}

std::string to_string(const Summary& summary) {
    std::string text = fmt::format(
        "{} cases, {} steps accepted, {} refused, {} run as kernels ({} over the target's limits), {} failures\n",
        summary.cases, summary.accepted, summary.refused, summary.kernels, summary.kernels_refused,
        summary.failures.size());
    auto verbs = summary.refused_verbs;
    for (const auto& [verb, count] : summary.accepted_verbs) verbs.try_emplace(verb, 0);
    for (const auto& [verb, refused] : verbs) {
        auto accepted = summary.accepted_verbs.find(verb);
        text += fmt::format("  {:<16} {:>6} accepted {:>6} refused\n", verb,
                            accepted == summary.accepted_verbs.end() ? 0 : accepted->second, refused);
    }
    return text;
}

}  // namespace tw::fuzz
