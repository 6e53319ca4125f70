/* Threads fill an array that main has allocated, and rewrite it sweep by sweep: each its own part, or, if
 * asked to, the other's part. */

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 1 << 20, SWEEPS = 12 };

int main(int argc, char **argv)
{
    int crosswise = argc > 1 && strcmp(argv[1], "crosswise") == 0;
    int *values = malloc(LENGTH * sizeof *values);
    if (!values)
        return 1;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
#pragma omp parallel
        {
            int part = LENGTH / omp_get_num_threads();
            int number = omp_get_thread_num();
            if (crosswise)
                number = omp_get_num_threads() - 1 - number;
            for (int i = number * part; i < (number + 1) * part; i++)
                values[i] = i + sweep;
        }
    }
    long sum = 0;
    for (int i = 0; i < LENGTH; i++)
        sum += values[i];
    printf("%ld\n", sum);
    return 0;
}
