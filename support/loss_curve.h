// Losses of a run, as numbers and as a picture.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tw {

using LossCurve = std::vector<std::pair<int64_t, double>>;  // (step, from 1 on, and its loss)

/// Comma-separated values with a heading: "step,loss". Throws Error if the file cannot be written.
void write_csv(const std::string& path, const LossCurve& curve);
/// An SVG picture that browsers show, the loss along a logarithmic axis. Throws Error likewise.
void write_svg(const std::string& path, const LossCurve& curve, const std::string& title);

}  // namespace tw
