#include "codegen/print/names.h"

#include <algorithm>

#include "support/error.h"

namespace tw::codegen {

std::string Names::declare(const void* key, std::string_view wish) {
    const std::string base = sanitize(wish);
    std::string name = base;
    for (int number = 2; is_reserved(name) || is_taken(name); ++number) name = fmt::format("{}_{}", base, number);
    scopes_.back().taken.push_back(name);
    if (key) scopes_.back().by_key[key] = name;
    return name;
}

const std::string& Names::of(const void* key, std::string_view wish) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
        if (auto found = scope->by_key.find(key); found != scope->by_key.end()) return found->second;
    }
    internal_check(false, "'{}' is used where it is not visible", sanitize(wish));
    return scopes_.back().by_key.begin()->second;
}

bool Names::is_taken(const std::string& name) const {
    return std::any_of(scopes_.begin(), scopes_.end(), [&](const Scope& scope) {
        return std::find(scope.taken.begin(), scope.taken.end(), name) != scope.taken.end();
    });
}

std::string harmless_comment(const std::string& text) {
    std::string safe;
    for (char c : text) {
        auto byte = static_cast<unsigned char>(c);
        bool harmful = std::iscntrl(byte) || c == '\\' || (c == '?' && safe.ends_with("?"));
        bool foreign = byte > 126;  // of what is no UTF-8, or cut in two, NVRTC makes an empty module
        safe += harmful ? ' ' : foreign ? '_' : c;
    }
    return safe;
}

}  // namespace tw::codegen
