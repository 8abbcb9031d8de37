#include "runtime/driver/kernel_parameters.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <string>
#include <utility>

#include <elf.h>

namespace tw {
namespace {

std::string without_comments(std::string_view text) {
    std::string result;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text.substr(i, 2) == "//") {
            i = std::min(text.find('\n', i), text.size());
        } else if (text.substr(i, 2) == "/*") {
            i = std::min(text.find("*/", i), text.size() - 2) + 1;
            result += ' ';
            continue;
        }
        if (i < text.size()) result += text[i];
    }
    return result;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::vector<std::string_view> words_of(std::string_view text) {
    std::vector<std::string_view> words;
    for (size_t i = 0; i < text.size();) {
        size_t begin = i;
        while (i < text.size() && is_word(text[i])) ++i;
        if (i > begin)
            words.push_back(text.substr(begin, i - begin));
        else
            ++i;
    }
    return words;
}

// Parses "const float* __restrict__ x", "unsigned int n", ...
size_t bytes_of(std::string_view parameter) {
    if (parameter.find('<') != std::string_view::npos) return 0;
    if (parameter.find('*') != std::string_view::npos) return 8;
    constexpr std::array<std::pair<std::string_view, size_t>, 11> sizes{{{"long", 8},
                                                                         {"double", 8},
                                                                         {"int64_t", 8},
                                                                         {"uint64_t", 8},
                                                                         {"size_t", 8},
                                                                         {"float", 4},
                                                                         {"int32_t", 4},
                                                                         {"uint32_t", 4},
                                                                         {"short", 2},
                                                                         {"int", 4},
                                                                         {"unsigned", 4}}};
    auto words = words_of(parameter);
    for (const auto& [type, bytes] : sizes)  // in this order: "unsigned long" has 8 bytes
        if (std::find(words.begin(), words.end(), type) != words.end()) return bytes;
    return 0;
}

// The text between the parentheses behind `entry`, where a body follows: the function's definition.
std::optional<std::string> parameter_list(const std::string& text, std::string_view entry) {
    for (size_t at = text.find(entry); at != std::string::npos; at = text.find(entry, at + 1)) {
        size_t begin = at + entry.size();
        if ((at > 0 && is_word(text[at - 1])) || (begin < text.size() && is_word(text[begin]))) continue;
        begin = text.find_first_not_of(" \t\n", begin);
        if (begin == std::string::npos || text[begin] != '(') continue;
        size_t end = begin;
        for (int depth = 0; end < text.size(); ++end) {
            depth += (text[end] == '(') - (text[end] == ')');
            if (depth == 0) break;
        }
        size_t body = end < text.size() ? text.find_first_not_of(" \t\n", end + 1) : std::string::npos;
        if (body != std::string::npos && text[body] == '{') return text.substr(begin + 1, end - begin - 1);
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::vector<size_t>> kernel_parameters(std::string_view source, std::string_view entry) {
    auto list = parameter_list(without_comments(source), entry);
    if (!list) return std::nullopt;
    std::vector<size_t> bytes;
    if (words_of(*list).empty()) return bytes;
    size_t begin = 0;
    int depth = 0;  // of template brackets, whose commas separate no parameters
    for (size_t i = 0; i <= list->size(); ++i) {
        if (i < list->size())
            depth += ((*list)[i] == '<') - ((*list)[i] == '>') + ((*list)[i] == '(') - ((*list)[i] == ')');
        if (i < list->size() && ((*list)[i] != ',' || depth > 0)) continue;
        bytes.push_back(bytes_of(std::string_view(*list).substr(begin, i - begin)));
        begin = i + 1;
    }
    return bytes;
}

namespace {

/// A struct at this offset of the bytes, if they reach so far.
template <class Struct>
std::optional<Struct> at(std::string_view bytes, size_t offset) {
    if (offset > bytes.size() || bytes.size() - offset < sizeof(Struct)) return {};
    Struct result;
    std::memcpy(&result, bytes.data() + offset, sizeof result);
    return result;
}

std::string_view part(std::string_view bytes, size_t offset, size_t size) {
    return offset > bytes.size() ? std::string_view() : bytes.substr(offset, size);
}

/// The section of this name in an ELF file; empty if there is none.
std::string_view section(std::string_view file, const std::string& name) {
    auto header = at<Elf64_Ehdr>(file, 0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return {};
    auto section_header = [&](size_t i) { return at<Elf64_Shdr>(file, header->e_shoff + i * sizeof(Elf64_Shdr)); };
    auto names = section_header(header->e_shstrndx);
    for (size_t i = 0; names && i < header->e_shnum; ++i) {
        auto one = section_header(i);
        if (!one) return {};
        std::string_view called = part(file, names->sh_offset + one->sh_name, name.size() + 1);
        if (called == std::string_view(name.c_str(), name.size() + 1)) return part(file, one->sh_offset, one->sh_size);
    }
    return {};
}

/// A note: what it is about, and how many bytes follow, or a value in their place.
struct Note {
    enum : uint8_t { HasBytes = 4 };
    enum : uint8_t { Parameter = 0x17, BytesOfParameters = 0x19 };
    uint8_t format, attribute;
    uint16_t bytes;
};

}  // namespace

std::optional<size_t> count_parameters(std::string_view cubin, std::string_view entry) {
    std::string_view notes = section(cubin, ".nv.info." + std::string(entry));
    if (notes.empty()) return {};
    size_t count = 0, offset = 0;
    bool has_parameters = false;
    for (auto note = at<Note>(notes, offset); note; note = at<Note>(notes, offset)) {
        count += note->attribute == Note::Parameter;
        has_parameters = has_parameters || note->attribute == Note::BytesOfParameters;
        offset += sizeof(Note) + (note->format == Note::HasBytes ? note->bytes : 0);
    }
    const bool is_understood = offset == notes.size() && has_parameters == (count > 0);
    return is_understood ? std::optional(count) : std::nullopt;
}

}  // namespace tw
