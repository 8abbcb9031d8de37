// What fuzzers found, told so that it can be repeated.
#pragma once
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "verify/fuzz.h"

namespace tw::fuzz {

inline void expect_no_failures(const std::vector<Failure>& failures, uint64_t seed) {
    for (const Failure& failure : failures)
        ADD_FAILURE() << "case " << failure.number << " of seed " << seed << ": " << failure.text;
}

}  // namespace tw::fuzz
