// Elements made of a tensor's at their own place and at another, whose neighbours run along another axis.
#pragma once
#include <vector>

#include "schedules/redeclared.h"

namespace tw::schedules {

/// Elements that read a tensor at several places, of which some run along the last axis and others do not,
///
///     y[i, j] = x[i, j] + x[j, i]
///
/// read those as elements of `x_turned`, a view of `x`: tiles of it are loaded as those of a tensor of its own.
Redeclared turned_views(const std::vector<Tensor>& outputs);

/// The views that such elements of a declaration read beside what they are of, also where a user has written them.
std::vector<Tensor> views_of_elements(const std::vector<Tensor>& outputs);

}  // namespace tw::schedules
