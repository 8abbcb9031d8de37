//: f16
struct f16 { unsigned short bits; };

//: bf16
struct bf16 { unsigned short bits; };

//: e4m3
struct e4m3 { unsigned char bits; };

//: e5m2
struct e5m2 { unsigned char bits; };

//: bits
/// A float's bits, and back.
__device__ inline unsigned float_bits(float x) { return __float_as_uint(x); }
__device__ inline float bits_float(unsigned bits) { return __uint_as_float(bits); }

//: cvt_f32_f16
__device__ inline float cvt_f32_f16(unsigned short bits) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}

//: to_f32_f16 common needs f16 cvt_f32_f16
__device__ inline float to_f32(f16 x) { return cvt_f32_f16(x.bits); }

//: cvt_f32_bf16 needs bits
/// One instruction of a half of a word: a shift, or a mask of the upper one.
__device__ inline float cvt_f32_bf16(unsigned short bits) {
    return bits_float(static_cast<unsigned>(bits) << 16);
}

//: to_f32_bf16 common needs bf16 cvt_f32_bf16
__device__ inline float to_f32(bf16 x) { return cvt_f32_bf16(x.bits); }

//: to_f32_e4m3 common needs e4m3 bits cvt_f32_f16
__device__ inline float to_f32(e4m3 x) {
#if __CUDA_ARCH__ >= 890
    unsigned pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)x.bits));
    return cvt_f32_f16((unsigned short)pair);
#else
    const unsigned sign = (x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
    if (magnitude == 0x7f) return bits_float(0x7fffffff);
    // 2^120: bias 7 to 127.
    return bits_float(sign | float_bits(bits_float(magnitude << 20) * 1.32922799578491587e36f));
#endif
}

//: to_f32_e5m2 common needs e5m2 cvt_f32_f16
/// The upper half of an f16.
__device__ inline float to_f32(e5m2 x) { return cvt_f32_f16((unsigned short)(x.bits << 8)); }

//: to_f32 common needs to_f32_f16 to_f32_bf16 to_f32_e4m3 to_f32_e5m2

//: round_to_odd_f64 common needs bits
/// x in f32: itself, or of its two neighbours the one whose last bit is 1. Rounded again, to nearest in a format of
/// fewer bits (22 at most), that is x rounded once.
__device__ inline float round_to_odd(double x) {
    const float nearest = (float)x;
    if (nearest == x) return nearest;
    const bool beyond = x < 0 ? nearest < x : nearest > x;
    return bits_float((float_bits(nearest) - (beyond ? 1 : 0)) | 1);
}

//: round_to_odd_i32 common
/// x in f32: itself, or of its two neighbours the one whose last bit is 1. Rounded again, to nearest in a format of
/// fewer bits (22 at most), that is x rounded once.
__device__ inline float round_to_odd(int x) {
    const bool exact = x >= -0x1000000 && x <= 0x1000000;
    return (float)(exact ? x : (x & ~0xff) | (x & 0xff ? 0x100 : 0));
}

//: round_to_odd_u32 common
/// x in f32: itself, or of its two neighbours the one whose last bit is 1. Rounded again, to nearest in a format of
/// fewer bits (22 at most), that is x rounded once.
__device__ inline float round_to_odd(unsigned x) {
    const bool exact = x <= 0x1000000;
    return (float)(exact ? x : (x & ~0xffu) | (x & 0xff ? 0x100u : 0u));
}

//: round_to_odd_i64 common needs round_to_odd_f64
/// x in f32: itself, or of its two neighbours the one whose last bit is 1. Rounded again, to nearest in a format of
/// fewer bits (22 at most), that is x rounded once.
__device__ inline float round_to_odd(long long x) {
    const bool exact = x >= -0x20000000000000 && x <= 0x20000000000000;
    return round_to_odd((double)(exact ? x : (x & ~0x7ffll) | (x & 0x7ff ? 0x800 : 0)));
}

