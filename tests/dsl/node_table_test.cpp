// What is known by node, against std::map: lists of few nodes, tables of many.
#include "dsl/node_table.h"

#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tw {
namespace {

TEST(NodeTable, KnowsWhatAMapKnows) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    for (const size_t most : {1, 11, 12, 13, 33, 64, 500}) {
        std::vector<Expr> nodes;
        for (size_t k = 0; k < most; ++k) nodes.push_back(index_variable("i", 0, static_cast<int64_t>(k)));
        NodeTable<Expr> table;
        std::map<const ExprNode*, Expr> known;
        for (size_t turn = 0; turn < 4 * most; ++turn) {
            const Expr &node = nodes[random() % most], &value = nodes[random() % most];
            if (random() % 2 == 0) {
                EXPECT_EQ(table.insert(node.id(), value), known.try_emplace(node.id(), value).second);
            } else {
                table.assign(node.id(), value);
                known[node.id()] = value;
            }
            const Expr& asked = nodes[random() % most];
            const Expr* found = table.find(asked.id());
            ASSERT_EQ(found != nullptr, known.contains(asked.id()));
            if (found) {
                ASSERT_TRUE(found->same(known.at(asked.id())));
            }
        }
        for (const auto& [node, value] : known) ASSERT_TRUE(table.find(node) && table.find(node)->same(value));
    }
}

}  // namespace
}  // namespace tw
