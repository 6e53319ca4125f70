/* Updates of shared variables that a barrier follows, in forms that gcc makes. Usage: openmp_updates kinds |
 * signals | sum. */
#include <complex.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1000, LONG = 100000 };

static double values[COUNT];
static double real_sum, product = 1, largest = -1;
static float short_sum;
static int number_product = 1, bits = -1, most, all_positive = 1, any_bits, odd_bits;
static long fewest = 1000;
static _Bool is_any;
static double _Complex complex_sum;
static long double long_sum;
static unsigned char byte_sum;

/* One loop for each kind, all behind a barrier of their own. */
static void in_a_region(void) {
#pragma omp parallel
    {
#pragma omp for reduction(+ : real_sum)
        for (int i = 0; i < COUNT; i++)
            real_sum += values[i];
#pragma omp for reduction(* : product)
        for (int i = 0; i < 20; i++)
            product *= i % 3 + 1;
#pragma omp for reduction(max : largest)
        for (int i = 0; i < COUNT; i++)
            largest = values[i] > largest ? values[i] : largest;
#pragma omp for reduction(+ : short_sum)
        for (int i = 0; i < COUNT; i++)
            short_sum += (float)values[i];
#pragma omp for reduction(* : number_product)
        for (int i = 0; i < 20; i++)
            number_product *= i % 3 + 1;
#pragma omp for reduction(& : bits)
        for (int i = 0; i < COUNT; i++)
            bits &= 0xff00 | i;
#pragma omp for reduction(| : any_bits) nowait
        for (int i = 0; i < COUNT; i++)
            any_bits |= i;
#pragma omp for reduction(^ : odd_bits)
        for (int i = 0; i < COUNT; i++)
            odd_bits ^= i * 5;
#pragma omp for reduction(max : most) schedule(dynamic, 10)
        for (int i = 0; i < COUNT; i++)
            most = i % 97 > most ? i % 97 : most;
#pragma omp for reduction(min : fewest)
        for (int i = 0; i < COUNT; i++)
            fewest = i + 3 < fewest ? i + 3 : fewest;
#pragma omp for reduction(&& : all_positive)
        for (int i = 0; i < COUNT; i++)
            all_positive = all_positive && values[i] > 0;
#pragma omp for reduction(|| : is_any)
        for (int i = 0; i < COUNT; i++)
            is_any = is_any || values[i] == 7;
#pragma omp for reduction(+ : complex_sum)
        for (int i = 0; i < COUNT; i++)
            complex_sum += i % 5 + i % 3 * I;
#pragma omp for reduction(+ : long_sum)
        for (int i = 0; i < COUNT; i++)
            long_sum += i;
#pragma omp for reduction(+ : byte_sum)
        for (int i = 0; i < COUNT; i++)
            byte_sum += i;
#pragma omp for reduction(+ : real_sum) reduction(max : most) reduction(* : product)
        for (int i = 0; i < 10; i++) {
            real_sum += i;
            most = 90 + i > most ? 90 + i : most;
            product *= 2;
        }
#pragma omp sections reduction(+ : long_sum)
        {
#pragma omp section
            long_sum += 5;
#pragma omp section
            long_sum += 7;
        }
    }
}

/* Regions whose ends are the barriers, with variables of the calling function. */
static double of_regions(int rounds) {
    double sum = 0, square = 0, least = 1e9;
    long counted = 0;
    for (int round = 0; round < rounds; round++) {
#pragma omp parallel for reduction(+ : sum)
        for (int i = 0; i < COUNT; i++)
            sum += values[i] * round;
#pragma omp parallel for reduction(+ : sum, square) reduction(min : least)
        for (int i = 0; i < COUNT; i++) {
            sum += values[i];
            square += values[i] * values[i];
            least = values[i] < least ? values[i] : least;
        }
#pragma omp parallel reduction(+ : counted)
        counted += omp_get_thread_num() == 0;
        if (sum < 0)
            abort();
    }
    return sum + square + least + (double)counted;
}

static void kinds(void) {
    for (int i = 0; i < COUNT; i++)
        values[i] = i % 11 + 1;
    for (int round = 0; round < 5; round++)
        in_a_region();
    printf("%.1f %.1f %.1f %.1f %d\n", real_sum, product, largest, short_sum, number_product);
    printf("%d %d %d %d %ld %d %d\n", bits, any_bits, odd_bits, most, fewest, all_positive, is_any);
    printf("%.1f %.1f %.1Lf %d\n", creal(complex_sum), cimag(complex_sum), long_sum, byte_sum);
    printf("%.1f\n", of_regions(20));
}

static int arrived, released;
static long data[LONG];

/* An update before a barrier that another thread waits for: it must not wait for the barrier. */
static void signals(void) {
    for (int round = 1; round <= 8; round++) {
        int threads = 1;
#pragma omp parallel shared(threads)
        {
            int me = omp_get_thread_num(), seen = 0;
#pragma omp single
            threads = omp_get_num_threads();
            if (round % 2 ? me == 0 : me == threads - 1) {
                while (seen < threads - 1) {
#pragma omp atomic read acquire
                    seen = arrived;
                }
                for (int i = 0; i < threads; i++)
                    if (i != me && data[i * (LONG / 64)] != round)
                        abort();
                arrived = 0;
            } else {
                data[me * (LONG / 64)] = round;
#pragma omp atomic release
                arrived++;
            }
#pragma omp barrier
#pragma omp atomic
            released++;
        }
    }
    printf("%s\n", released >= 8 ? "as it is" : "lost");
}

/* Of numbers whose sum depends on their order. */
static void sum(void) {
    double all = 0;
    for (int round = 0; round < 10; round++) {
#pragma omp parallel for reduction(+ : all)
        for (int i = 1; i < COUNT; i++)
            all += 1.0 / i / (round + 1);
    }
    printf("%a\n", all);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "kinds") == 0)
        kinds();
    else if (strcmp(what, "signals") == 0)
        signals();
    else if (strcmp(what, "sum") == 0)
        sum();
    else
        return 2;
    return 0;
}
