#include "schedules/product_tiles.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <regex>
#include <vector>

#include <fmt/format.h>

#include "schedules/product_space.h"

namespace tw::schedules {

std::string tiling_text(const ProductTiles& t) {
    return fmt::format("{}x{}x{}t{}x{}{}s{}{}{}", t.block_m, t.block_n, t.block_k, t.thread_m, t.thread_n,
                       t.chunk_n != 4 ? fmt::format("c{}", t.chunk_n) : "", t.stages,
                       t.blocks > 1 ? fmt::format("b{}", t.blocks) : "",
                       t.split_k > 1 ? fmt::format("p{}", t.split_k) : "");
}

std::optional<ProductTiles> parse_product_tiles(const std::string& text) {
    static const std::regex form(
        "([1-9][0-9]{0,3})x([1-9][0-9]{0,3})x([1-9][0-9]{0,2})t([1-9][0-9]?)x([1-9][0-9]?)(?:c([12]))?s([1-9])"
        "(?:b([1-9][0-9]?))?(?:p([1-9][0-9]{0,3}))?");
    std::smatch match;
    if (!std::regex_match(text, match, form)) return {};
    ProductTiles tiles{.block_m = std::stoll(match[1]),
                       .block_n = std::stoll(match[2]),
                       .block_k = std::stoll(match[3]),
                       .thread_m = std::stoll(match[4]),
                       .thread_n = std::stoll(match[5]),
                       .stages = std::stoi(match[7]),
                       .unroll_k = true};
    if (match[6].matched) tiles.chunk_n = std::stoll(match[6]);
    if (match[8].matched) tiles.blocks = std::stoi(match[8]);
    if (match[9].matched) tiles.split_k = std::stoll(match[9]);
    const bool divide = tiles.block_m % tiles.thread_m == 0 && tiles.block_n % tiles.thread_n == 0;
    if (!divide || threads_of(tiles) > 1024) return {};
    return tiles;
}

namespace {

ProductTiles least_tiles(const ProductShape& shape, const Target& target, int64_t most_sums) {
    const std::vector<ProductTiles> space = product_space(shape, target);
    ProductTiles best = space[0];
    double least = INFINITY;
    for (const ProductTiles& tiles : space) {
        if (tiles.thread_m * tiles.thread_n > most_sums) continue;
        const double seconds = seconds_of(tiles, shape, target);
        if (seconds >= least) continue;
        least = seconds;
        best = tiles;
    }
    return best;
}

struct Asked {
    ProductShape shape;
    Target target;
    int64_t most_sums;

    bool operator==(const Asked&) const = default;
};

}  // namespace

ProductTiles product_tiles(const ProductShape& shape, const Target& target, int64_t most_sums) {
    // Rules ask one after another.
    constexpr size_t most_remembered = 16;
    thread_local std::deque<std::pair<Asked, ProductTiles>> known;
    const Asked asked{shape, target, most_sums};
    const auto found = std::ranges::find(known, asked, &std::pair<Asked, ProductTiles>::first);
    if (found != known.end()) return found->second;
    if (known.size() == most_remembered) known.pop_front();
    return known.emplace_back(asked, least_tiles(shape, target, most_sums)).second;
}

}  // namespace tw::schedules
