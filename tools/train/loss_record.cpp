#include "tools/train/loss_record.h"

#include <filesystem>
#include <span>
#include <utility>

#include "ops/persistence/write_aside.h"
#include "support/error.h"

namespace tw {

LossRecord::LossRecord(std::string csv, std::string svg, std::string title)
    : csv_(std::move(csv)), svg_(std::move(svg)), title_(std::move(title)) {}

void LossRecord::begin(int64_t done) {
    curve_.clear();
    if (!csv_.empty() && done > 0 && std::filesystem::exists(csv_)) curve_ = read_csv(csv_);
    std::erase_if(curve_, [&](const auto& each) { return each.first > done; });
    if (!csv_.empty() && !curve_.empty()) {
        const std::string kept = csv_text(curve_);  // replaced as a whole: killed here, nothing is lost
        write_aside(csv_, [&](const AsideFile& file) { file.write(std::as_bytes(std::span(kept))); });
        file_.open(csv_, std::ios::binary | std::ios::app);
        write_line("");
    } else if (!csv_.empty()) {
        file_.open(csv_, std::ios::binary | std::ios::trunc);
        write_line(csv_text({}));
    }
    draw();
}

void LossRecord::write_line(const std::string& line) {
    file_ << line;
    if (!file_.flush()) throw_error(Error, "cannot write {}; name a file in a folder that exists and has room", csv_);
}

void LossRecord::add(int64_t step, double loss) {
    const std::string line = csv_line(step, loss);
    curve_.emplace_back(step, std::stod(line.substr(line.find(',') + 1)));  // as one that goes on reads it
    if (!csv_.empty()) write_line(line);
}

void LossRecord::draw() const {
    if (!svg_.empty()) write_svg(svg_, curve_, title_);
}

}  // namespace tw
