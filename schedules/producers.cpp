#include "schedules/producers.h"

#include <algorithm>
#include <set>

#include "schedules/element_reads.h"

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

bool reads_by_data(const Schedule& s, const Stage& stage) {
    bool found = false;
    for (const auto& operation : operations_of(s.outputs()))
        if (!operation->is_input() && operation->name == s.name(stage))
            for (const Operation::Output& output : operation->outputs)
                visit(output.body, [&](const Expr& e) {
                    const Read* read = e.as<Read>();
                    found = found || (read && is_chosen_by_data(*read));
                });
    return found;
}

}  // namespace tw::schedules
