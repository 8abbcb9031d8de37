// Registers before anything is written there. The emulator puts leave_unwritten() behind each declaration of a kernel
// that has no initialiser: the compiler cannot know the value, and takes it away where something is written first. Of
// floats it is a NaN that arithmetic passes on, so that it is found where it ends; see runtime/emulator/README.md.
namespace tw::emulated {

TW_STATE unsigned tw_unwritten_float() { return tw_unwritten.float_bits; }
TW_STATE unsigned tw_unwritten_integer() { return tw_unwritten.integer_bits; }
constexpr unsigned short high_half_of_unwritten = Unwritten::FloatBits >> 16;

TW_INLINE bool is_unwritten(float x) { return (float_bits(x) & 0x7fffffff) == Unwritten::FloatBits; }
TW_INLINE bool is_unwritten(double x) { return is_unwritten((float)x); }

TW_INLINE void leave_unwritten(float& x) { x = bits_float(tw_unwritten_float()); }
TW_INLINE void leave_unwritten(double& x) { x = (double)bits_float(tw_unwritten_float()); }
TW_INLINE void leave_unwritten(bf16& x) { x.bits = (unsigned short)(tw_unwritten_float() >> 16); }
TW_INLINE void leave_unwritten(f16& x) { x.bits = (unsigned short)(tw_unwritten_float() >> 16); }
/// NaN, or the largest number where floats are infinite, as which e5m2 is.
TW_INLINE unsigned char fp8_of_unwritten(unsigned char largest) {
    const unsigned bits = tw_unwritten_float();
    return (unsigned char)((bits >> 24 & 0x80) | ((bits & 0x7fffffff) == Unwritten::FloatBits ? 0x7f : largest));
}
TW_INLINE void leave_unwritten(e4m3& x) { x.bits = fp8_of_unwritten(0x7e); }
TW_INLINE void leave_unwritten(e5m2& x) { x.bits = fp8_of_unwritten(0x7c); }
TW_INLINE void leave_unwritten(bool& x) { x = tw_unwritten_integer() & 1; }
TW_INLINE void leave_unwritten(signed char& x) { x = (signed char)tw_unwritten_integer(); }
TW_INLINE void leave_unwritten(unsigned char& x) { x = (unsigned char)tw_unwritten_integer(); }
TW_INLINE void leave_unwritten(short& x) { x = (short)tw_unwritten_integer(); }
TW_INLINE void leave_unwritten(unsigned short& x) { x = (unsigned short)tw_unwritten_integer(); }
TW_INLINE void leave_unwritten(int& x) { x = (int)tw_unwritten_integer(); }
TW_INLINE void leave_unwritten(unsigned& x) { x = tw_unwritten_integer(); }
TW_INLINE void leave_unwritten(long long& x) { x = (int)tw_unwritten_integer(); }
TW_INLINE void leave_unwritten(unsigned long long& x) { x = tw_unwritten_integer(); }
/// Arrays of no elements, which bind to no other parameter.
template <class T>
TW_INLINE void leave_unwritten(T&) {
    static_assert(sizeof(T) == 0, "registers of this type have no value that tells that nothing was written there");
}
template <class T, int N>
TW_INLINE void leave_unwritten(T (&registers)[N]) {
    for (int i = 0; i < N; ++i) leave_unwritten(registers[i]);
}

/// What min and max make of a NaN: the other operand, but for an unwritten register.
template <class Float>
TW_UNSEEN __attribute__((noinline, const)) Float chosen_beside_nan(Float a, Float b) {
    if (is_unwritten(a)) return a;
    if (is_unwritten(b)) return b;
    return a == a ? a : b == b ? b : (Float)bits_float(0x7fffffff);
}

}  // namespace tw::emulated
