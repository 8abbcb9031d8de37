// Times of tilings that a GPU measured, and how near a model comes to them.
#pragma once
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tw::schedules {

struct MeasuredTiling {
    double milliseconds, predicted;
};

/// By name of the kernel without its tiling.
using MeasuredTimes = std::map<std::string, std::vector<MeasuredTiling>>;

/// From lines of a name, a tiling and milliseconds; `predicted` gives the model's milliseconds.
inline MeasuredTimes read_measured_times(
    const std::string& path,
    const std::function<double(const std::string& name, const std::string& tiling)>& predicted) {
    MeasuredTimes all;
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string name, tiling;
        double milliseconds = 0;
        if (line.starts_with("#") || !(words >> name >> tiling >> milliseconds)) continue;
        all[name].push_back({milliseconds, predicted(name, tiling)});
    }
    return all;
}

/// Of each kernel's tilings, the one that the model expects to be fastest is little slower than the one that was: so
/// many times in the geometric mean, and at worst.
inline void expect_little_regret(const MeasuredTimes& all, double mean, double worst) {
    double regret = 0, most = 0;
    std::string where;
    for (const auto& [name, tilings] : all) {
        auto chosen = std::ranges::min_element(tilings, {}, &MeasuredTiling::predicted);
        auto fastest = std::ranges::min_element(tilings, {}, &MeasuredTiling::milliseconds);
        const double times = chosen->milliseconds / fastest->milliseconds;
        regret += std::log(times) / static_cast<double>(all.size());
        if (times > most) most = times, where = name;
    }
    EXPECT_LT(std::exp(regret), mean);
    EXPECT_LT(most, worst) << where;
}

/// The model's time is within so many times what was measured, of half of all tilings and of nine in ten. There are so
/// many at least.
inline void expect_near_times(const MeasuredTimes& all, size_t least, double half, double nine_in_ten) {
    std::vector<double> errors;
    for (const auto& [name, tilings] : all)
        for (const MeasuredTiling& one : tilings)
            errors.push_back(std::abs(std::log(one.predicted / one.milliseconds)));
    ASSERT_GT(errors.size(), least);
    std::ranges::sort(errors);
    EXPECT_LT(errors[errors.size() / 2], std::log(half));
    EXPECT_LT(errors[errors.size() * 9 / 10], std::log(nine_in_ten));
}

}  // namespace tw::schedules
