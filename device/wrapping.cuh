//: wrapping_add_i32 common
/// Two's complement: what leaves the type wraps.
__device__ inline int wrapping_add(int a, int b) { return (int)((unsigned)a + (unsigned)b); }

//: wrapping_add_i64 common
/// Two's complement: what leaves the type wraps.
__device__ inline long long wrapping_add(long long a, long long b) {
    return (long long)((unsigned long long)a + (unsigned long long)b);
}

//: wrapping_add common needs wrapping_add_i32 wrapping_add_i64

//: wrapping_sub_i32 common
__device__ inline int wrapping_sub(int a, int b) { return (int)((unsigned)a - (unsigned)b); }

//: wrapping_sub_i64 common
__device__ inline long long wrapping_sub(long long a, long long b) {
    return (long long)((unsigned long long)a - (unsigned long long)b);
}

//: wrapping_sub common needs wrapping_sub_i32 wrapping_sub_i64

//: wrapping_mul_i32 common
__device__ inline int wrapping_mul(int a, int b) { return (int)((unsigned)a * (unsigned)b); }

//: wrapping_mul_i64 common
__device__ inline long long wrapping_mul(long long a, long long b) {
    return (long long)((unsigned long long)a * (unsigned long long)b);
}

//: wrapping_mul common needs wrapping_mul_i32 wrapping_mul_i64

//: shift_left common
/// All bits are out behind 31 steps.
__device__ inline unsigned shift_left(unsigned a, unsigned b) { return b < 32u ? a << b : 0u; }

//: shift_right common
/// All bits are out behind 31 steps.
__device__ inline unsigned shift_right(unsigned a, unsigned b) { return b < 32u ? a >> b : 0u; }

//: mul_high common
/// The upper 32 bits of the product.
__device__ inline unsigned mul_high(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
