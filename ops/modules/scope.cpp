#include "ops/modules/scope.h"

#include <utility>
#include <vector>

#include "support/error.h"

namespace tw::nn {
namespace {

thread_local const Scope* innermost = nullptr;

std::string joined(const std::string& a, const std::string& b) { return a.empty() || b.empty() ? a + b : a + "." + b; }

/// From behind `known`, if the module is in that, or from its outermost module on.
std::string names_behind(const std::shared_ptr<const ModuleName>& known, std::shared_ptr<const ModuleName> module) {
    std::string names;
    for (; module && module != known; module = module->parent.lock()) names = joined(module->name, names);
    return names;
}

}  // namespace

Scope::Scope(std::string name, std::source_location where) : outer_(innermost), name_(std::move(name)) {
    user_check(!name_.empty(), where, "Scope: an empty name; give one, by which what is called there is known");
    innermost = this;
}

Scope::Scope(std::shared_ptr<const ModuleName> module)
    : outer_(std::exchange(innermost, this)), module_(std::move(module)) {}

Scope::~Scope() { innermost = outer_; }

std::string Scope::path() {
    std::vector<const Scope*> scopes;
    for (const Scope* scope = innermost; scope; scope = scope->outer_) scopes.insert(scopes.begin(), scope);
    std::string path;
    std::shared_ptr<const ModuleName> known;
    for (const Scope* scope : scopes) {
        path = joined(path, scope->module_ ? names_behind(known, scope->module_) : scope->name_);
        if (scope->module_) known = scope->module_;
    }
    return path;
}

}  // namespace tw::nn
