#include "tools/numbers.h"

#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace tw {
namespace {

/// The whole text, or nothing.
template <class Number>
bool reads_as(const std::string& text, Number& number) {
    const char* end = text.data() + text.size();
    auto [rest, problem] = std::from_chars(text.data(), end, number);
    return problem == std::errc() && rest == end;
}

}  // namespace

CLI::Validator whole_number(uint64_t least, uint64_t most) {
    auto check = [=](const std::string& text) {
        uint64_t number = 0;
        if (reads_as(text, number) && number >= least && number <= most) return std::string();
        return fmt::format("'{}' is no whole number from {} to {}", text, least, most);
    };
    return CLI::Validator(check, "", "whole number");
}

CLI::Validator seed_number() { return whole_number(0, std::numeric_limits<uint64_t>::max()); }

CLI::Validator positive_real() {
    auto check = [](const std::string& text) {
        double number = 0;
        if (reads_as(text, number) && std::isfinite(number) && number > 0) return std::string();
        return fmt::format("'{}' is no number above 0", text);
    };
    return CLI::Validator(check, "", "positive number");
}

}  // namespace tw
