#include "runtime/emulator/host/build_module.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include <fcntl.h>
#include <unistd.h>

#include "device/vocabulary.h"
#include "device/wgmma.h"
#include "runtime/emulator/host/mark_registers.h"
#include "runtime/emulator/host/run_command.h"
#include "runtime/emulator/host/scratch_directory.h"

namespace tw::emulator {
namespace {

namespace fs = std::filesystem;

// -O1 keeps accesses where they are written. The instrumentation reports them; overflow traps (SIGILL); a large frame
// meets the guard page of its stack; loops that never end are run, not removed. No files of the compiler's own stay
// behind where it is killed. All of them g++ and clang++ know.
constexpr const char* CompilerFlags =
    "-pipe -x c++ -std=c++17 -DTW_EMULATED -O1 -g1 -march=native -fPIC "
    "-fsanitize=thread,signed-integer-overflow,shift -fsanitize-undefined-trap-on-error "
    "-fno-strict-aliasing -ffp-contract=off -fno-tree-vectorize -fno-finite-loops "
    "-foptimize-sibling-calls "
    "-fstack-clash-protection -fno-exceptions -w -fmax-errors=5 -fdiagnostics-color=never";

/// The first option of each row that the compiler knows; none where it knows none.
const std::vector<std::vector<std::string>> FlagsOfOneCompiler = {
    // Reads that a later condition makes useless stay if branches on one condition are not joined: g++'s.
    {"-fno-thread-jumps"},
    // clang++ leaves out the report of a read before a write to the same place.
    {"-mllvm -tsan-instrument-read-before-write"},
    // What a thread reads from a register that it never wrote should not look right. with_marked_registers() sees to
    // numbers; all else holds a pattern.
    {"-ftrivial-auto-var-init=pattern"},
};

std::vector<std::string> words_of(const std::string& text) {
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
}

bool is_program(const std::string& command) { return run_command({command, "--version"}).succeeded; }

bool is_compiler(const std::string& command) {
    static std::map<std::string, bool> known;  // under the memo's lock
    auto [entry, is_new] = known.try_emplace(command);
    if (is_new) {
        std::string macros = run_command({command, "-dM", "-E", "-x", "c++", "/dev/null"}).output;
        entry->second = macros.find("__cplusplus") != std::string::npos;
    }
    return entry->second;
}

/// Looked for at each build: cheap against compiling, and an environment that has changed counts.
std::string host_compiler() {
    std::string tried;
    auto works = [&](const std::string& command, const std::string& called) {
        const bool runs = is_program(command);
        if (runs && is_compiler(command)) return true;
        tried += fmt::format("{}{}{}", tried.empty() ? "" : ", ", called, runs ? ", which compiles no C++" : "");
        return false;
    };
    for (const char* variable : {"TW_HOST_CXX", "CXX"}) {
        const char* value = std::getenv(variable);
        if (value && *value && works(value, fmt::format("{} (${})", value, variable))) return value;
        if (value && *value && std::string(variable) == "TW_HOST_CXX") break;  // asked for by name: no other will do
    }
    const char* asked = std::getenv("TW_HOST_CXX");
    if (!asked || !*asked)
        for (const char* command : {"c++", "g++", "clang++"})
            if (works(command, command)) return command;
    throw_error(HostCompilerMissing,
                "no C++ compiler to emulate kernels with: tried {}. Install g++, or set TW_HOST_CXX", tried);
}

bool knows(const std::string& compiler, const std::string& flags) {
    std::vector<std::string> command = words_of(flags);
    command.insert(command.begin(), compiler);
    command.insert(command.end(), {"-x", "c++", "-E", "/dev/null"});
    return run_command(command).succeeded;
}

const std::vector<std::string>& flags_of(const std::string& compiler) {
    static std::map<std::string, std::vector<std::string>> known;  // under the memo's lock
    auto [entry, is_new] = known.try_emplace(compiler, words_of(CompilerFlags));
    for (size_t row = 0; is_new && row < FlagsOfOneCompiler.size(); ++row)
        for (const std::string& flags : FlagsOfOneCompiler[row]) {
            if (!knows(compiler, flags)) continue;
            for (const std::string& word : words_of(flags)) entry->second.push_back(word);
            break;
        }
    return entry->second;
}

/// Kernels become members of namespaces: with C linkage, a kernel named `exp` would stand in for the C library's.
std::string without_c_linkage(std::string text) {
    const std::string linkage = "extern \"C\" __global__";
    for (size_t at = 0; (at = text.find(linkage, at)) != std::string::npos;)
        text.replace(at, linkage.size(), "__global__");
    return text;
}

/// The lines around an error, with numbers.
std::string lines_around(const std::string& text, int line) {
    std::istringstream in(text);
    std::string result, row;
    for (int number = 1; std::getline(in, row) && number <= line + 2; ++number)
        if (number >= line - 2) result += fmt::format("{}{:5} | {}\n", number == line ? ">" : " ", number, row);
    return result;
}

/// The compiler's first errors, each with its lines.
std::string first_errors(const std::string& log, std::span<const Source> sources) {
    std::istringstream in(log);
    std::string result, row;
    int num_errors = 0;
    while (num_errors < 3 && std::getline(in, row)) {
        size_t at = row.find(" error: ");
        if (at == std::string::npos) at = row.find(" fatal error: ");
        if (at == std::string::npos) continue;
        ++num_errors;
        result += row + "\n";
        for (const Source& source : sources)
            if (row.starts_with(source.name + ".cu:"))
                result += lines_around(source.text, std::atoi(row.c_str() + source.name.size() + 4));
    }
    return num_errors > 0 ? result : log.substr(0, 2000);
}

std::string names_of(std::span<const Source> sources) {
    if (sources.size() == 1) return sources[0].name;
    return fmt::format("{} and {} more", sources[0].name, sources.size() - 1);
}

}  // namespace

std::string entry_symbol(size_t i) { return fmt::format("tw_run_{}", i); }

std::string translation_unit(std::span<const Source> sources) {
    std::string text = "#line 1 \"emulator_prelude\"\n" + device::emulator_prelude();
    std::vector<std::string_view> texts;
    for (const Source& source : sources) texts.push_back(source.text);
    text += device::warpgroup_twins(texts);
    std::string entries;
    for (size_t i = 0; i < sources.size(); ++i) {
        // A text defines some primitives of its own, in what would be the only namespace tw that it sees.
        text += fmt::format(
            "namespace tw_kernel_{0} {{ namespace tw {{ using namespace ::tw; }}\n#line 1 \"{1}.cu\"\n{2}\n}}\n", i,
            sources[i].name, without_c_linkage(with_marked_registers(device::for_emulator(sources[i].text))));
        entries += fmt::format("TW_ENTRY(tw_run_{0}, tw_kernel_{0}::{1})\n", i, sources[i].name);
    }
    return text + "#line 1 \"entries\"\n" + entries;
}

std::string flags_of_environment() {
    const char* flags = std::getenv("TW_HOST_CXXFLAGS");
    return flags ? flags : "";
}

void ask_for_flags() { flags_of(host_compiler()); }

int build_module(const std::string& translation_unit, std::span<const Source> sources) {
    internal_check(!sources.empty(), "nothing to compile");
    const std::string compiler = host_compiler();
    ScratchDirectory scratch;
    const std::string unit = scratch.path() / "kernels.cpp", object = scratch.path() / "kernels.o",
                      library = scratch.path() / "kernels.so";
    if (!(std::ofstream(unit) << translation_unit << std::flush))
        throw_error(CompileFailed, "cannot write '{}'; the disk may be full: set TMPDIR to another", unit);

    std::vector<std::string> compile = flags_of(compiler);
    compile.insert(compile.begin(), compiler);
    for (const std::string& word : words_of(flags_of_environment())) compile.push_back(word);
    compile.insert(compile.end(), {"-c", unit, "-o", object});
    CommandResult compiled = run_command(compile, scratch.path());
    if (!compiled.succeeded)
        throw_error(CompileFailed, "the host compiler refuses {}:\n{}", names_of(sources),
                    first_errors(compiled.output, sources));

    // Without -fsanitize here: the sanitizer's library stays out. Its own functions stand before those of one name in
    // a program that exports them. Gold takes half of the time.
    std::vector<std::string> link = {compiler, "-shared", "-nostdlib", "-Wl,-Bsymbolic", object, "-o",
                                     library,  "-lm",     "-lc",       "-lgcc"};
    if (is_program("ld.gold")) link.insert(link.begin() + 1, "-fuse-ld=gold");
    CommandResult linked = run_command(link, scratch.path());
    if (!linked.succeeded) throw_error(CompileFailed, "{} cannot be linked:\n{}", names_of(sources), linked.output);
    int file = open(library.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        throw_error(CompileFailed, "'{}' has linked {} without a complaint, but left no library; is it a C++ compiler?",
                    compiler, names_of(sources));
    return file;
}

}  // namespace tw::emulator
