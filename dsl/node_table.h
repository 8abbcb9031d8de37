// What is known of nodes of expressions, in walks and while they are simplified.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include <boost/container/small_vector.hpp>

#include "dsl/expr.h"

namespace tw {

/// By node, of which none may be gone while it is known: addresses are used again. Most expressions are small and are
/// walked often: the first nodes are a list on the stack, which is searched from its end; many are a table. Addresses
/// are multiples of 16, and spread well enough by one multiplication.
template <class Value>
class NodeTable {
    struct Entry {
        const ExprNode* node = nullptr;
        [[no_unique_address]] Value value;
    };
    static constexpr size_t most_listed = 12;
    boost::container::small_vector<Entry, most_listed> entries_;
    size_t size_ = 0;  // of a table; 0 of a list

    size_t place_of(const ExprNode* node) const {
        constexpr uint64_t golden_ratio = 0x9e3779b97f4a7c15;
        const size_t last = entries_.size() - 1;
        size_t place = reinterpret_cast<uintptr_t>(node) * golden_ratio >> 32 & last;
        while (entries_[place].node && entries_[place].node != node) place = (place + 1) & last;
        return place;
    }
    const Entry* entry_of(const ExprNode* node) const {
        if (size_ > 0) {
            const Entry& entry = entries_[place_of(node)];
            return entry.node ? &entry : nullptr;
        }
        for (size_t place = entries_.size(); place-- > 0;)
            if (entries_[place].node == node) return &entries_[place];
        return nullptr;
    }
    void grow(size_t count) {
        auto old = std::move(entries_);
        entries_.clear();
        entries_.resize(count);
        for (Entry& entry : old)
            if (entry.node) entries_[place_of(entry.node)] = std::move(entry);
    }

    void add(const ExprNode* node, Value value) {
        if (size_ == 0 && entries_.size() < most_listed) {
            entries_.push_back({node, std::move(value)});
            return;
        }
        if (size_ == 0) {
            size_ = entries_.size();
            grow(64);
        } else if (2 * size_ >= entries_.size()) {
            grow(entries_.size() * 4);
        }
        entries_[place_of(node)] = {node, std::move(value)};
        ++size_;
    }

public:
    /// Nullptr if it is new. Valid until the next insertion.
    const Value* find(const ExprNode* node) const {
        const Entry* entry = entry_of(node);
        return entry ? &entry->value : nullptr;
    }
    /// Whether it is new; nothing changes if it is not.
    bool insert(const ExprNode* node, Value value = {}) {
        if (entry_of(node)) return false;
        add(node, std::move(value));
        return true;
    }
    void assign(const ExprNode* node, Value value) {
        if (const Entry* entry = entry_of(node))
            const_cast<Entry*>(entry)->value = std::move(value);
        else
            add(node, std::move(value));
    }
};

}  // namespace tw
