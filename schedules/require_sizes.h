// Sizes that a caller gives: refused where none of theirs makes sense.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <source_location>
#include <string>

namespace tw::schedules {

/// A size as its struct names it, and what it is at least.
struct GivenSize {
    const char* name;
    int64_t value;
    int64_t least = 1;
};
/// Throws Error naming the first that is less than it has to be: "varlen tiles: rows = 0; give at least 1".
void require_sizes(const std::string& of, std::initializer_list<GivenSize> sizes, std::source_location where);

}  // namespace tw::schedules
