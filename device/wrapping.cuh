//: wrapping_add common
/// Two's complement: what leaves the type wraps.
__device__ inline int wrapping_add(int a, int b) { return (int)((unsigned)a + (unsigned)b); }
__device__ inline long long wrapping_add(long long a, long long b) {
    return (long long)((unsigned long long)a + (unsigned long long)b);
}

//: wrapping_sub common
__device__ inline int wrapping_sub(int a, int b) { return (int)((unsigned)a - (unsigned)b); }
__device__ inline long long wrapping_sub(long long a, long long b) {
    return (long long)((unsigned long long)a - (unsigned long long)b);
}

//: wrapping_mul common
__device__ inline int wrapping_mul(int a, int b) { return (int)((unsigned)a * (unsigned)b); }
__device__ inline long long wrapping_mul(long long a, long long b) {
    return (long long)((unsigned long long)a * (unsigned long long)b);
}
