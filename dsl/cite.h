#pragma once
#include <functional>
#include <string>

namespace tw {

/// "matmul.cpp:31: s.bind(i, thread): " for a step of the schedule; "" if unknown.
using CiteStep = std::function<std::string(int step)>;

}  // namespace tw
