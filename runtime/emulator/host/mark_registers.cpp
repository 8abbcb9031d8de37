#include "runtime/emulator/host/mark_registers.h"

#include <cctype>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

namespace tw::emulator {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Reads a text from some place on.
class Reader {
public:
    Reader(std::string_view text, size_t at) : text_(text), at_(at) {}

    size_t at() const { return at_; }
    bool at_end() const { return at_ >= text_.size(); }
    char next() const { return at_end() ? '\0' : text_[at_]; }
    void skip(size_t count = 1) { at_ = std::min(at_ + count, text_.size()); }
    bool starts_with(std::string_view what) const {
        return text_.substr(std::min(at_, text_.size())).starts_with(what);
    }

    /// Spaces, comments and lines for the preprocessor.
    void skip_space() {
        for (;;) {
            if (!at_end() && std::isspace(static_cast<unsigned char>(next())))
                skip();
            else if (starts_with("//") || next() == '#')
                skip_to("\n");
            else if (starts_with("/*"))
                skip_to("*/");
            else
                return;
        }
    }

    bool take(char c) {
        skip_space();
        if (next() != c) return false;
        skip();
        return true;
    }

    std::string_view word() {
        skip_space();
        const size_t begin = at_;
        while (is_word(next())) skip();
        return text_.substr(begin, at_ - begin);
    }

    /// Behind the bracket that closes the one here.
    void skip_brackets() {
        int depth = 0;
        do {
            const char c = next();
            if (c == '"' || c == '\'')
                skip_literal();
            else if (starts_with("//"))
                skip_to("\n");
            else if (starts_with("/*"))
                skip_to("*/");
            else {
                depth += c == '(' || c == '{' || c == '[';
                depth -= c == ')' || c == '}' || c == ']';
                skip();
            }
        } while (depth > 0 && !at_end());
    }

    void skip_literal() {
        const char quote = next();
        for (skip(); !at_end() && next() != quote; skip())
            if (next() == '\\') skip();
        skip();
    }

private:
    void skip_to(std::string_view end) {
        const size_t found = text_.find(end, at_);
        at_ = found == std::string_view::npos ? text_.size() : found + end.size();
    }

    std::string_view text_;
    size_t at_;
};

/// Whether a type of numbers stands here, of which registers are.
bool take_number_type(Reader& reader) {
    static const std::set<std::string_view> of_vocabulary = {"bf16", "f16", "e4m3", "e5m2"};
    static const std::set<std::string_view> builtin = {"float", "double", "int",  "unsigned", "signed",
                                                       "long",  "short",  "char", "bool"};
    Reader first = reader;
    std::string_view word = first.word();
    if (word == "tw" && first.starts_with("::")) {
        first.skip(2);
        if (!of_vocabulary.contains(first.word())) return false;
        reader = first;
        return true;
    }
    if (!builtin.contains(word)) return false;
    for (reader = first; builtin.contains(first.word());) reader = first;
    return true;
}

/// The names that the statement here declares, if it does nothing else: `float a, b[4][2];`. Ends behind it.
std::vector<std::string> take_declaration(Reader& reader) {
    std::vector<std::string> names;
    if (!take_number_type(reader)) return {};
    do {
        std::string_view name = reader.word();
        if (name.empty()) return {};
        names.emplace_back(name);
        for (reader.skip_space(); reader.next() == '['; reader.skip_space()) reader.skip_brackets();
    } while (reader.take(','));
    if (!reader.take(';')) return {};
    return names;
}

class Marker {
public:
    explicit Marker(const std::string& text) : text_(text) {}

    std::string run() {
        const std::string_view kernel = "__global__";
        for (size_t at = 0; (at = text_.find(kernel, at)) != std::string::npos;) {
            Reader reader(text_, at + kernel.size());
            while (!reader.at_end() && reader.next() != '{' && reader.next() != ';') {
                if (reader.next() == '(')
                    reader.skip_brackets();
                else
                    reader.skip();
            }
            if (reader.next() == '{') body(reader);
            at = reader.at();
        }
        return result_ + text_.substr(copied_);
    }

private:
    void body(Reader& reader) {
        int depth = 0;
        do {
            reader.skip_space();
            if (reader.next() == '{' || reader.next() == '}') {
                depth += reader.next() == '{' ? 1 : -1;
                reader.skip();
            } else {
                statement(reader);
            }
        } while (depth > 0 && !reader.at_end());
    }

    /// A statement, or what stands before the body of one.
    void statement(Reader& reader) {
        Reader declared = reader;
        if (std::vector<std::string> names = take_declaration(declared); !names.empty()) {
            reader = declared;
            mark(names, reader.at());
            return;
        }
        Reader keyword = reader;
        const std::string_view word = keyword.word();
        const bool is_type = word == "struct" || word == "union";
        while (!reader.at_end() && reader.next() != ';' && reader.next() != '}') {
            const char c = reader.next();
            if (c == '{' && !is_type) return;
            if (c == '(' || c == '[' || c == '{') {
                reader.skip_brackets();
                reader.skip_space();
                if (c == '(' && (word == "for" || word == "if" || word == "while" || word == "switch")) return;
            } else if (c == '"' || c == '\'') {
                reader.skip_literal();
            } else {
                reader.skip();
                reader.skip_space();
            }
        }
        if (reader.next() == ';') reader.skip();
    }

    void mark(const std::vector<std::string>& names, size_t behind) {
        result_ += text_.substr(copied_, behind - copied_);
        for (const std::string& name : names) result_ += " ::tw::emulated::leave_unwritten(" + name + ");";
        copied_ = behind;
    }

    const std::string& text_;
    std::string result_;
    size_t copied_ = 0;
};

}  // namespace

std::string with_marked_registers(const std::string& text) { return Marker(text).run(); }

}  // namespace tw::emulator
