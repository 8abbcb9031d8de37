#include "tools/numbers.h"

#include <charconv>
#include <cmath>
#include <functional>
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

namespace {

CLI::Validator real_number(const std::function<bool(double)>& is_one, const char* what, const char* kind) {
    auto check = [=](const std::string& text) {
        double number = 0;
        if (reads_as(text, number) && std::isfinite(number) && is_one(number)) return std::string();
        return fmt::format("'{}' is no number {}", text, what);
    };
    return CLI::Validator(check, "", kind);
}

}  // namespace

CLI::Validator positive_real() {
    return real_number([](double number) { return number > 0; }, "above 0", "positive number");
}

CLI::Validator non_negative_real() {
    return real_number([](double number) { return number >= 0; }, "from 0 on", "number from 0 on");
}

}  // namespace tw
