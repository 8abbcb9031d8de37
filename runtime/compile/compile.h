// CUDA text to cubin, in this process, by NVRTC. A compiled kernel is remembered twice: in memory (at most 1 ms) and on
// disk (cubin_cache.h, at most 5 ms). Needs no GPU.
#pragma once
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "runtime/compile/errors.h"

namespace tw {

struct Nvrtc;  // library.h

struct CompileRequest {
    std::string source = {};
    std::string name = "kernel.cu";  // stands in messages: "matmul.cu(12): error: ..."
    std::string arch = "sm_90a";
    std::vector<std::string> options = {};  // after the default ones, which they may override
    bool want_ptx = false;
    bool use_disk = true;
};

/// What one entry function takes, as ptxas says it.
struct Resources {
    std::string entry;
    int registers = 0;
    int barriers = 0;
    int64_t static_shared_bytes = 0;
    int64_t stack_bytes = 0;
    int64_t spill_store_bytes = 0;
    int64_t spill_load_bytes = 0;
    int64_t constant_bytes = 0;  // all banks; 0 where ptxas (13.0) does not say
};

enum class CompiledBy { Nvrtc, Memo, Disk };
std::string_view to_string(CompiledBy from);

struct CompiledKernel {
    std::string cubin;
    std::string ptx;                   // empty unless asked for
    std::string log;                   // NVRTC's warnings and ptxas' verbose lines
    std::vector<Resources> resources;  // in the order of the log, one an entry function
    CompiledBy from = CompiledBy::Nvrtc;
    double seconds = 0;        // what this call took
    double nvrtc_seconds = 0;  // what the compilation took when it happened

    /// Those of one entry function; throws CompileError with the names there are.
    const Resources& of(const std::string& entry) const;
};

/// Compiles, or finds what was compiled before. Two threads that ask for the same at once compile it once.
/// Throws NvrtcMissing, CompileError.
CompiledKernel compile_kernel(const CompileRequest& request);

/// The same with another NVRTC than the process' own.
CompiledKernel compile_kernel(const CompileRequest& request, const Nvrtc& nvrtc);

/// What became of one request of compile_all.
struct CompileOutcome {
    CompiledKernel kernel;  // when error is null
    std::exception_ptr error;

    /// The kernel, or rethrows the error.
    const CompiledKernel& get() const;
};

/// Compiles all of them, num_threads at a time (0: one for each processor); outcomes in the order of the requests.
std::vector<CompileOutcome> compile_all(std::span<const CompileRequest> requests, int num_threads = 0);

/// --gpu-architecture, --fmad=false (multiply-adds are explicit in our text), --std=c++17 (as the emulator), verbose
/// ptxas.
std::vector<std::string> default_compile_options(const std::string& arch);

/// Forgets what was compiled in this process; the disk cache stays.
void clear_compile_memo();

/// The resource lines of ptxas' verbose log (12.x and 13.x).
std::vector<Resources> parse_resources(std::string_view log);

/// The lines that are errors although NVRTC is content: "(C7510) Potential Performance Loss: wgmma ... serialized".
std::vector<std::string> fatal_warnings(std::string_view log);

/// What to do where ptxas lacks registers for wgmma (C7602, C7511, C7512), a line; empty where it does not say so.
std::string register_advice(std::string_view log);

/// The source lines, numbered, around those that the log names: "k.cu(12): error: ..." by NVRTC, "k.cu:12:3: error:
/// ..." by a host compiler. Empty where it names none.
std::string error_context(std::string_view source, std::string_view name, std::string_view log, int lines_around = 3);

}  // namespace tw
