//: atomic_add
template <class T>
__device__ inline void atomic_add(T* memory, T value) { atomicAdd(memory, value); }
__device__ inline void atomic_add(long long* memory, long long value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(memory), (unsigned long long)value);
}

//: atomic_min
template <class T>
__device__ inline void atomic_min(T* memory, T value) { atomicMin(memory, value); }

//: atomic_max
template <class T>
__device__ inline void atomic_max(T* memory, T value) { atomicMax(memory, value); }

//: take_ticket
// Of `tickets` that are taken in all, the last one sets the counter back to zero.
__device__ inline void take_ticket(int* ticket, unsigned* counter, int tickets, int first) {
    *ticket = first + int(atomicInc(counter, unsigned(tickets) - 1));
}
