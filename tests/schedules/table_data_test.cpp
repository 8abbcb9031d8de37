// Tables that kernels which are asked for by name are run with.
#include <gmock/gmock.h>

#include "dsl/interpret.h"
#include "ops/check.h"
#include "schedules/catalog.h"

namespace tw::schedules {
namespace {

/// Many elements of what they compute are no zeros, as all would be if tiles went through nothing; and all are
/// numbers.
TEST(TableData, HasKernelsComputeSomething) {
    for (const char* name :
         {"attention_varlen_bf16_170x2x8", "attention_varlen_bf16_150x1x16_keys210_alibi_tile64x32s2",
          "attention_varlen_gradients_bf16_130x1x8_window60", "attention_varlen_gradients_f16_70x1x8_keys130",
          "attention_ranged_bf16_2x1x170x8_documents", "attention_ranged_gradients_bf16_1x1x140x8_documents",
          "attention_ranged_gradients_bf16_1x2x64x8_keys90_causal_lower_right", "attention_ranged_bf16_1x1x70x16",
          "attention_varlen_tables_3x140_causal_places", "attention_key_ranges_bf16_1x1x300x16_documents"}) {
        const uint64_t seed = 3;
        SCOPED_TRACE(name);
        const CatalogEntry* entry = find_kernel(name);
        ASSERT_TRUE(entry && entry->give_tables);
        const Schedule s = entry->make(target("sm_90a"));
        Bindings bindings = random_bindings(s.outputs(), seed);
        entry->give_tables(bindings, seed);
        int64_t elements = 0, something = 0;
        for (const HostArray& result : interpret_plain(s.outputs(), bindings))
            for (std::vector<int64_t> at(result.shape.size(), 0);;) {
                const Value value = result.at(at);
                const double number = is_float(result.type) ? value.real : static_cast<double>(value.integer);
                EXPECT_FALSE(std::isnan(number));
                ++elements, something += number != 0;
                if (!advance(at, result.shape)) break;
            }
        EXPECT_GT(8 * something, elements);
    }
}

TEST(TableData, IsLeftAsItIsWhereNothingReadsTables) {
    for (const char* name : {"attention_bf16_1x1x64x64", "product_64x48x40"})
        EXPECT_FALSE(find_kernel(name)->give_tables) << name;
}

}  // namespace
}  // namespace tw::schedules
