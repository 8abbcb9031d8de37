#include "ops/step/memory_map.h"

#include <algorithm>
#include <fstream>
#include <tuple>

#include <fmt/ranges.h>

#include "ops/step/plan_access.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr double picture_width = 960, picture_height = 480;

/// As text of an SVG.
std::string escaped(const std::string& text) {
    std::string result;
    for (char c : text) result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
    return result;
}

std::vector<std::string> operations_at(const StepPlan& plan, int group) {
    return group < 0 ? std::vector<std::string>() : group_at(plan, group).operations;
}

/// "z1, by linear, z1" where its group has others.
std::string text_of(const ArenaUse& use) {
    if (use.operations.empty() || (use.operations.size() == 1 && use.operations[0] == use.name)) return use.name;
    return fmt::format("{}, by {}", use.name, fmt::join(use.operations, ", "));
}

}  // namespace

std::vector<ArenaUse> arena_uses(const StepPlan& plan) {
    std::vector<ArenaUse> uses;
    for (const StepValue& value : plan.values)
        if (value.place == StepValue::Place::Arena && value.bytes > 0)
            uses.push_back({value.name, operations_at(plan, value.made), value.offset, value.bytes, value.made,
                            std::max(value.made, value.last), false});
    for (size_t g = 0; g < plan.groups.size(); ++g)
        for (const StepWorkspace& each : plan.groups[g].workspaces)
            if (!each.is_counter && each.bytes > 0) {
                const int group = static_cast<int>(g);
                uses.push_back({fmt::format("workspace of group {}", g), operations_at(plan, group), each.offset,
                                each.bytes, group, group, true});
            }
    std::ranges::sort(uses, {}, [](const ArenaUse& use) { return std::tuple(use.first, use.offset); });
    return uses;
}

std::string memory_map(const StepPlan& plan) {
    const std::vector<ArenaUse> uses = arena_uses(plan);
    std::string text;
    for (int g = 0; g < static_cast<int>(plan.groups.size()); ++g) {
        int64_t bytes = 0;
        std::string lines;
        for (const ArenaUse& use : uses) {
            if (use.first > g || g > use.last) continue;
            bytes += use.bytes;
            lines += fmt::format("    {:>12} {:>12} B  {}\n", use.offset, use.bytes, text_of(use));
        }
        text += fmt::format("group {} ({}): {} B of {} in use\n{}", g, fmt::join(operations_at(plan, g), ", "), bytes,
                            plan.arena_bytes, lines);
    }
    return text;
}

std::string memory_picture(const StepPlan& plan) {
    const double across = picture_width / static_cast<double>(std::max<size_t>(plan.groups.size(), 1));
    const double up = picture_height / static_cast<double>(std::max<int64_t>(plan.arena_bytes, 1));
    std::string text = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
        picture_width, picture_height);
    for (const ArenaUse& use : arena_uses(plan))
        text += fmt::format(
            "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" stroke=\"white\">"
            "<title>{}: {} B at {}, groups {} to {}</title></rect>\n",
            use.first * across, picture_height - static_cast<double>(use.offset + use.bytes) * up,
            (use.last - use.first + 1) * across, static_cast<double>(use.bytes) * up,
            use.is_workspace ? "#c0873f" : "#4477aa", escaped(text_of(use)), use.bytes, use.offset, use.first,
            use.last);
    return text + "</svg>\n";
}

void write_memory_picture(const std::string& path, const StepPlan& plan, std::source_location where) {
    std::ofstream file(path);
    file << memory_picture(plan) << std::flush;
    user_check(file.good(), where, "write_memory_picture: cannot write '{}'; is there such a folder?", path);
}

}  // namespace tw
