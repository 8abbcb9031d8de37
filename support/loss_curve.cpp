#include "support/loss_curve.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "support/error.h"

namespace tw {
namespace {

void write_text(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    if (!file.flush()) throw_error(Error, "cannot write {}; name a file in a folder that exists and has room", path);
}

/// Finite losses from the lowest to the highest, with room around; a tick for each power of 2 between.
struct LossAxis {
    double low = 0, high = 1;  // logarithms to base 2

    explicit LossAxis(const LossCurve& curve) {
        bool any = false;
        for (const auto& [step, loss] : curve) {
            if (!std::isfinite(loss) || loss <= 0) continue;
            low = any ? std::min(low, std::log2(loss)) : std::log2(loss);
            high = any ? std::max(high, std::log2(loss)) : std::log2(loss);
            any = true;
        }
        low = std::floor(low);
        high = std::max(std::ceil(high), low + 1);
    }
    double share(double loss) const { return std::clamp((high - std::log2(loss)) / (high - low), 0.0, 1.0); }
};

constexpr std::string_view heading = "step,loss";

std::optional<std::pair<int64_t, double>> parsed(std::string_view line) {
    int64_t step = 0;
    double loss = 0;
    const char* const end = line.data() + line.size();
    const auto number = std::from_chars(line.data(), end, step);
    if (number.ec != std::errc() || number.ptr == end || *number.ptr != ',') return {};
    const auto value = std::from_chars(number.ptr + 1, end, loss);
    if (value.ec != std::errc() || value.ptr != end) return {};
    return std::pair(step, loss);
}

}  // namespace

std::string csv_line(int64_t step, double loss) { return fmt::format("{},{:.6g}\n", step, loss); }

std::string csv_text(const LossCurve& curve) {
    std::string text = fmt::format("{}\n", heading);
    for (const auto& [step, loss] : curve) text += csv_line(step, loss);
    return text;
}

void write_csv(const std::string& path, const LossCurve& curve) { write_text(path, csv_text(curve)); }

LossCurve read_csv(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    if (!file) throw_error(Error, "cannot read {}; name a file that exists", path);
    LossCurve curve;
    int64_t number = 0;
    std::string_view rest = all;
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
        const std::string_view line = rest.substr(0, end);
        rest.remove_prefix(end + 1);
        if (++number == 1 && line == heading) continue;
        const auto found = parsed(line);
        if (number == 1 || !found)
            throw_error(Error, "{}: line {}, '{}', is none of a table of losses, '{}' and numbers; name another file",
                        path, number, line, heading);
        curve.push_back(*found);
    }
    return curve;
}

void write_svg(const std::string& path, const LossCurve& curve, const std::string& title) {
    constexpr double width = 640, height = 320, left = 56, right = 12, top = 28, bottom = 32;
    const LossAxis axis(curve);
    const double last = curve.empty() ? 1 : static_cast<double>(curve.back().first);
    auto x = [&](int64_t step) { return left + (width - left - right) * static_cast<double>(step) / last; };
    auto y = [&](double loss) { return top + (height - top - bottom) * axis.share(loss); };
    std::string text = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{}\" y=\"18\">{}</text>\n",
        width, height, left, title);
    for (double tick = axis.low; tick <= axis.high; ++tick)
        text += fmt::format("<path d=\"M{} {:.1f}H{}\" stroke=\"#ddd\"/><text x=\"4\" y=\"{:.1f}\">{:.4g}</text>\n",
                            left, y(std::exp2(tick)), width - right, y(std::exp2(tick)) + 4, std::exp2(tick));
    text += fmt::format("<text x=\"{}\" y=\"{}\">{} steps</text>\n<polyline fill=\"none\" stroke=\"#1565c0\" points=\"",
                        width / 2, height - 8, last);
    for (const auto& [step, loss] : curve)
        if (std::isfinite(loss) && loss > 0) text += fmt::format("{:.1f},{:.1f} ", x(step), y(loss));
    write_text(path, text + "\"/>\n</svg>\n");
}

}  // namespace tw
