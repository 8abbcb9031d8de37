// Memory of small objects that come and go by the million.
#pragma once
#include <cstddef>
#include <new>

namespace tw {

/// An allocator that keeps blocks which this thread gave back for what it asks for next, a list for each type of
/// object. Blocks may be given back by another thread than the one that asked for them. Under a sanitizer, which
/// follows each block, none are kept.
template <class T>
struct RecentMemory {
    using value_type = T;

    RecentMemory() = default;
    template <class Other>
    explicit RecentMemory(const RecentMemory<Other>&) {}

    T* allocate(size_t count) {
        if (count != 1 || !kept.first) return static_cast<T*>(::operator new(count * sizeof(T)));
        Block* block = kept.first;
        kept.first = block->next, --kept.count;
        return reinterpret_cast<T*>(block);
    }
    void deallocate(T* memory, size_t count) {
        if (count != 1 || kept.count >= kept.most) return ::operator delete(memory);
        thread_local const AtEnd at_end;
        static_cast<void>(at_end);
        kept.first = new (static_cast<void*>(memory)) Block{kept.first};
        ++kept.count;
    }
    bool operator==(const RecentMemory&) const { return true; }

private:
    static_assert(sizeof(T) >= sizeof(void*) && alignof(T) <= alignof(std::max_align_t));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    static constexpr size_t most_kept = 0;
#else
    static constexpr size_t most_kept = 4096;
#endif
    struct Block {
        Block* next;
    };
    struct Kept {
        Block* first = nullptr;
        size_t count = 0, most = most_kept;
    };
    /// Has no destructor: what dies last in a thread gives blocks back, too, behind AtEnd.
    static inline thread_local constinit Kept kept;
    struct AtEnd {
        ~AtEnd() {
            kept.most = 0;
            while (Block* block = kept.first) {
                kept.first = block->next;
                ::operator delete(static_cast<void*>(block));
            }
            kept.count = 0;
        }
    };
};

}  // namespace tw
