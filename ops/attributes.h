// Named constants of a call of an operator: a slope, an axis, a mode.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
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
/// as one that is misspelt, is refused. Copies share what was asked for.
class Attributes {
public:
    struct Named {
        std::string name;
        Attribute value;
        Named(std::string name, bool value) : name(std::move(name)), value(value) {}
        Named(std::string name, int value) : name(std::move(name)), value(int64_t{value}) {}
        Named(std::string name, int64_t value) : name(std::move(name)), value(value) {}
        Named(std::string name, double value) : name(std::move(name)), value(value) {}
        Named(std::string name, const char* value) : name(std::move(name)), value(std::string(value)) {}
        Named(std::string name, std::string value) : name(std::move(name)), value(std::move(value)) {}
        Named(std::string name, std::vector<int64_t> value) : name(std::move(name)), value(std::move(value)) {}
    };

    Attributes() = default;
    /// {{"slope", 0.1}, {"dims", std::vector<int64_t>{0, 2}}}. Throws Error if a name is empty or given twice.
    Attributes(std::initializer_list<Named> named, TW_HERE);

    bool empty() const { return values_.empty(); }
    bool has(const std::string& name) const;

    // Throw Error, with what is there, if there is none of this name, or it is something else. An integer is a number,
    // too.
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
    /// The same, of which none has been asked for.
    Attributes unread() const;
    /// Throws Error if one has not been asked for so far.
    void require_all_read(const std::string& who) const;

private:
    template <class Value>
    const Value& value(const std::string& name, const char* kind) const;
    const Attribute& found(const std::string& name, const char* kind) const;

    std::map<std::string, Attribute> values_;
    std::shared_ptr<std::set<std::string>> read_ = std::make_shared<std::set<std::string>>();
};

}  // namespace tw::nn
