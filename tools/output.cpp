#include "tools/output.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

namespace tw {

void write_whole(std::FILE* file, std::string_view text) {
    errno = 0;
    const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
    if (is_written) return;
    if (errno == EPIPE) throw_error(ReaderGone, "nobody reads the output any more");
    throw_error(OutputLost, "cannot write the output: {}", std::strerror(errno));
}

void complain(const std::string& line) {
    std::fputs((line + "\n").c_str(), stderr);
    std::fflush(stderr);
}

std::string json_text(const nlohmann::json& json) {
    return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_line(const nlohmann::json& json) {
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void keep_standard_streams_apart() {
    for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (fcntl(stream, F_GETFD) >= 0) continue;
        // The lowest free number is this one. Opened the wrong way round: to use it fails, as it did.
        if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
    }
}

}  // namespace tw
