#include "ops/attributes.h"

#include <fmt/ranges.h>

#include "support/error.h"

namespace tw::nn {
namespace {

std::string text_of(const Attribute& value) {
    struct Text {
        std::string operator()(bool flag) const { return flag ? "true" : "false"; }
        std::string operator()(int64_t integer) const { return fmt::format("{}", integer); }
        /// With a point, unlike an integer.
        std::string operator()(double number) const { return fmt::format("{:#}", number); }
        std::string operator()(const std::string& text) const { return fmt::format("{:?}", text); }
        std::string operator()(const std::vector<int64_t>& integers) const { return fmt::format("{}", integers); }
    };
    return std::visit(Text{}, value);
}

/// Of the operator whose expression asks (CalledFrom).
std::source_location call() { return std::source_location::current(); }

}  // namespace

Attributes::Attributes(std::initializer_list<Named> named, std::source_location where) {
    for (const Named& each : named) {
        user_check(!each.name.empty(), where, "an attribute has no name; give each one");
        user_check(values_.emplace(each.name, each.value).second, where, "attribute '{}' is given twice", each.name);
    }
}

bool Attributes::has(const std::string& name) const {
    read_.insert(name);
    return values_.contains(name);
}

const Attribute& Attributes::found(const std::string& name, const char* kind) const {
    read_.insert(name);
    const auto at = values_.find(name);
    user_check(at != values_.end(), call(), "{}: it needs an attribute '{}', {}; the call has {}", who_, name, kind,
               text());
    return at->second;
}

template <class Value>
const Value& Attributes::value(const std::string& name, const char* kind) const {
    const Attribute& attribute = found(name, kind);
    const Value* value = std::get_if<Value>(&attribute);
    user_check(value, call(), "{}: attribute '{}' is {}, which is not {}", who_, name, text_of(attribute), kind);
    return *value;
}

bool Attributes::flag(const std::string& name) const { return value<bool>(name, "true or false"); }
int64_t Attributes::integer(const std::string& name) const { return value<int64_t>(name, "an integer"); }
double Attributes::number(const std::string& name) const {
    const int64_t* integer = std::get_if<int64_t>(&found(name, "a number"));
    return integer ? static_cast<double>(*integer) : value<double>(name, "a number");
}
const std::string& Attributes::text(const std::string& name) const { return value<std::string>(name, "a text"); }
const std::vector<int64_t>& Attributes::integers(const std::string& name) const {
    return value<std::vector<int64_t>>(name, "a list of integers");
}

std::string Attributes::text() const {
    std::vector<std::string> texts;
    for (const auto& [name, value] : values_) texts.push_back(name + "=" + text_of(value));
    return fmt::format("{{{}}}", fmt::join(texts, ", "));
}

Attributes Attributes::of(const std::string& who) const {
    Attributes same;
    same.who_ = who;
    same.values_ = values_;
    return same;
}

void Attributes::require_all_read() const {
    for (const auto& [name, value] : values_)
        user_check(read_.contains(name), call(), "{}: it has no attribute '{}'; it asks for {}", who_, name,
                   read_.empty() ? "none" : fmt::format("'{}'", fmt::join(read_, "', '")));
}

}  // namespace tw::nn
