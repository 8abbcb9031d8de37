// Random choices of the fuzzers.
#pragma once
#include "support/random.h"

namespace tw::fuzz {
using tw::Random;
}  // namespace tw::fuzz
