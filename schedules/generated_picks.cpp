#include "schedules/generated_picks.h"

#include "dsl/found_by_search.h"
#include "runtime/compile/cubin_format.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

const std::string name_of_generated = "generated";  // no choice is called so: theirs have a dot

std::string number_of_trace(const std::string& trace) { return entry_file_name(trace).substr(0, 8); }

}  // namespace

Picks generated_picks(const Picks& begun_with, const std::string& trace) {
    Picks picks = begun_with;
    picks[name_of_generated] = number_of_trace(trace);
    return picks;
}

bool are_generated(const Picks& picks) { return picks.contains(name_of_generated); }

Picks without_generated(Picks picks) {
    picks.erase(name_of_generated);
    return picks;
}

Schedule as_generated(const Picks& picks, const std::string& trace, const Schedule& begun_with) {
    const auto named = picks.find(name_of_generated);
    if (named == picks.end()) return begun_with;
    if (named->second != number_of_trace(trace))
        throw_error(Error, "{}: these are not the steps of that schedule, whose number is {}; tune it again",
                    picks_text(picks), number_of_trace(trace));
    const FoundBySearch kept;
    return replay(trace, begun_with.outputs(), begun_with.target());
}

}  // namespace tw::schedules
