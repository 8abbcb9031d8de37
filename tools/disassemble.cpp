#include "tools/disassemble.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

#include <unistd.h>

#include "runtime/emulator/run_command.h"
#include "support/error.h"

namespace tw {
namespace {

namespace fs = std::filesystem;

/// A file of this process alone, removed at the end of the scope.
class TemporaryFile {
public:
    explicit TemporaryFile(const std::string& content) : path_((fs::temp_directory_path() / "tw-XXXXXX").string()) {
        int file = mkstemp(path_.data());
        bool written = file >= 0 && ::write(file, content.data(), content.size()) == ssize_t(content.size());
        if (file >= 0) ::close(file);
        internal_check(written, "cannot write {}", path_);
    }
    ~TemporaryFile() { ::unlink(path_.c_str()); }
    TemporaryFile(const TemporaryFile&) = delete;
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

std::vector<std::string> places() {
    std::vector<std::string> folders = {""};  // on PATH
    if (const char* home = std::getenv("CUDA_HOME")) folders.push_back(std::string(home) + "/bin/");
    folders.push_back("/usr/local/cuda/bin/");
    return folders;
}

}  // namespace

std::string disassembled(const std::string& cubin) {
    TemporaryFile file(cubin);
    for (const std::string& folder : places())
        for (std::vector<std::string> command : {std::vector<std::string>{"nvdisasm"}, {"cuobjdump", "--dump-sass"}}) {
            command[0] = folder + command[0];
            command.push_back(file.path());
            auto result = emulator::run_command(command);
            if (result.succeeded) return result.output;
        }
    throw_error(Error,
                "emit --as sass: no disassembler: neither nvdisasm nor cuobjdump is on PATH, in $CUDA_HOME/bin or in "
                "/usr/local/cuda/bin; install one of them, or use --as ptx");
}

}  // namespace tw
