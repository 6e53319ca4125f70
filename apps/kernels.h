/*
 * What the kernels of the NAS Parallel Benchmarks share (D. Bailey and others, "The NAS Parallel
 * Benchmarks", RNR-94-007, 1994): their pseudo-random numbers and their classes of problems.
 */
#ifndef HIROBA_APPS_KERNELS_H
#define HIROBA_APPS_KERNELS_H

/*
 * The numbers are x -> a x mod 2^46 with a = 5^13, divided by 2^46 (section 2.3 of the report, which
 * does this in pieces of 23 bits). Modulo a smaller power of two, what overflows 64 bits is lost
 * rightly, so here each is one product of integers.
 */
static const uint64_t MULTIPLIER = UINT64_C(1220703125);
static const uint64_t MODULUS_MASK = (UINT64_C(1) << 46) - 1;

/* a^steps modulo 2^46: times this, the sequence jumps ahead by so many numbers. */
static inline uint64_t jump(uint64_t a, uint64_t steps)
{
    uint64_t power = 1;
    for (; steps != 0; steps >>= 1, a *= a)
        power = (steps & 1) != 0 ? power * a : power;
    return power & MODULUS_MASK;
}

/* The next number, from 0 to 1, and the state behind it. */
static inline double next_number(uint64_t *state)
{
    *state = *state * MULTIPLIER & MODULUS_MASK;
    return (double)*state * 0x1p-46;
}

/* The class's place among "SWA"; -1 and a complaint if the word is none. */
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
