// An NVRTC for tests. The "cubin" is "CUBIN " and the source; words in the source make it fail:
//   @create @version @log @cubin     that call fails
//   @error                           refused, with the log "<name>(<line>): error: ..." of that line
//   @option @builtins @slow          an invalid option, no builtins library, warning C7510
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {

struct Program {
    std::string source, name, log;
    bool has(const char* word) const { return source.find(word) != std::string::npos; }
};
std::atomic<int> num_compilations = 0;
std::atomic<int> num_alive = 0;

int get(const std::string& text, size_t* size, char* to) {
    if (size) *size = text.size() + 1;
    if (to) std::memcpy(to, text.c_str(), text.size() + 1);
    return 0;
}

}  // namespace

extern "C" {

int fake_nvrtc_compilations() { return num_compilations; }
int fake_nvrtc_alive() { return num_alive; }

const char* nvrtcGetErrorString(int code) {
    switch (code) {
        case 1: return "NVRTC_ERROR_OUT_OF_MEMORY";
        case 5: return "NVRTC_ERROR_INVALID_OPTION";
        case 6: return "NVRTC_ERROR_COMPILATION";
        case 7: return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
        default: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
}
int nvrtcVersion(int* major, int* minor) {
    *major = 99;
    *minor = 1;
    return std::getenv("FAKE_NVRTC_NO_VERSION") ? 11 : 0;
}
int nvrtcCreateProgram(Program** program, const char* source, const char* name, int, const char* const*,
                       const char* const*) {
    if (std::strstr(source, "@create")) return 1;
    *program = new Program{source, name, ""};
    ++num_alive;
    return 0;
}
int nvrtcDestroyProgram(Program** program) {
    delete *program;
    --num_alive;
    return 0;
}
int nvrtcCompileProgram(Program* program, int num_options, const char* const* options) {
    ++num_compilations;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (program->has("@error")) {
        size_t at = program->source.find("@error");
        long line = 1 + std::count(program->source.begin(), program->source.begin() + long(at), '\n');
        program->log = program->name + "(" + std::to_string(line) + "): error: this is wrong\n";
        return 6;
    }
    if (program->has("@option")) {
        program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
        return 5;
    }
    if (program->has("@builtins")) {
        program->log = "nvrtc: error: failed to open libnvrtc-builtins.so.99.1.\n";
        return 7;
    }
    program->log =
        "ptxas info    : Compiling entry function 'scale' for 'sm_90a'\n"
        "ptxas info    : Function properties for scale\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 24 registers, used 1 barriers, 2048 bytes smem\n";
    if (program->has("@slow"))
        program->log +=
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n";
    for (int i = 0; i < num_options; ++i)
        if (!std::strcmp(options[i], "--show-options")) program->log += "shown\n";
    return 0;
}
int nvrtcGetPTXSize(Program*, size_t* size) { return get("PTX", size, nullptr); }
int nvrtcGetPTX(Program*, char* to) { return get("PTX", nullptr, to); }
int nvrtcGetCUBINSize(Program* program, size_t* size) {
    return program->has("@cubin") ? 11 : (*size = 6 + program->source.size(), 0);
}
int nvrtcGetCUBIN(Program* program, char* to) {
    std::memcpy(to, ("CUBIN " + program->source).data(), 6 + program->source.size());
    return 0;
}
int nvrtcGetProgramLogSize(Program* program, size_t* size) {
    return program->has("@log") ? 11 : get(program->log, size, nullptr);
}
int nvrtcGetProgramLog(Program* program, char* to) { return get(program->log, nullptr, to); }

}  // extern "C"
