#include "codegen/print/wrap_line.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

namespace tw::codegen {
namespace {

/// A line ends before `end`, the next begins at `next`: behind a blank, or between the indices of an element.
struct Break {
    size_t end, next;
    int cost;
};

// A comma costs less than an operator that is one parenthesis less deep.
constexpr int cost_of_depth = 4, cost_between_indices = 3;

/// What a break behind the word costs; empty if none is possible.
std::optional<int> cost_of(std::string_view word, bool outermost) {
    static constexpr std::pair<std::string_view, int> operators[] = {
        {"&&", 1}, {"||", 1}, {"?", 1}, {":", 1}, {"<", 4}, {"<=", 4}, {">", 4}, {">=", 4},
        {"==", 4}, {"!=", 4}, {"+", 5}, {"-", 5}, {"*", 6}, {"/", 6},  {"%", 6}};
    if (word.ends_with(",") || word.ends_with(";")) return 0;
    if (outermost && (word == "=" || word == "+=" || word == "-=" || word == "*=")) return 2;
    for (const auto& [text, cost] : operators)
        if (word == text) return cost;
    return {};
}

/// A comment goes on behind its slashes.
std::vector<std::string> wrap_comment(std::string_view comment, size_t columns) {
    std::vector<std::string> lines;
    for (std::string rest(comment); !rest.empty();) {
        size_t cut = rest.size() <= columns ? rest.npos : rest.rfind(' ', columns);
        if (cut != rest.npos && cut < 8) cut = columns;
        lines.push_back(rest.substr(0, cut));
        rest = cut == rest.npos ? "" : "//     " + rest.substr(std::min(rest.find_first_not_of(' ', cut), rest.size()));
        if (rest == "//     ") break;
    }
    return lines;
}

class Wrapper {
public:
    Wrapper(std::string_view statement, size_t columns, bool hanging)
        : text_(statement), columns_(columns), hanging_(hanging) {
        find_breaks();
    }

    std::vector<std::string> run() const {
        std::vector<std::string> lines;
        std::vector<size_t> open;  // where lines go on inside of the parentheses that are open
        size_t begin = 0, indent = 0;
        while (begin < text_.size()) {
            bool fits = indent + text_.size() - begin <= columns_;
            Break at = fits ? Break{text_.size(), text_.size(), 0} : end_of_line(begin, indent);
            lines.push_back(std::string(indent, ' ').append(text_.substr(begin, at.end - begin)));
            follow(begin, at.end, indent, open);
            begin = at.next;
            indent = open.empty() ? 4 : open.back();
        }
        return lines;
    }

private:
    bool opens(size_t c) const { return text_[c] == '(' || text_[c] == '['; }
    bool closes(size_t c) const { return text_[c] == ')' || text_[c] == ']'; }

    void find_breaks() {
        int depth = 0, parameters = 0;  // of templates, which have no blank around their parentheses
        bool quoted = false;
        for (size_t c = 0; c < text_.size(); ++c) {
            if (text_[c] == '"' && (c == 0 || text_[c - 1] != '\\')) quoted = !quoted;
            if (quoted) continue;
            if (text_.substr(c).starts_with("//")) return;
            bool in_word = c > 0 && std::isalnum(static_cast<unsigned char>(text_[c - 1]));
            if (in_word && text_[c] == '<') ++parameters;
            if (in_word && text_[c] == '>') --parameters;
            if (text_.substr(c).starts_with("]["))
                breaks_.push_back({c + 1, c + 1, (depth - 1) * cost_of_depth + cost_between_indices});
            if (opens(c)) ++depth;
            if (closes(c)) --depth;
            if (text_[c] != ' ' || c == 0 || parameters > 0) continue;
            size_t word = text_.rfind(' ', c - 1);
            std::string_view before = text_.substr(word == text_.npos ? 0 : word + 1, c - (word + 1));
            if (auto cost = cost_of(before, depth == 0)) breaks_.push_back({c, c + 1, depth * cost_of_depth + *cost});
        }
    }

    /// The cheapest break that leaves a line that fits, of these the last; else the first of all.
    Break end_of_line(size_t begin, size_t indent) const {
        const Break* best = nullptr;
        for (const Break& at : breaks_) {
            if (at.end <= begin) continue;
            if (indent + at.end - begin > columns_) return best ? *best : at;
            if (!best || at.cost <= best->cost) best = &at;
        }
        return best ? *best : Break{text_.size(), text_.size(), 0};
    }

    /// Where lines go on: behind a parenthesis, if that is not far to the right.
    void follow(size_t begin, size_t end, size_t indent, std::vector<size_t>& open) const {
        for (size_t c = begin; c < end; ++c) {
            const size_t behind = indent + c - begin + 1, inside = (open.empty() ? 0 : open.back()) + 4;
            const bool hangs = behind > columns_ * 2 / 3 || (hanging_ && open.empty());
            if (opens(c)) open.push_back(hangs ? inside : behind);
            if (closes(c) && !open.empty()) open.pop_back();
        }
    }

    std::string_view text_;
    size_t columns_;
    bool hanging_;
    std::vector<Break> breaks_;
};

}  // namespace

std::vector<std::string> wrap_line(std::string_view statement, size_t columns) {
    if (statement.size() <= columns || statement.starts_with("#")) return {std::string(statement)};
    if (statement.starts_with("//")) return wrap_comment(statement, columns);
    std::vector<std::string> aligned = Wrapper(statement, columns, false).run();
    std::vector<std::string> hanging = Wrapper(statement, columns, true).run();
    auto longest = [](const std::vector<std::string>& lines) {
        size_t most = 0;
        for (const std::string& line : lines) most = std::max(most, line.size());
        return most;
    };
    bool too_long = longest(aligned) > columns && longest(hanging) < longest(aligned);
    return too_long || hanging.size() < aligned.size() ? hanging : aligned;
}

}  // namespace tw::codegen
