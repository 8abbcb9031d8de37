#include "codegen/barriers/hitting_set.h"

#include <algorithm>
#include <limits>

namespace tw::codegen {
namespace {

constexpr int kLongestSearch = 200000;

using Set = std::vector<int>;

/// Who hits a set hits the sets around it.
std::vector<Set> smallest_sets(std::vector<Set> sets) {
    std::sort(sets.begin(), sets.end(), [](const Set& a, const Set& b) { return a.size() < b.size(); });
    std::vector<Set> kept;
    for (const Set& set : sets) {
        bool implied = std::any_of(kept.begin(), kept.end(), [&](const Set& small) {
            return std::includes(set.begin(), set.end(), small.begin(), small.end());
        });
        if (!implied) kept.push_back(set);
    }
    return kept;
}

/// Branch and bound over the first set that is not hit yet.
class Search {
public:
    Search(std::vector<Set> sets, const std::vector<double>& weights) : sets_(std::move(sets)), weights_(weights) {
        for (Set& set : sets_)
            std::stable_sort(set.begin(), set.end(), [&](int a, int b) {
                return weights_[a] != weights_[b] ? weights_[a] < weights_[b] : a > b;
            });
    }

    std::vector<int> run() {
        extend(0, 0);
        std::sort(best_.begin(), best_.end());
        return best_;
    }

private:
    void extend(size_t next, double cost) {
        if (cost >= best_cost_ || ++steps_ > kLongestSearch) return;
        while (next < sets_.size() && is_hit(sets_[next])) ++next;
        if (next == sets_.size()) {
            best_ = chosen_;
            best_cost_ = cost;
            return;
        }
        for (int candidate : sets_[next]) {
            chosen_.push_back(candidate);
            extend(next + 1, cost + weights_[candidate]);
            chosen_.pop_back();
        }
    }

    bool is_hit(const Set& set) const {
        return std::any_of(chosen_.begin(), chosen_.end(),
                           [&](int c) { return std::find(set.begin(), set.end(), c) != set.end(); });
    }

    std::vector<Set> sets_;
    const std::vector<double>& weights_;
    Set chosen_, best_;
    double best_cost_ = std::numeric_limits<double>::infinity();
    int steps_ = 0;
};

/// Leaves out what the others make superfluous, the dearest first.
Set without_superfluous(Set chosen, const std::vector<Set>& sets, const std::vector<double>& weights) {
    Set dearest = chosen;
    std::stable_sort(dearest.begin(), dearest.end(), [&](int a, int b) { return weights[a] > weights[b]; });
    for (int candidate : dearest) {
        bool needed = std::any_of(sets.begin(), sets.end(), [&](const Set& set) {
            return std::none_of(set.begin(), set.end(), [&](int member) {
                return member != candidate && std::find(chosen.begin(), chosen.end(), member) != chosen.end();
            });
        });
        if (!needed) chosen.erase(std::find(chosen.begin(), chosen.end(), candidate));
    }
    return chosen;
}

}  // namespace

std::vector<int> cheapest_hitting_set(std::vector<std::vector<int>> sets, const std::vector<double>& weights) {
    std::vector<Set> smallest = smallest_sets(std::move(sets));
    return without_superfluous(Search(smallest, weights).run(), smallest, weights);
}

}  // namespace tw::codegen
