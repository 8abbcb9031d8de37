#include "schedules/whole_sectors.h"

#include "schedules/whole_tiles.h"

namespace tw::schedules {

int64_t whole_pieces(int64_t elements) {
    if (elements % piece == 0) return elements;
    return elements <= 2 * piece ? 2 * piece : rounded_up(elements, piece);
}

bool pays_whole_sectors(const ConvolutionShape& shape, int64_t row, double rows, double share) {
    constexpr double sums_a_second = 600e12, bytes_a_second = 2.5e12, launch = 2e-6, sure = 1.3;
    const double gain = 0.45 * (1 + 64.0 / static_cast<double>(row));
    const double copy = rows * static_cast<double>(row) * 2 * bytes_of(shape.type) / bytes_a_second + launch;
    return row % (2 * piece) != 0 && share * gain * shape.flops() / sums_a_second > sure * copy;
}

}  // namespace tw::schedules
