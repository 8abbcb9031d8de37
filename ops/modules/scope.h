// Where in a network an operation is called: by the names of its modules, and by names of one's own.
//
//   { nn::Scope scope("teacher"); target = network(x); }    // operations of "teacher.blocks.0.up", "teacher", ...
//
//   nn::Tensor Block::operator()(const nn::Tensor& x) const {
//       const nn::Scope here = scope();                      // so that add() and gelu() are of "blocks.0", too
//       return nn::add(x, down(nn::gelu(up(x))));            // up() and down() know "blocks.0.up" and "blocks.0.down"
//   }
#pragma once
#include <memory>
#include <string>

#include "dsl/schedule_options.h"

namespace tw::nn {

/// A module's name in the one that it is registered in; of several, the first one.
struct ModuleName {
    std::string name;  ///< empty: it is in none
    std::weak_ptr<const ModuleName> parent;
};

/// While it lives, what a captured step calls in this thread belongs to that: explain() shows it beside operations, and
/// MixedPrecision::scopes names it. Scopes stand in scopes: names are joined by dots, and those of a module begin
/// behind the module around it that is named already. Gradients belong to the scopes of what they are gradients of.
/// Calls that run at once, and what is recorded, know of none.
class [[nodiscard]] Scope {
public:
    /// Throws Error if the name is empty.
    explicit Scope(std::string name, TW_HERE);
    /// Of a module, by the names that it and those around it are registered under: Module::scope().
    explicit Scope(std::shared_ptr<const ModuleName> module);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    /// Of all that live in this thread: "teacher.blocks.0.up"; empty without any.
    static std::string path();

private:
    const Scope* outer_;
    std::string name_;
    std::shared_ptr<const ModuleName> module_;  // nullptr of names
};

}  // namespace tw::nn
