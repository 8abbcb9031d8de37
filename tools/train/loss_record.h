// The losses of a training, in files that are up to date while it runs.
#pragma once
#include <cstdint>
#include <fstream>
#include <string>

#include "support/loss_curve.h"

namespace tw {

/// A table (write_csv()) that gets each loss as it comes, and a picture (write_svg()) that is drawn anew when asked
/// for. Either path may be empty: then there is no such file.
class LossRecord {
public:
    LossRecord(std::string csv, std::string svg, std::string title);

    /// Before the first loss: files begin anew, or, of a training that goes on behind step `done` > 0, with what the
    /// table has of steps up to that one; lines of later ones go, and so does one that was not written to its end.
    /// Throws Error if a file cannot be written, and if the table is none.
    void begin(int64_t done);
    /// In the table when it returns, also if the process is killed then. Throws Error if that cannot be written.
    void add(int64_t step, double loss);
    void draw() const;
    const LossCurve& curve() const { return curve_; }

private:
    void write_line(const std::string& line);

    std::string csv_, svg_, title_;
    std::ofstream file_;
    LossCurve curve_;
};

}  // namespace tw
