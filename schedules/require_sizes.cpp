#include "schedules/require_sizes.h"

#include "support/error.h"

namespace tw::schedules {

void require_sizes(const std::string& of, std::initializer_list<GivenSize> sizes, std::source_location where) {
    for (const GivenSize& size : sizes)
        user_check(size.value >= size.least, where, "{}: {} = {}; give at least {}", of, size.name, size.value,
                   size.least);
}

}  // namespace tw::schedules
