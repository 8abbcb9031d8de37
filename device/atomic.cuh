//: atomic_add
template <class T>
__device__ inline void atomic_add(T* memory, T value) { atomicAdd(memory, value); }
__device__ inline void atomic_add(long long* memory, long long value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(memory), (unsigned long long)value);
}

//: atomic_min
template <class T>
__device__ inline void atomic_min(T* memory, T value) { atomicMin(memory, value); }
/// Floats of one sign are in the order of their bits, negative ones in the other direction. NaN is none's.
__device__ inline void atomic_min(float* memory, float value) {
    if (value != value) return;
    const int bits = __float_as_int(value);
    if (bits >= 0)
        atomicMin(reinterpret_cast<int*>(memory), bits);
    else
        atomicMax(reinterpret_cast<unsigned*>(memory), (unsigned)bits);
}

//: atomic_max
template <class T>
__device__ inline void atomic_max(T* memory, T value) { atomicMax(memory, value); }
/// Floats of one sign are in the order of their bits, negative ones in the other direction. NaN is none's.
__device__ inline void atomic_max(float* memory, float value) {
    if (value != value) return;
    const int bits = __float_as_int(value);
    if (bits >= 0)
        atomicMax(reinterpret_cast<int*>(memory), bits);
    else
        atomicMin(reinterpret_cast<unsigned*>(memory), (unsigned)bits);
}

//: take_ticket
// Of `tickets` that are taken in all, the last one sets the counter back to zero.
__device__ inline void take_ticket(int* ticket, unsigned* counter, int tickets, int first) {
    *ticket = first + int(atomicInc(counter, unsigned(tickets) - 1));
}
