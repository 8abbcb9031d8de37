#include "tuning/tune.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "bench/operand_sets.h"
#include "dsl/check_bindings.h"
#include "ops/bound_arguments.h"
#include "runtime/driver/arch.h"
#include "runtime/driver/copy_bandwidth.h"
#include "runtime/driver/timer.h"
#include "support/error.h"
#include "support/version.h"
#include "tuning/check_results.h"

namespace tw::tuning {
namespace {

using bench::OperandSets;
using Clock = std::chrono::steady_clock;

constexpr size_t finalists = 8;
constexpr int first_rounds = 5, fewest_final_rounds = 5, most_final_rounds = 40;
constexpr double settling_seconds = 0.3;  // until clocks and power are those of sustained load
constexpr double first_burst_seconds = 0.003, final_burst_seconds = 0.01;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}
double median(const std::vector<double>& values) { return quantile(values, 0.5); }

/// A tiling on its way from compiling to measuring.
struct Candidate {
    std::string tiling, schedule;
    std::vector<Type> roundings = {};  ///< of the schedule
    std::optional<Executable> executable = {};
    std::string problem = {};                    ///< why it is out
    std::vector<std::vector<Launch>> sets = {};  ///< the launches of a run, for each set of operands
    double one_run = 0;                          ///< seconds, roughly
    Graph graph = {};                            ///< of a burst
    int64_t runs = 0;                            ///< in it
    std::vector<double> seconds = {};            ///< of one run, by bursts
};

/// Has several threads work on each of `count` items; this one reports how many are done.
template <class Work, class Show>
void in_parallel(size_t count, int threads, const Work& work, const Show& show) {
    std::atomic<size_t> next = 0, done = 0;
    auto take = [&] {
        for (size_t i = next++; i < count; i = next++) {
            work(i);
            ++done;
            done.notify_one();
        }
    };
    std::vector<std::jthread> workers;
    for (int i = 0; i < threads; ++i) workers.emplace_back(take);
    for (size_t seen = 0; seen < count; seen = done) {
        show(static_cast<int64_t>(seen));
        done.wait(seen);
    }
}

class Tuner {
public:
    Tuner(const Tunable& tunable, std::shared_ptr<Device> device, const TuneOptions& options, const ShowStep& show)
        : tunable_(tunable),
          device_(std::move(device)),
          options_(options),
          show_(show),
          is_gpu_(device_->kind() == DeviceKind::Cuda),
          target_(target_of(*device_)) {}

    TuneResult tune() {
        auto begin = Clock::now();
        auto lap = [&] { return seconds_since(std::exchange(begin, Clock::now())); };
        enumerate();
        compile();
        double compile_seconds = lap();
        prepare();
        settle();
        measure_all();
        std::vector<Candidate*> fastest_first = measure_best();
        double measure_seconds = lap();
        TuneResult tuned = result(fastest_first);
        tuned.compile_seconds = compile_seconds;
        tuned.measure_seconds = measure_seconds;
        tuned.check_seconds = lap();
        return tuned;
    }

private:
    /// What is taken today comes first.
    void enumerate() {
        std::vector<std::string> tilings = tunable_.tilings(target_);
        if (options_.spread && tunable_.spread && !tilings.empty()) {
            tilings.resize(1);
            for (const std::string& tiling : tunable_.spread(target_, options_.limit))
                if (tiling != tilings[0]) tilings.push_back(tiling);
        }
        for (const std::string& tiling : tilings)
            if (candidates_.size() < std::max<size_t>(options_.limit, 1)) candidates_.push_back({tiling, {}});
        if (candidates_.empty())
            throw_error(Error,
                        "{}: {} has no tilings of it that could be tuned; tune it for a target whose units compute it, "
                        "such as sm_90a, or take what choose_schedule makes of it",
                        tunable_.name, target_.arch);
    }

    void compile() {
        auto one = [&](size_t i) {
            Candidate& candidate = candidates_[i];
            if (i > 0 && is_late(options_.within / 2)) {
                candidate.problem = "no time was left to compile it";
                return;
            }
            attempt(candidate, [&] {
                const Schedule s = tunable_.schedule(candidate.tiling, target_);
                candidate.schedule = s.save();
                candidate.roundings = s.roundings();
                candidate.executable.emplace(build(s), device_);
            });
        };
        auto all = static_cast<int64_t>(candidates_.size());
        int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
        in_parallel(candidates_.size(), options_.threads > 0 ? options_.threads : processors, one,
                    [&](int64_t done) { show_("compile", done, all, ""); });
    }

    /// Whether so many seconds of those in `within` are over.
    bool is_late(double seconds) const { return options_.within > 0 && seconds_since(begin_) >= seconds; }

    /// Notes why a candidate is out. A crash ends everything: nothing runs on this device any more.
    template <class Work>
    void attempt(Candidate& candidate, const Work& work) try {
        work();
    } catch (const StickyError& crash) {
        throw_error(StickyError, "{} with tiling {}: {}", tunable_.name, candidate.tiling, crash.what());
    } catch (const std::exception& problem) {
        candidate.problem = problem.what();
    }

