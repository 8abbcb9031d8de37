// Text with indentation; of each line the schedule step and the stage.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/print/wrap_line.h"

namespace tw::codegen {

class Writer {
public:
    static constexpr size_t longest_line = 120;

    /// One line at the present depth, or several if it is too long; an empty one has no blanks. Newlines in `content`
    /// become lines of their own.
    void line(std::string_view content, int step = -1) {
        size_t end;
        while ((end = content.find('\n')) != content.npos) {
            single(content.substr(0, end), step);
            content.remove_prefix(end + 1);
        }
        single(content, step);
    }
    void open(std::string_view head, int step = -1, std::string_view comment = "") {
        line(std::string(head) + " {" + trailing(comment), step);
        ++depth_;
    }
    /// "} else {" and the like.
    void reopen(std::string_view head, int step, std::string_view comment = "") {
        --depth_;
        open("} " + std::string(head), step, comment);
    }
    void close(std::string_view tail = "}") {
        --depth_;
        line(tail);
    }
    /// Lines that were written elsewhere, as they are.
    void verbatim(std::string_view lines) {
        while (!lines.empty()) {
            size_t end = std::min(lines.find('\n'), lines.size());
            append(lines.substr(0, end), -1);
            lines.remove_prefix(std::min(end + 1, lines.size()));
        }
    }

    /// Columns that a line at this depth has left.
    int columns() const { return 110 - 4 * depth_; }
    const std::string& text() const { return text_; }
    const std::vector<int>& steps() const { return steps_; }
    const std::vector<std::string>& stages() const { return stages_; }

    /// The stage that the lines that follow belong to.
    void set_stage(const std::string& stage) { stage_ = stage; }
    const std::string& stage() const { return stage_; }

private:
    static std::string trailing(std::string_view comment) {
        return comment.empty() ? "" : "  // " + std::string(comment);
    }
    void single(std::string_view content, int step) {
        const size_t indent = 4 * static_cast<size_t>(depth_);
        if (content.empty()) return append("", step);
        for (const std::string& part : wrap_line(content, std::max<size_t>(longest_line, indent + 40) - indent))
            append(std::string(indent, ' ').append(part), step);
    }
    void append(std::string_view whole_line, int step) {
        text_.append(whole_line).append("\n");
        steps_.push_back(step);
        stages_.push_back(stage_);
    }

    std::string text_;
    std::vector<int> steps_;
    std::vector<std::string> stages_;
    std::string stage_;
    int depth_ = 0;
};

}  // namespace tw::codegen
