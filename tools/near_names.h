// Suggestions for a name that does not exist.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tw {

/// Letters to change, insert or remove to make one of the other (Levenshtein).
size_t edit_distance(std::string_view one, std::string_view other);

/// The names closest to `wish`, nearest first, at most `count`; none that differs in more than half of it.
std::vector<std::string> near_names(std::string_view wish, const std::vector<std::string>& names, size_t count = 3);

}  // namespace tw