    std::vector<Candidate*> running() {
        std::vector<Candidate*> found;
        for (Candidate& candidate : candidates_)
            if (candidate.problem.empty()) found.push_back(&candidate);
        if (found.empty())
            throw_error(Error,
                        "{}: none of {} tilings is usable; the first, {}: {}; mend what it says, or have more tilings "
                        "tried by a higher limit",
                        tunable_.name, candidates_.size(), candidates_[0].tiling, candidates_[0].problem);
        return found;
    }

    /// Binds operands and runs everything once.
    void prepare() {
        const double least_bytes = is_gpu_ ? static_cast<double>(RotatedBytes) : 0;
        const Tree& tree = running()[0]->executable->program().tree();
        operands_.emplace(tree, *device_, least_bytes, fill_of(tunable_, bench::numbers_of(tree)));
        for (Candidate* candidate : running()) {
            show_measuring(candidate->tiling);
            attempt(*candidate, [&] {
                bind(*candidate);
                auto once = [&](const Stream& stream) {
                    for (const Launch& launch : candidate->sets[0]) launch.run(stream);
                };
                candidate->one_run = time_on(*device_, once, {.warmups = is_gpu_ ? 1 : 0, .samples = 1}).median_seconds;
                device_->synchronize();
            });
        }
    }

    /// Workspaces fill the cache, too: then fewer sets do.
    void bind(Candidate& candidate) {
        int64_t bytes = operands_->bytes();
        for (const BufferRef& workspace : candidate.executable->program().tree().workspaces)
            bytes += bytes_spanned(*workspace, operands_->numbers());
        size_t enough = 1 + static_cast<size_t>(RotatedBytes / std::max<int64_t>(bytes, 1));
        for (size_t set = 0; set < std::min(enough, operands_->sets().size()); ++set)
            candidate.sets.push_back(candidate.executable->prepare(operands_->sets()[set]));
    }

    /// Bursts take all sets of operands in turn, so that none is in the cache when the next candidate begins.
    void record_burst(Candidate& candidate, double seconds) {
        constexpr double most_runs = 400;
        double wanted = std::min(most_runs, seconds / std::max(candidate.one_run, 1e-6));
        candidate.runs = std::max(static_cast<int64_t>(wanted), static_cast<int64_t>(candidate.sets.size()));
        if (!is_gpu_) candidate.runs = 1;
        std::vector<Launch> launches;
        for (int64_t run = 0; run < candidate.runs; ++run) {
            const auto& set = candidate.sets[static_cast<size_t>(run) % candidate.sets.size()];
            launches.insert(launches.end(), set.begin(), set.end());
        }
        candidate.graph = device_->record(launches);
    }

    double burst(const Candidate& candidate) {
        if (options_.clock) return options_.clock(candidate.tiling);
        auto replay = [&](const Stream& stream) { candidate.graph.run(stream); };
        return time_on(*device_, replay, {.warmups = 0, .samples = 1}).median_seconds /
               static_cast<double>(candidate.runs);
    }

    void settle() {
        Candidate& first = *running()[0];
        record_burst(first, first_burst_seconds);
        for (auto begin = Clock::now(); is_gpu_ && seconds_since(begin) < settling_seconds;) burst(first);
    }

    /// Everyone in turn, forwards and backwards, so many times or for so long.
    void measure(const std::vector<Candidate*>& some, int fewest, int most, double seconds) {
        auto begin = Clock::now();
        for (int round = 0; round < most && (round < fewest || seconds_since(begin) < seconds); ++round) {
            if (round > 0 && is_late(options_.within)) return;
            for (size_t i = 0; i < some.size(); ++i) {
                Candidate& candidate = *some[round % 2 == 0 ? i : some.size() - 1 - i];
                if (!candidate.problem.empty()) continue;
                show_measuring(candidate.tiling);
                attempt(candidate, [&] { candidate.seconds.push_back(burst(candidate)); });
            }
        }
    }

    void measure_all() {
        std::vector<Candidate*> all = running();
        for (Candidate* candidate : all)
            attempt(*candidate, [&] {
                record_burst(*candidate, first_burst_seconds);
                if (is_gpu_) burst(*candidate);  // a graph's first run is slower
            });
        int rounds = is_gpu_ ? first_rounds : 1;
        measure(all, rounds, rounds, 0);
    }

    static void sort_by_time(std::vector<Candidate*>& some) {
        auto faster = [](const Candidate* x, const Candidate* y) { return median(x->seconds) < median(y->seconds); };
        std::stable_sort(some.begin(), some.end(), faster);
    }

    /// The fastest first, those that were measured once behind them.
    std::vector<Candidate*> measure_best() {
        std::vector<Candidate*> all = running();
        sort_by_time(all);
        if (!is_gpu_) return all;
        auto today = std::find(all.begin(), all.end(), &candidates_[0]);
        size_t count = std::min(finalists, all.size());
        if (today != all.end() && today - all.begin() >= static_cast<int64_t>(count))
            std::iter_swap(today, all.begin() + static_cast<int64_t>(count) - 1);
        std::vector<Candidate*> best(all.begin(), all.begin() + static_cast<int64_t>(count));
        for (Candidate* candidate : best) {
            candidate->seconds.clear();
            attempt(*candidate, [&] {
                record_burst(*candidate, final_burst_seconds);
                burst(*candidate);
            });
        }
        measure(best, fewest_final_rounds, most_final_rounds, options_.seconds);
        std::erase_if(best, [](const Candidate* candidate) { return !candidate->problem.empty(); });
        sort_by_time(best);
        best.insert(best.end(), all.begin() + static_cast<int64_t>(count), all.end());
        return best;
    }

