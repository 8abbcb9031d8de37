#include "support/error.h"

#include <optional>
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

namespace {

thread_local std::optional<std::source_location> caller_of_library;

}  // namespace

CalledFrom::CalledFrom(const std::source_location& where) : is_outermost_(!caller_of_library) {
    if (is_outermost_) caller_of_library = where;
}

CalledFrom::~CalledFrom() {
    if (is_outermost_) caller_of_library.reset();
}

std::string place_text(const std::source_location& where) {
    std::string_view file = where.file_name();
    return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), where.line());
}

std::string where_prefix(const std::source_location& where) {
    return place_text(caller_of_library.value_or(where)) + ": ";
}

void fail_internal(const char* file, int line, const char* condition, const std::string& message) {
    throw InternalError(fmt::format("{}:{}: internal check failed: {}: {}", file, line, condition, message));
}

}  // namespace tw
