#include "tools/near_names.h"

#include <algorithm>
#include <numeric>

namespace tw {

size_t edit_distance(std::string_view one, std::string_view other) {
    std::vector<size_t> row(other.size() + 1);  // distances from a prefix of `one` to every prefix of `other`
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < one.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < other.size(); ++j) {
            size_t replaced = diagonal + (one[i] != other[j]);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
        }
    }
    return row.back();
}

std::vector<std::string> near_names(std::string_view wish, const std::vector<std::string>& names, size_t count) {
    std::vector<std::pair<size_t, std::string>> close;
    for (const std::string& name : names)
        if (size_t distance = edit_distance(wish, name); 2 * distance <= std::max(wish.size(), name.size()))
            close.emplace_back(distance, name);
    std::stable_sort(close.begin(), close.end(), [](auto& a, auto& b) { return a.first < b.first; });
    std::vector<std::string> result;
    for (size_t n = 0; n < std::min(count, close.size()); ++n) result.push_back(close[n].second);
    return result;
}

}  // namespace tw
