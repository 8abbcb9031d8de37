// Twins of ../memory.cuh. A wide access reports itself as one access: the compiler would take it apart, and report the
// parts. Values travel in registers, since a register array whose address a function sees would be checked memory too.
namespace tw {
namespace emulated {

struct Pair {
    unsigned long low, high;
};

#define TW_WIDE(bytes, slot, Bits)                                                    \
    extern "C" TW_HOOK Bits tw_load##bytes(const void* memory) {                      \
        tw_hooks.read[slot](memory, TW_CALLER);                                       \
        return *static_cast<const Bits*>(memory);                                     \
    }                                                                                 \
    extern "C" TW_HOOK void tw_store##bytes(void* memory, Bits value) {               \
        tw_hooks.write[slot](memory, TW_CALLER);                                      \
        *static_cast<Bits*>(memory) = value;                                          \
    }
TW_WIDE(1, 0, unsigned char)
TW_WIDE(2, 1, unsigned short)
TW_WIDE(4, 2, unsigned)
TW_WIDE(8, 3, unsigned long)
TW_WIDE(16, 4, Pair)
#undef TW_WIDE

extern "C" TW_HOOK void tw_outside(long long index, long long extent, const char* tensor, int dimension) {
    tw_hooks.outside(index, extent, tensor, dimension, TW_CALLER);
}

template <int bytes>
struct Wide {
    static_assert(bytes < 0, "one access moves 1, 2, 4, 8 or 16 bytes");
};
#define TW_WIDE(bytes, Bits_)                                                                    \
    template <>                                                                                  \
    struct Wide<bytes> {                                                                         \
        using Bits = Bits_;                                                                      \
        TW_INLINE static Bits load(const void* memory) { return tw_load##bytes(memory); }        \
        TW_INLINE static void store(void* memory, Bits bits) { tw_store##bytes(memory, bits); }  \
    };
TW_WIDE(1, unsigned char)
TW_WIDE(2, unsigned short)
TW_WIDE(4, unsigned)
TW_WIDE(8, unsigned long)
TW_WIDE(16, Pair)
#undef TW_WIDE

}  // namespace emulated

template <int N, class T>
TW_INLINE void load(T* registers, const T* memory) {
    const auto bits = emulated::Wide<N * sizeof(T)>::load(memory);
    __builtin_memcpy((void*)registers, &bits, sizeof(bits));
}

template <int N, class T>
TW_INLINE void store(T* memory, const T* registers) {
    using Wide = emulated::Wide<N * sizeof(T)>;
    typename Wide::Bits bits;
    __builtin_memcpy(&bits, (const void*)registers, sizeof(bits));
    Wide::store(memory, bits);
}

template <int N, class T>
TW_INLINE void copy(T* to, const T* from) {
    using Wide = emulated::Wide<N * sizeof(T)>;
    Wide::store(to, Wide::load(from));
}

template <int N, class T>
TW_INLINE void copy_where(bool condition, T* to, const T* from) {
    if (condition) copy<N>(to, from);
}

template <class Index, class Extent>
TW_INLINE Index inside(Index index, Extent extent, const char* tensor, int dimension) {
    if (index < 0 || index >= extent) emulated::tw_outside(index, extent, tensor, dimension);
    return index;
}

namespace emulated {
extern "C" TW_HOOK void tw_begin_array(const void* array, int bytes) {
    tw_hooks.begin_array(array, bytes, TW_CALLER);
}
}  // namespace emulated

TW_INLINE void begin_array(const void* array, int bytes) { emulated::tw_begin_array(array, bytes); }

template <class T>
TW_INLINE T& shared_memory() { return *reinterpret_cast<T*>(tw_shared_memory()); }

}  // namespace tw
