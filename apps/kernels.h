/*
 * What the kernels of the NAS Parallel Benchmarks have in common (D. Bailey and others, "The NAS Parallel
 * Benchmarks", RNR-94-007, 1994): their pseudo-random numbers and their classes of problems.
 */
#ifndef HIROBA_APPS_KERNELS_H
#define HIROBA_APPS_KERNELS_H

/*
 * The numbers are x -> a x mod 2^46 with a = 5^13, divided by 2^46 (section 2.3 of the report, which computes
 * them in pieces of 23 bits). Here each number takes one integer product: an overflow of 64 bits does not
 * change the result modulo 2^46.
 */
static const uint64_t MULTIPLIER = UINT64_C(1220703125);
static const uint64_t MODULUS_MASK = (UINT64_C(1) << 46) - 1;

/* a^steps modulo 2^46. Multiplication by it advances the sequence by `steps` numbers. */
static inline uint64_t jump(uint64_t a, uint64_t steps)
{
    uint64_t power = 1;
    for (; steps != 0; steps >>= 1, a *= a)
        power = (steps & 1) != 0 ? power * a : power;
    return power & MODULUS_MASK;
}

/* Returns the next number, from 0 to 1, and advances the state. */
static inline double next_number(uint64_t *state)
{
    *state = *state * MULTIPLIER & MODULUS_MASK;
    return (double)*state * 0x1p-46;
}

/* Returns the index of the class in "SWA". Returns -1 and sets a complaint if the word is not a class. */
static inline int class_of(const char *word)
{
    const char *classes = "SWA";
    const char *at = word[0] != '\0' && word[1] == '\0' ? strchr(classes, word[0]) : NULL;
    if (at != NULL)
        return (int)(at - classes);
    complain("-c takes a class: S, W or A, not '%.40s'", word);
    return -1;
}

#endif