    /// What gains less than is asked for stands behind today's.
    std::vector<Candidate*> with_today_before_equals(std::vector<Candidate*> some) {
        const auto today = std::ranges::find(some, &candidates_[0]);
        if (today == some.end()) return some;
        const double needed = median(candidates_[0].seconds) * (1 - options_.least_gain);
        const auto first =
            std::find_if(some.begin(), today, [&](const Candidate* c) { return median(c->seconds) > needed; });
        std::rotate(first, today, today + 1);
        return some;
    }

    TuneResult result(const std::vector<Candidate*>& fastest_first) {
        TuneResult result;
        result.today = candidates_[0].tiling;
        for (const Candidate* candidate : fastest_first)
            result.measured.push_back({candidate->tiling, median(candidate->seconds) * 1e3});
        if (!candidates_[0].seconds.empty()) result.today_milliseconds = median(candidates_[0].seconds) * 1e3;
        ResultCheck check(tunable_, device_, target_);
        Candidate* winner = nullptr;
        for (Candidate* candidate : with_today_before_equals(fastest_first)) {
            attempt(*candidate, [&] {
                if (auto wrong = check.problem_of(*candidate->executable, candidate->roundings))
                    candidate->problem = "WRONG: " + *wrong;
            });
            if (!candidate->problem.empty()) continue;
            winner = candidate;
            break;
        }
        for (const Candidate& candidate : candidates_)
            if (!candidate.problem.empty()) result.skipped.push_back({candidate.tiling, candidate.problem});
        if (!winner) running();  // throws
        result.record = record_of(*winner);
        put_times_in_record(result);
        return result;
    }

    schedules::TunedRecord record_of(const Candidate& winner) const {
        double middle = median(winner.seconds);
        double width = quantile(winner.seconds, 0.75) - quantile(winner.seconds, 0.25);
        return {.kernel = tunable_.name,
                .tiling = winner.tiling,
                .schedule = winner.schedule,
                .device = device_->name(),
                .arch = is_gpu_ || options_.clock ? target_.arch : "emulated " + target_.arch,
                .version = TILEWRIGHT_VERSION,
                .milliseconds = middle * 1e3,
                .spread = width / middle};
    }

    /// Measuring begins with a run of each candidate; on a GPU, all take part in first rounds, the best in final ones.
    void show_measuring(const std::string& next) {
        auto all = static_cast<int64_t>(candidates_.size());
        int64_t best = std::min<int64_t>(all, finalists);
        int64_t steps = is_gpu_ ? all * (1 + first_rounds) + best * most_final_rounds : 2 * all;
        show_("measure", steps_done_++, steps, next);
    }

    const Tunable& tunable_;
    std::shared_ptr<Device> device_;
    TuneOptions options_;
    const ShowStep& show_;
    bool is_gpu_;
    Target target_;
    std::vector<Candidate> candidates_;
    std::optional<OperandSets> operands_;
    int64_t steps_done_ = 0;
    Clock::time_point begin_ = Clock::now();
};

/// Whether there is all that a tuner asks for.
void check_request(const Tunable& tunable, const std::shared_ptr<Device>& device, const TuneOptions& options) {
    const std::string name = tunable.name.empty() ? "a kernel without a name" : tunable.name;
    const std::pair<const char*, bool> needed[] = {{"a name", !tunable.name.empty()},
                                                   {"outputs", !tunable.outputs.empty()},
                                                   {"tilings", tunable.tilings != nullptr},
                                                   {"a schedule for each tiling", tunable.schedule != nullptr}};
    for (const auto& [what, is_there] : needed)
        if (!is_there) throw_error(Error, "tune: {}: its Tunable lacks {}; give that", name, what);
    if (!device) throw_error(Error, "tune: {}: no device; give one, as open_device(\"cuda\")", name);
    if (options.seconds < 0 || options.within < 0 || options.threads < 0 || options.least_gain < 0)
        throw_error(Error, "tune: {}: seconds = {}, within = {}, threads = {}, least_gain = {}; give none below 0",
                    name, options.seconds, options.within, options.threads, options.least_gain);
}

}  // namespace

void put_times_in_record(TuneResult& result) {
    result.record.measured.clear();
    for (const MeasuredTiling& each : result.measured)
        if (std::ranges::find(result.skipped, each.tiling, &SkippedTiling::tiling) == result.skipped.end())
            result.record.measured.push_back(each);
}

TuneResult tune(const Tunable& tunable, const std::shared_ptr<Device>& device, const TuneOptions& options,
                const ShowStep& show) {
    check_request(tunable, device, options);
    return Tuner(tunable, device, options, show).tune();
}

}  // namespace tw::tuning
