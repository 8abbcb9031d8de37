// A bar on standard error for long work; silent where that is no terminal.
#pragma once
#include <cstdint>
#include <string>

namespace tw {

class Progress {
public:
    Progress(std::string what, int64_t total);
    ~Progress();  // clears the line
    Progress(const Progress&) = delete;

    /// `done` of the total are behind us; `now` is what comes next.
    void show(int64_t done, const std::string& now = "") const;
    /// Makes room for a line of output; the next show() brings the bar back.
    void clear() const;

private:
    std::string what_;
    int64_t total_;
    bool visible_;
};

}  // namespace tw
