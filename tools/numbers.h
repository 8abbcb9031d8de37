// What the numbers among tw's options may be.
#pragma once
#include <cstdint>

#include <CLI/CLI.hpp>

namespace tw {

/// "'-1' is no whole number from 0 on"; also one that the option's type does not hold is refused.
CLI::Validator whole_number(uint64_t least, uint64_t most);
CLI::Validator seed_number();        ///< any of 64 bits
CLI::Validator positive_real();      ///< finite
CLI::Validator non_negative_real();  ///< finite

}  // namespace tw
