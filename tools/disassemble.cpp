#include "tools/disassemble.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "runtime/emulator/host/run_command.h"
#include "runtime/emulator/host/scratch_directory.h"
#include "support/error.h"

namespace tw {
namespace {

namespace fs = std::filesystem;

void write_to(const fs::path& path, const std::string& content) {
    std::ofstream file(path, std::ios::binary);
    file << content;
    if (!file.flush())
        throw_error(Error, "emit --as sass: cannot write '{}'; the disk may be full: set TMPDIR to another",
                    path.string());
}

std::vector<std::string> places() {
    std::vector<std::string> folders = {""};  // on PATH
    if (const char* home = std::getenv("CUDA_HOME")) folders.push_back(std::string(home) + "/bin/");
    folders.push_back("/usr/local/cuda/bin/");
    return folders;
}

}  // namespace

std::string disassembled(const std::string& cubin) {
    emulator::ScratchDirectory scratch;  // a killed one's is removed by the next
    const fs::path file = scratch.path() / "kernel.cubin";
    write_to(file, cubin);
    for (const std::string& folder : places())
        for (std::vector<std::string> command : {std::vector<std::string>{"nvdisasm"}, {"cuobjdump", "--dump-sass"}}) {
            command[0] = folder + command[0];
            command.push_back(file.string());
            auto result = emulator::run_command(command);
            if (result.succeeded) return result.output;
        }
    throw_error(Error,
                "emit --as sass: no disassembler: neither nvdisasm nor cuobjdump is on PATH, in $CUDA_HOME/bin or in "
                "/usr/local/cuda/bin; install one of them, or use --as ptx");
}

}  // namespace tw
