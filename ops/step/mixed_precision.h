// Mixed precision of a step: what tensor cores multiply and what lies between kernels has 16 bits, sums and statistics
// 32, and so have parameters, their gradients and what optimizers keep (Micikevicius et al., Mixed Precision Training,
// 2018).
#pragma once
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "dsl/schedule_options.h"
#include "schedules/declared.h"

namespace tw {

struct MixedPrecision {
    /// Of values and adjoints; f32: all stays as it is declared. bf16 needs no more; f16 overflows beyond 65504, so
    /// that losses have to be scaled (nn::LossScale).
    Type values = Type::F32;
    /// Tensors that stay as they are declared, by their names, with all of that name and a number: "linear" is also
    /// "linear_2".
    std::vector<std::string> keep = {};
    /// By where in the network an operation is called (ops/modules/scope.h), itself and its gradients, the innermost
    /// scope that is given here: f32 leaves what is made there as it is declared, of which products elsewhere read a
    /// copy, and has its products read what is f32 as f32; `values` rounds it as anything else, also in such a scope,
    /// and where `keep` names it. Equal operations are one, of the scope of the first one.
    std::vector<std::pair<std::string, Type>> scopes = {};
};

/// Whether that is the operation's name, or it with a number behind.
bool is_called(const Operation& operation, const std::string& name);

/// A step whose products have factors of 16 bits.
struct MixedStep {
    schedules::Declared step;
    /// Tensors that may lie between kernels in another type than they are computed in.
    std::vector<std::pair<Tensor, Type>> stored = {};
    std::vector<std::string> rounded = {};  ///< names of tensors that the products read, and that became `values`
};

/// A factor is what a sum of products reads, each factor along an axis of the result that the other one lacks. An f32
/// tensor that is one is rounded, for all who read it, if it is itself made of such a sum or of elements made of such
/// ones, as activations and their adjoints are; others (parameters, inputs, results) get a rounded copy, NAME_bf16.
/// `stored` are the other tensors made so. Neither are results, what overwrites an input, and what is read, element by
/// element, to make that: gradients of parameters. Reductions that are no products stay f32: statistics, losses.
/// Throws Error if `values` is no float of 16 bits, nor f32, if `keep` names no tensor of the step, and if `scopes` has
/// one in which nothing is called, or with another type than f32 and `values`.
MixedStep mixed_precision(const schedules::Declared& step, const MixedPrecision& how, TW_HERE);

}  // namespace tw
