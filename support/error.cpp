#include "support/error.h"

#include <set>

// The bounds of the section that TW_CHECK_SITE writes to; absent in a program without a site.
extern "C" {
extern const char __start_tw_check_sites[] __attribute__((weak));
extern const char __stop_tw_check_sites[] __attribute__((weak));
}

namespace tw {

std::vector<std::string_view> check_sites() {
    std::set<std::string_view> places;  // a site that was inlined twice is there twice
    for (const char* text = __start_tw_check_sites; text != __stop_tw_check_sites;) {
        std::string_view place = text;
        places.insert(place);
        text += place.size() + 1;
    }
    return {places.begin(), places.end()};
}

std::string where_prefix(const std::source_location& where) {
    std::string_view file = where.file_name();
    return fmt::format("{}:{}: ", file.substr(file.rfind('/') + 1), where.line());
}

void fail_internal(const char* file, int line, const char* condition, const std::string& message) {
    throw InternalError(fmt::format("{}:{}: internal check failed: {}: {}", file, line, condition, message));
}

}  // namespace tw
