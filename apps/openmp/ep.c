/* Pairs of Gaussian deviates by rejection, counted by the square ring that they fall into: each thread
 * makes its own blocks of random numbers. Usage: ep [LOG2_PAIRS]. The output does not depend on the number
 * of threads. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LOG2_BLOCK = 12, BLOCK = 1 << LOG2_BLOCK, RINGS = 10 };

static double numbers[2 * BLOCK];
static uint64_t counts[RINGS];
#pragma omp threadprivate(numbers, counts)

/* The state after so many steps of a linear congruential generator modulo 2^64. */
static uint64_t after(uint64_t state, uint64_t steps) {
    uint64_t factor = 6364136223846793005u, addend = 1442695040888963407u;
    for (; steps; steps >>= 1) {
        if (steps & 1)
            state = state * factor + addend;
        addend *= factor + 1;
        factor *= factor;
    }
    return state;
}

static void fill(uint64_t block) {
    uint64_t state = after(271828183, 2 * block * BLOCK);
    for (int i = 0; i < 2 * BLOCK; i++) {
        state = after(state, 1);
        numbers[i] = (double)(state >> 11) * 0x1p-52 - 1;
    }
}

int main(int argc, char **argv) {
    int log2_pairs = argc > 1 ? atoi(argv[1]) : 22;
    long blocks = 1L << (log2_pairs - LOG2_BLOCK);
    uint64_t total[RINGS] = {0}, accepted = 0;
    double x_sum = 0, y_sum = 0;
#pragma omp parallel
    {
        for (int ring = 0; ring < RINGS; ring++)
            counts[ring] = 0;
#pragma omp for reduction(+ : x_sum, y_sum, accepted)
        for (long block = 0; block < blocks; block++) {
            fill((uint64_t)block);
            for (int i = 0; i < BLOCK; i++) {
                double x = numbers[2 * i], y = numbers[2 * i + 1], square = x * x + y * y;
                if (square > 1 || square == 0)
                    continue;
                double scale = sqrt(-2 * log(square) / square);
                double larger = fmax(fabs(x * scale), fabs(y * scale));
                counts[(int)larger]++;
                x_sum += x * scale;
                y_sum += y * scale;
                accepted++;
            }
        }
#pragma omp critical
        for (int ring = 0; ring < RINGS; ring++)
            total[ring] += counts[ring];
    }
    printf("pairs %ld accepted %llu\nsums %.6f %.6f\n", blocks * BLOCK, (unsigned long long)accepted, x_sum, y_sum);
    for (int ring = 0; ring < RINGS; ring++)
        printf("%d %llu\n", ring, (unsigned long long)total[ring]);
    return 0;
}
