// Identifiers of the printed text: what users call things, made safe and unique.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "support/identifiers.h"

namespace tw::codegen {

using tw::is_reserved;
using tw::sanitize;

/// Names by what they stand for (a node's address), in nested scopes. A name is unique among the visible ones.
class Names {
public:
    Names() { enter(); }
    void enter() { scopes_.emplace_back(); }
    void leave() { scopes_.pop_back(); }
    /// Declares `key` in the innermost scope, as `wish` or the like ("row_2").
    std::string declare(const void* key, std::string_view wish);
    /// Takes a name without an owner.
    std::string reserve(std::string_view wish) { return declare(nullptr, wish); }
    /// The name of a declared key; an internal error if it is not visible.
    const std::string& of(const void* key, std::string_view wish) const;

private:
    bool is_taken(const std::string& name) const;

    struct Scope {
        std::map<const void*, std::string> by_key;
        std::vector<std::string> taken;
    };
    std::vector<Scope> scopes_;
};

/// One line that cannot end its comment: no control characters, no backslash, no trigraph.
std::string harmless_comment(const std::string& text);

}  // namespace tw::codegen
