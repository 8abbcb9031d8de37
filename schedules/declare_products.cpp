#include "schedules/declare_products.h"

#include "schedules/as_matrices.h"
#include "schedules/behind_products.h"
#include "schedules/columns_in_turns.h"
#include "schedules/copied_operands.h"
#include "schedules/factors_in_pairs.h"
#include "schedules/joined_terms.h"
#include "schedules/products_apart.h"
#include "schedules/scaled_blocks.h"
#include "schedules/self_products.h"
#include "schedules/short_sums.h"
#include "schedules/strided_terms.h"
#include "schedules/turned_views.h"
#include "schedules/whole_rows.h"

namespace tw::schedules {

Redeclared declare_products(const std::vector<Tensor>& outputs, const Target& target,
                            const std::vector<std::string>& windows) {
    Redeclared result{outputs, {}};
    auto take = [&](const auto& declared) {
        result.outputs = declared.outputs;
        result.notes.insert(result.notes.end(), declared.notes.begin(), declared.notes.end());
    };
    take(strided_terms(result.outputs));
    take(short_sums(result.outputs));
    take(factors_in_pairs(result.outputs));
    take(scaled_blocks(result.outputs, target));
    take(columns_in_turns(result.outputs, target));
    take(products_apart(result.outputs));
    take(self_products(result.outputs, target));
    take(joined_terms(result.outputs));
    take(as_matrices(result.outputs, target, windows));
    take(behind_products(result.outputs, target));
    take(copied_operands(result.outputs, target));
    take(whole_rows(result.outputs, target));
    take(turned_views(result.outputs));
    return result;
}

}  // namespace tw::schedules
