#include "schedules/producers.h"

#include <algorithm>
#include <set>

namespace tw::schedules {

std::vector<Stage> producers_of(const Schedule& s, const Stage& stage) {
    std::vector<Stage> found = s.all_stages();
    std::set<int> read{stage.id};
    for (auto each = found.rbegin(); each != found.rend(); ++each)
        if (std::ranges::any_of(s.readers(*each), [&](const Stage& reader) { return read.contains(reader.id); }))
            read.insert(each->id);
    std::erase_if(found, [&](const Stage& each) { return !read.contains(each.id); });
    return found;
}

}  // namespace tw::schedules
