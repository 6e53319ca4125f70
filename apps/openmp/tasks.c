/* Tasks: sorts an array by merging halves, counts the places of queens on a board, and runs a wave front
 * of blocks whose tasks depend on their neighbours. Usage: tasks [KEYS [QUEENS]]. The output does not
 * depend on the number of threads. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAF = 2048, BLOCKS = 12, SIDE = 32, WIDTH = BLOCKS * SIDE };

static void merge(const uint32_t *left, long lefts, const uint32_t *right, long rights, uint32_t *to) {
    while (lefts && rights)
        *to++ = *left <= *right ? (lefts--, *left++) : (rights--, *right++);
    memcpy(to, lefts ? left : right, sizeof *to * (size_t)(lefts + rights));
}

static int compare(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static void sort(uint32_t *keys, uint32_t *spare, long count) {
    if (count <= LEAF) {
        qsort(keys, (size_t)count, sizeof *keys, compare);
        return;
    }
    long half = count / 2;
#pragma omp task
    sort(keys, spare, half);
#pragma omp task
    sort(keys + half, spare + half, count - half);
#pragma omp taskwait
    merge(keys, half, keys + half, count - half, spare);
    memcpy(keys, spare, sizeof *keys * (size_t)count);
}

static long queens(int size, int row, unsigned columns, unsigned up, unsigned down) {
    if (row == size)
        return 1;
    long found = 0;
    for (unsigned place = 0; place < (unsigned)size; place++) {
        unsigned bit = 1u << place;
        if ((columns | up | down) & bit)
            continue;
#pragma omp task shared(found) if (row < 3)
        {
            long here = queens(size, row + 1, columns | bit, (up | bit) << 1, (down | bit) >> 1);
#pragma omp atomic
            found += here;
        }
    }
#pragma omp taskwait
    return found;
}

static double wave[WIDTH + 1][WIDTH + 1];

static void relax(int row, int column) {
    for (int i = row * SIDE + 1; i <= (row + 1) * SIDE; i++)
        for (int j = column * SIDE + 1; j <= (column + 1) * SIDE; j++)
            wave[i][j] = (wave[i - 1][j] + wave[i][j - 1]) / 2 + 1;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 200000;
    int size = argc > 2 ? atoi(argv[2]) : 10;
    uint32_t *keys = malloc(sizeof *keys * (size_t)count), *spare = malloc(sizeof *spare * (size_t)count);
    long places = 0, sum = 0;
#pragma omp parallel
    {
#pragma omp for
        for (long i = 0; i < count; i++)
            keys[i] = (uint32_t)i * 2654435761u;
#pragma omp single
        {
            sort(keys, spare, count);
            places = queens(size, 0, 0, 0, 0);
#pragma omp taskgroup
            for (int row = 0; row < BLOCKS; row++)
                for (int column = 0; column < BLOCKS; column++) {
#pragma omp task depend(in : wave[row * SIDE][column * SIDE + SIDE], wave[row * SIDE + SIDE][column * SIDE]) \
    depend(out : wave[row * SIDE + SIDE][column * SIDE + SIDE])
                    relax(row, column);
                }
#pragma omp taskloop reduction(+ : sum) grainsize(1000)
            for (long i = 0; i < count; i++)
                sum += (long)(keys[i] >> 16) * (i & 15);
        }
    }
    int sorted = 1;
    for (long i = 1; i < count; i++)
        sorted &= keys[i - 1] <= keys[i];
    printf("%s, sum %ld\n%ld places of %d queens\n", sorted ? "sorted" : "not sorted", sum, places, size);
    printf("wave %.6f %.6f\n", wave[WIDTH / 2][WIDTH], wave[WIDTH][WIDTH]);
    return !sorted;
}
