// Losses of a run, as numbers and as a picture.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tw {

using LossCurve = std::vector<std::pair<int64_t, double>>;  // (step, from 1 on, and its loss)

/// Comma-separated values with a heading: "step,loss".
std::string csv_text(const LossCurve& curve);
std::string csv_line(int64_t step, double loss);
/// The same as a file. Throws Error if it cannot be written.
void write_csv(const std::string& path, const LossCurve& curve);
/// What such a file has; a last line without an end, whose writer was killed, counts for nothing. Throws Error if it
/// cannot be read, and naming the first line that is none.
LossCurve read_csv(const std::string& path);
/// An SVG picture that browsers show, the loss along a logarithmic axis. Throws Error likewise.
void write_svg(const std::string& path, const LossCurve& curve, const std::string& title);

}  // namespace tw
