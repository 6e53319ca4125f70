/* Parallel merge sort: one thread for each half, down to a given depth. Usage: sort [COUNT [DEPTH]]. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct piece {
    uint32_t *values, *room;
    size_t count;
    int depth;
};

static int compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static void *sort(void *argument)
{
    struct piece *piece = argument;
    if (piece->depth == 0) {
        qsort(piece->values, piece->count, sizeof *piece->values, compare);
        return NULL;
    }
    size_t half = piece->count / 2;
    struct piece low = {piece->values, piece->room, half, piece->depth - 1};
    struct piece high = {piece->values + half, piece->room + half, piece->count - half, piece->depth - 1};
    pthread_t thread;
    if (pthread_create(&thread, NULL, sort, &low) != 0)
        exit(1);
    sort(&high);
    pthread_join(thread, NULL);
    size_t i = 0, j = half, k = 0;
    while (k < piece->count) {
        int takes_low = j == piece->count || (i < half && piece->values[i] <= piece->values[j]);
        piece->room[k++] = piece->values[takes_low ? i++ : j++];
    }
    memcpy(piece->values, piece->room, piece->count * sizeof *piece->values);
    return NULL;
}

int main(int argc, char **argv)
{
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 200000;
    int depth = argc > 2 ? atoi(argv[2]) : 2;
    uint32_t *values = malloc(count * sizeof *values), *room = malloc(count * sizeof *room), seed = 1, sum = 0;
    if (!values || !room)
        return 1;
    for (size_t i = 0; i < count; i++)
        values[i] = seed = seed * 1664525u + 1013904223u;
    struct piece all = {values, room, count, depth};
    sort(&all);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && values[i - 1] > values[i])
            return 2;
        sum = sum * 31 + values[i];
    }
    printf("%zu values in order, checksum %08x\n", count, sum);
    return 0;
}
