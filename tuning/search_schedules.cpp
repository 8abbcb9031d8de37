#include "tuning/search_schedules.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <regex>
#include <unordered_set>

#include "dsl/edit.h"
#include "dsl/found_by_search.h"
#include "dsl/simplify.h"
#include "schedules/calibrated_speeds.h"
#include "support/error.h"
#include "tuning/mutate_schedule.h"

namespace tw::tuning {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t tries_of_each = 8;
constexpr size_t population = 20;
constexpr int64_t most_equal = 2;
constexpr int most_changes = 3;          // from one schedule to the next
constexpr double another_change = 0.35;  // is made
constexpr double longer_text = 3;        // than that of the schedules it begins with: takes long to compile
constexpr double short_text = 1500;      // statements, which do not
constexpr double little_masked = 1.4;    // times the iterations that are needed: where most are masked, idle warps, of
                                         // which the model of time looks at some, are no good measure
constexpr double told_apart = 0.001;     // of the time: less is the same work

/// How many leaves the text has where loops are written out: those that are bound so, and those whose iteration says
/// which register is meant.
double text_of(const Stmt& stmt) {
    if (const Leaf* leaf = stmt.as<Leaf>()) return static_cast<double>(leaf->stores.size());
    if (const Allocate* allocation = stmt.as<Allocate>()) return text_of(allocation->body);
    if (const Sequence* sequence = stmt.as<Sequence>()) {
        double all = 0;
        for (const Stmt& each : sequence->stmts) all += text_of(each);
        return all;
    }
    const For* loop = stmt.as<For>();
    const bool is_written_out = loop->level == Level::Unroll || loop->level == Level::Vector;
    const auto times = is_written_out ? as_constant(loop->extent).value_or(1) : 1;
    return static_cast<double>(times) * text_of(loop->body);
}

/// What was said, without whose line it is, and with names and numbers left out.
std::string kind_of(const std::string& said) {
    static const std::regex place(R"(^.*\.cpp:\d+: )"), named(R"('[^']*'|"[^"]*")"), asked(R"(^(\w+)\(.*?\): )"),
        number(R"(\d+)");
    std::string kind = said.substr(0, said.find('\n'));
    kind = std::regex_replace(kind, place, "");
    kind = std::regex_replace(kind, asked, "$1: ");
    kind = std::regex_replace(kind, named, "''");
    kind = std::regex_replace(kind, number, "#");
    constexpr size_t enough = 120;
    return kind.substr(0, enough);
}

class Evolution {
public:
    Evolution(const std::vector<Schedule>& begin, const SearchOptions& options)
        : options_(options), random_(options.seed), is_deterministic_(begin.at(0).deterministic()) {
        for (size_t k = 0; k < begin.size(); ++k) add_first(begin[k], k);
        for (const One& one : all_) most_statements_ = std::max(most_statements_, longer_text * one.time.statements());
    }

    SearchResult run() {
        while (result_.legal < options_.candidates && result_.tried < tries_of_each * options_.candidates && !is_late())
            take_another();
        for (One& one : all_)
            if (!one.changes.empty() && result_.best.size() < options_.kept && is_other_work(one.time.seconds))
                result_.best.push_back({one.trace->schedule(), std::move(one.time), std::move(one.changes), one.from});
        return std::move(result_);
    }

private:
    struct One {
        std::shared_ptr<const ChangeableTrace> trace;
        codegen::Prediction time;
        std::string changes;
        size_t from;
    };

    void add_first(const Schedule& s, size_t number) {
        known_.insert(s.save());
        most_masked_ = std::max(most_masked_, masked_work(s));
        try {
            add({std::make_shared<ChangeableTrace>(s), predicted(s), "", number});
        } catch (const Error&) {
            if (number == 0) throw;
        }
    }

    bool is_late() const {
        return options_.seconds > 0 && std::chrono::duration<double>(Clock::now() - begin_).count() > options_.seconds;
    }

    static codegen::Prediction predicted(const Schedule& s) {
        return codegen::predict_time(s.tree(), s.target(), schedules::calibrated_speeds(s.target()));
    }

    bool is_other_work(double seconds) const {
        return std::ranges::none_of(result_.best, [&](const GeneratedSchedule& each) {
            return std::abs(each.time.seconds - seconds) < told_apart * seconds;
        });
    }

    /// The fastest first. Of equal work a few are enough, for others to have children.
    void add(One one) {
        const auto is_equal = [&](const One& each) {
            return std::abs(each.time.seconds - one.time.seconds) < told_apart * one.time.seconds;
        };
        if (!one.changes.empty() && std::ranges::count_if(all_, is_equal) >= most_equal) return;
        const auto place =
            std::ranges::upper_bound(all_, one.time.seconds, {}, [](const One& each) { return each.time.seconds; });
        all_.insert(place, std::move(one));
        if (all_.size() > population) all_.pop_back();
    }

    /// The best of three that are drawn: those that are fast have more children.
    const One& parent() {
        const auto count = static_cast<int64_t>(all_.size());
        int64_t best = count - 1;
        for (int drawn = 0; drawn < 3; ++drawn) best = std::min(best, random_.below(count));
        return all_[static_cast<size_t>(best)];
    }

    void take_another() {
        ++result_.tried;
        const One from = parent();
        std::string changes = from.changes;
        try {
            std::shared_ptr<const ChangeableTrace> trace = from.trace;
            std::optional<Schedule> changed;
            for (int left = most_changes; left > 0; --left) {
                std::string change;
                std::optional<Schedule> next = mutate(*trace, random_, change);
                if (next) {
                    changes += (changes.empty() ? "" : ", ") + change;
                    changed = std::move(next);
                    trace = std::make_shared<ChangeableTrace>(*changed);
                }
                if (changed && !random_.chance(another_change)) break;
            }
            if (changed) consider(*changed, {trace, {}, changes, from.from});
        } catch (const Error& refusal) {
            refuse(kind_of(refusal.what()));
        } catch (const InternalError& bug) {  // of ours, which is no reason to find nothing
            refuse(kind_of(bug.what()));
        }
    }

    /// By how much iterations are more than what there is to do, of the stage where masks leave out most.
    static double masked_work(Schedule s) {
        const Schedule::State& state = *Edit::state_of(s);
        auto points = [&](const std::vector<int>& loops) {
            double all = 1;
            for (int id : loops)
                all *= static_cast<double>(as_constant(state.loops[static_cast<size_t>(id)].extent).value_or(1));
            return std::max(all, 1.0);
        };
        double most = 1;
        for (const StageRecord& stage : state.stages)
            if (!stage.inlined) most = std::max(most, points(stage.order) / points(stage.roots));
        return most;
    }

    void refuse(const std::string& why) { ++result_.refused[why]; }

    void consider(const Schedule& s, One one) {
        if (!known_.insert(s.save()).second) return refuse("was looked at before");
        if (is_deterministic_ && !s.deterministic()) return refuse("results would differ from run to run");
        if (masked_work(s) > most_masked_) return refuse("masks would leave out much of its iterations");
        double text = 0;
        for (const Nest& nest : s.tree().nests) text += text_of(nest.body);
        if (text > most_statements_) return refuse("would take long to compile");
        one.time = predicted(s);
        if (one.time.statements() > most_statements_) return refuse("would take long to compile");
        ++result_.legal;
        add(std::move(one));
    }

    const SearchOptions options_;
    Random random_;
    const bool is_deterministic_;
    const Clock::time_point begin_ = Clock::now();
    double most_statements_ = short_text, most_masked_ = little_masked;
    std::vector<One> all_;
    std::unordered_set<std::string> known_;
    SearchResult result_;
};

}  // namespace

SearchResult search_schedules(const std::vector<Schedule>& begin, const SearchOptions& options) {
    const FoundBySearch drawn;
    return Evolution(begin, options).run();
}

}  // namespace tw::tuning
