#include "schedules/require_sizes.h"

#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {

void require_sizes(const std::string& of, std::initializer_list<GivenSize> sizes, std::source_location where) {
    for (const GivenSize& size : sizes) {
        user_check(size.value >= size.least, where, "{}: {} = {}; give at least {}", of, size.name, size.value,
                   size.least);
        const bool fits = size.value % size.multiple == 0 && (size.most == 0 || size.value <= size.most);
        user_check(fits, where, "{}: {} = {}; give {} from {}{}", of, size.name, size.value,
                   size.multiple == 1 ? "a number" : fmt::format("a multiple of {}", size.multiple),
                   rounded_up(size.least, size.multiple), size.most == 0 ? " on" : fmt::format(" to {}", size.most));
    }
}

}  // namespace tw::schedules
