// Named constants of a call of an operator: a slope, an axis, a mode.
#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dsl/schedule_options.h"

namespace tw::nn {

using Attribute = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;

/// Values by name, in alphabetical order. What an expression asks for is known, so that a name that it never asks for,
/// as one that is misspelt, is refused.
class Attributes {
public:
    struct Named {
        std::string name;
        Attribute value;
        Named(std::string name, bool value) : name(std::move(name)), value(value) {}
        template <std::integral Integer>
        Named(std::string name, Integer value) : name(std::move(name)), value(static_cast<int64_t>(value)) {}
        Named(std::string name, double value) : name(std::move(name)), value(value) {}
        Named(std::string name, const char* value) : name(std::move(name)), value(std::string(value)) {}
        Named(std::string name, std::string value) : name(std::move(name)), value(std::move(value)) {}
        Named(std::string name, std::vector<int64_t> value) : name(std::move(name)), value(std::move(value)) {}
        Named(std::string name, const std::vector<int>& value)
            : name(std::move(name)), value(std::vector<int64_t>(value.begin(), value.end())) {}
        Named(std::string name, std::initializer_list<int64_t> value)
            : name(std::move(name)), value(std::vector<int64_t>(value)) {}
    };

    Attributes() = default;
    /// {{"slope", 0.1}, {"dims", {0, 2, 1}}}. Throws Error if a name is empty or given twice.
    Attributes(std::initializer_list<Named> named, TW_HERE);

    bool empty() const { return values_.empty(); }
    bool has(const std::string& name) const;

    // Throw Error, with what is there and the line of the operator's call, if there is none of this name, or it is
    // something else. An integer is a number, too.
    bool flag(const std::string& name) const;
    int64_t integer(const std::string& name) const;
    double number(const std::string& name) const;
    const std::string& text(const std::string& name) const;
    const std::vector<int64_t>& integers(const std::string& name) const;

    // The same; `otherwise` where there is none of this name.
    bool flag(const std::string& name, bool otherwise) const { return has(name) ? flag(name) : otherwise; }
    int64_t integer(const std::string& name, int64_t otherwise) const { return has(name) ? integer(name) : otherwise; }
    double number(const std::string& name, double otherwise) const { return has(name) ? number(name) : otherwise; }
    std::string text(const std::string& name, const std::string& otherwise) const {
        return has(name) ? text(name) : otherwise;
    }
    std::vector<int64_t> integers(const std::string& name, const std::vector<int64_t>& otherwise) const {
        return has(name) ? integers(name) : otherwise;
    }

    /// All of them: {dims=[0, 2], slope=0.1}. Equal texts are equal attributes.
    std::string text() const;
    /// The same for a call of the operator, whose expression has not asked for any.
    Attributes of(const std::string& who) const;
    /// Throws Error if one has not been asked for so far.
    void require_all_read() const;

private:
    template <class Value>
    const Value& value(const std::string& name, const char* kind) const;
    const Attribute& found(const std::string& name, const char* kind) const;

    std::string who_ = "attributes";
    std::map<std::string, Attribute> values_;
    mutable std::set<std::string> read_;
};

}  // namespace tw::nn
