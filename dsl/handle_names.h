// What a trace in C++ calls things: loops and stages are variables, as are the tensors and sizes of the computation.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dsl/tensor.h"

namespace tw {

/// Identifiers that differ from each other, from keywords and from what steps are written with (`s`, `thread`, ...).
class HandleNames {
public:
    HandleNames() = default;
    HandleNames(const std::vector<std::shared_ptr<const Operation>>& operations, const std::vector<Expr>& sizes);

    /// A fresh identifier: `wish`, or with a number behind it ("row_2").
    std::string declare(const std::string& wish);
    /// Whether an identifier can be declared as it is.
    bool is_free(const std::string& identifier) const;
    /// Whether the operation is of the computation: copies and parts are a schedule's.
    bool knows(const Operation* operation) const { return tensors_.count(operation) > 0; }
    /// "c", of several outputs "best[1]".
    std::string tensor(const Operation* operation, int output) const;
    std::string size(const std::string& name) const;

private:
    std::set<std::string> taken_;
    std::map<const Operation*, std::string> tensors_;
    std::map<std::string, std::string> sizes_;
};

}  // namespace tw