//: round_to_odd common needs round_to_odd_f64 round_to_odd_i32 round_to_odd_u32 round_to_odd_i64

//: to_f16 needs f16
__device__ inline f16 to_f16(float x) {
    f16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

//: to_f16_alone needs f16
/// For a number that is stored by itself: of several to_f16, ptxas makes pairs, which it may place where a wgmma that
/// writes the numbers is not done yet ("serialized").
__device__ inline f16 to_f16_alone(float x) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x), "f"(0.0f));
    return {(unsigned short)(pair >> 16)};
}

//: to_bf16 needs bf16
__device__ inline bf16 to_bf16(float x) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}

//: to_bf16_alone needs bf16
/// For a number that is stored by itself: of several to_bf16, ptxas makes pairs, which it may place where a wgmma that
/// writes the numbers is not done yet ("serialized").
__device__ inline bf16 to_bf16_alone(float x) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x), "f"(0.0f));
    return {(unsigned short)(pair >> 16)};
}

//: round_fp8 common needs bits
/// |x|, at most `largest`, rounded to nearest even in a format of 8 bits; the bits without the sign.
__device__ inline unsigned round_fp8(float x, int mantissa_bits, int smallest_exponent, float largest) {
    const float magnitude = bits_float(float_bits(x) & 0x7fffffff), limited = magnitude < largest ? magnitude : largest;
    const unsigned bits = float_bits(limited), drop = 23 - mantissa_bits;
    if ((int)(bits >> 23) - 127 >= smallest_exponent)
        return ((bits + ((1u << (drop - 1)) - 1) + (bits >> drop & 1)) >> drop) -
               ((unsigned)(smallest_exponent + 126) << mantissa_bits);
    // The ulp of a subnormal number.
    const float step = bits_float((unsigned)(smallest_exponent + 127 + 23 - mantissa_bits) << 23);
    return float_bits(limited + step) - float_bits(step);
}

//: to_e4m3 common needs e4m3 round_fp8
/// Saturates at 448.
__device__ inline e4m3 to_e4m3(float x) {
#if __CUDA_ARCH__ >= 890
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return {(unsigned char)pair};
#else
    if (x != x) return {0x7f};
    return {(unsigned char)(float_bits(x) >> 24 & 0x80 | round_fp8(x, 3, -6, 448.0f))};
#endif
}

//: to_e5m2 common needs e5m2 round_fp8
/// Saturates at 57344.
__device__ inline e5m2 to_e5m2(float x) {
#if __CUDA_ARCH__ >= 890
    unsigned short pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return {(unsigned char)pair};
#else
    if (x != x) return {0x7f};
    return {(unsigned char)(float_bits(x) >> 24 & 0x80 | round_fp8(x, 2, -14, 57344.0f))};
#endif
}

//: narrow_pair_e4m3 common needs to_e4m3
/// to_e4m3 of two neighbours.
__device__ inline void narrow_pair(e4m3* to, const float* from) {
#if __CUDA_ARCH__ >= 890
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(from[1]), "f"(from[0]));
    memcpy(to, &pair, 2);
#else
    to[0] = to_e4m3(from[0]), to[1] = to_e4m3(from[1]);
#endif
}

//: narrow_pair_e5m2 common needs to_e5m2
/// to_e5m2 of two neighbours.
__device__ inline void narrow_pair(e5m2* to, const float* from) {
#if __CUDA_ARCH__ >= 890
    unsigned short pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(from[1]), "f"(from[0]));
    memcpy(to, &pair, 2);
#else
    to[0] = to_e5m2(from[0]), to[1] = to_e5m2(from[1]);
#endif
}

//: to_tf32 common needs bits
/// Ten bits of mantissa, ties away from zero. By hand: cvt.rna.tf32 makes an infinity of a NaN.
__device__ inline float to_tf32(float x) {
    return bits_float(x != x ? 0x7fffffff : (float_bits(x) + 0x1000) & 0xffffe000);
}

