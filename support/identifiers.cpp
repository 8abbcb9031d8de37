#include "support/identifiers.h"

#include <set>

namespace tw {
namespace {

// Words that mean something in C++20, in CUDA, or to a preprocessor that compiles the text (g++ defines linux and
// unix). Functions are no concern: the text calls them with their namespace, and names of kernels end in _kernel.
const std::set<std::string_view>& reserved_words() {
    static const std::set<std::string_view> words = {
        // C++
        "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch",
        "char", "char8_t", "char16_t", "char32_t", "class", "compl", "concept", "const", "consteval", "constexpr",
        "constinit", "const_cast", "continue", "co_await", "co_return", "co_yield", "decltype", "default", "delete",
        "do", "double", "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for",
        "friend", "goto", "if", "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "not_eq",
        "nullptr", "operator", "or", "or_eq", "private", "protected", "public", "register", "reinterpret_cast",
        "requires", "return", "short", "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch",
        "template", "this", "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union",
        "unsigned", "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq", "final", "override",
        "import", "module", "std", "tw", "main",
        // CUDA
        "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "cuda", "dim3", "half", "clock", "clock64",
        // types, which parameters are told apart by
        "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "size_t", "ptrdiff_t",
        "intptr_t", "uintptr_t",
        // macros
        "linux", "unix", "i386", "assert", "NULL", "NAN", "INFINITY", "EOF", "TRUE", "FALSE"};
    return words;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// The emulator's macros, and functions that it calls by macros; also what a number behind it would make one.
bool is_of_the_emulator(std::string_view name) {
    std::string_view first = name.substr(0, name.find('_'));
    return first == "TW" || first == "tw";
}

}  // namespace

std::string sanitize(std::string_view wish) {
    constexpr size_t longest = 48;
    std::string name;
    for (char c : wish.substr(0, longest)) {
        bool keep = is_letter(c) || is_digit(c);
        if (keep)
            name += c;
        else if (!name.empty() && name.back() != '_')
            name += '_';  // "__" belongs to the compiler
    }
    while (!name.empty() && name.back() == '_') name.pop_back();
    if (name.empty() || is_digit(name[0]) || is_of_the_emulator(name)) name = "v" + name;
    return name;
}

bool is_reserved(const std::string& name) { return reserved_words().count(name) > 0 || is_of_the_emulator(name); }

}  // namespace tw
