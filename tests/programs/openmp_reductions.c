/* Reductions of every kind that a library may combine itself. Prints their results. */
#include <stdio.h>
#include <stdlib.h>

/* Longer than a page, and with data elsewhere. */
struct values {
    long many[600];
    long *block;
};

enum { BLOCK = 40000, LARGE = 200000 };

/* In long memory. */
static double large[LARGE];

static void add(struct values *into, const struct values *from) {
    for (int i = 0; i < 600; i++)
        into->many[i] += from->many[i];
    for (int i = 0; from->block && i < BLOCK; i++)
        into->block[i] += from->block[i];
}

static void begin(struct values *values) {
    for (int i = 0; i < 600; i++)
        values->many[i] = 0;
    values->block = calloc(BLOCK, sizeof *values->block);
}

#pragma omp declare reduction(add : struct values : add(&omp_out, &omp_in)) initializer(begin(&omp_priv))

static long shared_sum, entered;

/* A loop in a function of its own, with code behind it. */
static __attribute__((noinline)) void middle(void) {
#pragma omp for reduction(+ : shared_sum) nowait
    for (int i = 0; i < 50; i++)
        shared_sum += i;
#pragma omp atomic
    entered++;
}

/* The same without. */
static __attribute__((noinline)) void tail(void) {
#pragma omp for reduction(+ : shared_sum) nowait
    for (int i = 0; i < 50; i++)
        shared_sum += i;
}

int main(void) {
    long sum = 0, most = -1, last = 0, array[40] = {0};
    double real = 0;
    struct values all;
    begin(&all);
    for (int round = 0; round < 20; round++) {
#pragma omp parallel for reduction(+ : sum, real) reduction(max : most)
        for (int i = 0; i < LARGE; i++) {
            sum += i % 7;
            real += i % 5;
            most = i % 977 > most ? i % 977 : most;
            large[i] = i;
        }
#pragma omp parallel
        {
#pragma omp for reduction(add : all)
            for (int i = 0; i < BLOCK; i++) {
                all.block[i] += i;
                all.many[i % 600] += (long)large[i];
            }
#pragma omp for reduction(+ : array[:40]) lastprivate(last)
            for (int i = 0; i < 4000; i++) {
                array[i % 40] += i;
                last = i + round;
            }
            if (last != 3999 + round)
                abort();
#pragma omp for reduction(+ : sum) nowait
            for (int i = 0; i < 100; i++)
                sum += i;
#pragma omp barrier
            long before = sum;
#pragma omp barrier
#pragma omp for reduction(+ : sum)
            for (int i = 0; i < 100; i++)
                sum += i;
            if (sum != before + 4950)
                abort();
            middle();
#pragma omp barrier
            tail();
        }
#pragma omp parallel
        tail();
    }
    long in_block = 0, many = 0, elements = 0;
    for (int i = 0; i < BLOCK; i++)
        in_block += all.block[i];
    for (int i = 0; i < 600; i++)
        many += all.many[i];
    for (int i = 0; i < 40; i++)
        elements += array[i];
    printf("%ld %.1f %ld %ld %ld\n", sum, real, most, last, shared_sum);
    printf("%ld %ld %ld %d\n", in_block, many, elements, entered > 0);
    return 0;
}
