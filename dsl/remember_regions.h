#pragma once
#include <map>
#include <set>

#include "dsl/schedule_state.h"

namespace tw {

/// While it lives, region_of() remembers what it found of this state, which whoever changes it must have forgotten:
/// regions go by those of the stages around and of all readers, so that each would be found again and again. One
/// inside of another of the same state shares what that one knows.
class RememberRegions {
public:
    explicit RememberRegions(const Schedule::State& state);
    RememberRegions(const RememberRegions&) = delete;
    RememberRegions& operator=(const RememberRegions&) = delete;
    ~RememberRegions();
    void forget() { known_->clear(); }

private:
    friend Region region_of(const Schedule::State& state, int stage, std::source_location where);
    const Schedule::State* state_;
    RememberRegions* outer_;
    std::map<int, Region> own_;
    std::map<int, Region>* known_;
};

/// Of which attached stages regions are found: of those with loops that no step has split or bound, or of all.
enum class Refreshed { Unsettled, All };

/// Gives attached stages whose loops are untouched the extents that their regions have now, in these kernels, which are
/// named by their own stages; all others are as they were. Throws Error if a region changed under loops that were
/// split, where these are asked for, or if a rule is broken.
void refresh_regions(Schedule::State& state, const std::set<int>& kernels, Refreshed which, std::source_location where);

/// Whether no step may give the stage another region: all of its loops were split or bound.
bool is_settled(const Schedule::State& state, const StageRecord& record);

/// The kernels, as they are now, in which a step has changed what regions go by.
std::set<int> kernels_changed(const Schedule::State& before, const Schedule::State& now);

}  // namespace tw
