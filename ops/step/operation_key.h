// What an operation computes, as a key that two operations share only if they compute the same.
#pragma once
#include <map>
#include <string>
#include <unordered_map>

#include "dsl/tensor.h"

namespace tw {

class OperationKeys {
public:
    /// Of shape, types and every node of what it computes; names, and lines of source, are left out. Tensors that it
    /// reads are known by themselves.
    std::string of(const Operation& operation);

private:
    int64_t number(const Expr& expr);
    int64_t number_of_line(const std::string& line);
    std::string line_of(const Expr& expr);
    std::string reducer_line(const ReducerNode& reducer);

    std::unordered_map<std::string, int64_t> lines_;          // nodes by what they are, of all operations
    std::unordered_map<const ExprNode*, int64_t> numbers_;    // of the operation
    std::unordered_map<const ExprNode*, int64_t> variables_;  // those that are bound in it, in the order they are met
};

}  // namespace tw
