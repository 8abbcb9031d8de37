#include "tools/emit.h"

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "runtime/compile/compile.h"
#include "support/error.h"
#include "tools/disassemble.h"

namespace tw {
namespace {

struct Emitted {
    std::string body;
    nlohmann::json facts;
};

Emitted emit_one(const codegen::KernelText& kernel, const EmitOptions& options) {
    nlohmann::json facts{{"name", kernel.name}, {"threads", kernel.threads}, {"shared_bytes", kernel.shared_bytes}};
    if (options.as == "cuda") return {kernel.cuda, facts};
    CompiledKernel compiled = compile_kernel(
        {.source = kernel.cuda, .name = kernel.name + ".cu", .arch = options.arch, .want_ptx = options.as == "ptx"});
    const Resources& resources = compiled.of(kernel.name);
    facts["registers"] = resources.registers;
    facts["spill_bytes"] = resources.spill_store_bytes + resources.spill_load_bytes;
    facts["cubin_bytes"] = compiled.cubin.size();
    if (options.as == "ptx") return {compiled.ptx, facts};
    return {options.as == "cubin" ? compiled.cubin : disassembled(compiled.cubin), facts};
}

std::string write_file(const std::string& kernel, const std::string& body, const EmitOptions& options) {
    std::error_code problem;
    std::filesystem::create_directories(options.folder, problem);
    if (problem) throw_error(Error, "emit: cannot write to {}: {}", options.folder, problem.message());
    std::string extension = options.as == "cuda" ? "cu" : options.as;
    std::filesystem::path path = std::filesystem::path(options.folder) / (kernel + "." + extension);
    std::ofstream file(path, std::ios::binary);
    file << body;
    if (!file.flush()) throw_error(Error, "emit: cannot write {}", path.string());
    return path.string();
}

}  // namespace

std::string emitted(const Program& program, const EmitOptions& options) {
    bool is_text = options.as != "cubin";
    if (!is_text && !options.json && options.folder.empty() && program.kernels().size() > 1)
        throw_error(Error, "emit --as cubin: there are {} kernels; give --output FOLDER for a file each",
                    program.kernels().size());
    nlohmann::json list = nlohmann::json::array();
    std::string text;
    for (const codegen::KernelText& kernel : program.kernels()) {
        Emitted one = emit_one(kernel, options);
        if (is_text) one.facts[options.as] = one.body;
        if (options.folder.empty()) {
            text += one.body;
            if (is_text) text += "\n";
        } else {
            one.facts["file"] = write_file(kernel.name, one.body, options);
            text += one.facts["file"].get<std::string>() + "\n";
        }
        list.push_back(one.facts);
    }
    return options.json ? list.dump(2) + "\n" : text;
}

}  // namespace tw
