// Reads NVRTC's log: what each entry function takes, warnings that are errors to us, and where the source is wrong.
#include <algorithm>
#include <charconv>
#include <set>

#include "runtime/compile/compile.h"

namespace tw {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        size_t end = text.find('\n');
        lines.push_back(text.substr(0, end));
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    return lines;
}

std::string_view between(std::string_view text, std::string_view begin, std::string_view end) {
    size_t from = text.find(begin);
    if (from == std::string_view::npos) return {};
    from += begin.size();
    size_t to = text.find(end, from);
    return to == std::string_view::npos ? std::string_view() : text.substr(from, to - from);
}

// The number before `unit`, as in "Used 32 registers, 400 bytes cmem[0], 16 bytes cmem[2]"; the sum where there are
// several.
int64_t number_before(std::string_view line, std::string_view unit) {
    int64_t sum = 0;
    for (size_t at = line.find(unit); at != std::string_view::npos; at = line.find(unit, at + 1)) {
        size_t begin = at;
        while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
        int64_t number = 0;
        std::from_chars(line.data() + begin, line.data() + at, number);
        sum += number;
    }
    return sum;
}

}  // namespace

// ptxas tells of each function in two parts, and of device functions that were not inlined in the first part only:
//   Compiling entry function 'f' for 'sm_90a'
//   Function properties for f
//       320 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//   Used 32 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]
std::vector<Resources> parse_resources(std::string_view log) {
    std::vector<Resources> all;
    bool properties_of_entry = false;
    for (std::string_view line : lines_of(log)) {
        if (auto entry = between(line, "Compiling entry function '", "'"); !entry.empty()) {
            all.emplace_back().entry = entry;
        } else if (all.empty()) {
            continue;
        } else if (size_t at = line.find("Function properties for "); at != std::string_view::npos) {
            properties_of_entry = line.substr(at + 24) == all.back().entry;
        } else if (properties_of_entry && line.find(" bytes stack frame") != std::string_view::npos) {
            all.back().stack_bytes = number_before(line, " bytes stack frame");
            all.back().spill_store_bytes = number_before(line, " bytes spill stores");
            all.back().spill_load_bytes = number_before(line, " bytes spill loads");
        } else if (line.find(": Used ") != std::string_view::npos) {
            all.back().registers = int(number_before(line, " registers"));
            all.back().barriers = int(number_before(line, " barriers"));
            all.back().static_shared_bytes = number_before(line, " bytes smem");
            all.back().constant_bytes = number_before(line, " bytes cmem[");
        }
    }
    return all;
}

std::vector<std::string> fatal_warnings(std::string_view log) {
    std::vector<std::string> fatal;
    for (std::string_view line : lines_of(log))
        if (line.find("(C75") != std::string_view::npos) fatal.emplace_back(line);
    return fatal;
}

// "(C7602) Insufficient registers (128) to compile instruction at line 720 in function k. Try to compile with register
// target of 154 or higher": one wgmma and its sums, which registers that roles move do not help. "(C7511) ... wgmma
// instructions are serialized due to insufficient register resources for the wgmma pipeline": those do.
std::string register_advice(std::string_view log) {
    for (std::string_view line : lines_of(log)) {
        if (line.find("(C7602)") != std::string_view::npos)
            return fmt::format(
                "One instruction takes more registers than the {} that each thread of so large a block begins with "
                "(ptxas wants {}); registers(...) of roles do not help here. Have the instruction's tile narrower, so "
                "that it has fewer columns, or the block smaller: fewer warpgroups, fewer roles.\n",
                between(line, "Insufficient registers (", ")"), between(line, "register target of ", " "));
        if (line.find("insufficient register resources") != std::string_view::npos)
            return "The sums of a thread do not fit into its registers. In a schedule with roles, have the one that "
                   "computes take what the others do not need: registers(...) for each; or have a warpgroup compute a "
                   "smaller tile, or more warpgroups the same.\n";
    }
    return {};
}

std::string error_context(std::string_view source, std::string_view name, std::string_view log, int lines_around) {
    std::set<int> wrong;
    for (std::string_view line : lines_of(log)) {
        if (!line.starts_with(name) || line.find("error") == std::string_view::npos) continue;
        line.remove_prefix(name.size());
        if (!line.starts_with('(') && !line.starts_with(':')) continue;
        int number = 0;
        auto [end, problem] = std::from_chars(line.data() + 1, line.data() + line.size(), number);
        if (problem == std::errc()) wrong.insert(number);
    }

    std::string text;
    auto lines = lines_of(source);
    int printed = 0;
    for (int number : wrong) {
        if (number < 1 || number > int(lines.size())) continue;
        int first = std::max({1, number - lines_around, printed + 1});
        if (first > printed + 1 && printed > 0) text += "   ...\n";
        for (int i = first; i <= std::min(int(lines.size()), number + lines_around); ++i, printed = i - 1)
            text += fmt::format("{}{:5} | {}\n", wrong.contains(i) ? '>' : ' ', i, lines[size_t(i) - 1]);
    }
    return text;
}

}  // namespace tw
