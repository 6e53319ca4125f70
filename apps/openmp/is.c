/* Sorts small integers by counting: threads count into histograms of their own, and write where the prefix
 * sums say. Usage: is [LOG2_KEYS]. The output does not depend on the number of threads. */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LOG2_RANGE = 11, RANGE = 1 << LOG2_RANGE, ROUNDS = 5 };

int main(int argc, char **argv) {
    long count = 1L << (argc > 1 ? atoi(argv[1]) : 20);
    int threads = omp_get_max_threads();
    uint32_t *keys = malloc(sizeof *keys * (size_t)count), *sorted = malloc(sizeof *sorted * (size_t)count);
    long(*histograms)[RANGE] = malloc(sizeof *histograms * (size_t)threads);
    uint64_t sum = 0;
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
#pragma omp parallel num_threads(threads)
        {
            int me = omp_get_thread_num();
            long *own = histograms[me];
            for (int key = 0; key < RANGE; key++)
                own[key] = 0;
#pragma omp for schedule(static)
            for (long i = 0; i < count; i++) {
                keys[i] = (uint32_t)((uint64_t)(i + round) * 2654435761u >> 7) % RANGE;
                own[keys[i]]++;
            }
#pragma omp single
            {
                long before = 0;
                for (int key = 0; key < RANGE; key++)
                    for (int thread = 0; thread < omp_get_num_threads(); thread++) {
                        long here = histograms[thread][key];
                        histograms[thread][key] = before;
                        before += here;
                    }
            }
#pragma omp for schedule(static)
            for (long i = 0; i < count; i++)
                sorted[own[keys[i]]++] = keys[i];
#pragma omp for schedule(dynamic, 4096) reduction(+ : sum, wrong)
            for (long i = 1; i < count; i++) {
                wrong += sorted[i - 1] > sorted[i];
                sum += (uint64_t)i * sorted[i];
            }
        }
    }
    printf("keys %ld sum %llu %s\n", count, (unsigned long long)sum, wrong ? "not sorted" : "sorted");
    return wrong != 0;
}
