// A library with large static arrays, for executable_statics.c.

enum { LONG = 1 << 16, COUNTS = 100 };

int table[1 << 16] = {[1] = 11};
static long counts[LONG], own[LONG];
static int set_by_constructor[LONG];

__attribute__((constructor)) static void set(void) { set_by_constructor[LONG / 2] = 42; }

void count_in_library(int thread) {
    long *place = &counts[LONG / 4 * 3];
    __asm__ volatile("" : "+r"(place));
    for (int i = 0; i < COUNTS; i++) {
        __atomic_fetch_add(&counts[LONG / 2], 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(place, 2, __ATOMIC_SEQ_CST);
        own[LONG / 2 + thread] += set_by_constructor[LONG / 2];
    }
}

int library_is_right(int threads) {
    int right = counts[LONG / 2] == threads * COUNTS && counts[LONG / 4 * 3] == 2 * threads * COUNTS;
    for (int thread = 0; thread < threads; thread++) right &= own[LONG / 2 + thread] == 42 * COUNTS;
    return right && table[100] == 300;
}
