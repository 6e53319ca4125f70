/* Regions of teams of all sizes in turn. Usage: openmp_sizes ROUNDS. Prints which threads were missing and
 * returns 1, or "all came". */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64 };

static int came[MOST];

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100, most = omp_get_max_threads(), wrong = 0;
    for (int round = 1; round <= rounds; round++)
        for (int threads = most < MOST ? most : MOST; threads > 0; threads--) {
            int name = round * MOST + threads;
#pragma omp parallel num_threads(threads)
            came[omp_get_thread_num()] = name;
            for (int thread = 0; thread < threads; thread++)
                if (came[thread] != name && wrong++ < 10)
                    printf("round %d: thread %d of %d did not come\n", round, thread, threads);
        }
    if (!wrong)
        printf("all came\n");
    return wrong != 0;
}
