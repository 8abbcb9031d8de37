#include "ops/attributes.h"

#include <algorithm>

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

}  // namespace

Attributes::Attributes(std::initializer_list<Named> named, std::source_location where) {
    for (const Named& each : named) {
        user_check(!each.name.empty(), where, "an attribute has no name; give each one");
        user_check(values_.emplace(each.name, each.value).second, where, "attribute '{}' is given twice", each.name);
    }
}

bool Attributes::has(const std::string& name) const {
    read_->insert(name);
    return values_.contains(name);
}

const Attribute& Attributes::found(const std::string& name, const char* kind) const {
    read_->insert(name);
    const auto at = values_.find(name);
    if (at == values_.end())
        throw_error(Error, "there is no attribute '{}', which is to be {}; the call has {}", name, kind, text());
    return at->second;
}

template <class Value>
const Value& Attributes::value(const std::string& name, const char* kind) const {
    const Attribute& attribute = found(name, kind);
    if (const Value* value = std::get_if<Value>(&attribute)) return *value;
    throw_error(Error, "attribute '{}' is {}, which is not {}", name, text_of(attribute), kind);
}

bool Attributes::flag(const std::string& name) const { return value<bool>(name, "true or false"); }
int64_t Attributes::integer(const std::string& name) const { return value<int64_t>(name, "an integer"); }
double Attributes::number(const std::string& name) const {
    if (const int64_t* integer = std::get_if<int64_t>(&found(name, "a number"))) return static_cast<double>(*integer);
    return value<double>(name, "a number");
}
const std::string& Attributes::text(const std::string& name) const { return value<std::string>(name, "text"); }
const std::vector<int64_t>& Attributes::integers(const std::string& name) const {
    return value<std::vector<int64_t>>(name, "a list of integers");
}

std::string Attributes::text() const {
    std::vector<std::string> texts;
    for (const auto& [name, value] : values_) texts.push_back(name + "=" + text_of(value));
    return fmt::format("{{{}}}", fmt::join(texts, ", "));
}

Attributes Attributes::unread() const {
    Attributes same;
    same.values_ = values_;
    return same;
}

void Attributes::require_all_read(const std::string& who) const {
    for (const auto& [name, value] : values_)
        if (!read_->contains(name))
            throw_error(Error, "{}: it has no attribute '{}'; it asks for {}", who, name,
                        read_->empty() ? "none" : fmt::format("'{}'", fmt::join(*read_, "', '")));
}

}  // namespace tw::nn
