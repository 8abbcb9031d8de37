// What a kernel's text says of its launches.
#pragma once
#include <string>
#include <vector>

namespace tw::emulator {

/// 0 where the text says nothing, or says it in other words than numbers.
struct LaunchAttributes {
    unsigned threads = 0;                  // of a block at most: __launch_bounds__
    unsigned blocks = 0;                   // that a multiprocessor has room for: the second number
    unsigned cluster[3] = {};              // __cluster_dims__
    std::vector<std::string> copied_maps;  // parameters that are tensor maps and no __grid_constant__
};

LaunchAttributes attributes_in(const std::string& text, const std::string& kernel);

}  // namespace tw::emulator
