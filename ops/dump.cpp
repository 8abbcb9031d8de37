#include "ops/dump.h"

#include <filesystem>
#include <fstream>
#include <map>

#include "ops/program.h"
#include "support/error.h"

namespace tw {
namespace {

class Folder {
public:
    explicit Folder(const std::string& path) : path_(path) {
        std::error_code problem;
        std::filesystem::create_directories(path_, problem);
        if (problem) throw_error(Error, "dump: cannot make the folder {}: {}", path, problem.message());
    }

    void write(const std::string& name, const std::string& text) {
        std::string path = (path_ / name).string();
        std::ofstream file(path, std::ios::binary);
        file << text;
        if (!file.flush()) throw_error(Error, "dump: cannot write {}", path);
        written_.push_back(path);
    }

    const std::vector<std::string>& written() const { return written_; }

private:
    std::filesystem::path path_;
    std::vector<std::string> written_;
};

}  // namespace

std::vector<std::string> dump(const Schedule& schedule, const std::string& folder) {
    Folder files(folder);
    std::map<std::string, int, std::less<>> passes;  // seen of each kernel
    Program program = build(schedule, [&](std::string_view pass, std::string_view kernel, const std::string& text) {
        int number = ++passes[std::string(kernel)];
        files.write(fmt::format("{}.{:02}_{}.txt", kernel, number, pass), text);
    });
    for (const codegen::KernelText& kernel : program.kernels()) files.write(kernel.name + ".cu", kernel.cuda);
    files.write("nest.txt", schedule.to_string());
    files.write("trace.txt", schedule.save());
    files.write("trace.cpp", schedule.trace_as_cpp());
    files.write("explain.txt", program.explain());
    return files.written();
}

}  // namespace tw