//: truncate_tf32 common needs bits
/// Without the last 13 bits, which tensor cores leave out of f32 operands.
__device__ inline float truncate_tf32(float x) { return bits_float(float_bits(x) & 0xffffe000); }

//: to_i32_f32
/// To integers: toward zero, saturating, NaN to 0.
__device__ inline int to_i32(float x) { return __float2int_rz(x); }

//: to_i32_f64
/// To integers: toward zero, saturating, NaN to 0.
__device__ inline int to_i32(double x) { return x != x ? 0 : __double2int_rz(x); }

//: to_i32 common needs to_i32_f32 to_i32_f64

//: to_u32_f32
__device__ inline unsigned to_u32(float x) { return __float2uint_rz(x); }

//: to_u32_f64
__device__ inline unsigned to_u32(double x) { return x != x ? 0 : __double2uint_rz(x); }

//: to_u32 common needs to_u32_f32 to_u32_f64

//: to_i64_f32
__device__ inline long long to_i64(float x) { return x != x ? 0 : __float2ll_rz(x); }

//: to_i64_f64
__device__ inline long long to_i64(double x) { return x != x ? 0 : __double2ll_rz(x); }

//: to_i64 common needs to_i64_f32 to_i64_f64

//: round_to_i32
/// To the nearest integer, of two to the even one, saturating, NaN to 0: one conversion for round()'s and to_i32()'s.
__device__ inline int round_to_i32(float x) { return __float2int_rn(x); }

//: as_i8 common
/// The nearest number that the type has.
__device__ inline signed char as_i8(int whole) {
    return (signed char)(whole < -128 ? -128 : whole > 127 ? 127 : whole);
}

//: as_u8 common
__device__ inline unsigned char as_u8(int whole) { return (unsigned char)(whole < 0 ? 0 : whole > 255 ? 255 : whole); }

//: to_i8 common needs to_i32 as_i8
template <class Float>
__device__ inline signed char to_i8(Float x) { return as_i8(to_i32(x)); }

//: to_u8 common needs to_i32 as_u8
template <class Float>
__device__ inline unsigned char to_u8(Float x) { return as_u8(to_i32(x)); }

//: round_to_i8 common needs round_to_i32 as_i8
__device__ inline signed char round_to_i8(float x) { return as_i8(round_to_i32(x)); }

//: round_to_u8 common needs round_to_i32 as_u8
__device__ inline unsigned char round_to_u8(float x) { return as_u8(round_to_i32(x)); }

//: narrow_pair_i8 common needs round_to_i8
/// round_to_i8 of two neighbours: a single instruction, as compilers know it.
__device__ inline void narrow_pair(signed char* to, const float* from) {
#if __CUDA_ARCH__ >= 720
    const int first = __float2int_rn(from[0]), second = __float2int_rn(from[1]);
    unsigned pair;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(pair) : "r"(second), "r"(first));
    const unsigned short two = (unsigned short)pair;
    memcpy(to, &two, 2);
#else
    to[0] = round_to_i8(from[0]), to[1] = round_to_i8(from[1]);
#endif
}

//: narrow_pair_u8 common needs round_to_u8
/// round_to_u8 of two neighbours.
__device__ inline void narrow_pair(unsigned char* to, const float* from) {
#if __CUDA_ARCH__ >= 720
    const int first = __float2int_rn(from[0]), second = __float2int_rn(from[1]);
    unsigned pair;
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(pair) : "r"(second), "r"(first));
    const unsigned short two = (unsigned short)pair;
    memcpy(to, &two, 2);
#else
    to[0] = round_to_u8(from[0]), to[1] = round_to_u8(from[1]);
#endif
}

//: bit_cast common
/// The value of another type that has the bits of this one.
template <class To, class From>
__device__ inline To bit_cast(From x) {
    static_assert(sizeof(To) == sizeof(From), "as many bytes");
    return *reinterpret_cast<To*>(&x);
}
