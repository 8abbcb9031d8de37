// Twins of ../types.cuh.
namespace tw {

struct f16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};
struct e4m3 {
    unsigned char bits;
};
struct e5m2 {
    unsigned char bits;
};

TW_INLINE unsigned float_bits(float x) { return __builtin_bit_cast(unsigned, x); }
TW_INLINE float bits_float(unsigned bits) { return __builtin_bit_cast(float, bits); }

/// The bits of a NaN as f16 or bf16: the NaN of an unwritten register stays one.
TW_INLINE unsigned short bits_of_narrow_nan(unsigned magnitude) {
    return magnitude == emulated::Unwritten::FloatBits ? emulated::Unwritten::FloatBits >> 16 : 0x7fff;
}

TW_INLINE float cvt_f32_f16(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude == emulated::Unwritten::FloatBits >> 16) return bits_float(emulated::Unwritten::FloatBits);
    if (magnitude > 0x7c00) return bits_float(0x7fffffff);
    if (magnitude == 0x7c00) return bits_float(sign | 0x7f800000);
    return bits_float(sign | float_bits(bits_float(magnitude << 13) * 0x1p112f));  // from bias 15 to 127
}

TW_INLINE float cvt_f32_bf16(unsigned short bits) { return bits_float((unsigned)bits << 16); }

TW_INLINE f16 to_f16(float x) {
    const unsigned sign = float_bits(x) >> 16 & 0x8000, magnitude = float_bits(x) & 0x7fffffff;
    if (magnitude > 0x7f800000) return {bits_of_narrow_nan(magnitude)};
    if (magnitude >= 0x477ff000) return {(unsigned short)(sign | 0x7c00)};  // 65520 and more
    if (magnitude < 0x38800000)  // below 2^-14 steps are 2^-24: the ulp of 1/2
        return {(unsigned short)(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000))};
    return {(unsigned short)(sign | ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10))};
}

TW_INLINE bf16 to_bf16(float x) {
    const unsigned bits = float_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return {bits_of_narrow_nan(bits & 0x7fffffff)};
    return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

TW_INLINE f16 to_f16_alone(float x) { return to_f16(x); }
TW_INLINE bf16 to_bf16_alone(float x) { return to_bf16(x); }

TW_INLINE int to_i32(double x) {
    return x != x ? 0 : x >= 0x1p31 ? 0x7fffffff : x < -0x1p31 ? -0x7fffffff - 1 : (int)x;
}
TW_INLINE int to_i32(float x) { return to_i32((double)x); }
TW_INLINE int round_to_i32(float x) { return to_i32(__builtin_rint((double)x)); }
TW_INLINE unsigned to_u32(double x) { return x >= 0x1p32 ? 0xffffffff : x > 0 ? (unsigned)x : 0; }
TW_INLINE unsigned to_u32(float x) { return to_u32((double)x); }
TW_INLINE long long to_i64(double x) {
    return x != x ? 0 : x >= 0x1p63 ? 0x7fffffffffffffff : x < -0x1p63 ? -0x7fffffffffffffff - 1 : (long long)x;
}
TW_INLINE long long to_i64(float x) { return to_i64((double)x); }

}  // namespace tw
