// Twins of ../warp.cuh and ../atomic.cuh, and of barrier_sync and barrier_arrive.
namespace tw {
namespace emulated {

extern "C" TW_HOOK unsigned long tw_shuffle(unsigned long value, int source_lane) {
    return tw_hooks.shuffle(value, source_lane, TW_CALLER);
}
extern "C" TW_HOOK void tw_sync_named(int id, int threads) { tw_hooks.sync_named(id, threads, TW_CALLER); }
extern "C" TW_HOOK void tw_arrive_named(int id, int threads) { tw_hooks.arrive_named(id, threads, TW_CALLER); }

template <class T>
TW_INLINE T shuffled(T value, int source_lane) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    if constexpr (sizeof(T) == 4)
        return __builtin_bit_cast(T, (unsigned)tw_shuffle(__builtin_bit_cast(unsigned, value), source_lane));
    else
        return __builtin_bit_cast(T, tw_shuffle(__builtin_bit_cast(unsigned long, value), source_lane));
}

TW_INLINE float added(float a, float b) { return a + b; }
TW_INLINE double added(double a, double b) { return a + b; }
template <class Integer>
TW_INLINE Integer added(Integer a, Integer b) {
    __builtin_add_overflow(a, b, &a);  // wraps, as the hardware does
    return a;
}

}  // namespace emulated

TW_INLINE void barrier_sync(int id, int threads) { emulated::tw_sync_named(id, threads); }
TW_INLINE void barrier_arrive(int id, int threads) { emulated::tw_arrive_named(id, threads); }

template <class T>
TW_INLINE T shuffle_xor(T value, int lane_bits) {
    return emulated::shuffled(value, (tw_lane() ^ lane_bits) & 31);
}
template <class T>
TW_INLINE T shuffle_up(T value, int distance) {
    return emulated::shuffled(value, tw_lane() < distance ? tw_lane() : tw_lane() - distance);
}
template <class T>
TW_INLINE T shuffle_down(T value, int distance) {
    return emulated::shuffled(value, tw_lane() + distance > 31 ? tw_lane() : tw_lane() + distance);
}
template <class T>
TW_INLINE T shuffle_from(T value, int lane) {
    return emulated::shuffled(value, lane & 31);
}

template <int lanes, class T>
TW_INLINE void transpose_lanes(T* elements) {
    static_assert(lanes == 2 || lanes == 4, "2 or 4 lanes exchange words");
    constexpr int registers = sizeof(T) / 2;  // of a word
    unsigned words[lanes * registers];
    __builtin_memcpy(words, elements, sizeof(words));
    const int lane = tw_lane() % lanes;
    for (int bit = 1; bit < lanes; bit *= 2)
        for (int i = 0; i < lanes * registers; ++i) {
            const int other = i ^ bit * registers;
            if (other < i) continue;
            unsigned& sent = words[lane & bit ? i : other];
            sent = shuffle_xor(sent, bit);
        }
    __builtin_memcpy(elements, words, sizeof(words));
}

// Threads change only inside of hooks: what follows one is not interrupted.
template <class T>
TW_HOOK void atomic_add(T* memory, T value) {
    tw_hooks.atomic(memory, sizeof(T), TW_CALLER);
    *memory = emulated::added(*memory, value);
}
template <class T>
TW_HOOK void atomic_min(T* memory, T value) {
    tw_hooks.atomic(memory, sizeof(T), TW_CALLER);
    if (value < *memory) *memory = value;
}
template <class T>
TW_HOOK void atomic_max(T* memory, T value) {
    tw_hooks.atomic(memory, sizeof(T), TW_CALLER);
    if (value > *memory) *memory = value;
}
TW_HOOK void take_ticket(int* ticket, unsigned* counter, int tickets, int first) {
    tw_hooks.atomic(counter, sizeof(*counter), TW_CALLER);
    *ticket = first + int(*counter);
    *counter = *counter >= unsigned(tickets) - 1 ? 0 : *counter + 1;
}

}  // namespace tw
