// Sizes that a caller gives: refused where none of theirs makes sense.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <source_location>
#include <string>

namespace tw::schedules {

/// A size as its struct names it, and what it is at least, a multiple of and, unless that is 0, at most.
struct GivenSize {
    const char* name;
    int64_t value;
    int64_t least = 1, multiple = 1, most = 0;
};
/// Throws Error naming the first that cannot be: "varlen tiles: rows = 0; give at least 1", "rows = 100; give a
/// multiple of 64 from 64 to 256".
void require_sizes(const std::string& of, std::initializer_list<GivenSize> sizes, std::source_location where);

}  // namespace tw::schedules
