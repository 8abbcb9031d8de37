// Standard output that is whole or refused: what cannot be written is an error, not lost.
#pragma once
#include <cstdio>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json_fwd.hpp>

#include "support/error.h"

namespace tw {

/// The disk is full, the descriptor closed, ...
class OutputLost : public Error {
public:
    using Error::Error;
};
/// Whoever read has read enough.
class ReaderGone : public OutputLost {
public:
    using OutputLost::OutputLost;
};

/// All of it, at once. Throws OutputLost, ReaderGone.
void write_whole(std::FILE* file, std::string_view text);

template <class... Arguments>
void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    write_whole(stdout, fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// On standard error, where nobody can be told that it failed.
void complain(const std::string& line);

/// Indented if it is more than a line; bytes that are no UTF-8, as in a folder's name, become U+FFFD.
std::string json_text(const nlohmann::json& json);
std::string json_line(const nlohmann::json& json);

/// Descriptors 0 to 2 that are closed would become those of files that are opened later: what is printed would go
/// there.
void keep_standard_streams_apart();

}  // namespace tw
