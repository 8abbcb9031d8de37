// Errors: `Error` is the user's (bad shape, illegal step, failing device), `InternalError` is a bug of ours.
#pragma once
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace tw {

/// One place in our sources that can refuse what a user asked for. The linked program knows all of its sites, so that a
/// test can list the ones whose message no test has read.
struct CheckSite {
    const char* place;  // "dsl/split.cpp:31"
};

/// A mistake or a condition that the user can mend; what() says where, what was asked, the facts, and what to do.
class Error : public std::runtime_error {
public:
    Error(const CheckSite* site, const std::string& message) : std::runtime_error(message), site_(site) {}

    /// The check that failed, or nullptr for an error made elsewhere.
    const CheckSite* site() const { return site_; }

private:
    const CheckSite* site_;
};

/// A broken invariant of this library.
class InternalError : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

/// The places of all check sites in this program, sorted, each once.
std::vector<std::string_view> check_sites();

/// "matmul.cpp:31"; the path is cut to the file's name.
std::string place_text(const std::source_location& where);
/// "matmul.cpp:31: " for the user's line that asked: within a CalledFrom its line.
std::string where_prefix(const std::source_location& where);

/// While it lives, what this thread asks for is the caller's of a library function: errors name the line of the
/// outermost one. `CalledFrom caller(where);` stands first in a function that makes steps for its caller.
class CalledFrom {
public:
    explicit CalledFrom(const std::source_location& where);
    ~CalledFrom();
    CalledFrom(const CalledFrom&) = delete;
    CalledFrom& operator=(const CalledFrom&) = delete;

private:
    bool is_outermost_;
};

[[noreturn]] void fail_internal(const char* file, int line, const char* condition, const std::string& message);

#define TW_TEXT_OF(token) #token
#define TW_TEXT(token) TW_TEXT_OF(token)
#define TW_PLACE __FILE__ ":" TW_TEXT(__LINE__)

// Writes the place into a section of its own, as text: the linker joins those and gives us the bounds. A variable with
// a section attribute would do for plain functions only; g++ refuses it in inline functions and drops it in templates.
// A template that nobody instantiates registers nothing.
#define TW_CHECK_SITE()                                                                                 \
    ([]() -> const ::tw::CheckSite* {                                                                   \
        asm(".pushsection tw_check_sites, \"a\", @progbits\n\t.asciz \"" TW_PLACE "\"\n\t.popsection"); \
        static const ::tw::CheckSite site{TW_PLACE};                                                    \
        return &site;                                                                                   \
    }())

/// throw_error(Type, "cannot open {}", path): throws a Type, derived from Error and constructible from what Error is.
#define throw_error(type, ...) throw type(TW_CHECK_SITE(), ::fmt::format(__VA_ARGS__))

/// user_error(where, "...", ...): throws Error, prefixed by the user's file and line.
#define user_error(where, ...) \
    throw ::tw::Error(TW_CHECK_SITE(), ::tw::where_prefix(where) + ::fmt::format(__VA_ARGS__))

/// user_check(condition, where, "split({}, {}): ...", ...): refuses what the user asked for unless condition holds.
#define user_check(condition, where, ...)                 \
    do {                                                  \
        if (!(condition)) user_error(where, __VA_ARGS__); \
    } while (false)

/// internal_check(condition, "...", ...): our own invariant.
#define internal_check(condition, ...)                                                                     \
    do {                                                                                                   \
        if (!(condition)) ::tw::fail_internal(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    } while (false)

}  // namespace tw
