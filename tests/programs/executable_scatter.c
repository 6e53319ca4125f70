// Random scatter into static arrays, as in a sort by ranks: threads of all nodes store to each page.

#include <stdio.h>

enum { COUNT = 1 << 16, ROUNDS = 5 };

static int keys[COUNT], ranks[COUNT], sums[COUNT];

int main(void) {
#pragma omp parallel for
    for (int i = 0; i < COUNT; i++) keys[i] = (int)(i * 2654435761u % COUNT);
    for (int round = 0; round < ROUNDS; round++) {
#pragma omp parallel for
        for (int i = 0; i < COUNT; i++) ranks[keys[i]] = i + round;
#pragma omp parallel for
        for (int i = 0; i < COUNT; i++) sums[i] += ranks[i];
    }
    long sum = 0;
    for (int i = 0; i < COUNT; i++) sum += sums[i] * (long)(i % 7);
    printf("%ld\n", sum);
    return 0;
}
