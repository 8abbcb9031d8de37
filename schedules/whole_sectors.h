// Rows of operands that boxes of TMA take, and take at full rate.
#pragma once
#include "schedules/convolution.h"

namespace tw::schedules {

/// So many elements a row, or more: whole pieces of 16 bytes, few of them as many as a product has terms.
int64_t whole_pieces(int64_t elements);
/// Whether copying an operand of so many rows, to have a piece more behind each, costs less than it gains. Measured: if
/// rows of both operands begin in the middle of 32 bytes, a product takes a third longer with 328 channels, half longer
/// with 280, and twice as long with 88; if those of one do, which is a `share` of what boxes bring, that share of it.
bool pays_whole_sectors(const ConvolutionShape& shape, int64_t row, double rows, double share);

}  // namespace tw::schedules
